#!/usr/bin/env bash
# Times nbdcopy from trueup serve against nbdcopy from qemu-nbd, of one image in several formats.
#
# The disk has 1.4 GiB of noise among holes. The servers take turns, ROUNDS times; the page cache is warm. CPU excludes
# nbdcopy, which costs the same with both.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
export LC_ALL=C

. scripts/bench-lib.sh

make_sources() {
	local format
	mkdir -p $cache
	[ -e $cache/serve.raw ] || {
		echo "Making $cache/serve.raw"
		truncate -s 2G $cache/serve.part
		head -c 1400M /dev/urandom | dd of=$cache/serve.part bs=1M seek=100 conv=notrunc iflag=fullblock status=none
		mv $cache/serve.part $cache/serve.raw
	}
	for format in qcow2 vmdk; do
		[ -e $cache/serve.$format ] || qemu-img convert -f raw -O $format $cache/serve.raw $cache/serve.$format
	done
}

# ticks prints the processor time of a process in hundredths of a second.
ticks() { awk '{ print $14 + $15 }' "/proc/$1/stat"; }

# copy runs nbdcopy on a server, and adds a line to the figures of its row: seconds of wall, seconds of CPU, MiB.
copy() {
	local row=$1 pid=$2 before wall
	before=$(ticks "$pid")
	timed nbdcopy "nbd+unix:///?socket=$sockets/$row" null:
	read -r wall _ <$cache/figures
	awk -v wall="$wall" -v cpu=$(($(ticks "$pid") - before)) '/VmHWM/ { print wall, cpu / 100, $2 / 1024 }' \
		"/proc/$pid/status" >>"$cache/$row.csv"
}

measure() {
	local format=$1 pids=() round row wall cpu rss
	rm -f $cache/serve-trueup.csv $cache/serve-qemu.csv
	cat "$cache/serve.$format" >/dev/null
	$trueup serve --as-is --quiet --socket "$sockets/serve-trueup" "$cache/serve.$format" &
	pids+=($!)
	qemu-nbd -r -t -e 16 -f "$format" -k "$sockets/serve-qemu" "$cache/serve.$format" &
	pids+=($!)
	for row in serve-trueup serve-qemu; do
		until nbdinfo --size "nbd+unix:///?socket=$sockets/$row" >/dev/null 2>&1; do sleep 0.1; done
	done
	for ((round = 1; round <= rounds; round++)); do
		copy serve-trueup "${pids[0]}"
		copy serve-qemu "${pids[1]}"
	done
	kill "${pids[@]}"
	wait "${pids[@]}" || true
	for row in serve-trueup serve-qemu; do
		read -r wall cpu rss < <(medians $row)
		printf '%-8s %-14s %9.2f %9.2f %9.1f\n' "$format" $row "$wall" "$cpu" "$rss"
	done
}

for tool in nbdcopy nbdinfo qemu-nbd qemu-img awk; do
	command -v $tool >/dev/null || die "$tool is missing; make tools installs it"
done
[ -x $trueup ] || die "$trueup is missing; make build makes it"
make_sources
sockets=$(mktemp -d)
trap 'kill $(jobs -p) 2>/dev/null || true; rm -rf "$sockets"' EXIT
printf '%-8s %-14s %9s %9s %9s\n' image server 'wall s' 'CPU s' 'RSS MiB'
for format in raw qcow2 vmdk; do measure $format; done
