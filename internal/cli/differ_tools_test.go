package cli

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/internal/disktest"
	"github.com/trueup/trueup/internal/units"
)

// jsonAnswer is the part of the JSON of inspect, plan and a disk of convert that is compared.
type jsonAnswer struct {
	Format     string     `json:"format"`
	Image      *jsonImage `json:"image"`
	Table      jsonTable  `json:"table"`
	Partitions []jsonPart `json:"partitions"`
	Verdict    string     `json:"verdict"`
	Content    string     `json:"content"`
	Findings   []coded    `json:"findings"`
	Refusals   []coded    `json:"refusals"`
	Error      *coded     `json:"error"`
	Moves      []struct {
		Partition int `json:"partition"`
	} `json:"moves"`
}

type jsonImage struct {
	Format    string `json:"format"`
	Subformat string `json:"subformat"`
	Size      int64  `json:"size_bytes"`
}

type jsonTable struct {
	Scheme    string `json:"scheme"`
	Signature string `json:"disk_signature"`
	GUID      string `json:"disk_guid"`
}

type jsonPart struct {
	Number int    `json:"number"`
	Type   string `json:"type"`
	Active bool   `json:"active"`
	Name   string `json:"name"`
	GUID   string `json:"guid"`
	Start  int64  `json:"start_lba"`
	Size   int64  `json:"size_bytes"`
}

type coded struct {
	Code     string `json:"code"`
	Severity string `json:"severity"`
	Subject  string `json:"subject"`
	Message  string `json:"message"`
	Text     string `json:"text"`
}

func (c *coded) code() string {
	if c == nil {
		return ""
	}
	return c.Code
}

func (c *coded) message() string {
	if c == nil {
		return ""
	}
	return c.Message
}

// jsonRow is the row of an image in the report of scan.
type jsonRow struct {
	Event   string `json:"event"`
	State   string `json:"state"`
	Verdict string `json:"verdict"`
	Error   *coded `json:"error"`
	Disks   []struct {
		Unplanned *coded `json:"unplanned"`
		Fix       *struct {
			Refusals []coded `json:"refusals"`
		} `json:"fix"`
	} `json:"disks"`
}

// differTable is a table of partitions as sfdisk prints it.
type differTable struct {
	Label      string       `json:"label"`
	ID         string       `json:"id"`
	Partitions []differSlot `json:"partitions"`
}

type differSlot struct {
	Node  string `json:"node"`
	Start int64  `json:"start"`
	Size  int64  `json:"size"`
	Type  string `json:"type"`
	UUID  string `json:"uuid"`
	Name  string `json:"name"`
	Boot  bool   `json:"bootable"`
}

// tableOf is the table of a report in sfdisk's words. of is the file that sfdisk reads.
func tableOf(a *jsonAnswer, of string) differTable {
	out := differTable{Label: a.Table.Scheme, ID: a.Table.GUID}
	switch a.Table.Scheme {
	case "none":
		return differTable{}
	case "mbr":
		out.Label, out.ID = "dos", a.Table.Signature
	}
	for _, p := range a.Partitions {
		s := differSlot{
			Node: of + strconv.Itoa(p.Number), Start: p.Start, Size: p.Size / units.SectorSize,
			Type: strings.TrimPrefix(p.Type, "0x"), UUID: p.GUID, Name: p.Name, Boot: p.Active,
		}
		if p.GUID == "" {
			s.Type = strings.TrimPrefix(s.Type, "0")
		}
		out.Partitions = append(out.Partitions, s)
	}
	out.sort()
	return out
}

// sort orders partitions and spells identifiers in one way. An entry of no sectors, which sfdisk lists, names no
// partition.
func (d *differTable) sort() {
	d.Partitions = slices.DeleteFunc(d.Partitions, func(s differSlot) bool { return s.Size == 0 })
	d.ID = strings.ToUpper(d.ID)
	for i := range d.Partitions {
		p := &d.Partitions[i]
		p.Type, p.UUID = strings.ToUpper(p.Type), strings.ToUpper(p.UUID)
	}
	slices.SortFunc(d.Partitions, func(a, b differSlot) int { return strings.Compare(a.Node, b.Node) })
}

// String is one line for each partition.
func (d differTable) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s %s", d.Label, d.ID)
	for _, p := range d.Partitions {
		fmt.Fprintf(&b, "\n  %s: start %d, size %d, type %s %s %q %v",
			filepath.Base(p.Node), p.Start, p.Size, p.Type, p.UUID, p.Name, p.Boot)
	}
	return b.String()
}

// readSfdisk is the table that sfdisk finds in a raw file.
func readSfdisk(t *testing.T, raw string) differTable {
	t.Helper()
	cmd := exec.Command(disktest.Tool(t, "sfdisk"), "--json", raw)
	cmd.Env = append(os.Environ(), "LC_ALL=C.UTF-8")
	out, err := cmd.Output()
	if err != nil {
		return differTable{} // no table
	}
	if at := bytes.IndexByte(out, '{'); at > 0 {
		out = out[at:] // behind "omitting empty partition (5)"
	}
	var doc struct{ PartitionTable differTable }
	require.NoError(t, json.Unmarshal(out, &doc), "%s", out)
	doc.PartitionTable.sort()
	return doc.PartitionTable
}

// qemuImg runs qemu-img and returns the first line of its complaint, empty when it has none.
func qemuImg(t *testing.T, args ...string) (stdout []byte, complaint string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), disktest.Patience)
	defer cancel()
	cmd := exec.CommandContext(ctx, disktest.Tool(t, "qemu-img"), args...)
	var errs strings.Builder
	cmd.Stderr = &errs
	out, err := cmd.Output()
	if err != nil {
		complaint, _, _ = strings.Cut(errs.String(), "\n")
		return out, err.Error() + ": " + complaint
	}
	return out, ""
}
