package command

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"time"

	"github.com/trueup/trueup/internal/report"
)

// Log is where a run says when it began, and how it ended: one line each, in one write.
type Log struct {
	handler slog.Handler
	run     []slog.Attr // what both lines have
}

// jsonText is an object of JSON, which a log of text has as it is.
type jsonText []byte

// MarshalJSON returns the object.
func (j jsonText) MarshalJSON() ([]byte, error) { return j, nil }

// MarshalText returns the object.
func (j jsonText) MarshalText() ([]byte, error) { return j, nil }

// StartLog writes that a run begins. A run of which that cannot be written does not begin.
func (c *Base) StartLog(w io.Writer, format, command string, args []string) error {
	folder, err := os.Getwd()
	if err != nil {
		folder = err.Error() // a folder that was removed is no reason not to run
	}
	l := &Log{run: []slog.Attr{slog.String("command", command), slog.Int("pid", os.Getpid())}}
	if format == "json" {
		l.handler = slog.NewJSONHandler(w, nil)
	} else {
		l.handler = slog.NewTextHandler(w, nil)
	}
	c.log = l
	return l.write(slog.LevelInfo, "begins", slog.Any("args", args), slog.String("folder", folder),
		slog.Int("user", os.Getuid()), slog.String("version", c.Version))
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

// ended writes how a run ended: its exit code, its error, and its result as the JSON of the command has it.
func (c *Base) ended(err error, code int) error {
	if c.log == nil {
		return nil
	}
	level, about := slog.LevelInfo, []slog.Attr{slog.Int("exit_code", code)}
	if _, verdict := errors.AsType[VerdictError](err); err != nil && !verdict {
		level = slog.LevelError
		about = append(about, slog.String("error", report.Message(err)))
	}
	if c.Result != nil {
		text, err := json.Marshal(c.Result)
		if err != nil {
			return fmt.Errorf("--log: %w", err)
		}
		about = append(about, slog.Any("result", jsonText(text)))
	}
	return c.log.write(level, "ended", about...)
}
