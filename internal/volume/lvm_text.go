package volume

import (
	"strconv"
	"strings"

	"github.com/trueup/trueup/internal/ondisk"
)

// Bounds of sections: LVM writes four, one within another, and names of up to 127 characters.
const (
	lvmMaxDepth = 16
	lvmMaxName  = 128
)

// lvmScanner reads the text of LVM metadata: sections in braces, and keys with one value or a list. Only the text
// itself, which readText bounds, limits a token. Spec: LVM2, libdm/libdm-config.c, and lvm.conf(5).
type lvmScanner struct {
	text string
	pos  int
}

// lvmToken is a mark ({ } [ ] = ,), a word or a string. An empty mark is the end of the text.
type lvmToken struct {
	mark string
	word string
}

// isWord reports whether a token is a key or a value.
func (t lvmToken) isWord() bool { return t.mark == "w" }

// walkLVM calls visit for each key with the names of the sections around it.
func walkLVM(text []byte, visit func(path []string, key string, values []string)) error {
	s := &lvmScanner{text: string(text)}
	var path []string
	for {
		t, err := s.next()
		switch {
		case err != nil:
			return err
		case t.mark == "" && len(path) == 0:
			return nil
		case t.mark == "}" && len(path) > 0:
			path = path[:len(path)-1]
			continue
		case !t.isWord():
			return s.wrong(t, "the name of a section or a key")
		}
		is, err := s.next()
		switch {
		case err != nil:
			return err
		case is.mark == "{" && len(path) < lvmMaxDepth && len(t.word) <= lvmMaxName:
			path = append(path, t.word)
		case is.mark == "=":
			values, err := s.values()
			if err != nil {
				return err
			}
			visit(path, t.word, values)
		default:
			return s.wrong(is, "{ or =, within 16 sections of short names")
		}
	}
}

// values reads the value or the list behind an equals sign.
func (s *lvmScanner) values() ([]string, error) {
	t, err := s.next()
	if err != nil || t.isWord() {
		return []string{t.word}, err
	}
	if t.mark != "[" {
		return nil, s.wrong(t, "a value")
	}
	var out []string
	for {
		t, err := s.next()
		switch {
		case err != nil || t.mark == "]":
			return out, err
		case t.isWord():
			out = append(out, t.word)
		case t.mark != ",":
			return nil, s.wrong(t, "a value, a comma or ]")
		}
	}
}

// next returns the next token.
func (s *lvmScanner) next() (lvmToken, error) {
	s.skip()
	if s.pos == len(s.text) {
		return lvmToken{}, nil
	}
	rest := s.text[s.pos:]
	switch c := rest[0]; {
	case strings.IndexByte("{}[]=,", c) >= 0:
		s.pos++
		return lvmToken{mark: rest[:1]}, nil
	case c == '"' || c == '\'':
		return s.quoted(rest)
	}
	n := strings.IndexAny(rest, " \t\r\n{}[]=,#\"'")
	if n < 0 {
		n = len(rest)
	}
	s.pos += n
	return lvmToken{mark: "w", word: rest[:n]}, nil
}

// quoted reads a string. A backslash escapes a quote or another backslash.
func (s *lvmScanner) quoted(rest string) (lvmToken, error) {
	var b strings.Builder
	for i := 1; i < len(rest); i++ {
		switch c := rest[i]; {
		case c == rest[0]:
			s.pos += i + 1
			return lvmToken{mark: "w", word: b.String()}, nil
		case c == '\\' && i+1 < len(rest):
			i++
			b.WriteByte(rest[i])
		default:
			b.WriteByte(c)
		}
	}
	return lvmToken{}, s.wrong(lvmToken{}, "the end of a string")
}

// skip skips blanks and comments.
func (s *lvmScanner) skip() {
	for s.pos < len(s.text) {
		rest := s.text[s.pos:]
		switch blank := len(rest) - len(strings.TrimLeft(rest, " \t\r\n\x00")); {
		case blank > 0:
			s.pos += blank
		case rest[0] == '#':
			line, _, _ := strings.Cut(rest, "\n")
			s.pos += len(line)
		default:
			return
		}
	}
}

// wrong returns the error of an unexpected token, which was just read.
func (s *lvmScanner) wrong(t lvmToken, want string) error {
	got := t.word
	if !t.isWord() {
		got = t.mark
	}
	line := 1 + strings.Count(s.text[:s.pos], "\n")
	return ondisk.Field("lvm text", "token", int64(s.pos), got, want+" in line "+strconv.Itoa(line))
}
