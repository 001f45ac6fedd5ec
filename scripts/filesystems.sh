#!/usr/bin/env bash
# Runs trueup on the file systems of a Linux kernel in a virtual machine, as root. scripts/install-tools.sh does not
# install their servers, which are needed here alone.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

packages=(samba nfs-ganesha nfs-ganesha-vfs) # smbd; ganesha.nfsd, which needs no part in the kernel

missing=()
for package in "${packages[@]}"; do
	[ "$(dpkg-query -W -f='${db:Status-Status}' "$package" 2>/dev/null)" = installed ] || missing+=("$package")
done
if [ "$(id -u)" -ne 0 ]; then
	echo 'The servers need root: sudo make filesystems' >&2
	exit 1
fi
if [ "${#missing[@]}" -gt 0 ]; then
	echo "Installing: ${missing[*]}"
	apt-get update -q
	DEBIAN_FRONTEND=noninteractive apt-get -y -q -o DPkg::Lock::Timeout=600 install --no-install-recommends "${missing[@]}" </dev/null
fi
REQUIRE_TOOLS=1 TRUEUP_TESTS=all TRUEUP_FILESYSTEMS=1 exec go test -count=1 -timeout 30m -v -run '^TestMountedFileSystems$' ./cmd/trueup
