package inplace

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/internal/disk"
	"github.com/trueup/trueup/internal/diskcopy"
	"github.com/trueup/trueup/internal/plan"
)

// FuzzPlan decodes any bytes as the plan of a journal: an accepted plan names only files beside the disk, and each
// moved byte is in one stretch.
func FuzzPlan(f *testing.F) {
	p := &Plan{
		Version: planVersion, OldSize: 64 * sector, Size: 72 * sector, OldEnd: 64 * sector, End: 72 * sector,
		Chunk: 4 * sector, Direct: 1 << 20, Pieces: []disk.Shift{shift(0, 0, 2), shift(2, 4, 20), shift(24, 32, 10)},
		Patches: []disk.Patch{patch(440, "x"), patch(2*sector, "y")}, Saved: []Saved{{0, make([]byte, markSize)}},
		Sums: make([]diskcopy.Sum, 3),
	}
	b, err := p.encode()
	require.NoError(f, err)
	f.Add(b, int64(3))
	f.Fuzz(func(t *testing.T, b []byte, i int64) {
		p, err := decodePlan(b)
		if err != nil {
			return
		}
		m := &mover{plan: p}
		m.runs, m.steps = p.runs()
		if i < 0 || i >= m.steps {
			return
		}
		for _, many := range []int64{1, m.most(i, false)} {
			s := m.at(i, many)
			require.True(t, s.Len > 0 && s.Len <= many*p.Chunk, "%+v", s)
			require.True(t, min(s.From, s.To) >= markSize && s.Source().End() <= p.OldSize && s.Dest().End() <= p.Size,
				"%+v", s)
		}
		for _, r := range append(p.dropped(), p.covered()...) {
			require.True(t, r.Off >= markSize && r.Len > 0 && r.End() <= p.End, "%+v", r)
		}
	})
}

// FuzzRecord decodes any bytes as a record.
func FuzzRecord(f *testing.F) {
	f.Add([]byte(`m{"step":1,"pending":1,"half":1,"units":"AA=="}`))
	x := newTrial(simCase{
		chunk: 8, direct: 1 << 20, old: make([]byte, 48*sector), plan: &plan.Plan{
			OldSize: 48 * sector, Size: 56 * sector, Pieces: []disk.Shift{shift(0, 0, 3), shift(3, 8, 40)},
		},
	}, faulty{})
	m, err := x.open(true)
	require.NoError(f, err)
	_, err = m.disk.WriteAt(m.plan.mark(), 0)
	require.NoError(f, err)
	require.NoError(f, m.disk.Truncate(m.plan.End))
	f.Fuzz(func(t *testing.T, b []byte) {
		m, err := open(m.plan, m.disk, fixed(b), Options{})
		if err == nil {
			require.True(t, m.step >= 0 && m.step <= m.steps, "%+v", m)
		}
	})
}

// fixed is a journal with one record.
type fixed []byte

func (l fixed) Record() []byte               { return l }
func (fixed) Put([]byte) error               { return nil }
func (fixed) WriteAt([]byte, int64) error    { return nil }
func (fixed) ReadAt(b []byte, _ int64) error { clear(b); return nil }
