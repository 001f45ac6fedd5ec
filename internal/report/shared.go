package report

import "github.com/jedib0t/go-pretty/v6/text"

// What the text of many images has in common with that of one.

// Paint colours words, where the output has colours.
func (t *Text) Paint(c text.Color, s string) string { return t.paint(c, s) }

// FormatName is a format as its makers write it.
func FormatName(format string) string { return formatName(format) }

// VolumeText names a file system, its label and its clusters.
func VolumeText(v *Volume) string { return volumeText(v) }

// ShellQuote makes a path that can be pasted into a shell.
func ShellQuote(s string) string { return shellQuote(s) }
