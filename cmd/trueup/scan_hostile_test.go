package main

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/internal/align"
	"github.com/trueup/trueup/internal/disktest"
	"github.com/trueup/trueup/internal/disktest/forge/tarforge"
	"github.com/trueup/trueup/internal/disktest/hostile"
	"github.com/trueup/trueup/internal/image"
	"github.com/trueup/trueup/internal/scan/results"
)

// stranger is a hostile image in the library. What its row must say is what the tests of inspect pin for the same file.
type stranger struct {
	name string
	path string
	code string // of the error
	// verdict is that of an image that can be judged all the same; empty: none.
	verdict align.Verdict
	// partly tells that inspect reports the disk and the error. Who looks only at what the verdict needs may not meet
	// the error.
	partly bool
}

func (h stranger) differences(i *results.Image) []string {
	if i.State == results.Judged && (h.partly || h.verdict != "") {
		if h.verdict != "" && i.Verdict != h.verdict {
			return []string{fmt.Sprintf("verdict %s, want %s", i.Verdict, h.verdict)}
		}
		return nil
	}
	switch {
	case i.State != results.Failed || h.verdict != "":
		return []string{fmt.Sprintf("state %s, verdict %q, want %q%s: %v", i.State, i.Verdict, h.code, h.verdict,
			i.Error)}
	case i.Error == nil || i.Error.Code != h.code:
		return []string{fmt.Sprintf("error %v, want %s", i.Error, h.code)}
	}
	return nil
}

// hostileImages are the cases whose files are what inspect is given, without flags.
func hostileImages() []hostile.Row {
	all := slices.Concat(hostile.Files(), hostile.VMDK(), hostile.Nodes(), hostile.VHDX(), hostile.Qcow2(),
		hostile.Tables(), hostile.OddGPTs())
	return slices.DeleteFunc(all, func(r hostile.Row) bool { return r.Format != "" })
}

// threat is the first number in the name of a case.
var threat = regexp.MustCompile(`^[Tt](\d\d)`)

// fewOfEach keeps at most two cases of each threat, the first and the last. A socket has no place in a deep folder, and
// a device needs root.
func fewOfEach(cases []hostile.Row) (out []hostile.Row) {
	by := map[string][]hostile.Row{}
	var order []string
	for _, h := range cases {
		number := threat.FindStringSubmatch(h.Name)
		if number == nil || strings.Contains(h.Name, "socket") || strings.Contains(h.Name, "device") {
			continue
		}
		if by[number[1]] == nil {
			order = append(order, number[1])
		}
		by[number[1]] = append(by[number[1]], h)
	}
	for _, number := range order {
		rows := by[number]
		out = append(out, rows[0])
		if last := rows[len(rows)-1]; last.Name != rows[0].Name {
			out = append(out, last)
		}
	}
	return out
}

// writeStrangers puts hostile images into folders of a library, each into one of its own, since some have several
// files.
func writeStrangers(t testing.TB, dir string, record []expectedImage) (out []stranger) {
	t.Helper()
	var folders []string
	for _, e := range record {
		folders = append(folders, filepath.Dir(e.name(t)))
	}
	slices.Sort(folders)
	folders = slices.Compact(folders)
	plain := regexp.MustCompile(`[^A-Za-z0-9 ,]+`)
	place := func(name string) string {
		folder := filepath.Join(dir, folders[len(out)%len(folders)],
			plain.ReplaceAllString(fmt.Sprintf("%02d %.40s", len(out), name), "-"))
		require.NoError(t, os.MkdirAll(folder, 0o755))
		t.Cleanup(func() { require.NoError(t, os.RemoveAll(folder)) })
		return folder
	}
	for _, h := range fewOfEach(hostileImages()) {
		s := stranger{name: h.Name, path: h.Write(t, place(h.Name)), code: h.Code, partly: h.End >= hostile.Broken}
		if h.End >= hostile.Kept {
			s.verdict = align.Misaligned
		} else {
			s.grow(t)
		}
		out = append(out, s)
	}
	seen := map[string]bool{}
	for _, h := range hostilePackages(t) {
		number := threat.FindString(h.name)
		if number == "" || seen[number] {
			continue
		}
		seen[number] = true
		path := filepath.Join(place(h.name), "vm.ova")
		append(tarforge.New(h.archive...), tarforge.End()...).Write(t, path)
		out = append(out, stranger{name: h.name, path: path, code: h.code})
	}
	return out
}

// grow makes a raw disk so large that one with a broken table counts as a disk for its name alone. What inspect says
// about it must stay.
func (h stranger) grow(t testing.TB) {
	t.Helper()
	info := disktest.Stat(t, h.path)
	table, err := strconv.Atoi(threat.FindStringSubmatch(h.name)[1])
	require.NoError(t, err)
	const firstTable = 47 // the first number of a case with a table
	if filepath.Ext(h.path) != ".raw" || table < firstTable || info.Size() >= image.SmallestBare {
		return
	}
	require.NoError(t, os.Truncate(h.path, image.SmallestBare))
	f := parseFailure(t, trueup(t, "inspect", "--json", h.path))
	require.NotNil(t, f.Error, h.name)
	require.Equal(t, h.code, f.Error.Code, h.name)
}
