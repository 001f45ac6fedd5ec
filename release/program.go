package main

import (
	"fmt"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/trueup/trueup/fleet/fleetcmd"
	"github.com/trueup/trueup/internal/cli"
)

// product is a program of the release, in packages and an image of its own.
type product struct {
	name          string
	main          string // its package
	needs         string // another program of the same version; empty: none
	summary, long string
	commands      func(version string) *cobra.Command
	exits         func(command string) []cli.Exit
}

var products = []product{
	{
		name: "trueup", main: "./cmd/trueup", commands: cli.Commands, exits: cli.Exits,
		summary: "offline inspector and realigner for virtual-disk images",
		long: `trueup finds virtual disks whose partitions do not start on a block
boundary of the storage below, and writes an aligned copy with the file
systems moved and the guest still able to boot. It opens VMDK, VHD, VHDX,
qcow2, raw and OVA images.`,
	},
	{
		name: "trueup-fleet", main: "./fleet/cmd/trueup-fleet", needs: "trueup",
		commands: fleetcmd.Commands,
		exits: func(command string) (out []cli.Exit) {
			for _, e := range fleetcmd.Exits(command) {
				out = append(out, cli.Exit{Code: e[0], Text: e[1]})
			}
			return out
		},
		summary: "scans and realigns virtual-disk images on many hosts",
		long: `trueup-fleet keeps jobs in NATS JetStream, of its own server or of another
one. A worker on each host does the jobs of the datastores that the host
sees with trueup. Its units of systemd are neither enabled nor started.`,
	},
}

// owns reports whether a file of those that all archives have belongs to the product.
func (p product) owns(file string) bool {
	if !strings.HasPrefix(file, "share/") {
		return true
	}
	ofFleet := strings.HasPrefix(strings.TrimPrefix(path.Base(file), "_"), "trueup-fleet")
	return ofFleet == (p.name == "trueup-fleet")
}

// programs lists the product and what it needs.
func (p product) programs() []string {
	if p.needs == "" {
		return []string{p.name}
	}
	return []string{p.needs, p.name}
}

// target is a system of a release.
type target struct {
	system, arch string // as Go has them
	folder       string // of the programs that are built for it
}

// targets are the systems of a release.
var targets = []target{
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

// file returns the path of a program.
func (t target) file(program string) string {
	if t.system == "windows" {
		program += ".exe"
	}
	return filepath.Join(t.folder, program)
}

// build builds all programs. Paths, identifiers and times of this machine are in none of them.
func (r *release) build(folder string) error {
	wanted := strings.Split(r.systems, ",")
	for _, t := range targets {
		if r.systems != "" && !slices.Contains(wanted, t.system+"/"+t.arch) {
			continue
		}
		t.folder = filepath.Join(folder, t.system+"-"+t.arch)
		args := append([]string{
			"build", "-trimpath", "-buildvcs=false", "-ldflags",
			"-s -w -buildid= -X main.version=" + r.version, "-o", t.folder + string(filepath.Separator),
		}, r.flags...)
		for _, p := range products {
			args = append(args, p.main)
		}
		cmd := exec.Command("go", args...)
		cmd.Dir, cmd.Stderr = r.root, os.Stderr
		cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOOS="+t.system, "GOARCH="+t.arch, "GOFLAGS=",
			"GOWORK="+filepath.Join(r.root, "go.work"),
			"GOAMD64=v1", "GO386=sse2", "GOARM64=v8.0", "GORISCV64=rva20u64")
		if err := cmd.Run(); err != nil {
			return fmt.Errorf("%s/%s: %w", t.system, t.arch, err)
		}
		r.built = append(r.built, t)
	}
	if r.systems != "" && len(r.built) != len(wanted) {
		return fmt.Errorf("-systems %s: built only %d of them; see program.go for all", r.systems, len(r.built))
	}
	return nil
}
