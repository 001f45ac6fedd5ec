package report

import (
	"fmt"
	"time"

	"github.com/jedib0t/go-pretty/v6/text"

	"github.com/trueup/trueup/internal/image"
)

// What the text of many images has in common with that of one.

// Paint colours words, where the output has colours.
func (t *Text) Paint(c text.Color, s string) string { return t.paint(c, s) }

// FormatName is a format as its makers write it.
func FormatName(format string) string { return image.Title(format) }

// VolumeText names a file system, its label and its clusters.
func VolumeText(v *Volume) string { return volumeText(v) }

// ShellQuote makes a path that can be pasted into a shell.
func ShellQuote(s string) string { return shellQuote(s) }

// Seconds prints how long something took: in tenths of seconds, or in minutes and hours.
func Seconds(n float64) string {
	switch {
	case n < 0.05:
		return "less than 0.1 s"
	case n < 60:
		return fmt.Sprintf("%.1f s", n)
	}
	return time.Duration(n * float64(time.Second)).Round(time.Second).String()
}
