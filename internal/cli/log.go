package cli

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/trueup/trueup/internal/image/store"
	"github.com/trueup/trueup/internal/ondisk"
	"github.com/trueup/trueup/internal/realign"
	"github.com/trueup/trueup/internal/report"
)

// Log records the start and the end of a run: one line each, in one write, because a signal can end a run at any time.
// The zero value disables the log.
type Log struct {
	mu      sync.Mutex
	handler slog.Handler // nil without a log, or after its end
	run     []slog.Attr  // attributes of both lines
}

// Start records the start of a run, without secrets in URIs. If it fails, the run must not begin.
func (l *Log) Start(w io.Writer, version, command string, args []string) error {
	folder, err := os.Getwd()
	if err != nil {
		folder = err.Error() // a removed folder does not prevent the run
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.run = []slog.Attr{slog.String("command", command), slog.Int("pid", os.Getpid())}
	l.handler = slog.NewJSONHandler(w, nil)
	shown := make([]string, 0, len(args))
	for _, arg := range args {
		shown = append(shown, realign.Shown(arg))
	}
	err = l.write(slog.LevelInfo, "begins", slog.Any("args", shown), slog.String("folder", folder),
		slog.Int("user", os.Getuid()), slog.String("version", version))
	if err != nil {
		l.handler = nil
	}
	return err
}

func (l *Log) write(level slog.Level, message string, about ...slog.Attr) error {
	r := slog.NewRecord(time.Now(), level, message, 0)
	r.AddAttrs(l.run...)
	r.AddAttrs(about...)
	if err := l.handler.Handle(context.Background(), r); err != nil {
		return fmt.Errorf("--log: %w", err)
	}
	return nil
}

// end records the end of a run, once: its exit code, error, and JSON result.
func (l *Log) end(err error, code int, result any) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.handler == nil {
		return nil
	}
	level, about := slog.LevelInfo, []slog.Attr{slog.Int("exit_code", code)}
	if _, verdict := errors.AsType[VerdictError](err); err != nil && !verdict {
		level = slog.LevelError
		about = append(about, slog.String("error", report.Message(err)))
	}
	if result != nil {
		text, err := json.Marshal(result)
		if err != nil {
			return fmt.Errorf("--log: %w", err)
		}
		about = append(about, slog.Any("result", json.RawMessage(text)))
	}
	err = l.write(level, "ended", about...)
	l.handler = nil
	return err
}

// logMode hides the names of images from other users.
const logMode = 0o600

// logLine matches the beginning of a log line.
var logLine = ondisk.LazyPattern(`^\{"time":"\d{4}-\d\d-\d\dT\d\d:\d\d:`)

// OpenLog opens a log file for appending. It refuses a nonempty file that is no log, because it may be a disk. It also
// refuses a file that another argument names as an input or output.
func OpenLog(path string, args []string) (*os.File, error) {
	if arg := alsoNamed(path, args); arg != "" {
		return nil, Usage("--log %s is also %s; name another file", path, arg)
	}
	file, err := os.OpenFile(path, os.O_RDWR|os.O_APPEND|os.O_CREATE, logMode)
	if err != nil {
		return nil, Usage("--log: %w", err)
	}
	if err := readyLog(file); err != nil {
		file.Close()
		return nil, Usage("--log %s: %w", path, err)
	}
	return file, nil
}

// alsoNamed returns the argument that names the same file, including values of other flags and disks of a package.
func alsoNamed(path string, args []string) string {
	for _, arg := range args {
		value := arg
		if flag, of, ok := strings.Cut(arg, "="); ok && strings.HasPrefix(flag, "--") {
			if value = of; flag == "--log" {
				continue
			}
		}
		packed, _, _ := strings.Cut(value, "!")
		if store.SameFile(path, value) || store.SameFile(path, packed) {
			return arg
		}
	}
	return ""
}

// readyLog requires that a file is a log, and completes a truncated last line.
func readyLog(file *os.File) error {
	info, err := file.Stat()
	if err != nil {
		return err
	}
	if !info.Mode().IsRegular() {
		return errors.New("it is not a regular file; name one, or - for standard error")
	}
	if info.Size() == 0 {
		return nil
	}
	head, last := make([]byte, 32), make([]byte, 1)
	n, err := file.ReadAt(head, 0)
	if err != nil && !errors.Is(err, io.EOF) {
		return err
	}
	if !logLine().Match(head[:n]) {
		return fmt.Errorf("it begins with %q, not with {\"time\": as a log does; name another file", head[:n])
	}
	if _, err := file.ReadAt(last, info.Size()-1); err != nil || last[0] == '\n' {
		return err
	}
	_, err = file.WriteString("\n")
	return err
}
