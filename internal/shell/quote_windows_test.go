package shell

import (
	"bytes"
	"os"
	"os/exec"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestMain(m *testing.M) {
	if os.Getenv("TRUEUP_PRINT_ARGUMENT") != "" {
		_, err := os.Stdout.WriteString(os.Args[1])
		if err != nil {
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// A program that cmd starts gets the very name, where the name needs no escape of PowerShell.
func TestCmdReadsTheQuotes(t *testing.T) {
	t.Setenv("TRUEUP_PRINT_ARGUMENT", "1")
	for _, name := range []string{
		`C:\t\xp.vmdk`, `C:\my disks\x.vmdk`, `C:\my disks\`, "it's", "a&b (c)", "é", "a,b=c", "x^y",
	} {
		cmd := exec.Command("cmd")
		cmd.SysProcAttr = &syscall.SysProcAttr{CmdLine: `cmd /s /c "` + os.Args[0] + " " + QuoteWindows(name) + `"`}
		out, err := cmd.Output()
		require.NoError(t, err, name)
		require.Equal(t, name, string(bytes.TrimSpace(out)))
	}
}
