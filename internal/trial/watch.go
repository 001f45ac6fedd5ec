package trial

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"image"
	"image/png"
	"slices"
	"strings"
	"time"
)

// Limits of a film. Of more frames it keeps the oldest and the latest.
const (
	maxFrames   = 128
	maxPictures = 16 << 20 // bytes of all pictures of a film
	maxSerial   = 256 << 10
	maxColumns  = 132 // of a text screen
	maxRows     = 60
)

// Frame is a screen that differs from the previous one.
type Frame struct {
	At      time.Duration // since the start of the machine
	Work    time.Duration // guest CPU time until then; 0 if unknown
	Text    []string      // lines of a screen in text mode, without trailing blanks; nil in graphics
	Picture []byte        // a screen in graphics as PNG; nil in text mode
}

// Film is the recording of one run of a machine.
type Film struct {
	Frames  []Frame
	Dropped int           // frames dropped from the middle
	Serial  string        // its first and last bytes, as sent by the guest
	Heard   time.Duration // guest CPU time at the last serial output
	Ended   End
	Note    string // message of QEMU, if the guest is not the cause of the end
	Accel   string // kvm or tcg
	Took    time.Duration
	Work    time.Duration // guest CPU time; 0 if unknown
}

// End is the reason why a run ended.
type End string

// Ends of a run. The machine still ran at the first two.
const (
	Settled    End = "settled"
	TimeOver   End = "time over"
	PoweredOff End = "powered off"
	ResetLoop  End = "reset loop" // more resets than an installed system needs
	Panicked   End = "panic"      // reported by the guest to its paravirtual device
	DiskFailed End = "disk error" // the guest's disk failed a request
	DiskFull   End = "disk full"  // the guest filled its temporary overlay
	Broken     End = "qemu"       // QEMU ended by itself, or failed to speak QMP
)

// words returns the end for a sentence.
func (e End) words() string {
	if e == Broken {
		return "QEMU failed"
	}
	return string(e)
}

// failed reports whether the machine failed: the guest is not the cause, and more time does not help.
func (e End) failed() bool { return e == Broken || e == DiskFailed || e == DiskFull }

// Last returns the last screen, or false without any.
func (f *Film) Last() (Frame, bool) {
	if len(f.Frames) == 0 {
		return Frame{}, false
	}
	return f.Frames[len(f.Frames)-1], true
}

// Times of the recording, and criteria of a settled run.
const (
	interval      = 250 * time.Millisecond
	DefaultSettle = 5 * time.Second
	busyFactor    = 3                // a computing guest gets this factor more, in guest CPU time
	unknownFactor = 6                // also a guest in an unknown state
	loading       = 1 << 20          // bytes read from the disk that prove a working guest
	silence       = 30 * time.Second // an accelerator without output for so long hangs
	maxResets     = 3                // an installed system may restart once or twice, and so may firmware
	cursorWidth   = 16               // pixels: a smaller change is a cursor
	cursorHeight  = 32
	leastShare    = 10 // a busy host stretches a run by this factor at most
)

// recorder records a film of a machine.
type recorder struct {
	settle  time.Duration
	machine *process
	monitor *QMP
	limit   time.Duration
	film    Film
	began   time.Time

	changed time.Time     // time of the last change on screen or serial port
	work    time.Duration // guest CPU time at that point
	worked  bool          // work is valid
	begun   time.Duration // guest CPU time at the start
	choice  bool          // trueup chose the accelerator
	read    int64         // bytes read from the disk until then
	reads   int64         // bytes read from the disk until the last look
	trickle bool          // the guest has read from the disk since then
	looks   int           // number of looks at the guest's CPU since then
	halted  int           // looks at which it waited for an interrupt
	resets  int
	noSpace bool
	raw     []byte      // the last screendump
	picture *image.RGBA // the same, decoded

	spent  time.Duration // part of the limit used
	looked time.Time     // time of the last update of spent
	had    time.Duration // guest CPU time at that point
	waits  bool          // the guest's CPU waited for an interrupt at the last look
	serial halves
}

// Run starts the machine and returns its film after it settled, ended or ran out of time.
func (m Machine) Run(ctx context.Context) (Film, error) {
	p, err := m.start(ctx, cmp.Or(m.Patience, callLimit))
	if err != nil {
		return Film{}, err
	}
	defer p.end()
	r := &recorder{
		settle: cmp.Or(m.Settle, DefaultSettle), machine: p, monitor: p.monitor, limit: cmp.Or(m.Limit, DefaultLimit),
		choice: own(m.Accel),
	}
	p.monitor.Event = r.event
	err = r.record(ctx)
	if ctx.Err() != nil {
		return Film{}, ctx.Err()
	}
	if err != nil { // the guest ran, so there is a film
		r.film.Ended, r.film.Note = Broken, p.words(err)
	}
	r.film.Serial = r.serial.String()
	r.film.Took = time.Since(r.began)
	if work, known := p.work(); known {
		r.film.Work = work - r.begun
	}
	return r.film, nil
}

// event counts resets and records a full disk.
func (r *recorder) event(name string, data json.RawMessage) {
	var about struct{ Guest, NoSpace bool }
	_ = json.Unmarshal(data, &about) // other events have other members
	switch {
	case name == "RESET" && about.Guest:
		r.resets++
	case name == "BLOCK_IO_ERROR" && about.NoSpace:
		r.noSpace = true
	}
}

// record starts the guest and looks at it until it ends.
func (r *recorder) record(ctx context.Context) error {
	var kvm struct{ Enabled bool }
	if err := r.monitor.Call(ctx, "query-kvm", nil, &kvm); err != nil {
		return err
	}
	r.film.Accel = emulation
	if kvm.Enabled {
		r.film.Accel = "kvm"
	}
	r.machine.findProcessor(ctx)
	r.began = time.Now()
	r.rested(r.began)
	r.begun, r.had, r.looked = r.work, r.work, r.began
	if err := r.monitor.Call(ctx, "cont", nil, nil); err != nil {
		return err
	}
	ticks := time.NewTicker(interval)
	defer ticks.Stop()
	for r.film.Ended == "" {
		if err := r.monitor.Wait(ctx, ticks.C); err != nil {
			return err
		}
		if err := r.look(ctx); err != nil {
			return err
		}
	}
	return nil
}

// look records the state of the machine and decides whether the run has ended.
func (r *recorder) look(ctx context.Context) error {
	var state struct{ Status string }
	if err := r.monitor.Call(ctx, "query-status", nil, &state); err != nil {
		return err
	}
	running := state.Status == "running"
	if err := r.screen(ctx, running); err != nil {
		return err
	}
	if err := r.hear(ctx); err != nil {
		return err
	}
	wrote, err := r.disk(ctx)
	if err != nil {
		return err
	}
	now := time.Now()
	r.spend(now)
	switch {
	case r.noSpace || wrote > maxWrites:
		r.film.Ended = DiskFull
	case !running:
		r.film.Ended, r.film.Note = stopped(state.Status)
	case r.resets > maxResets:
		r.film.Ended = ResetLoop
	case r.hangs(now):
		r.film.Ended, r.film.Note = Broken, fmt.Sprintf("%s showed nothing in %v", r.film.Accel, silence)
	case r.settled(now):
		r.film.Ended = Settled
	case r.spent >= r.limit:
		r.film.Ended = TimeOver
	}
	return nil
}

// spend counts the time since the last look against the limit.
func (r *recorder) spend(now time.Time) {
	work, known := r.machine.work()
	computes := known && r.film.Accel == emulation && !r.waits
	r.spent += charged(now.Sub(r.looked), work-r.had, computes)
	r.looked, r.had = now, work
}

// charged returns the part of a time that counts against the limit. A computing guest under emulation gets little CPU
// time on a busy host. So only its CPU time counts, but at least a share of the clock, so that every run ends.
func charged(passed, work time.Duration, computes bool) time.Duration {
	if !computes {
		return passed
	}
	return min(passed, max(work, passed/leastShare))
}

// hangs reports whether an accelerator chosen by trueup has shown nothing for so long that it must hang.
func (r *recorder) hangs(now time.Time) bool {
	if !r.choice || now.Sub(r.began) < silence {
		return false
	}
	r.choice = r.film.Accel != emulation && mute(&r.film) // once is enough
	return r.choice
}

// stopped returns how a run ended, given the run state of QEMU. Spec: QEMU, qapi/run-state.json, RunState.
func stopped(status string) (end End, note string) {
	switch status {
	case "shutdown":
		return PoweredOff, ""
	case "guest-panicked":
		return Panicked, ""
	case "io-error":
		return DiskFailed, ""
	}
	return Broken, fmt.Sprintf("the machine stopped in the state %.40q", status)
}

// screen adds a frame if the screen has changed.
func (r *recorder) screen(ctx context.Context, running bool) error {
	lines, err := r.text(ctx, running)
	if err != nil {
		return err
	}
	if lines != nil {
		last, _ := r.film.Last()
		if !slices.Equal(lines, last.Text) && (len(r.film.Frames) > 0 || strings.Join(lines, "") != "") {
			r.add(Frame{Text: lines})
		}
		r.raw, r.picture = nil, nil
		return nil
	}
	raw, err := r.machine.picture(ctx)
	if err != nil || r.raw != nil && bytes.Equal(raw, r.raw) {
		return err
	}
	picture, err := decodePPM(raw)
	if err != nil {
		return err
	}
	var b bytes.Buffer
	if err := (&png.Encoder{CompressionLevel: png.BestSpeed}).Encode(&b, picture); err != nil {
		return err
	}
	if r.picture != nil && isCursor(r.picture, picture) {
		r.film.Frames[len(r.film.Frames)-1].Picture = b.Bytes()
	} else {
		r.add(Frame{Picture: b.Bytes()})
	}
	r.raw, r.picture = raw, picture
	return nil
}

// text reads a text screen while the guest is stopped, so that the guest cannot notice the register reads.
func (r *recorder) text(ctx context.Context, running bool) ([]string, error) {
	if !running {
		return (&vga{monitor: r.monitor}).screen(ctx)
	}
	if err := r.monitor.Call(ctx, "stop", nil, nil); err != nil {
		return nil, err
	}
	lines, err := (&vga{monitor: r.monitor}).screen(ctx)
	if err != nil {
		return nil, err
	}
	if err := r.processor(ctx); err != nil {
		return nil, err
	}
	err = r.monitor.Call(ctx, "cont", nil, nil)
	if _, refused := errors.AsType[*commandError](err); refused {
		err = nil // the guest has ended meanwhile: the next look finds out how
	}
	return lines, err
}

// processor records whether the guest's CPU waits for an interrupt.
func (r *recorder) processor(ctx context.Context) error {
	text, err := r.monitor.human(ctx, "info registers")
	r.looks++
	if r.waits = strings.Contains(text, "HLT=1"); r.waits {
		r.halted++
	}
	return err
}

// add appends a frame. Over the limits it drops a frame from the middle.
func (r *recorder) add(f Frame) {
	now := time.Now()
	f.At = now.Sub(r.began)
	if work, known := r.machine.work(); known {
		f.Work = work - r.begun
	}
	r.film.Frames = append(r.film.Frames, f)
	for len(r.film.Frames) > 2 && (len(r.film.Frames) > maxFrames || pictures(r.film.Frames) > maxPictures) {
		middle := len(r.film.Frames) / 2
		r.film.Frames = slices.Delete(r.film.Frames, middle, middle+1)
		r.film.Dropped++
	}
	r.rested(now)
}

// pictures returns the total size of all images in bytes.
func pictures(frames []Frame) (n int) {
	for _, f := range frames {
		n += len(f.Picture)
	}
	return n
}

// isCursor reports whether two images differ in at most the area of a cursor.
func isCursor(a, b *image.RGBA) bool {
	if a.Bounds() != b.Bounds() {
		return false
	}
	var box image.Rectangle
	for y := range a.Bounds().Dy() {
		rowA, rowB := a.Pix[y*a.Stride:][:a.Stride], b.Pix[y*b.Stride:][:b.Stride]
		if bytes.Equal(rowA, rowB) {
			continue
		}
		for x := range a.Bounds().Dx() {
			if !bytes.Equal(rowA[4*x:4*x+4], rowB[4*x:4*x+4]) {
				box = box.Union(image.Rect(x, y, x+1, y+1))
			}
		}
	}
	return box.Dx() <= cursorWidth && box.Dy() <= cursorHeight
}

// hear reads new output of the serial port.
func (r *recorder) hear(ctx context.Context) error {
	var sent []byte // base64 in JSON
	arguments := map[string]any{"device": serialName, "size": serialBuffer, "format": "base64"}
	if err := r.monitor.Call(ctx, "ringbuf-read", arguments, &sent); err != nil {
		return err
	}
	if len(sent) > 0 {
		now := time.Now()
		r.serial.add(sent)
		r.rested(now)
		r.film.Heard = r.work - r.begun
	}
	return nil
}

// disk returns the length of the temporary file. It also restarts the rest time if the guest read much.
func (r *recorder) disk(ctx context.Context) (wrote int64, err error) {
	var all []struct {
		Device string
		Stats  struct {
			Read int64 `json:"rd_bytes"`
		}
		Parent struct {
			Stats struct {
				End int64 `json:"wr_highest_offset"`
			}
		}
	}
	if err := r.monitor.Call(ctx, "query-blockstats", nil, &all); err != nil {
		return 0, err
	}
	for _, d := range all {
		if d.Device != diskName {
			continue
		}
		r.trickle = r.trickle || d.Stats.Read != r.reads
		r.reads = d.Stats.Read
		if d.Stats.Read-r.read > loading {
			r.rested(time.Now())
		}
		return d.Parent.Stats.End, nil
	}
	return 0, fmt.Errorf("%w: query-blockstats knows no disk", errNoQMP)
}

// rested restarts the time in which nothing may change.
func (r *recorder) rested(now time.Time) {
	r.changed, r.looks, r.halted, r.read, r.trickle = now, 0, 0, r.reads, false
	r.work, r.worked = r.machine.work()
}

// settled reports whether nothing has changed for long enough. An idle guest needs less time than a computing one,
// because a kernel unpacks itself behind an unchanged screen. For a computing guest it is CPU time, because the host
// may be busy.
func (r *recorder) settled(now time.Time) bool {
	rest := now.Sub(r.changed)
	if rest < r.settle {
		return false
	}
	if r.halted > r.looks*3/4 {
		// On a busy host looks are slow, and an idle guest may be waiting for its disk.
		looks := int(r.settle/interval) * 3 / 4
		if r.trickle {
			looks *= busyFactor
		}
		return r.looks >= looks
	}
	did, known := r.machine.work()
	if !known || !r.worked {
		return rest >= unknownFactor*r.settle
	}
	return did-r.work >= busyFactor*r.settle
}

// halves keeps the first and the last bytes of a stream.
type halves struct {
	head, tail []byte
	cut        bool
}

func (h *halves) add(b []byte) {
	const half = maxSerial / 2
	n := min(half-len(h.head), len(b))
	h.head, b = append(h.head, b[:n]...), b[n:]
	h.tail = append(h.tail, b...)
	if over := len(h.tail) - half; over > 0 {
		h.tail, h.cut = append(h.tail[:0], h.tail[over:]...), true
	}
}

// String returns both halves, with a line between them if bytes are missing.
func (h *halves) String() string {
	if h.cut {
		return string(h.head) + "\n[...]\n" + string(h.tail)
	}
	return string(h.head) + string(h.tail)
}
