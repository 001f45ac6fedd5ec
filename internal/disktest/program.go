package disktest

import (
	"path/filepath"
	"testing"
)

// Program makes a program of a script for sh, with a name in a folder of its own. Another process writes it: a file
// that this one had open to write might be busy.
func Program(t testing.TB, name, script string) (path string) {
	t.Helper()
	path = filepath.Join(t.TempDir(), name)
	RunInput(t, "#!/bin/sh\n"+script+"\n", "sh", "-c", `cat > "$0" && chmod 755 "$0"`, path)
	return path
}
