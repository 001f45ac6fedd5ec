#!/usr/bin/env bash
# Runs make test, uncached, beside LOOPS (10) busy processes for each processor, under nohup and in the background: as the
# caller and, if that is root, as an ordinary user. usage: scripts/stress-suite.sh [LOOPS]
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

loops=${1:-10}
work=$(mktemp -d)
busy=()
trap 'kill "${busy[@]}" 2>"$work/ended" || true; rm -rf "$work"' EXIT
chmod 0755 "$work"

# An ordinary user cannot read the tree and the modules of root.
git clone -q . "$work/tree"
cp -r "$(go env GOMODCACHE)" "$work/modules"
mkdir "$work/home" "$work/tmp"
[ ! -e ../shared ] || ln -s "$(realpath ../shared)" "$work/shared"
export GOMODCACHE=$work/modules HOME=$work/home TMPDIR=$work/tmp CI=true
unset GOCACHE

for ((n = 0; n < loops * $(nproc); n++)); do
	while :; do :; done &
	busy+=($!)
done

# suite NAME COMMAND…: runs make test by a command.
suite() {
	local name=$1
	shift
	echo "== $name"
	(cd "$work/tree" && nohup "$@" make test) >"$work/out" 2>&1 </dev/null &
	wait $! || { cat "$work/out"; echo "stress-suite: a test failed $name"; exit 1; }
	tail -n 20 "$work/out"
}

suite "as $(id -un)" env
if [ "$(id -u)" = 0 ]; then
	chown -R 65534:65534 "$work"
	suite "as an ordinary user" setpriv --reuid=65534 --regid=65534 --clear-groups
fi
