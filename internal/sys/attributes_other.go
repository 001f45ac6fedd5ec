//go:build !linux

package sys

// Adopt gives f the permissions of another file. lost is what this system has no implementation for.
func (f *File) Adopt(from *File) (lost []string, err error) {
	st, err := from.Stat()
	if err != nil {
		return nil, err
	}
	return []string{"owner and extended attributes"}, f.Chmod(st.Mode)
}

// Exchange gives two files each other's name, at once.
func (*Folder) Exchange(string, string) error { return needsLinux("an exchange of names") }

// Immovable is for Linux.
func (*File) Immovable() bool { return false }
