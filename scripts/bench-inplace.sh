#!/usr/bin/env bash
# Times trueup move against a copy by trueup align, both on one file system: two raw disks of 2 GiB with one
# NTFS at LBA 63, one full and one nearly empty, and one of 20 GiB with a nearly empty ext3, with some data in each block
# group; to LBA 2048 and to LBA 128. The rows run in turn, ROUNDS times, in reverse order every time. Both flush and read
# back their writes. The page cache is warm.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
export PATH="$PATH:/usr/sbin:/sbin" LC_ALL=C
. scripts/bench-lib.sh

start=63
disks=(full sparse spread)
boundaries=(1M 64K)
moved=$cache/moved.raw

# make_disk makes a disk of a size with an amount of data, both in bytes. As after an installer, the last cylinder of the
# 255/63 geometry is free.
make_disk() {
	local disk=$cache/inplace-$1.raw disk_bytes=$2 data_bytes=$3 sectors=$(($2 / 512 - 255 * 63)) type=7
	[ -e "$disk" ] && return
	echo "Making $disk (once)"
	mkdir -p $cache/files
	rm -f "$disk.new" $cache/volume
	truncate -s $((sectors * 512)) $cache/volume
	if [ "$1" = spread ]; then
		type=83
		{ tar -C / -cf - ./usr/lib 2>/dev/null | head -c "$data_bytes" >$cache/files/archive; } || true
		mkfs.ext3 -q -d $cache/files $cache/volume
	else
		mkntfs -q -F -Q -p $start -H 255 -S 63 -s 512 -L BENCH $cache/volume 2>/dev/null
		fill $cache/volume "$data_bytes"
	fi
	truncate -s "$disk_bytes" "$disk.new"
	sfdisk -q "$disk.new" <<<"start=$start, size=$sectors, type=$type, bootable"
	dd if=$cache/volume of="$disk.new" bs=64K oflag=seek_bytes seek=$((start * 512)) conv=sparse,notrunc status=none
	rm -r $cache/volume $cache/files
	mv "$disk.new" "$disk"
}

# row times one command on a disk. A move gets a new copy of the disk, already flushed.
row() {
	local disk=$1 boundary=$2 way=$3 source=$cache/inplace-$1.raw
	rm -f $moved
	[ "$way" = copy ] || cp --sparse=always "$source" $moved
	cat "$source" >/dev/null
	sync
	case $way in
	copy) timed $trueup align -q --no-progress --boundary "$boundary" "$source" $moved ;;
	move) timed $trueup move -q --no-progress --boundary "$boundary" $moved ;;
	esac
	awk '{ print $1, $2 + $3, $4 / 1024 }' $cache/figures >>"$cache/inplace-$disk-$boundary-$way.csv"
	rm -f $moved
}

round() {
	local disk boundary way order="copy move"
	[ $(($1 % 2)) -eq 1 ] || order="move copy"
	for disk in "${disks[@]}"; do
		for boundary in "${boundaries[@]}"; do
			for way in $order; do row "$disk" "$boundary" "$way"; done
		done
	done
}

report() {
	local disk boundary
	printf '\n%s\n\n' "Medians of $rounds, warm page cache, $(nproc) processors"
	printf '%-8s %-9s %9s %9s %9s %9s %9s %7s\n' disk boundary 'copy s' 'move s' 'copy CPU' 'move CPU' 'RSS MiB' ratio
	for disk in "${disks[@]}"; do
		for boundary in "${boundaries[@]}"; do
			paste -d ' ' <(medians "inplace-$disk-$boundary-copy") <(medians "inplace-$disk-$boundary-move") |
				awk -v d="$disk" -v b="$boundary" \
					'{ printf "%-8s %-9s %9.2f %9.2f %9.2f %9.2f %9.1f %7.2f\n", d, b, $1, $4, $2, $5, $6, $1 / $4 }'
		done
	done
	printf '\nA ratio over 1: the move needs less time than the copy.\n'
}

check_tools
make_disk full $((2 << 30)) $((1900 << 20))
make_disk sparse $((2 << 30)) $((200 << 20))
make_disk spread $((20 << 30)) $((200 << 20))
rm -f $cache/inplace-*.csv
for ((i = 1; i <= rounds; i++)); do
	round $i
	echo "round $i of $rounds done" >&2
done
report
