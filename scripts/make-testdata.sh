#!/usr/bin/env bash
# Makes testdata/xp-lba63.vmdk: a disk partitioned like Windows XP, with one NTFS at LBA 63.
# See testdata/README.md. The same tools give the same bytes each time.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
export PATH="$PATH:/usr/sbin:/sbin" TZ=UTC LC_ALL=C

out=${1:-testdata/xp-lba63.vmdk}
start=63             # sectors: one track of the 255/63 geometry
sectors=7770         # under 4,000,000 bytes mkntfs makes a $LogFile of 512 KiB, above it 2 MiB
disk_size=8M         # the tail stays free, as XP left the rest of the last cylinder free
made="2004-08-25 12:00:00" # when each step takes place: the time stamps, and the seed of the NTFS serial

for tool in sfdisk mkntfs ntfscp qemu-img faketime; do
	command -v "$tool" >/dev/null || { echo "$tool is missing (Debian: fdisk ntfs-3g qemu-utils faketime)" >&2; exit 1; }
done
target=$(realpath -m "$out")
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"

truncate -s $((sectors * 512)) volume
faketime -f "$made" mkntfs -q -F -Q -p $start -H 255 -S 63 -s 512 -L XPDISK volume 2>/dev/null

printf 'This volume starts at LBA 63.\r\n' >readme.txt # small enough to stay inside its MFT record
for n in {1..1500}; do printf 'line %04d of a file that has clusters of its own\r\n' "$n"; done >lines.txt
faketime -f "$made" ntfscp -q volume readme.txt readme.txt
faketime -f "$made" ntfscp -q volume lines.txt lines.txt

truncate -s $disk_size disk.raw
sfdisk -q disk.raw <<-TABLE
	label: dos
	label-id: 0x58505031
	start=$start, size=$sectors, type=7, bootable
TABLE
dd if=volume of=disk.raw bs=512 seek=$start conv=notrunc status=none

# qemu-img draws a random content identifier; a fixed one of the same length makes the file the same each time. It
# prints no leading zeros, so that another draw is sometimes needed.
until [ -e xp-lba63.vmdk ] && grep -aqx 'CID=[0-9a-f]\{8\}' xp-lba63.vmdk; do
	qemu-img convert -f raw -O vmdk -o subformat=monolithicSparse disk.raw xp-lba63.vmdk
done
cid_at=$(grep -abox 'CID=[0-9a-f]\{8\}' xp-lba63.vmdk | cut -d: -f1)
printf 'CID=58505031' | dd of=xp-lba63.vmdk bs=1 seek="$cid_at" conv=notrunc status=none

qemu-img check -q xp-lba63.vmdk
qemu-img compare -q -f raw -F vmdk disk.raw xp-lba63.vmdk
mv xp-lba63.vmdk "$target" # the descriptor inside names xp-lba63.vmdk, whatever the target is called
sha256sum "$target"
