package boot

import (
	"github.com/trueup/trueup/internal/ondisk"
)

// Distinct is what becomes of references that share bytes.
func Distinct(refs []Ref) (kept []Ref, clash *ondisk.Issue) { return distinct(refs) }

// ListedText and Picks have what codes.json may say.
var (
	ListedText = codesText
	Picks      = picks
)

type ListedCode = listed
