package boot

import (
	"github.com/trueup/trueup/internal/ondisk"
)

// Distinct is what becomes of references that share bytes.
func Distinct(refs []Ref) (kept []Ref, clash *ondisk.Issue) { return distinct(refs) }

// ListedText is codes.json, and Picks are its possible values of "picks".
var (
	ListedText = codesText
	Picks      = picks
)

type ListedCode = listed
