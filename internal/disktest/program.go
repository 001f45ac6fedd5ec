package disktest

import (
	"path/filepath"
	"testing"
)

// Program makes a program of a script for sh, in a new folder. Another process writes it, because a file that this
// process had open for writing could be busy.
func Program(t testing.TB, name, script string) (path string) {
	t.Helper()
	path = filepath.Join(t.TempDir(), name)
	RunInput(t, "#!/bin/sh\n"+script+"\n", "sh", "-c", `cat > "$0" && chmod 755 "$0"`, path)
	return path
}
