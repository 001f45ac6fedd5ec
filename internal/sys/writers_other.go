//go:build !linux

package sys

// Writers passes nothing: it is not known.
func Writers(string, func(w Writer) bool) {}

// Written returns false: it is not known. Windows shows it when the file is opened, see Folder.OpenHeld.
func (*File) Written() (yes, known bool) { return false, false }

// Shared returns nothing: it is not known.
func (*File) Shared() (yes, known bool) { return false, false }
