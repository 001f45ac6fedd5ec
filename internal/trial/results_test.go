package trial

import (
	"bytes"
	"encoding/json"
	"errors"
	"image"
	"image/color"
	"image/draw"
	"image/png"
	"strings"
	"testing"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/santhosh-tekuri/jsonschema/v6"
	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/internal/report"
)

// paintedScreen is a film of a BIOS and of a desktop with a window.
func paintedScreen(t testing.TB, window image.Rectangle) *Film {
	t.Helper()
	f := &Film{Ended: Settled, Accel: "tcg", Took: 42 * time.Second}
	f.Frames = []Frame{{Text: []string{"SeaBIOS (version 1)", "Starting ..."}}}
	for n, box := range []image.Rectangle{{}, window} {
		p := image.NewRGBA(image.Rect(0, 0, 800, 600))
		for at := range p.Pix {
			p.Pix[at] = []byte{uint8(at / 16000), 90, uint8(at % 3200 / 16), 255}[at%4]
		}
		draw.Draw(p, box, image.NewUniform(color.RGBA{210, 210, 220, 255}), image.Point{}, draw.Src)
		var b bytes.Buffer
		require.NoError(t, png.Encode(&b, p))
		f.Frames = append(f.Frames, Frame{At: time.Duration(20+n) * time.Second, Picture: b.Bytes()})
	}
	return f
}

func of(before, after *Film) *Boot { return ofSource("/vm/winxp.vmdk", before, after) }

func ofSource(source string, before, after *Film) *Boot {
	t := Pair{
		Machine: Machine{Firmware: "bios", Bus: "ide", Memory: 512}, Seconds: 120, Source: source,
		plan:   report.Plan{Changes: report.Changes{Moved: 1}, BIOS: &report.Geometries{}},
		Before: *before, After: after,
	}
	return t.Result(report.Head{Origin: report.Origin{Schema: "trueup/1", Command: "boot"}})
}

// samples are reports of all verdicts.
func samples(t testing.TB) map[string]*Boot {
	t.Helper()
	panicked := recorded(t, "uefi")
	panicked.Ended, panicked.Note = Broken, "qemu: out of memory"
	return map[string]*Boot{
		"same":     of(recorded(t, "grub2"), recorded(t, "grub2-aligned")),
		"differs":  of(recorded(t, "grub2"), recorded(t, "grub2-broken")),
		"serial":   of(recorded(t, "uefi"), recorded(t, "uefi-empty")),
		"pictures": of(paintedScreen(t, image.Rect(0, 0, 0, 0)), paintedScreen(t, image.Rect(200, 160, 520, 400))),
		"neither":  of(recorded(t, "blank"), recorded(t, "blank")),
		"unclear":  of(panicked, recorded(t, "uefi")),
		"left out": of(panicked, nil),
		"once":     of(recorded(t, "sys-win"), nil),
		"nothing":  of(&Film{Ended: TimeOver}, &Film{Ended: TimeOver}),
	}
}

func TestTextOfABoot(t *testing.T) {
	t.Parallel()
	shown := func(r *Boot) string {
		var b strings.Builder
		r.Text(&report.Text{W: &b, Width: 100})
		return b.String()
	}
	all := samples(t)
	require.Equal(t,
		`Differs: the source boots to the line "trueup: loaded", but the aligned view stops: "error: unknown
filesystem.".
  screen, line 6
    source   trueup: loaded
    aligned  error: unknown filesystem.
  screen, line 7
    source   trueup: loaded
    aligned  grub rescue>
  screen, line 8
    source   trueup: loaded
    aligned  (nothing)

Source: nothing changed any more after 40.0 s (TCG), 3 screens.
  | SeaBIOS (version 1.16.2-debian-1.16.2-1)
  | Booting from Hard Disk...
  | GRUB loading.
  | Welcome to GRUB!
  |
  | trueup: loaded
  | trueup: loaded
  | trueup: loaded

Aligned view: nothing changed any more after 40.0 s (TCG), 3 screens.
  | SeaBIOS (version 1.16.2-debian-1.16.2-1)
  | Booting from Hard Disk...
  | GRUB loading.
  | Welcome to GRUB!
  |
  | error: unknown filesystem.
  | grub rescue>
`, shown(all["differs"]))
	require.Contains(t, shown(all["pictures"]), "picture, 320 x 240 pixels at 200, 160 (16.0 % of the screen)\n")
	require.Contains(t, shown(all["pictures"]), "--pictures DIR shows it\n")
	require.NoError(t, all["pictures"].Pictures(func(string, []byte) error { return nil }))
	require.Contains(t, shown(all["pictures"]), "a screen of 800 x 600 pixels: aligned-003.png\n")
	require.Contains(t, shown(all["once"]), "Same: nothing is moved, so the source was started once: it reaches ")
	require.NotContains(t, shown(all["once"]), "\nAligned view:")
	require.NotContains(t, shown(all["unclear"]), "--seconds N", "time is no remedy for a QEMU that fails")
	all["unclear"].Before.Ended = TimeOver
	lead := func(r *Boot) string { return strings.Join(strings.Fields(strings.SplitN(shown(r), "\n\n", 2)[0]), " ") }
	require.Regexp(t, "^Not judged: .*; to give the guest more time, add --seconds N[.]$", lead(all["unclear"]))
	all["unclear"].Before.Ended = Settled
	require.Regexp(t,
		"; to give the guest more time, add --seconds N; to let its screen rest longer, add --settle N[.]$",
		lead(all["unclear"]))
	slow := Film{
		Accel: "tcg", Ended: Settled,
		Serial: "Kernel panic - not syncing: IO-APIC + timer doesn't work!",
	}
	require.Regexp(t, "; try again when this machine is less busy[.]$", lead(of(&slow, &slow)))
	require.Contains(t, shown(all["serial"]), "The serial port ends with:\n")
	all["differs"].Differences = make([]Difference, maxDifferences-1)
	require.Contains(t, shown(all["differs"]), "  and 27 more differences\n")
	all["differs"].Differences = make([]Difference, maxDifferences)
	require.Contains(t, shown(all["differs"]), "  and at least 28 more differences\n")
}

func TestExitCodesOfABoot(t *testing.T) {
	t.Parallel()
	for name, code := range map[string]int{
		"same": 0, "once": 0, "differs": 5, "serial": 5, "pictures": 5, "neither": 1, "unclear": 1, "left out": 1,
		"nothing": 1,
	} {
		require.Equal(t, code, samples(t)[name].ExitCode, name)
	}
}

func TestSchemaOfABoot(t *testing.T) {
	t.Parallel()
	schema, err := jsonschema.NewCompiler().Compile("../../docs/schema/boot.json")
	require.NoError(t, err)
	for name, r := range samples(t) {
		var b bytes.Buffer
		require.NoError(t, report.JSON(&b, r))
		object, err := jsonschema.UnmarshalJSON(&b)
		require.NoError(t, err)
		require.NoError(t, schema.Validate(object), name)
		object.(map[string]any)["exit_code"] = json.Number("2")
		require.Error(t, schema.Validate(object), name)
	}
}

func TestPicturesOfABoot(t *testing.T) {
	t.Parallel()
	r := samples(t)["pictures"]
	files := map[string]image.Point{}
	require.NoError(t, r.Pictures(func(name string, b []byte) error {
		p, err := png.Decode(bytes.NewReader(b))
		require.NoError(t, err)
		files[name] = p.Bounds().Size()
		return nil
	}))
	size := image.Pt(800, 600)
	require.Equal(t, map[string]image.Point{
		"source-002.png": size, "source-003.png": size, "aligned-002.png": size, "aligned-003.png": size,
	}, files)
	full := errors.New("no space left on device")
	require.ErrorIs(t, r.Pictures(func(string, []byte) error { return full }), full)
}

// Texts that a terminal or a reader of JSON would obey.
var hostile = []string{
	`<script>alert(1)</script>`, `"><img src=x onerror=alert(1)>`, `</pre><style>*{display:none}</style>`,
	"\x1b[2J\x1b]0;x\a", "\xff\xfe", "exe.\u202egnp", "{{.Policy}}", "]]>", "\u2028",
}

func TestHostileGuest(t *testing.T) {
	t.Parallel()
	for _, text := range hostile {
		f := recorded(t, "grub2-broken")
		f.Note, f.Accel, f.Serial = text, text, strings.Repeat(text+"\r\n", 50)
		for n := range f.Frames {
			f.Frames[n].Text = append(f.Frames[n].Text, text)
		}
		r := ofSource(text, recorded(t, "grub2"), f)
		var b strings.Builder
		r.Text(&report.Text{W: &b, Width: 80})
		require.True(t, utf8.ValidString(b.String()))
		require.Equal(t, -1, strings.IndexFunc(b.String(), func(r rune) bool {
			return r != '\n' && (unicode.IsControl(r) || unicode.Is(unicode.Cf, r) || r == '\u2028')
		}), "%q", text)
		var object bytes.Buffer
		require.NoError(t, report.JSON(&object, r))
		require.True(t, json.Valid(object.Bytes()))
	}
	// Pictures that are none.
	f := paintedScreen(t, image.Rectangle{})
	f.Frames[2].Picture = []byte("\x89PNG\r\n\x1a\n<script>")
	r := of(f, f)
	require.Equal(t, Unclear, r.Verdict)
	require.Zero(t, r.Before.Screens[2].Width)
}
