#!/usr/bin/env bash
# Runs the tests of signals, scans and kills in all usual ways: on a quiet machine, beside other work, under nohup, in the
# background of a shell, without standard input, and as an ordinary user. usage: scripts/stress.sh [ROUNDS]
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

rounds=${1:-1}
tests=${TESTS:-'Signal|Interrupt|TwoRuns|TestScan|TestTwoScans|TestKill|TestCrash|Pipe|TestScripts/(scan|report|serve|judge)_'}
work=$(mktemp -d)
busy=()
trap 'kill "${busy[@]}" 2>"$work/ended" || true; rm -rf "$work"' EXIT
export REQUIRE_TOOLS=${REQUIRE_TOOLS:-1} TRUEUP_TESTS=all TRUEUP_KILLS=${TRUEUP_KILLS:-20} TMPDIR="$work"
chmod 1777 "$work"

# Built once, since an ordinary user may not reach root's caches; packages with tests that start or await processes.
for package in cmd/trueup internal/cli internal/progress internal/scan internal/scan/sandbox internal/disktest; do
	go test -c -o "$work/$(basename "$package").test" "./$package"
done

export TRUEUP_TEST_PROGRAM="$work/trueup"
CGO_ENABLED=0 go build -buildvcs=false -o "$TRUEUP_TEST_PROGRAM" ./cmd/trueup

# manner NAME COMMAND...: runs all of it once, through COMMAND.
manner() {
	local name=$1 package test pattern
	shift
	for package in cmd/trueup internal/cli internal/progress internal/scan internal/scan/sandbox internal/disktest; do
		test="$work/$(basename "$package").test"
		case "$package" in
		cmd/trueup) pattern=$tests ;;
		internal/disktest) pattern='TestDefaultSignals|TestWaitSettled|TestProcessorTime' ;; # the others call go
		*) pattern=. ;;
		esac
		echo "== $name: $package"
		(cd "$package" && "$@" "$test" -test.run "$pattern" -test.count=1 -test.timeout 60m) >"$work/out" 2>&1 ||
			{ grep -vE '^(=== |--- PASS| +--- PASS|PASS)' "$work/out" || true; echo "stress: $package failed $name"; exit 1; }
	done
}

# background runs a command like & in a shell without job control: SIGINT and SIGQUIT are ignored.
background() { bash -c 'trap "" INT QUIT; exec "$@"' background "$@"; }
hung_up() { bash -c 'trap "" HUP; exec "$@"' hung_up "$@"; }
no_input() { "$@" <&-; }
ordinary() { setpriv --reuid=65534 --regid=65534 --clear-groups env HOME="$work" "$@"; }

for ((round = 1; round <= rounds; round++)); do
	manner "alone" env
	manner "under nohup" hung_up
	manner "in the background" background
	manner "without standard input" no_input
	if [ "$(id -u)" = 0 ]; then
		manner "as an ordinary user" ordinary
	fi
	for ((n = 0; n < 8; n++)); do
		while :; do :; done &
		busy+=($!)
	done
	manner "beside 8 busy processes" env
	kill "${busy[@]}"
	busy=()
done
echo "stress: all passed, $rounds times"
