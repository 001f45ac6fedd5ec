#!/usr/bin/env bash
# Times reading and writing of every format, trueup convert beside qemu-img convert: a disk of 2 GiB with 1 GiB of data is
# converted from the format to raw, and from raw to the format. The rows run in turn, ROUNDS times, trueup and qemu-img by
# turns first. trueup syncs what it wrote, qemu-img convert does not. The page cache is warm.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
export PATH="$PATH:/usr/sbin:/sbin" LC_ALL=C
. scripts/bench-lib.sh

disk_bytes=$((2 << 30))
data_bytes=$((1 << 30))
raw=$cache/formats.raw

# One line for each format: what --to takes, then what qemu-img takes.
formats=(
	'raw raw -'
	'vmdk:monolithicSparse vmdk subformat=monolithicSparse'
	'vmdk:monolithicFlat vmdk subformat=monolithicFlat'
	'vmdk:twoGbMaxExtentSparse vmdk subformat=twoGbMaxExtentSparse'
	'vmdk:streamOptimized vmdk subformat=streamOptimized'
	'vhd:fixed vpc subformat=fixed,force_size=on'
	'vhd:dynamic vpc subformat=dynamic,force_size=on'
	'vhdx:fixed vhdx subformat=fixed'
	'vhdx:dynamic vhdx subformat=dynamic'
	'qcow2:v3 qcow2 compat=1.1'
	'qcow2:compressed qcow2 -c'
)

make_raw() {
	[ -e $raw ] && return
	echo "Making $raw (once)"
	mkdir -p $cache
	rm -f $raw.new
	truncate -s $disk_bytes $raw.new
	mkntfs -q -F -Q -L BENCH $raw.new 2>/dev/null
	fill $raw.new $data_bytes
	mv $raw.new $raw
}

# options turns the third column into arguments of qemu-img.
options() {
	case $1 in
	-) ;;
	-*) echo "$1" ;;
	*) echo "-o $1" ;;
	esac
}

# row times one conversion and keeps its figures under a name.
row() {
	local name=$1
	shift
	sync # one row's late writes are not the next row's time
	timed "$@"
	awk '{ print $1, $2 + $3, $4 / 1024 }' $cache/figures >>"$cache/formats/$name.csv"
	rm -f $cache/formats/out*
}

round() {
	local to qemu option name order="trueup qemu" tool
	[ $(($1 % 2)) -eq 1 ] || order="qemu trueup"
	while read -r to qemu option; do
		name=${to/:/-}
		for tool in $order; do
			case $tool in
			trueup)
				row "$name-read" $trueup convert -q --no-progress --verify structure --to raw "$cache/formats/$name/disk" $cache/formats/out
				row "$name-write" $trueup convert -q --no-progress --verify structure --to "$to" $raw $cache/formats/out
				;;
			qemu)
				row "$name-read-qemu" qemu-img convert -f "$qemu" -O raw "$cache/formats/$name/disk" $cache/formats/out
				# shellcheck disable=SC2046 # two words
				row "$name-write-qemu" qemu-img convert -f raw -O "$qemu" $(options "$option") $raw $cache/formats/out
				;;
			esac
		done
	done < <(printf '%s\n' "${formats[@]}")
}

# sources makes what is read, with qemu-img.
sources() {
	local to qemu option name
	rm -rf $cache/formats
	while read -r to qemu option; do
		name=${to/:/-}
		mkdir -p "$cache/formats/$name"
		# shellcheck disable=SC2046 # two words
		qemu-img convert -f raw -O "$qemu" $(options "$option") $raw "$cache/formats/$name/disk"
	done < <(printf '%s\n' "${formats[@]}")
}

# rate prints one cell: MiB of data a second, and the ratio of the times.
rate() {
	paste -d ' ' <(medians "formats/$1") <(medians "formats/$1-qemu") |
		awk -v mib=$((data_bytes >> 20)) '{ printf "%9.0f %9.0f %6.2f %7.1f", mib / $1, mib / $4, $1 / $4, $3 }'
}

report() {
	local to rest name
	printf '\n%s\n\n' "Medians of $rounds, warm page cache, $(nproc) processors, $(qemu-img --version | head -n 1), $((data_bytes >> 20)) MiB of data"
	printf '%-28s %35s   %35s\n' '' 'read: to raw' 'write: from raw'
	printf '%-28s' ''
	for _ in read write; do printf ' %9s %9s %6s %7s ' 'trueup' 'qemu-img' 'ratio' 'RSS'; done
	printf '\n%-28s' 'format'
	for _ in read write; do printf ' %9s %9s %6s %7s ' 'MiB/s' 'MiB/s' 'time' 'MiB'; done
	printf '\n'
	while read -r to rest; do
		name=${to/:/-}
		printf '%-28s %s   %s\n' "$to" "$(rate "$name-read")" "$(rate "$name-write")"
	done < <(printf '%s\n' "${formats[@]}")
	printf '\nA ratio under 1: trueup needs less time.\n'
}

check_tools
make_raw
sources
for ((i = 1; i <= rounds; i++)); do
	round $i
	echo "round $i of $rounds done" >&2
done
report
rm -rf $cache/formats
