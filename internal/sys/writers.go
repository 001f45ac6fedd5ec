package sys

// Writer is a process that has a file open for writing.
type Writer struct {
	PID     int    // 0: the kernel, by the loop device Program
	Program string // as the system shows it, at most a few letters
	File    Info
}
