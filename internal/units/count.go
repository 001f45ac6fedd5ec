package units

import "fmt"

// Counted prints a number with its noun: "1 file", "2 files".
func Counted[N int | int64](n N, noun string) string {
	if n == 1 {
		return "1 " + noun
	}
	return fmt.Sprintf("%d %ss", n, noun)
}
