package cli

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"sync"
	"time"

	"github.com/trueup/trueup/internal/realign"
	"github.com/trueup/trueup/internal/report"
)

// Log is where a run says when it began, and how it ended: one line each, in one write. A signal ends a run at any
// moment. The zero value is no log.
type Log struct {
	mu      sync.Mutex
	handler slog.Handler // nil: none, or it has ended
	run     []slog.Attr  // what both lines have
}

// Start writes that a run begins, without secrets of URIs. A run of which that cannot be written does not begin.
func (l *Log) Start(w io.Writer, version, command string, args []string) error {
	folder, err := os.Getwd()
	if err != nil {
		folder = err.Error() // a folder that was removed is no reason not to run
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

// end writes how a run ended, once: its exit code, its error, and its result as the JSON of the command has it.
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
