package handover

import (
	"context"
	"encoding/xml"
	"errors"
	"fmt"
	"hash/crc32"
	"net"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/trueup/trueup/internal/ondisk"
	"github.com/trueup/trueup/internal/self"
	"github.com/trueup/trueup/internal/shell"
	"github.com/trueup/trueup/internal/trial"
)

// Pull has the program that runs the guest pull all bytes into the overlay. Without Monitor and Domain, the user does.
type Pull struct {
	Monitor string // Unix socket of QEMU's monitor, QMP
	Domain  string // of libvirt
	Limit   int64  // bytes a second; 0 means no limit

	unpause bool // a guest that was paused at an I/O error goes on
}

// stage is the progress of a stream in bytes.
type stage struct{ done, total int64 }

// phase is the name of the stream in the progress.
const phase = "stream"

// howToStart returns the line that starts the guest.
func (h *Handover) howToStart() string {
	p, disk := h.plan.Pull, h.image.overlay
	drive := "file=" + disk + ",format=qcow2,rerror=stop,werror=stop"
	switch {
	case len(h.Program) > 0:
		return disk + " is ready; starting " + h.Program[0]
	case p.Domain != "":
		return fmt.Sprintf("%s is ready: set it in the disk of the domain %s (driver type='qcow2' error_policy='stop' "+
			"rerror_policy='stop'), then virsh start %[2]s", disk, shell.Quote(p.Domain))
	case p.Monitor != "":
		return disk + " is ready; start the guest on it: qemu-system-x86_64 ... -drive " + shell.Quote(drive) +
			" -qmp " + shell.Quote(monitor(p.Monitor))
	}
	return disk + " is ready; start the guest on it: qemu-system-x86_64 ... -drive " + shell.Quote(drive) +
		"; then have it copy the rest: block_stream DEVICE in the monitor of QEMU, or virsh blockpull DOMAIN TARGET"
}

// monitor returns the option of QEMU for a monitor at a socket.
func monitor(socket string) string {
	return "unix:" + strings.ReplaceAll(socket, ",", ",,") + ",server=on,wait=off"
}

// start starts the program of --run. It outlives trueup.
func (h *Handover) start(ctx context.Context) (err error) {
	if len(h.Program) == 0 {
		return nil
	}
	if c, err := net.Dial("unix", h.plan.Pull.Monitor); err == nil { // the QEMU of an earlier run
		return c.Close()
	}
	if err := freeSocket(ctx, h.plan.Pull.Monitor); err != nil {
		return err
	}
	var args []string
	for _, arg := range h.Program[1:] {
		args = append(args, strings.ReplaceAll(arg, "{}", h.image.overlay))
	}
	cmd := exec.Command(h.Program[0], append(args, "-qmp", monitor(h.plan.Pull.Monitor))...)
	cmd.Stdout, cmd.Stderr = os.Stderr, os.Stderr // not h.Stderr, which ends with trueup
	if h.ended, err = self.Background(cmd); err != nil {
		return fmt.Errorf("start %s: %w", h.Program[0], err)
	}
	return nil
}

// maxUnread bounds the attempts to read the overlay, one after the other.
const maxUnread = 5

// retryWhole is whole with further attempts, since QEMU may be writing the header.
func (h *Handover) retryWhole(ctx context.Context) (bool, error) {
	for range maxUnread {
		if whole, err := h.whole(ctx); err == nil {
			return whole, nil
		}
		if err := wait(ctx); err != nil {
			return false, err
		}
	}
	return h.whole(ctx)
}

// show adds the progress since the stage shown last, and returns the stage shown now.
func (h *Handover) show(last, now stage) stage {
	if h.Progress == nil {
		return last
	}
	if now.total != last.total {
		last = stage{0, now.total}
		h.Progress.Begin(phase, now.total)
	}
	if now.done > last.done {
		h.Progress.Add(now.done - last.done)
		last.done = now.done
	}
	return last
}

// programEnded returns an error if the program ended before DEST has all bytes.
func (h *Handover) programEnded(ctx context.Context) error {
	if whole, err := h.whole(ctx); err != nil || whole {
		return err
	}
	return fmt.Errorf("%s ended before all bytes were in the disk", h.Program[0])
}

// stream returns when DEST has all bytes. It reports each failure once and goes on, since the guest needs the server.
func (h *Handover) stream(ctx context.Context) error {
	var at stage
	told := ""
	served, cancel := h.server.While(ctx) // QEMU may not answer without the server
	defer cancel()
	for {
		if whole, err := h.retryWhole(ctx); err != nil || whole {
			return err
		}
		now, err := h.plan.Pull.step(served, h.image.overlay)
		if err != nil && err.Error() != told && served.Err() == nil {
			told = err.Error()
			h.Say(told)
		}
		at = h.show(at, now)
		select {
		case <-h.ended: // nil without a program
			if c, err := net.Dial("unix", h.plan.Pull.Monitor); err == nil { // QEMU became a daemon
				h.ended = nil
				_ = c.Close()
				continue
			}
			return h.programEnded(ctx)
		case <-h.server.Done():
			return errors.Join(errors.New("the server of the disk ended"), h.server.Close())
		default:
		}
		if err := wait(ctx); err != nil {
			return err
		}
	}
}

// whole reports whether DEST has all bytes in its file. QEMU removes the name of the backing file before it writes the
// tables of the clusters that it has copied; if it is killed in between, the name is put back.
func (h *Handover) whole(ctx context.Context) (bool, error) {
	i := &h.image
	d, err := i.describe(ctx)
	if err != nil || d.Backing != "" {
		return false, err
	}
	hollow, err := i.has(ctx, false)
	if err != nil || !hollow {
		return err == nil, errors.Join(err, i.sync())
	}
	release, err := claim(i.overlay)
	if errors.Is(err, ondisk.ErrBusy) {
		return false, nil // QEMU writes the tables at the next flush
	}
	if err != nil {
		return false, err
	}
	if d, err = i.describe(ctx); err != nil || d.Backing != "" || d.closedWell() {
		return err == nil && d.Backing == "", errors.Join(err, release(), i.sync())
	}
	err = release() // qemu-img locks the overlay itself
	if err == nil {
		_, err = run(ctx, i.program, "rebase", "-u", "-f", "qcow2", "-F", "raw", "-b", backing(h.plan.Socket),
			i.overlay)
	}
	if err == nil {
		h.Say("QEMU was killed at the end of the copy, which begins again; start the guest again")
	}
	return false, err
}

// step starts the stream if the guest runs, or looks at its progress. Without a running guest it does nothing.
func (p *Pull) step(ctx context.Context, disk string) (stage, error) {
	switch {
	case p.Domain != "":
		return p.stepDomain(ctx, disk)
	case p.Monitor != "":
		return p.stepMonitor(ctx, disk)
	}
	return stage{}, nil
}

// greeting bounds the wait for a monitor that another program uses.
const greeting = 5 * time.Second

// job is a job in QEMU. Spec: QEMU, qapi/block-core.json, BlockJobInfo.
type job struct {
	ID       string `json:"device"`
	Type     string `json:"type"`
	Status   string `json:"status"`
	IOStatus string `json:"io-status"`
	Done     int64  `json:"offset"`
	Total    int64  `json:"len"`
}

// stepMonitor is step by the monitor of QEMU. It leaves the monitor to others in between.
func (p *Pull) stepMonitor(ctx context.Context, disk string) (s stage, err error) {
	var d net.Dialer
	c, err := d.DialContext(ctx, "unix", p.Monitor)
	if err != nil {
		return s, nil // QEMU does not run
	}
	defer c.Close()
	ctx, end := context.WithCancel(ctx)
	defer end()
	q := trial.NewQMP(ctx, c, c)
	q.Limit = greeting
	if err := q.Greet(ctx); err != nil {
		return s, fmt.Errorf("monitor %s: %w; it is ended, or another program uses it", p.Monitor, err)
	}
	q.Limit = time.Minute
	name, err := nodeOf(ctx, q, disk)
	if err != nil {
		return s, err
	}
	if p.unpause {
		var now struct{ Status string }
		if err = q.Call(ctx, "query-status", nil, &now); err == nil && now.Status == "io-error" {
			err = q.Call(ctx, "cont", nil, nil)
		}
		if err != nil {
			return s, err
		}
		p.unpause = false
	}
	return p.follow(ctx, q, name, fmt.Sprintf(jobPrefix+"%08x", crc32.ChecksumIEEE([]byte(disk))))
}

// jobPrefix begins the names of the jobs of trueup.
const jobPrefix = "trueup-"

// follow starts the job in QEMU, or sees its end through. QEMU dismisses the job at its end: while an ended stream
// waits for its dismissal, QEMU 7.2 crashes at query-named-block-nodes.
func (p *Pull) follow(ctx context.Context, q *trial.QMP, name, id string) (stage, error) {
	var jobs []job
	if err := q.Call(ctx, "query-block-jobs", nil, &jobs); err != nil {
		return stage{}, err
	}
	ours := slices.IndexFunc(jobs, func(j job) bool { return j.ID == id })
	if ours < 0 {
		err := q.Call(ctx, "block-stream", map[string]any{
			"job-id": id, "device": name, "speed": p.Limit, "on-error": "stop", "auto-finalize": false,
		}, nil)
		other := slices.IndexFunc(jobs, func(j job) bool {
			return j.Type == "stream" && !strings.HasPrefix(j.ID, jobPrefix)
		})
		if err != nil && other >= 0 { // started by the user
			return stage{jobs[other].Done, jobs[other].Total}, nil
		}
		return stage{}, err
	}
	j, err := jobs[ours], error(nil)
	switch {
	case j.Status == "pending":
		// The tables must be in the file before QEMU removes the name of the backing file.
		var said string
		flush := map[string]string{"command-line": "qemu-io " + name + " flush"}
		if err = q.Call(ctx, "human-monitor-command", flush, &said); err == nil && said != "" {
			err = ondisk.In(ondisk.ErrOutput, "flush of the disk: %.200s", said)
		}
		if err == nil {
			err = q.Call(ctx, "job-finalize", map[string]string{"id": id}, nil)
		}
	case j.IOStatus != "ok":
		err = q.Call(ctx, "block-job-resume", map[string]string{"device": id}, nil)
		err = errors.Join(ondisk.In(ondisk.ErrOutput, "the stream stopped at an I/O error (%s) and goes on",
			j.IOStatus), err)
	}
	return stage{j.Done, j.Total}, err
}

// nodeOf returns the name of the node of a disk in QEMU. Spec: QEMU, qapi/block-core.json, query-named-block-nodes.
func nodeOf(ctx context.Context, q *trial.QMP, disk string) (string, error) {
	var nodes []struct {
		Name   string `json:"node-name"`
		Driver string `json:"drv"`
		File   string `json:"file"`
	}
	if err := q.Call(ctx, "query-named-block-nodes", map[string]bool{"flat": true}, &nodes); err != nil {
		return "", err
	}
	for _, n := range nodes {
		if n.Driver == "qcow2" && sameFile(n.File, disk) {
			return n.Name, nil
		}
	}
	return "", fmt.Errorf("this QEMU does not have %s open; give its disk by this path", disk)
}

func sameFile(a, b string) bool {
	x, failed := os.Stat(a)
	y, err := os.Stat(b)
	return failed == nil && err == nil && os.SameFile(x, y)
}

// admit gives the socket of the server to the user of libvirt's QEMU. libvirt does so with images, not with sockets.
func (p *Pull) admit(ctx context.Context, socket string) error {
	if p.Domain == "" {
		return nil
	}
	text, err := run(ctx, "virsh", "capabilities")
	if err != nil {
		return err
	}
	var c struct { // Spec: libvirt, formatcaps, secmodel; without root there is no model "dac"
		Models []struct {
			Name   string   `xml:"model"`
			Labels []string `xml:"baselabel"`
		} `xml:"host>secmodel"`
	}
	if err := xml.Unmarshal([]byte(text), &c); err != nil {
		return fmt.Errorf("virsh capabilities: %w", err)
	}
	for _, m := range c.Models {
		var user, group int
		if m.Name != "dac" || len(m.Labels) == 0 {
			continue
		}
		if _, err := fmt.Sscanf(m.Labels[0], "+%d:+%d", &user, &group); err != nil {
			return fmt.Errorf("virsh capabilities: baselabel %.100q: %w", m.Labels[0], err)
		}
		if err := os.Chown(socket, user, group); err != nil {
			return ondisk.In(ondisk.ErrOutput, "%w; run trueup as root, so that the QEMU of libvirt can connect", err)
		}
	}
	return nil
}

// target returns the name of a disk in the domain.
func (p *Pull) target(ctx context.Context, disk string) (name string, err error) {
	list, err := run(ctx, "virsh", "domblklist", p.Domain, "--details")
	if err != nil {
		return "", err
	}
	for line := range strings.Lines(list) {
		if f := strings.Fields(line); len(f) >= 4 && sameFile(strings.Join(f[3:], " "), disk) {
			name = f[2]
		}
	}
	if name == "" {
		return "", fmt.Errorf("the domain %s does not have %s open; set it in its disk", p.Domain, disk)
	}
	return name, nil
}

// jobStage decodes the output of virsh blockjob --raw.
func jobStage(text string) (s stage) {
	for line := range strings.Lines(text) {
		name, value, _ := strings.Cut(strings.TrimSpace(line), "=")
		switch name {
		case "cur":
			_, _ = fmt.Sscan(value, &s.done)
		case "end":
			_, _ = fmt.Sscan(value, &s.total)
		}
	}
	return s
}

// stepDomain is step by libvirt, which follows the backing files of its domains itself.
func (p *Pull) stepDomain(ctx context.Context, disk string) (s stage, err error) {
	state, err := run(ctx, "virsh", "domstate", p.Domain, "--reason")
	if err != nil || !strings.HasPrefix(state, "running") && !strings.HasPrefix(state, "paused") {
		return s, err
	}
	target, err := p.target(ctx, disk)
	if err != nil {
		return s, err
	}
	if p.unpause && strings.Contains(state, "I/O error") {
		if _, err := run(ctx, "virsh", "resume", p.Domain); err != nil {
			return s, err
		}
	}
	p.unpause = false
	text, err := run(ctx, "virsh", "blockjob", p.Domain, target, "--raw")
	if err != nil || strings.Contains(text, "end=") {
		return jobStage(text), err
	}
	args := []string{"blockpull", p.Domain, target}
	if p.Limit > 0 {
		args = append(args, "--bytes", "--bandwidth", strconv.FormatInt(p.Limit, 10))
	}
	_, err = run(ctx, "virsh", args...)
	return s, err
}
