#!/usr/bin/env bash
# Times trueup align against qemu-img convert on an 8 GiB XP-style disk with about 2.5 GiB of data.
#
# The disk is made once by sfdisk, mkntfs, ntfscp and qemu-img and kept in .cache/bench. The rows run in turn, ROUNDS
# times, the order turned round every time. The page cache is warm: nothing is dropped between the runs.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
export PATH="$PATH:/usr/sbin:/sbin" LC_ALL=C

. scripts/bench-lib.sh
source=$cache/xp-8g.vmdk
dest=$cache/out.vmdk

# XP ends a partition on a cylinder of the 255/63 geometry and leaves the rest of the disk free.
disk_bytes=$((8 << 30))
start=63
cylinder=$((255 * 63))
end=$((disk_bytes / 512 / cylinder * cylinder))
data_bytes=$((2560 << 20))

make_source() {
	[ -e $source ] && return
	echo "Making $source (a few minutes, once)"
	mkdir -p $cache
	work=$(mktemp -d -p $cache make.XXXXXX)
	trap 'rm -rf "$work"' EXIT # a half-made disk must not be taken for the cached one

	truncate -s $(((end - start) * 512)) "$work/volume"
	mkntfs -q -F -Q -p $start -H 255 -S 63 -s 512 -L BENCH "$work/volume" 2>/dev/null
	fill "$work/volume" $data_bytes

	truncate -s $disk_bytes "$work/disk.raw"
	sfdisk -q "$work/disk.raw" <<-TABLE
		label: dos
		label-id: 0x42454e43
		start=$start, size=$((end - start)), type=7, bootable
	TABLE
	dd if="$work/volume" of="$work/disk.raw" bs=64K oflag=seek_bytes seek=$((start * 512)) conv=sparse,notrunc status=none
	rm "$work/volume"
	qemu-img convert -f raw -O vmdk -o subformat=monolithicSparse "$work/disk.raw" "$work/disk.vmdk"
	mv "$work/disk.vmdk" $source
	rm -rf "$work"
	trap - EXIT
}

# The rows. The first of qemu-img is what people type: it neither syncs nor verifies. trueup always syncs its result, so
# that -t writeback, which flushes at the end, is the like of --verify structure. The like of trueup's default, which
# reads the result back, is that and a compare.
rows=(structure full convert convert-sync convert-sync-compare)
label() {
	case $1 in
	structure) echo 'trueup align --verify structure' ;;
	full) echo 'trueup align' ;;
	convert) echo 'qemu-img convert' ;;
	convert-sync) echo 'qemu-img convert -t writeback' ;;
	convert-sync-compare) echo 'qemu-img convert -t writeback, compare' ;;
	esac
}
run() {
	case $1 in
	structure) timed $trueup align --no-progress --quiet --verify structure $source $dest ;;
	full) timed $trueup align --no-progress --quiet $source $dest ;;
	convert) timed qemu-img convert -f vmdk -O vmdk $source $dest ;;
	convert-sync) timed qemu-img convert -t writeback -f vmdk -O vmdk $source $dest ;;
	convert-sync-compare)
		timed sh -c "qemu-img convert -t writeback -f vmdk -O vmdk $source $dest && qemu-img compare -q -f vmdk -F vmdk $source $dest"
		;;
	esac
}

measure() {
	local round row order
	rm -f $cache/*.csv $dest
	cat $source >/dev/null
	for ((round = 1; round <= rounds; round++)); do
		order=("${rows[@]}")
		[ $((round % 2)) -eq 1 ] || mapfile -t order < <(printf '%s\n' "${rows[@]}" | tac)
		for row in "${order[@]}"; do
			sync # one row's late writes are not the next row's time
			run "$row"
			awk '{ print $1, $2 + $3, $4 / 1024 }' $cache/figures >>"$cache/$row.csv"
			rm -f $dest
		done
		echo "round $round of $rounds done" >&2
	done
}

print_row() {
	local wall cpu rss
	read -r wall cpu rss < <(medians "$1")
	printf '%-42s %9.2f %9.2f %9.1f\n' "$(label "$1")" "$wall" "$cpu" "$rss"
}

print_ratio() {
	paste -d ' ' <(medians "$1") <(medians "$2") | awk -v a="$(label "$1")" -v b="$(label "$2")" \
		'{ printf "%-32s / %-40s %6.2f %6.2f %6.2f\n", a, b, $1 / $4, $2 / $5, $3 / $6 }'
}

report() {
	local row
	printf '\n%s\n' "Medians of $rounds, warm page cache, $(nproc) processors, $(qemu-img --version | head -n 1)"
	printf 'Source: %s, file of %d MiB, partition at LBA %d of an 8 GiB disk\n\n' "$(basename $source)" \
		$(($(stat -c %s $source) >> 20)) $start
	printf '%-42s %9s %9s %9s\n' '' 'wall s' 'CPU s' 'RSS MiB'
	for row in "${rows[@]}"; do print_row "$row"; done
	printf '\n%-75s %6s %6s %6s\n' 'ratio (under 1: trueup needs less)' wall CPU RSS
	print_ratio structure convert
	print_ratio structure convert-sync
	print_ratio full convert
	print_ratio full convert-sync-compare
}

check_tools
make_source
measure
report
