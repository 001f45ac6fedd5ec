#!/usr/bin/env bash
# Runs trueup for a processor of 32 bits, and for Windows under Wine. Other tests only build these.
#
# `scripts/test-systems.sh 386` and `scripts/test-systems.sh windows` run one of both. docs/systems.md has what they show.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

export CGO_ENABLED=0 # as it is delivered
root=$PWD
work=$(mktemp -d)
wine=/usr/lib/wine/wine64
export WINEPREFIX=$work/prefix WINEDEBUG=-all WINEDLLOVERRIDES=mscoree,mshtml=
unset DISPLAY

clean_up() {
	[ ! -d "$WINEPREFIX" ] || /usr/lib/wine/wineserver -k || true # it ends with an error where none runs
	rm -rf "$work"
}
trap clean_up EXIT

# Packages in which sizes of disks, offsets and addresses are computed, or that ask the system.
both=(align container disk diskcopy fragments fs/exfat fs/fat hive image/raw ondisk plan sys table verify)
# Those whose tests need calls of Unix, or take minutes under Wine.
unix=(image image/gate image/ova image/qcow2 image/store image/vdi image/vhd image/vhdx image/vmdk layout realign scan/sandbox
	volume/filesystem volume/stack)

packages() {
	printf './internal/%s\n' "$@"
}

# The tests of the command run the program for 32 bits: golden files, and disks that other programs judge.
golden='^Test(ScanOfTheCorpus|AlignRealDisks)$'

test_386() {
	packages "${both[@]}" "${unix[@]}" | GOARCH=386 xargs go test -vet=off -count=1 -short -timeout 20m
	GOARCH=386 go build -o "$work/trueup" ./cmd/trueup
	go test -list "$golden" ./cmd/trueup | grep -qx TestScanOfTheCorpus
	TRUEUP_TEST_PROGRAM=$work/trueup go test -vet=off -count=1 -timeout 20m -run "$golden" ./cmd/trueup
}

# Wine 8 lacks a library that Go's runtime asks for random numbers, and a call by which Go removes files: Go has another way
# for file systems that do not know it, which the copy of its source takes here, too.
prepare_wine() {
	cat >"$work/prng.c" <<-'END'
		#include <windows.h>
		BOOLEAN NTAPI SystemFunction036(PVOID, ULONG); /* RtlGenRandom */
		__declspec(dllexport) BOOL WINAPI ProcessPrng(PBYTE data, SIZE_T size) { return SystemFunction036(data, size); }
	END
	"$wine" wineboot -i >/dev/null 2>&1 </dev/null
	x86_64-w64-mingw32-gcc -shared -o "$WINEPREFIX/drive_c/windows/system32/bcryptprimitives.dll" "$work/prng.c" -ladvapi32

	local source
	source=$(go env GOROOT)/src/internal/syscall/windows/at_windows.go
	sed 's/case STATUS_INVALID_INFO_CLASS,/case NTStatus(0xC0000002), STATUS_INVALID_INFO_CLASS,/' "$source" >"$work/at_windows.go"
	if cmp -s "$source" "$work/at_windows.go"; then
		echo 'Go removes files in another way now: look at its Deleteat' >&2
		exit 1
	fi
	echo "{\"Replace\": {\"$source\": \"$work/at_windows.go\"}}" >"$work/overlay.json"

	# What Wine starts beside a program keeps the output open.
	cat >"$work/run" <<-END
		#!/bin/bash
		out=\$(mktemp "$work/out.XXXXXX")
		"$wine" "\$@" </dev/null >"\$out" 2>&1
		code=\$?
		cat "\$out"
		exit "\$code"
	END
	chmod +x "$work/run"
}

test_windows() {
	prepare_wine
	packages "${both[@]}" | GOOS=windows xargs go test -vet=off -count=1 -short -timeout 20m -overlay "$work/overlay.json" -exec "$work/run"
	go build -o "$work/trueup" ./cmd/trueup
	GOOS=windows go build -overlay "$work/overlay.json" -o "$work/trueup.exe" ./cmd/trueup
	compare_with_linux
}

# What differs between two systems, or two runs: times, what is stored of a file, what a run is confined by.
passing='["device", "inode", "modified_ns", "changed_ns", "allocated_bytes", "stored_bytes", "read_bytes", "write_bytes",
	"space_bytes", "copies_bytes", "started", "finished", "duration_seconds", "isolation", "file_system"]'

# same runs a command on both systems, in folders of their own, and compares exit codes and JSON.
same() {
	local code_linux=0 code_windows=0
	(cd "$work/linux" && ../trueup "$@" --json >../linux.out 2>../linux.err) || code_linux=$?
	(cd "$work/windows" && "$wine" ../trueup.exe "$@" --json >../windows.out 2>../windows.err </dev/null) || code_windows=$?
	if [ "$code_linux" != "$code_windows" ] || ! diff <(normal <"$work/linux.out") <(normal <"$work/windows.out"); then
		echo "trueup $*: exit code $code_linux on Linux, $code_windows on Windows" >&2
		cat "$work/linux.err" "$work/windows.err" >&2
		exit 1
	fi
	ran=$((ran + 1))
}

# Rows of a scan come as they are found, and only systems that flush folders flush that of a copy.
normal() {
	jq -S --argjson passing "$passing" 'walk(if type == "object" then with_entries(select(.key | IN($passing[]) | not))
		elif type == "array" then map(select((.code? // "") != "dest-folder-not-synced")) else . end)' | jq -Ssc 'sort_by(.path)[]'
}

compare_with_linux() {
	local ran=0 format image
	mkdir "$work/linux" "$work/windows"
	for image in "$root"/testdata/*.vmdk; do
		cp "$image" "$work/linux/source.vmdk"
	done
	for format in raw vmdk vhd vhdx vdi qcow2; do
		"$work/trueup" convert "$work/linux/source.vmdk" "$work/linux/made.$format" --to "$format" >/dev/null 2>&1
	done
	head -c 100000 "$work/linux/made.vhdx" >"$work/linux/broken.vhdx"
	cp "$work"/linux/* "$work/windows"
	for image in source.vmdk made.{raw,vmdk,vhd,vhdx,vdi,qcow2}; do
		same inspect "$image"
		same plan "$image"
		same align "$image" "aligned-$image"
		same verify "$image" "aligned-$image"
		same verify "$image" made.raw # which is not aligned
	done
	for format in raw vmdk vhd vhdx vdi qcow2; do
		same convert source.vmdk "converted.$format" --to "$format"
	done
	same align source.vmdk aligned-source.vmdk --force
	same align --in-place made.raw
	same scan .
	same inspect broken.vhdx
	diff -r "$work/linux" "$work/windows" # the same files with the same bytes
	echo "$ran commands with the same results, and the same files, as on Linux"
}

[ $# -gt 0 ] || set -- 386 windows
for system in "$@"; do
	echo "== $system"
	"test_$system"
done
