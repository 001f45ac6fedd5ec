package main

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
)

// program is trueup for one system.
type program struct {
	system, arch string // as Go has them
	path         string
}

// targets are the systems of a release.
var targets = []program{
	{system: "linux", arch: "amd64"},
	{system: "linux", arch: "arm64"},
	{system: "linux", arch: "riscv64"},
	{system: "linux", arch: "386"},
	{system: "windows", arch: "amd64"},
	{system: "windows", arch: "arm64"},
	{system: "darwin", arch: "amd64"},
	{system: "darwin", arch: "arm64"},
	{system: "freebsd", arch: "amd64"},
}

// name is that of the program in archives.
func (p program) name() string {
	if p.system == "windows" {
		return "trueup.exe"
	}
	return "trueup"
}

// build builds all programs. Paths, identifiers and times of this machine are in none of them.
func (r *release) build(folder string) error {
	wanted := strings.Split(r.systems, ",")
	for _, p := range targets {
		if r.systems != "" && !slices.Contains(wanted, p.system+"/"+p.arch) {
			continue
		}
		p.path = filepath.Join(folder, p.system+"-"+p.arch, p.name())
		args := append([]string{
			"build", "-trimpath", "-buildvcs=false", "-ldflags",
			"-s -w -buildid= -X main.version=" + r.version, "-o", p.path,
		}, r.flags...)
		cmd := exec.Command("go", append(args, "./cmd/trueup")...)
		cmd.Dir, cmd.Stderr = r.root, os.Stderr
		cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOOS="+p.system, "GOARCH="+p.arch, "GOFLAGS=", "GOWORK=off",
			"GOAMD64=v1", "GO386=sse2", "GOARM64=v8.0", "GORISCV64=rva20u64")
		if err := cmd.Run(); err != nil {
			return fmt.Errorf("%s/%s: %w", p.system, p.arch, err)
		}
		r.built = append(r.built, p)
	}
	if r.systems != "" && len(r.built) != len(wanted) {
		return fmt.Errorf("-systems %s: built only %d of them; see program.go for all", r.systems, len(r.built))
	}
	return nil
}
