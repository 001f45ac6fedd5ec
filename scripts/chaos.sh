#!/usr/bin/env bash
# Breaks a fleet of three workers and two datastores: IMAGES images (200) with the server of this program, and with a
# cluster of three of the system's nats-server. SEED chooses the faults.
set -euo pipefail

cd "$(dirname "$0")/.."
go=${GO:-go}
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT

# No library can change the clock of a Go program, which uses the kernel directly. This one is built with a clock that is
# ahead by the seconds in a file, in eight bytes. The runtime needs the time where it cannot read: the file is mapped.
time=$("$go" env GOROOT)/src/time/time.go
sed -e 's/^import (/&\n\t"syscall"/' -e '/^func Now() Time {/,/runtimeNow()/ s/runtimeNow()/&\n\tsec += *jumped/' "$time" > "$dir/time.go"
cat >> "$dir/time.go" << 'END'

var jumped = jumpedIn()

func jumpedIn() *int64 {
	name, _ := syscall.Getenv("TRUEUP_CHAOS_CLOCK")
	if name == "" {
		return new(int64)
	}
	fd, err := syscall.Open(name, syscall.O_RDONLY|syscall.O_CLOEXEC, 0)
	if err != nil {
		panic(err)
	}
	b, err := syscall.Mmap(fd, 0, 8, syscall.PROT_READ, syscall.MAP_SHARED)
	if err != nil {
		panic(err)
	}
	syscall.Close(fd)
	return (*int64)(unsafe.Pointer(&b[0]))
}
END
sed -i 's|_ "unsafe" // for go:linkname|"unsafe"|' "$dir/time.go"
printf '{"Replace": {"%s": "%s"}}\n' "$time" "$dir/time.go" > "$dir/overlay.json"
"$go" test -overlay "$dir/overlay.json" -c -o "$dir/fleet.test" ./fleet/fleetcmd

seed=${SEED:-$(date +%s)}
echo "SEED=$seed"
export TRUEUP_CHAOS=${IMAGES:-200} TRUEUP_CHAOS_SEED=$seed TRUEUP_CHAOS_CLOCKS=1
TRUEUP_NATS=$(command -v nats-server)
export TRUEUP_NATS
"$go" test -count=1 -timeout 10m ./fleet/queue # by that nats-server
cd fleet/fleetcmd
"$dir/fleet.test" -test.v -test.timeout 1h -test.parallel 1 -test.run '^TestChaos(Cluster)?$'
