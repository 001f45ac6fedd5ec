package realign

import (
	"fmt"
	"runtime"
	"strings"

	"github.com/trueup/trueup/internal/nbd"
	"github.com/trueup/trueup/internal/ondisk"
	"github.com/trueup/trueup/internal/shell"
)

// IsRemote reports whether a word of a command line is the address of an export or of a web server, and no file.
func IsRemote(word string) bool { return nbd.IsURI(word) || isWeb(word) }

// isWeb reports whether a word of a command line is a web address, which trueup does not read.
func isWeb(word string) bool {
	scheme, _, ok := strings.Cut(word, "://")
	return ok && (strings.EqualFold(scheme, "http") || strings.EqualFold(scheme, "https"))
}

// refuseWeb returns the refusal of a web address, with the command line that reads it. work is the path of a command
// or the name of a flag.
func refuseWeb(uri, work string) error {
	command := strings.TrimPrefix(work, "trueup ")
	switch command {
	case "align", "convert", "verify":
		command += ` "$uri" DEST`
	case "inspect", "plan":
		command += ` "$uri"`
	case "scan":
		command = `inspect "$uri"`
	default:
		command = `align "$uri" DEST`
	}
	remedy := fmt.Sprintf("nbdkit serves it: nbdkit -U - curl %s --run 'trueup %s'", shell.Quote(Shown(uri)), command)
	if !shell.ForBash(runtime.GOOS) {
		remedy = "download it first; there is no nbdkit on this system"
	}
	return fmt.Errorf("%s: %w", Shown(uri), &ondisk.Refusal{
		Code: "unsupported", Reason: "trueup reads files and exports of NBD, and no web addresses", Remedy: remedy,
	})
}

// CheckAddresses refuses addresses with blanks: in a text it could not be seen where they and their secrets end.
func CheckAddresses(words []string) error {
	for _, word := range words {
		scheme, rest, _ := strings.Cut(word, "://")
		if !IsRemote(word) || strings.EqualFold(scheme, "nbd+unix") && strings.HasPrefix(rest, "/") {
			continue // which has no secret
		}
		if strings.ContainsFunc(word, func(r rune) bool { return r <= ' ' || r == 0x7F }) {
			return ondisk.In(ondisk.ErrUsage, "an address of %.10q has a blank or a control character, want %%20 and "+
				"the like", scheme)
		}
	}
	return nil
}

// hiddenQuery stands for the query of a web address, which may hold a signature.
const hiddenQuery = "?..."

// address finds URIs in a text: the scheme, all up to the last @, since a password may have any character, the place,
// and the query.
var address = ondisk.LazyPattern(`(?i)\b(https?|nbds?(?:\+\w+)?)://(\S*@)?([^\s?#]*)([?#]\S*[^\s"':;,.)\]])?`)

// Shown returns a text, such as a message or a URI, without what may be secret in its URIs.
func Shown(text string) string {
	if !strings.Contains(text, "://") {
		return text
	}
	return address().ReplaceAllStringFunc(text, func(uri string) string {
		part := address().FindStringSubmatch(uri)
		scheme, secret, rest, query := part[1]+"://", part[2], part[3], part[4]
		switch web := isWeb(uri); {
		case web && strings.ContainsAny(secret, "?#"): // what follows may be of the query
			return scheme + hiddenQuery + rest[len(strings.TrimRight(rest, `"':;,.)]`)):]
		case web && query != "":
			rest += hiddenQuery
		case !web && strings.HasPrefix(secret, "/"): // an address without a host, which has no password
			return scheme + Shown(secret+rest+query)
		case !web:
			rest = Shown(rest + query) // of several in one word
		}
		if secret != "" {
			scheme += "...@"
		}
		return scheme + rest
	})
}
