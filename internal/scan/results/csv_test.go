package results

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/trueup/trueup/internal/align"
	"github.com/trueup/trueup/internal/disktest"
	"github.com/trueup/trueup/internal/report"
)

// records is what Python's strict parser reads in a CSV. texts, when there are any, are held against the paths and
// labels of its rows.
func records(t *testing.T, images []*Image, texts []string) [][]string {
	t.Helper()
	args := []string{
		disktest.DataFile(t, filepath.Join("testdata", "cells.py")),
		saved(t, "scan.csv", written(t, func(w io.Writer) error { return write(w, csvFormat, NewSummary(), images) })),
	}
	if texts != nil {
		var lines strings.Builder
		for _, text := range texts {
			lines.WriteString(base64.StdEncoding.EncodeToString([]byte(text)) + "\n")
		}
		args = append(args, saved(t, "texts", lines.String()))
	}
	var out [][]string
	require.NoError(t, json.Unmarshal([]byte(disktest.Output(t, disktest.DataFile(t, "/usr/bin/python3"), args...)),
		&out))
	return out
}

// labelled is an image whose path and label are a text.
func labelled(text string) *Image {
	d := diskOf(align.DataDisk, part(1, 63, "ntfs"))
	d.Partitions[0].Volume.Label = text
	return judged(text, "raw", d)
}

// The table of the documentation is the header, in its order.
func TestColumnsAreDocumented(t *testing.T) {
	doc := disktest.ReadFile(t, filepath.Join("..", "..", "..", "docs", "scan.md"))
	_, section, _ := strings.Cut(string(doc), "\n### CSV\n")
	var documented []string
	for _, row := range regexp.MustCompile("(?m)^\\| (`[^|]+)\\|").FindAllStringSubmatch(section, -1) {
		for _, name := range regexp.MustCompile("`([a-z0-9_]+)`").FindAllStringSubmatch(row[1], -1) {
			documented = append(documented, name[1])
		}
	}
	require.Equal(t, documented, records(t, nil, nil)[0])
}

// Each image has a row, each partition has one, and a line is as long as the header.
func TestNoImageIsLostInCSV(t *testing.T) {
	_, images := smallLibrary()
	rows := records(t, images, nil)
	at := func(r []string, name string) string { return r[slices.Index(rows[0], name)] }
	counts := map[string]int{}
	for _, r := range rows[1:] {
		require.Len(t, r, len(rows[0]))
		counts[at(r, "path")]++
		for n, name := range rows[0] {
			if r[n] != "" && (strings.HasSuffix(name, "_bytes") ||
				slices.Contains([]string{"rank", "class", "start_lba", "partition"}, name)) {
				_, err := strconv.ParseInt(r[n], 10, 64)
				require.NoError(t, err, "%s of %s", name, at(r, "path"))
			}
		}
	}
	require.Equal(t, map[string]int{
		"/t/fine.qcow2": 2, "/t/two.ova": 2, "/t/half.ova": 3, "/t/data.vmdk": 1, "/t/my boot.vmdk": 1,
		"/t/lilo.vmdk": 1, "/t/many.vmdk": 1, "/t/floppy.img": 1, "/t/retired.vmdk": 1, "/t/broken.vhd": 1,
		"/t/lone-s002.vmdk": 1, "/t/gone.vhdx": 1, "/t/blank.vhd": 1, "/t/old.vmdk.gz": 1, "/t/firmware.img": 1,
	}, counts)
}

func TestHostileTextsInCSV(t *testing.T) {
	var images []*Image
	for _, text := range hostile {
		images = append(images, labelled(text))
	}
	records(t, images, hostile)
	_, all := hostiles()
	rows := records(t, all, nil)
	for _, r := range rows[1:] {
		require.Len(t, r, len(rows[0]))
		for _, c := range r {
			require.NotContains(t, c, "\n")
			require.Equal(t, report.Escape(c), c)
		}
	}
}

// Texts of all kinds of characters are read back as the documentation says.
func TestCSVReadsBack(t *testing.T) {
	piece := rapid.OneOf(
		rapid.SampledFrom([]string{
			"=", "+", "-", "@", ";", ",", `"`, "'", " ", "\n", "\r\n", "\t", `\`, "\uff1d",
			"\u202e", "\ufffd", "é", "\xe2\x80", "\u2029", `\.`,
		}),
		rapid.Map(rapid.Byte(), func(b byte) string { return string([]byte{b}) }),
	)
	rapid.Check(t, func(r *rapid.T) {
		var images []*Image
		var texts []string
		for _, pieces := range rapid.SliceOfN(rapid.SliceOfN(piece, 0, 12), 20, 60).Draw(r, "texts") {
			texts = append(texts, strings.Join(pieces, ""))
			images = append(images, labelled(texts[len(texts)-1]))
		}
		records(t, images, texts)
	})
}

// A spreadsheet that splits at commas or at semicolons finds no formula.
func TestNoCellIsAFormula(t *testing.T) {
	for text, want := range map[string]string{
		"=cmd": "'=cmd", "+1": "'+1", "-1": "'-1", "@x": "'@x", "\t=1": `\u0009=1`, "\r=1": `\u000d=1`,
		"\uff1d1": "'\uff1d1", "\uff0b": "'\uff0b", "\uff0d": "'\uff0d", "\uff20": "'\uff20", "a;=1": "a;'=1",
		`a; "=1`: `a; "'=1`, "a=1": "a=1", "1-2": "1-2", "'=1": "'=1", "": "", "--": "'--",
	} {
		require.Equal(t, want, cell(text), "%q", text)
	}
	_, images := hostiles()
	formula := regexp.MustCompile("(?m)(^|[,;])[ \"]*[=+@\uff1d\uff0b\uff0d\uff20-]")
	for _, r := range records(t, images, nil) {
		for _, c := range r {
			require.NotRegexp(t, formula, strings.ReplaceAll(c, ",", "_"))
		}
	}
}

// A command is pasted from a cell into a shell: nothing in it may be changed.
func TestCommandsInCSVAreExact(t *testing.T) {
	rapid.Check(t, func(r *rapid.T) {
		path := rapid.StringOf(rapid.SampledFrom([]rune("a;=+-@'\"\\ \n\u202e!$"))).Draw(r, "path")
		command := labelled(path).Priority.Command
		require.Equal(r, command, cell(command))
	})
	for _, text := range hostile {
		command := labelled(text).Priority.Command
		require.Equal(t, command, cell(command))
	}
}

// Labels of the command line and of a file are escaped for a terminal and for a spreadsheet.
func TestLabelsAreEscaped(t *testing.T) {
	t.Parallel()
	i := NewImage("/x")
	i.State, i.Labels = Orphan, Labels{"host": {"=cmd\x1b[31m"}}
	require.NoError(t, i.Check())
	csv := written(t, func(w io.Writer) error { return write(w, csvFormat, NewSummary(), []*Image{i}) })
	require.Contains(t, csv, `,host==cmd\u001b[31m`)
	i.Labels = Labels{"=x": {"v"}}
	require.ErrorContains(t, i.Check(), `key "=x"`)
}

func TestLabels(t *testing.T) {
	t.Parallel()
	l, err := ParseLabels([]string{"host=esx1", "site=a=b"})
	require.NoError(t, err)
	require.Equal(t, Labels{"host": {"esx1"}, "site": {"a=b"}}, l)
	both := l.Merge(Labels{"host": {"esx0", "esx1"}})
	require.Equal(t, "host=esx0 host=esx1 site=a=b", both.String())
	require.Equal(t, "host=esx1 site=a=b", l.String(), "the row of one host stays")
	var many []string
	for n := range maxLabels + 1 {
		many = append(many, fmt.Sprintf("k%d=v", n))
	}
	for _, list := range [][]string{
		{"host"},
		{"=x"},
		{"Host=x"},
		{"a b=x"},
		{"host="},
		{"host=\xff"},
		{"host=a", "host=b"},
		{strings.Repeat("k", maxKey+1) + "=v"},
		{"k=" + strings.Repeat("v", maxValue+1)},
		many,
	} {
		_, err := ParseLabels(list)
		require.Error(t, err, "%q", list)
	}
	_, err = ParseLabels(many[:maxLabels])
	require.NoError(t, err)
}
