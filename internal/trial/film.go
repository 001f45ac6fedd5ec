// This part of the package holds what the screen and the serial port of a guest showed during a trial boot. It is
// pure: it knows neither QEMU nor files. All of it comes from the guest, and is untrusted.

package trial

import "time"

// Bounds of a film. Of more frames the oldest and the latest are kept.
const (
	MaxFrames   = 128
	MaxPictures = 16 << 20 // bytes of all pictures of a film
	MaxSerial   = 256 << 10
	MaxColumns  = 132 // of a text screen
	MaxRows     = 60
)

// Frame is a screen that differs from the one before it.
type Frame struct {
	At      time.Duration // since the start of the machine
	Work    time.Duration // that its processor had until then; 0: not known
	Text    []string      // lines of a screen in text mode, without trailing blanks; nil in graphics
	Picture []byte        // a screen in graphics as PNG; nil in text mode
}

// Film is what was seen of one run of a machine.
type Film struct {
	Frames  []Frame
	Dropped int           // frames of the middle that the bounds left out
	Serial  string        // its first and last bytes, as the guest sent them
	Heard   time.Duration // that the machine's processor had when the last of them came
	Settled bool          // nothing changed any more: the last frame is what the guest came to
	Ended   End
	Note    string // the words of QEMU on an end that is not the guest's
	Accel   string // kvm or tcg
	Took    time.Duration
	Work    time.Duration // that the machine's processor had; 0: not known
}

// End is what ended a run.
type End string

// Ends of a run. The machine still ran at the first two.
const (
	Settled    End = "settled"
	TimeOver   End = "time over"
	PoweredOff End = "powered off"
	ResetLoop  End = "reset loop" // more resets than an installed system needs
	Panicked   End = "panic"      // told by the guest to its paravirtual device
	DiskFailed End = "disk error" // the guest's disk failed a request
	DiskFull   End = "disk full"  // the guest wrote more than the bound of its temporary overlay
	Broken     End = "qemu"       // QEMU ended by itself, or spoke no QMP
	LeftOut    End = "left out"   // the machine was not started, since the run before had failed
)

// Words are an end in a sentence.
func (e End) Words() string {
	if e == Broken {
		return "QEMU failed"
	}
	return string(e)
}

// Last returns the last screen that was seen; false if there was none.
func (f *Film) Last() (Frame, bool) {
	if len(f.Frames) == 0 {
		return Frame{}, false
	}
	return f.Frames[len(f.Frames)-1], true
}
