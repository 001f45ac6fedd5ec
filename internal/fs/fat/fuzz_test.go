package fat

import (
	"os"
	"testing"

	"github.com/trueup/trueup/internal/disktest"
	"github.com/trueup/trueup/internal/disktest/filetest"
)

func FuzzFAT(f *testing.F) {
	if _, err := os.Stat("/usr/sbin/mkfs.fat"); err != nil {
		f.Skip("mkfs.fat is missing")
	}
	var bases []filetest.FuzzBase
	for _, k := range []fatKind{
		{size: "128K", args: []string{"-F", "12", "-s", "1", "-r", "64"}},
		{size: "4400K", args: []string{"-F", "16", "-s", "1", "-r", "64"}},
		{size: "34M", args: []string{"-F", "32", "-s", "1"}},
	} {
		img := makeFAT(f, k, map[string][]byte{
			"file": filetest.Noise(1, 3000), "dir/in dir.txt": filetest.Noise(2, 100),
			"A long name with spaces.txt": filetest.Noise(3, 10),
		})
		raw := disktest.ReadFile(f, img)
		bases = append(bases, filetest.NewFuzzBase(raw))
	}
	for i := range bases {
		f.Add(byte(i), []byte{})
		f.Add(byte(i), []byte{30, 0, 0, 0xff, 0xff, 9, 1, 2, 0, 0})
	}
	f.Fuzz(func(t *testing.T, which byte, input []byte) {
		filetest.Exercise(t, bases[int(which)%len(bases)].Mutated(input), alone)
	})
}

func FuzzFATCensus(f *testing.F) {
	if _, err := os.Stat("/usr/sbin/mkfs.fat"); err != nil {
		f.Skip("mkfs.fat is missing")
	}
	var bases []filetest.FuzzBase
	for _, k := range []fatKind{
		{size: "128K", args: []string{"-F", "12", "-s", "1", "-r", "64"}},
		{size: "34M", args: []string{"-F", "32", "-s", "1"}},
	} {
		img := makeFAT(f, k, map[string][]byte{
			"file": filetest.Noise(1, 3000), "dir/in dir.txt": filetest.Noise(2, 100), "dir/dir/dir": filetest.Noise(3,
				900),
		})
		fragment(f, img, 20_000)
		raw := disktest.ReadFile(f, img)
		bases = append(bases, filetest.NewFuzzBase(raw))
	}
	for i := range bases {
		f.Add(byte(i), []byte{})
		f.Add(byte(i), []byte{30, 0, 0, 0xff, 0xff, 9, 1, 2, 0, 0})
	}
	f.Fuzz(func(t *testing.T, which byte, input []byte) {
		filetest.ExerciseCensus(t, bases[int(which)%len(bases)].Mutated(input), Fragments)
	})
}
