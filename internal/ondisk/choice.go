package ondisk

import (
	"slices"
	"strings"
)

// NoChoice returns the usage error of a word that is none of the choices, such as the value of a flag. It suggests the
// choice with the most similar spelling.
func NoChoice(subject, word string, choices ...string) error {
	want := "one of " + strings.Join(choices, ", ")
	if len(choices) == 2 {
		want = choices[0] + " or " + choices[1]
	}
	return In(ErrUsage, "%s %.256q, want %s%s", subject, word, want, DidYouMean(word, choices...))
}

// DidYouMean returns the end of a message that suggests a choice, empty if none is similar.
func DidYouMean(word string, choices ...string) string {
	if near := Near(word, choices...); near != "" {
		return "; did you mean " + near + "?"
	}
	return ""
}

// Near returns the choice with the most similar spelling, empty if none is similar: two letters may differ, and one in
// a word of up to five. The only choice that begins with the word is similar, too.
func Near(word string, choices ...string) string {
	word = strings.ToLower(word)
	best, least := "", min(len(word)/3, 2)+1
	var begun []string
	for _, choice := range choices {
		lower := strings.ToLower(choice)
		if d := distance(word, lower); d < least && d < len(word) {
			best, least = choice, d
		}
		if len(word) > 1 && strings.HasPrefix(lower, word) {
			begun = append(begun, choice)
		}
	}
	if best == "" && len(begun) == 1 {
		return begun[0]
	}
	return best
}

// distance returns how many letters must be changed, added or left out to make one word of another: the distance of
// Levenshtein.
func distance(a, b string) int {
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		before := row[0]
		row[0] = i + 1
		for j := range len(b) {
			change := before
			if a[i] != b[j] {
				change++
			}
			before = row[j+1]
			row[j+1] = slices.Min([]int{change, row[j] + 1, row[j+1] + 1})
		}
	}
	return row[len(b)]
}
