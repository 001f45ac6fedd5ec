#!/usr/bin/env bash
# Made by trueup 1.0.0 from the scan that ended 2026-11-21T20:01:30Z. Read it before you run it.
#
# It writes 3 aligned copies, the most urgent first, each beside its original, which is only read and stays.
# To read and to write: 9 GiB (9663676416 bytes). The disks grow by 3 MiB (3145728 bytes) together.
# No copy can be made of 3 images as they are; 1 image was accepted. They stand below as comments.
#
# A copy that is there already is passed over, so the script can be run again. An image that fails stops no other. Each command
# checks that its copy fits before it writes, proves every byte, and gives the copy its name last.
#
#     TRUEUP=/path/to/trueup   the program to run, if that of the PATH is not meant
#     DRY_RUN=1                print the commands and run none
#
# It ends with 0 when all copies are there, with 1 when one could not be made.
#
# Names can hold anything, and so look like mistakes:
# shellcheck disable=SC1003,SC2016
set -euo pipefail

trueup=${TRUEUP:-trueup}
made=0
passed=0
exchanged=
failed=()
trap 'exit 130' INT
trap 'exit 143' TERM

# copy RANK align [FLAG…] SOURCE DEST makes one copy.
copy() {
	local rank=$1 dest=${!#}
	shift
	if [ -e "$dest" ] || [ -L "$dest" ]; then
		passed=$((passed + 1))
		LC_ALL=C printf '%d: passed over, it exists: %q\n' "$rank" "$dest"
	elif [ -n "${DRY_RUN:-}" ]; then
		LC_ALL=C printf '%q ' "$trueup" "$@"
		echo
	elif "$trueup" "$@" </dev/null; then
		made=$((made + 1))
	else
		failed+=("$rank")
	fi
}

# 1. /t/data.vmdk
#   a partition starts off a 4 KiB boundary; no system boots from the disk; a copy can be made; each I/O touches 87.5 % more blocks
#   guest shut down
#   3 GiB to copy, the disks grow by 1 MiB
copy 1 align /t/data.vmdk /t/data-aligned.vmdk

# 2. /t/many.vmdk
#   a partition starts off a 4 KiB boundary; whether a system boots from the disk is not known; no plan could be made; each I/O touches 87.5 % more blocks
#   guest unknown
#   not realigned: more than 128 partitions

# 3. /t/my boot.vmdk
#   a partition starts off a 4 KiB boundary; a system boots from the disk; a copy can be made; each I/O touches 87.5 % more blocks
#   guest running
#   3 GiB to copy, the disks grow by 1 MiB
copy 3 align '/t/my boot.vmdk' '/t/my boot-aligned.vmdk'

# 4. /t/lilo.vmdk
#   a partition starts off a 4 KiB boundary; a system boots from the disk; a copy is refused: LILO keeps sectors; each I/O touches 87.5 % more blocks
#   guest running
#   not realigned: partition 1: LILO keeps sectors
#     Run lilo on the copy.

# 5. /t/two.ova
#   a partition is on 4 KiB, but off 64K; no system boots from the disk; a copy can be made; each I/O touches 87.5 % more blocks
#   guest shut down
#   3 GiB to copy, the disks grow by 1 MiB
copy 5 align /t/two.ova /t/two-aligned.ova

# 6. /t/half.ova
#   a partition is on 4 KiB, but off 64K; no system boots from the disk; no plan could be made; each I/O touches 87.5 % more blocks
#   guest shut down
#   not realigned: b.vmdk: grain table at 0x200: ends behind the file

# /t/retired.vmdk
#   not realigned, accepted until 2027-01-31: is replaced

echo "$made made, ${exchanged:+$exchanged exchanged or aligned already, }$passed passed over, ${#failed[@]} failed"
if [ "${#failed[@]}" -gt 0 ]; then
	echo "failed: number ${failed[*]}" >&2
	exit 1
fi
# As trueup wrote it, SHA-256 f1ecb30cdc767eba06ff6016610fe96b5757f8a6d1b9fb24580a66e830a64bfa
