#!/bin/sh
# Prints the version of these sources, or with --time their time in seconds since 1970: of the commit in a checkout, or
# from .archive, written by git, in an archive.
set -eu
cd "$(dirname "$0")/.."

noted() {
	sed -n "s/^$1: //p" .archive | grep -v '^[$]Format' || true
}

if [ -e .git ]; then
	case ${1:-} in
	--time) git log -1 --format=%ct ;;
	*) git describe --tags --always --dirty ;;
	esac 2>/dev/null || echo unknown
	exit
fi
case ${1:-} in
--time) noted time ;;
*) { noted tag | grep . || noted commit | grep . || echo unknown; } | head -1 ;;
esac
