package sys

// Writer is a process that has a file open for writing.
type Writer struct {
	PID     int
	Program string // as the system shows it, at most a few letters
	File    Info
}
