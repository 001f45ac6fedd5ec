package ondisk

// Field returns a FormatError of a field of a structure. off is the place of the field in bytes.
func Field(what, name string, off int64, got, want any) error {
	return &FormatError{What: what, Off: off, Field: name, Got: got, Want: want}
}
