package trial

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/trueup/trueup/internal/ondisk"
	"github.com/trueup/trueup/internal/shell"
	"github.com/trueup/trueup/internal/sys"
	"github.com/trueup/trueup/internal/trial/film"
	"github.com/trueup/trueup/internal/trial/judge"
	"github.com/trueup/trueup/internal/units"
)

// Limits of what a child of this program prints.
const maxAnswer = 64 << 20

// ChildError is the error of a command of this program that ran as a confined process.
type ChildError struct {
	Code    string // as in JSON
	Message string
	Exit    int
}

func (e *ChildError) Error() string { return e.Message }

// Reported returns the code and the exit code that the other trueup has reported.
func (e *ChildError) Reported() (code string, exit int) { return e.Code, e.Exit }

// reply is what each object of a child has.
type reply struct {
	ExitCode int `json:"exit_code"`
	Error    *struct{ Code, Message string }
}

// err returns the error that a child reports.
func (r *reply) err() error {
	if r.Error == nil {
		return nil
	}
	return &ChildError{Code: r.Error.Code, Message: r.Error.Message, Exit: max(r.ExitCode, 1)}
}

// Plan is the part of the output of trueup plan that a trial needs.
type Plan struct {
	reply
	Moved  int
	Places []struct {
		From int64 `json:"from_bytes"`
		To   int64 `json:"to_bytes"`
	} `json:"moves"`
	Patches []struct{}
	BIOS    struct { // of containers; nil where they state none
		Source, Result *geometryOfBIOS
	} `json:"bios_geometry"`
	Result struct {
		Size  int64 `json:"size_bytes"`
		Table struct {
			Scheme     string
			Heads      int
			Sectors    int   `json:"sectors_per_track"`
			SectorSize int64 `json:"sector_size_bytes"`
		}
		Boot       struct{ Name string } `json:"boot_code"`
		Partitions []struct {
			Type   string
			Active bool
		}
	}
}

// geometryOfBIOS has the heads and sectors that a BIOS reports.
type geometryOfBIOS struct {
	Heads   int
	Sectors int `json:"sectors_per_track"`
}

// fit gives a machine the geometry that its container states. One that states none leaves that of the table.
func (g *geometryOfBIOS) fit(m Machine) Machine {
	if g != nil {
		m.Heads, m.Sectors = g.Heads, g.Sectors
	}
	return m
}

// Ask has a confined process of this program plan the disk. Its arguments are those of plan, with SOURCE at the end.
// This process reads nothing of the image.
func Ask(ctx context.Context, stderr io.Writer, args ...string) (*Plan, error) {
	program, err := sys.Self()
	if err != nil {
		return nil, err
	}
	cmd := exec.CommandContext(ctx, program, append([]string{"plan", "--json"}, args...)...)
	var out bounded
	said := &tail{}
	cmd.Stdout, cmd.Stderr, cmd.WaitDelay = &out, said, endLimit
	cmd.Env = append(os.Environ(), shell.Unconfigured)
	release := sys.Tie(cmd)
	defer release()
	err = cmd.Run()
	if ctx.Err() != nil {
		return nil, ctx.Err()
	}
	if err != nil && cmd.ProcessState == nil {
		return nil, err
	}
	var p Plan
	if jsonErr := json.Unmarshal(out.kept.Bytes(), &p); jsonErr != nil {
		return nil, fmt.Errorf("trueup plan ended with %v and without a plan: %.500s", cmd.ProcessState, said)
	}
	if err := p.err(); err != nil {
		return nil, err
	}
	if p.ExitCode != 0 {
		return nil, &ChildError{Exit: p.ExitCode, Code: "internal", Message: "trueup plan gave no reason"}
	}
	_, err = io.WriteString(stderr, said.String()) // warnings
	return &p, err
}

// bounded keeps what is written to it, up to a bound. The buffer is not embedded: io.Copy would read into it past the
// bound.
type bounded struct{ kept bytes.Buffer }

func (b *bounded) Write(p []byte) (int, error) {
	if b.kept.Len()+len(p) > maxAnswer {
		return 0, ondisk.In(ondisk.ErrLimit, "a report above %d bytes", maxAnswer)
	}
	return b.kept.Write(p)
}

// Moves reports whether the aligned disk differs from the source.
func (p *Plan) Moves() bool { return p.Moved > 0 || len(p.Patches) > 0 }

// Types of partitions. Spec: UEFI 2.10, 5.3.3 and 5.2.2; GRUB manual, "BIOS installation".
const (
	typeESP      = "c12a7328-f81f-11d2-ba4b-00a0c93ec93b"
	typeESPofMBR = "0xef"
	typeBIOSBoot = "21686148-6449-6e6f-744e-656564454649"
)

// Fit completes a machine by what is on the disk. Values that are set stay.
func (p *Plan) Fit(m *Machine) {
	t := p.Result.Table
	m.Heads, m.Sectors, m.Size, m.SectorSize = t.Heads, t.Sectors, p.Result.Size, t.SectorSize
	if m.Firmware == "" {
		m.Firmware = p.firmware()
	}
	if m.Bus != "" {
		return
	}
	// Every guest has a driver for IDE, since its CD drive hung there. QEMU has no LSI53C1030, the lsilogic of VMware.
	switch {
	case t.SectorSize > units.SectorSize:
		m.Bus = "lsisas" // IDE has sectors of 512 bytes
	case m.Firmware == UEFI:
		m.Bus = "sata"
	default:
		m.Bus = "ide"
	}
}

// firmware returns what starts the disk. Code in sector 0 of a GPT starts nothing without a BIOS boot partition: some
// tools write it to every disk.
func (p *Plan) firmware() string {
	var esp, biosBoot, active bool
	for _, part := range p.Result.Partitions {
		esp = esp || part.Type == typeESP || part.Type == typeESPofMBR
		biosBoot = biosBoot || part.Type == typeBIOSBoot
		active = active || part.Active
	}
	code := p.Result.Boot.Name != "" && p.Result.Boot.Name != "empty"
	switch {
	case !esp, code && biosBoot, code && active && p.Result.Table.Scheme == "mbr":
		return BIOS
	}
	return UEFI
}

// Server is a confined process of this program that serves a disk.
type Server struct {
	URI  string
	cmd  *exec.Cmd
	said tail
	done chan struct{}
	once sync.Once
}

// Serve starts a server. Its arguments are those of serve, with SOURCE at the end.
func Serve(ctx context.Context, args ...string) (*Server, error) {
	program, err := sys.Self()
	if err != nil {
		return nil, err
	}
	s := &Server{done: make(chan struct{})}
	args = append([]string{"serve", "--json", "--exit-with-parent"}, args...)
	s.cmd = exec.Command(program, args...)
	s.cmd.Stderr, s.cmd.WaitDelay = &s.said, endLimit
	s.cmd.Env = append(os.Environ(), shell.Unconfigured)
	out, theirOut, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	defer out.Close()
	s.cmd.Stdout = theirOut
	sys.Apart(s.cmd)
	if err := errors.Join(s.cmd.Start(), theirOut.Close()); err != nil {
		return nil, err
	}
	go func() {
		_ = s.cmd.Wait() // Close has its end
		close(s.done)
	}()
	stop := context.AfterFunc(ctx, func() { _ = out.SetReadDeadline(time.Unix(1, 0)) })
	defer stop()
	var first struct {
		URI string
		reply
	}
	err = json.NewDecoder(io.LimitReader(out, maxAnswer)).Decode(&first)
	switch {
	case ctx.Err() != nil:
		err = ctx.Err()
	case err != nil:
		s.Close()
		err = fmt.Errorf("trueup serve ended with %v: %.500s", s.cmd.ProcessState, &s.said)
	case first.Error != nil:
		err = first.err()
	default:
		s.URI = first.URI
		return s, nil
	}
	s.Close()
	return nil, err
}

// Close ends the server, which then removes its socket. It returns what the server said of the source while it served:
// what was read then is in doubt.
func (s *Server) Close() error {
	s.once.Do(func() {
		_ = s.cmd.Process.Signal(sys.Terminate)
		select {
		case <-s.done:
		case <-time.After(endLimit):
			_ = s.cmd.Process.Kill()
			<-s.done
		}
		removeSocket(s.URI)
	})
	if code := s.cmd.ProcessState.ExitCode(); code != 0 {
		return fmt.Errorf("trueup serve ended with %v: %.1000s", s.cmd.ProcessState, &s.said)
	}
	return nil
}

// removeSocket removes what a server that was killed has left: its socket and the folder of that. The address is the
// server's word, so nothing is removed but what trueup serve makes.
func removeSocket(uri string) {
	socket, err := socketOf(uri)
	folder := filepath.Dir(socket)
	ours := filepath.Dir(folder) == filepath.Clean(os.TempDir()) &&
		strings.HasPrefix(filepath.Base(folder), "trueup-nbd-")
	if err != nil || !ours {
		return
	}
	_ = os.Remove(socket) // there is none after an end in order
	_ = os.Remove(folder)
}

// Pair is a trial: a machine that starts the disk as it is, and then the aligned one.
type Pair struct {
	Machine Machine
	Watch   Watch
	Reading []string // flags that say how SOURCE is read
	Moving  []string // flags that say what moves
	Source  string
	Say     func(text string)                        // is told what begins and what has ended
	Begin   func(disk string, longest time.Duration) // is told when a run begins; disk is one of Disks

	Plan          *Plan
	Before, After film.Film // without a move there is no second run
}

// Disks are the two of a trial: that of SOURCE, and the planned one.
const (
	Source  = "source"
	Aligned = "aligned"
)

// moves returns the places of the partitions that move, as guests may print them.
func (t *Pair) moves() (out []judge.Move) {
	before, after := t.Plan.BIOS.Source.fit(t.Machine), t.Plan.BIOS.Result.fit(t.Machine)
	for _, x := range t.Plan.Places {
		out = append(out, judge.Move{
			Before: judge.Start{
				LBA: x.From / units.SectorSize, Heads: int64(before.Heads), Sectors: int64(before.Sectors),
			},
			After: judge.Start{LBA: x.To / units.SectorSize, Heads: int64(after.Heads), Sectors: int64(after.Sectors)},
		})
	}
	return out
}

// Run asks for the plan, and starts both disks one after the other. A source that fails makes both runs worthless. Its
// server outlives the second run, so that a change in between is seen.
func (t *Pair) Run(ctx context.Context, stderr io.Writer) (err error) {
	of := []string{"--", t.Source}
	if t.Plan, err = Ask(ctx, stderr, slices.Concat(t.Reading, t.Moving, of)...); err != nil {
		return err
	}
	t.Plan.Fit(&t.Machine)
	if err := t.Machine.Ready(); err != nil {
		return err
	}
	source, err := Serve(ctx, slices.Concat([]string{"--as-is"}, t.Reading, of)...)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, source.Close()) }()
	mute, err := t.runs(ctx, source)
	// What the first machine ran with does not run the second: both run alike, or nothing is judged.
	if mute && err == nil {
		t.Say("the accelerator " + t.Before.Accel + " showed nothing of the second disk: both start again, emulated")
		t.Machine.Accel = emulation
		_, err = t.runs(ctx, source)
	}
	return err
}

// runs starts both disks. mute reports that an accelerator of this program's choice showed nothing of the second.
func (t *Pair) runs(ctx context.Context, source *Server) (mute bool, err error) {
	chosen := t.Machine.Accel
	if t.Before, err = t.film(ctx, t.Plan.BIOS.Source.fit(t.Machine), Source, source); err != nil || !t.Plan.Moves() {
		return false, err
	}
	if judge.Moot(&t.Before) {
		t.After = film.Film{Ended: film.LeftOut, Accel: t.Before.Accel}
		t.Say("the disk aligned: left out, since there is nothing to compare it with")
		return false, nil
	}
	m := t.Plan.BIOS.Result.fit(t.Machine)
	m.Accel = t.Before.Accel // both run alike
	view, err := Serve(ctx, slices.Concat(t.Reading, t.Moving, []string{"--", t.Source})...)
	if err != nil {
		return false, err
	}
	t.After, err = t.film(ctx, m, Aligned, view)
	return own(chosen) && m.Accel != emulation && mutely(&t.After), errors.Join(err, view.Close())
}

// film starts a disk that is served.
func (t *Pair) film(ctx context.Context, m Machine, disk string, s *Server) (film.Film, error) {
	m.Disk = s.URI
	name := "the disk " + map[string]string{Source: "as it is", Aligned: "aligned"}[disk]
	t.Say(fmt.Sprintf("boots %s: %s, %s, %d s at most", name, m.Firmware, m.Bus, int(m.Limit.Seconds())))
	t.Begin(disk, m.Limit)
	f, err := m.Run(ctx, t.Watch)
	if err == nil {
		t.Say(fmt.Sprintf("%s: %s after %.0f s (%s)", name, f.Ended.Words(), f.Took.Seconds(), f.Accel))
	}
	return f, err
}
