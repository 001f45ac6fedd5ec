#!/usr/bin/env bash
# Runs trueup for a 32-bit processor, and for Windows under Wine. Other tests only build these.
#
# `scripts/test-systems.sh 386` and `scripts/test-systems.sh windows` run one, else both run side by side. `vet` only
# compiles the tests for Windows.
# docs/systems.md has the results.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

export CGO_ENABLED=0 # as it is delivered
export GOGC=400      # the tests have memory to spare
export GOFLAGS="${GOFLAGS:-} -ldflags=-w"
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

# Packages with system calls, sizes and offsets.
both=(disk diskcopy exchange image image/gate image/ova image/raw image/store inplace journal realign sys verify)
# Packages that differ only on 32 bits, and packages that differ only on Windows.
only_386=(align fs/fat guestfile hive image/qcow2 image/vdi image/vhd image/vhdx image/vmdk layout ondisk
	plan scan/sandbox table volume)
only_windows=(progress report shell)
# Tests of cli without Linux paths.
of_cli='^Test(NothingIsSaidTwice|InterruptIsAnswered|InterruptedResults|InterruptBeforeAnything)$'
# Slow tests, and tests of other programs, that do not depend on a system; commands for a Linux shell.
elsewhere='Corpus|ByQemuImg|LikeHivex|LikeOthers|ReopenedFile|Deterministic|CopiesKeep|Chains?$|RepeatedSubkeys|ThousandsOfRoots|TablesOf|UseOfACopy'

packages() {
	printf './internal/%s\n' "$@"
}

# The tests of the command run the 32-bit program: golden files, and disks judged by other programs.
golden='^Test(ScanOfTheCorpus|Soak)$'

test_386() {
	packages "${both[@]}" "${only_386[@]}" | GOARCH=386 xargs go test -vet=off -count=1 -short -timeout 20m -skip "$elsewhere"
	GOARCH=386 go build -o "$work/trueup" ./cmd/trueup
	go test -list "$golden" ./cmd/trueup >"$work/golden"
	grep -qx TestScanOfTheCorpus "$work/golden"
	TRUEUP_TEST_PROGRAM=$work/trueup go test -vet=off -count=1 -timeout 20m -run "$golden" ./cmd/trueup
}

# Wine 8 lacks a library with random numbers for Go's runtime, and a call by which Go removes files: the copy of Go's source
# here always uses its fallback for file systems without that call.
prepare_wine() {
	cat >"$work/prng.c" <<-'END'
		#include <windows.h>
		BOOLEAN NTAPI SystemFunction036(PVOID, ULONG); /* RtlGenRandom */
		__declspec(dllexport) BOOL WINAPI ProcessPrng(PBYTE data, SIZE_T size) { return SystemFunction036(data, size); }
	END
	# One server for all programs: to start it takes longer than most of them.
	mkdir "$WINEPREFIX"
	/usr/lib/wine/wineserver -p >/dev/null 2>&1 </dev/null
	if ! timeout 1200 "$wine" wineboot -i >/dev/null 2>&1 </dev/null; then
		echo 'wineboot has made no prefix of Wine in 20 minutes' >&2
		exit 1
	fi
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
	packages "${both[@]}" "${only_windows[@]}" | GOOS=windows xargs go test -vet=off -count=1 -short -timeout 20m -skip "$elsewhere" \
		-overlay "$work/overlay.json" -exec "$work/run"
	GOOS=windows go test -vet=off -count=1 -short -timeout 20m -run "$of_cli" -overlay "$work/overlay.json" \
		-exec "$work/run" ./internal/cli
	go build -o "$work/trueup.linux" ./cmd/trueup
	GOOS=windows go build -overlay "$work/overlay.json" -o "$work/trueup.exe" ./cmd/trueup
	compare_with_linux
}

# The tests for Windows are only compiled and vetted.
test_vet() {
	packages "${both[@]}" "${only_windows[@]}" cli | GOOS=windows xargs go vet
}

# Differences between two systems, or two runs: times, stored bytes of files, confinement, the program.
passing='["device", "inode", "modified_ns", "changed_ns", "allocated_bytes", "stored_bytes", "read_bytes", "write_bytes",
	"space_bytes", "copies_bytes", "since", "started", "finished", "duration_seconds", "isolation", "file_system", "reuse"]'

# same runs a command on both systems, in separate folders, and compares exit codes and JSON.
same() {
	local code_linux=0 code_windows=0
	(cd "$work/linux" && ../trueup.linux "$@" --json >../linux.out 2>../linux.err) || code_linux=$?
	(cd "$work/windows" && "$wine" ../trueup.exe "$@" --json >../windows.out 2>../windows.err </dev/null) || code_windows=$?
	if [ "$code_linux" != "$code_windows" ] || ! diff <(normal <"$work/linux.out") <(normal <"$work/windows.out"); then
		echo "trueup $*: exit code $code_linux on Linux, $code_windows on Windows" >&2
		cat "$work/linux.err" "$work/windows.err" >&2
		exit 1
	fi
	ran=$((ran + 1))
}

# The order of a scan's rows varies. Only Linux flushes folders, and keeps owners and attributes.
normal() {
	jq -S --argjson passing "$passing" 'walk(if type == "object" then with_entries(select(.key | IN($passing[]) | not))
		elif type == "array" then map(select((.code? // "") | IN("dest-folder-not-synced", "replaced-attributes") | not)) else . end)' | jq -Ssc 'sort_by(.path)[]'
}

# refuses_scripts checks exit code and message of the one scan flag that Windows lacks.
refuses_scripts() {
	local code=0
	(cd "$work/windows" && "$wine" ../trueup.exe scan --script fix.sh . >../windows.out 2>&1 </dev/null) || code=$?
	if [ "$code" != 64 ] || ! grep -q 'a script for bash, and Windows has other shells' "$work/windows.out"; then
		echo "trueup scan --script: exit code $code" >&2
		cat "$work/windows.out" >&2
		exit 1
	fi
}

compare_with_linux() {
	local ran=0 format image
	mkdir "$work/linux" "$work/windows"
	for image in "$root"/testdata/*.vmdk; do
		cp "$image" "$work/linux/source.vmdk"
	done
	for format in raw vmdk vhd vhdx vdi qcow2; do
		"$work/trueup.linux" convert "$work/linux/source.vmdk" "$work/linux/made.$format" --to "$format" >/dev/null 2>&1
	done
	head -c 100000 "$work/linux/made.vhdx" >"$work/linux/broken.vhdx"
	gzip -c "$work/linux/made.raw" >"$work/linux/packed.raw.gz"
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
	same inspect --spool . packed.raw.gz
	same align packed.raw.gz unpacked.raw
	same align source.vmdk aligned-source.vmdk --force
	same move made.raw
	same replace made.vmdk
	same undo made.vmdk
	same replace made.vmdk
	same finish made.vmdk
	same scan .
	same scan -o json --since last.ndjson --out last.ndjson . # which begins it, and is read by the second
	same scan --since last.ndjson .
	rm "$work"/{linux,windows}/last.ndjson # it has times and paths
	refuses_scripts
	same inspect broken.vhdx
	diff -r "$work/linux" "$work/windows" # the same files with the same bytes
	echo "$ran commands with the same results, and the same files, as on Linux"
}

[ $# -gt 0 ] || set -- 386 windows
# Wine waits more than it computes, so that both together take little longer than one.
declare -A runs
for system in "$@"; do
	(test_"$system") > >(sed -u "s/^/$system: /") 2>&1 &
	runs[$system]=$!
done
failed=0
for system in "$@"; do
	wait "${runs[$system]}" || { failed=1 && echo "$system: failed" >&2; }
done
[ "$failed" = 0 ]
