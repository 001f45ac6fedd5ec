package opinion

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/signal"
	"path/filepath"
	"sync"

	"github.com/trueup/trueup/internal/disk"
	"github.com/trueup/trueup/internal/nbd"
	"github.com/trueup/trueup/internal/sys"
)

// hello is the first answer of a clerk.
type hello struct{ Folder, Error string }

// mostAnswer bounds what is read of a clerk, in bytes.
const mostAnswer = 4 << 20

// Panel asks judges through a clerk. It is made before the process confines itself.
type Panel struct {
	judges  []string
	folder  string
	clerk   *sys.Clerk
	answers *json.Decoder
	listens []net.Listener // by the order of sockets
}

// Open starts a clerk: this program, with args. The clerk ends when this process does, however that ends.
func Open(judge string, args ...string) (*Panel, error) {
	clerk, err := sys.StartClerk(os.Stderr, args...)
	if err != nil {
		return nil, fmt.Errorf("clerk of the second opinion: %w", err)
	}
	p := &Panel{judges: []string{judge}, clerk: clerk}
	p.answers = json.NewDecoder(io.LimitReader(p.clerk.Out, mostAnswer))
	var h hello
	if err = p.answers.Decode(&h); err == nil && h.Error != "" {
		err = errors.New(h.Error)
	}
	for _, name := range sockets {
		if err != nil {
			break
		}
		var l net.Listener
		if l, err = nbd.ListenUnix(filepath.Join(h.Folder, name)); err == nil {
			p.listens = append(p.listens, l)
		}
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("clerk of the second opinion: %w", err), p.Close())
	}
	p.folder = h.Folder
	return p, nil
}

// Leftovers lists what Close removes after the clerk was killed: files, and then their folder.
func (p *Panel) Leftovers() (paths []string) {
	for _, l := range p.listens {
		paths = append(paths, nbd.Leftovers(l)...)
	}
	return append(paths, p.folder)
}

// Close ends the clerk, all that it runs, and its files.
func (p *Panel) Close() error {
	for _, l := range p.listens {
		_ = l.Close() // the clerk removes the socket, too
	}
	err := p.clerk.Close()
	_ = os.RemoveAll(p.folder) // a clerk that was killed left it
	return err
}

// Disks are what judges read: the source as it is, the planned disk, and the copy.
type Disks struct{ Source, View, Copy disk.Disk }

// Ask asks the judges about a copy, once. It serves the disks meanwhile. The error is that of no answer.
func (p *Panel) Ask(ctx context.Context, d Disks, c Copy) (t Table, err error) {
	serving, end := context.WithCancel(ctx)
	var all sync.WaitGroup
	var unread broken
	for i, x := range []disk.Disk{d.Source, d.View, d.Copy} {
		s := nbd.Server{Export: nbd.Export{Disk: x}, Warn: unread.note}
		all.Go(func() { _ = s.Serve(serving, p.listens[i]) }) // a judge misses the disk, and says so
	}
	defer all.Wait()
	defer end()
	stop := context.AfterFunc(ctx, func() { _ = p.clerk.In.Close() }) // which ends the clerk
	defer stop()
	q := question{Judges: p.judges, Copy: c, Folder: p.folder}
	if err = json.NewEncoder(p.clerk.In).Encode(q); err == nil {
		err = p.answers.Decode(&t)
	}
	switch {
	case ctx.Err() != nil:
		return nil, ctx.Err()
	case unread.first() != nil:
		return nil, fmt.Errorf("read for the second opinion: %w", unread.first())
	case err != nil:
		return nil, fmt.Errorf("clerk of the second opinion: %w", err)
	}
	return t, nil
}

// broken keeps the first error of a read.
type broken struct {
	mu  sync.Mutex
	err error
}

func (b *broken) note(err error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.err == nil {
		b.err = err
	}
}

func (b *broken) first() error {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.err
}

// Serve is the clerk: it says where its folder is, answers one question, and ends with its input. Then what it runs has
// ended, and its folder is gone.
func Serve(in io.Reader, out io.Writer) error {
	// The end of the input is the only one. QEMU, which inherits this, ends by SIGTERM all the same, and guestfish is
	// left to remove its files.
	signal.Ignore(sys.EndSignals()...)
	// A caller that is gone makes writing to it an error, and not the end of this process: the folder is still there.
	signal.Notify(make(chan os.Signal, 1), sys.BrokenPipe)
	answers := json.NewEncoder(out)
	folder, err := os.MkdirTemp("", "trueup-opinion-")
	if err != nil {
		return answers.Encode(hello{Error: err.Error() + "; TMPDIR can name another place"})
	}
	defer os.RemoveAll(folder)
	if err := answers.Encode(hello{Folder: folder}); err != nil {
		return err
	}
	questions := json.NewDecoder(in)
	var q question
	if questions.Decode(&q) != nil {
		return nil // nothing was asked
	}
	q.Folder = folder
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	go func() {
		_, _ = io.Copy(io.Discard, in)
		cancel()
	}()
	t := q.judge(ctx)
	_ = os.RemoveAll(folder) // before the caller ends
	return answers.Encode(t)
}
