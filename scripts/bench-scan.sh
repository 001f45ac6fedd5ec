#!/usr/bin/env bash
# Times trueup scan on a library of IMAGES (10,000) images in all formats, with --jobs 2 and a warm page cache, and virt-alignment-scan on one
# image after the other, in turn with trueup scan on the same one.
#
# The library is made once by scripts/make-library.py and kept in .cache/bench. virt-alignment-scan boots an appliance for every image; without
# KVM that takes a quarter of a minute.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
export PATH="$PATH:/usr/sbin:/sbin" LC_ALL=C
. scripts/bench-lib.sh

images=${IMAGES:-10000}
jobs=2
library=$cache/library-$images
out=$cache/scan.ndjson
# A /dev/kvm that is there need not work. Where it does: LIBGUESTFS_BACKEND_SETTINGS= make bench
export LIBGUESTFS_BACKEND=direct LIBGUESTFS_BACKEND_SETTINGS=${LIBGUESTFS_BACKEND_SETTINGS-force_tcg}

make_library() {
	[ -e "$library.ndjson" ] && return # written last
	echo "Making $library (some minutes, once)"
	mkdir -p $cache
	rm -rf "$library"
	scripts/make-library.py --plain "$library" "$images" --record "$library.new"
	mv "$library.new" "$library.ndjson"
}

# children lists the processes that a process has started.
children() { cat /proc/"$1"/task/*/children 2>/dev/null || true; } # of all threads: any of them starts processes

# peak prints the largest resident size so far of the processes given, in KiB.
peak() {
	local pid
	for pid in "$@"; do cat "/proc/$pid/status" 2>/dev/null || true; done | awk '/^VmHWM:/ && $2 > m { m = $2 } END { print m + 0 }'
}

# scan runs trueup scan on the library, and appends seconds of wall and processor, KiB of the largest process of all, and KiB of the largest
# worker as it was last seen alive.
scan() {
	local timer program worker=0 now
	/usr/bin/time -q -o $cache/figures -f '%e %U %S %M' $trueup scan --jobs $jobs --fail-on never -o json "$library" >$out &
	timer=$!
	while kill -0 $timer 2>/dev/null; do
		program=$(children $timer)
		# shellcheck disable=SC2046,SC2086 # a list of numbers
		[ -z "$program" ] || { now=$(peak $(children ${program%% *})) && worker=$((now > worker ? now : worker)); }
		sleep 0.1
	done
	wait $timer || die "trueup scan $library failed"
	awk -v w=$worker '{ print $1, $2 + $3, $4, w }' $cache/figures >>$cache/scan.csv
}

# column prints the median of a column of a file.
column() {
	awk -v c="$2" '{ print $c }' "$1" | sort -n | awk '{ v[NR] = $1 } END { h = int((NR + 1) / 2); print NR % 2 ? v[h] : (v[h] + v[h + 1]) / 2 }'
}

# samples are one small image of each format that both programs read.
samples() {
	jq -r 'select(.path_base64 == null and (.parents | length) == 0 and .disks[0].size_bytes < 100000000) | select(.path | test("^[ -~]+$"))
		| .format + " " + .subformat + "\t" + .path' "$library.ndjson" |
		awk -F '\t' '($1 == "raw " || $1 == "vmdk monolithicSparse" || $1 == "qcow2 v3") && !seen[$1]++ { print $2 }'
}

# one appends the seconds that each of both programs needs for one image. Exit codes 2 and 3 of virt-alignment-scan are verdicts.
one() {
	local path=$1
	/usr/bin/time -q -o $cache/figures -f %e virt-alignment-scan -a "$path" >/dev/null || [ $? -gt 1 ] || die "virt-alignment-scan -a $path failed"
	cat $cache/figures >>$cache/one-peer.csv
	/usr/bin/time -q -o $cache/figures -f %e $trueup scan --fail-on never -o json "$path" >/dev/null || die "trueup scan $path failed"
	cat $cache/figures >>$cache/one.csv
}

report() {
	local wall peer
	wall=$(column $cache/scan.csv 1) peer=$(column $cache/one-peer.csv 1)
	printf '\n%s\n\n' "Medians of $rounds, warm page cache, $(nproc) processors, $jobs jobs; $(virt-alignment-scan --version)"
	tail -n 1 $out | jq -r --argjson wall "$wall" --argjson cpu "$(column $cache/scan.csv 2)" --argjson all "$(column $cache/scan.csv 3)" \
		--argjson worker "$(column $cache/scan.csv 4)" --argjson peer "$peer" --argjson one "$(column $cache/one.csv 1)" '
		"images                              \(.images), of which \(.failed) failed",
		"seconds, wall and processor         \($wall), \($cpu)",
		"images a second                     \(.images / $wall | round)",
		"bytes read an image                 \(.read_bytes / .images | round)",
		"peak RSS of the largest worker      \(if $worker > 0 then "\($worker / 102.4 | round / 10) MiB, as it was seen" else "no worker was seen" end)",
		"peak RSS of the largest process     \($all / 102.4 | round / 10) MiB",
		"isolation                           \(.isolation.achieved) \(.isolation.layers | join(" "))",
		"virt-alignment-scan, one image      \($peer) s, \(1 / $peer * 100 | round / 100) images a second",
		"trueup scan, the same image         \($one) s with its start",
		"images a second, ratio              \(.images / $wall * $peer | round)"'
}

check_tools
for tool in jq python3 virt-alignment-scan; do command -v $tool >/dev/null || die "$tool is missing; make tools installs it"; done
make_library
rm -f $cache/scan.csv $cache/one.csv $cache/one-peer.csv
$trueup scan --jobs $jobs --fail-on never -o json "$library" >$out # warms the page cache
for ((i = 1; i <= rounds; i++)); do
	scan
	echo "round $i of $rounds done" >&2
done
mapfile -t paths < <(samples)
[ ${#paths[@]} -gt 0 ] || die "no image in $library.ndjson for virt-alignment-scan"
for path in "${paths[@]}"; do one "$library/$path"; done
report
