#!/usr/bin/env bash
# Installs the Debian packages that the tests and the benchmark call, when some are missing.
#
# Without root or apt it only lists missing packages. REQUIRE_TOOLS=1 (make test-all and CI) makes that a failure.
set -euo pipefail

# grub-legacy must never be in this list: its package scripts write to the machine's own boot disk, and it replaces
# grub2-common, which libguestfs needs. The tests run it from the folder of unpack_grub_legacy.
packages=(
	sleuthkit                                 # istat, blkls: second opinion on runs and free space of NTFS and FAT
	qemu-utils qemu-system-x86                # second opinion on images; boots the results
	libvmdk-utils libvhdi-utils               # vmdkinfo, vhdiinfo: second opinion on VMDK, VHD and VHDX
	fdisk gdisk parted                        # sfdisk, sgdisk, parted: second opinion on tables
	dislocker                                 # decrypts BitLocker volumes without device-mapper
	ntfs-3g dosfstools mtools e2fsprogs       # make, fill and check file systems without root
	exfatprogs xfsprogs btrfs-progs jfsutils  # and those that are recognised
	reiserfsprogs f2fs-tools makefs apfsprogs # makefs: UFS
	squashfs-tools                            # mksquashfs
	hfsutils xorriso genisoimage              # xorriso: HFS+ too; isoinfo
	syslinux syslinux-common extlinux         # guests that can be booted
	lvm2 mdadm cryptsetup-bin bcache-tools    # pvck, mdadm, cryptsetup, make-bcache: second opinion on containers
	grub-pc-bin isolinux mbr                  # boot code that is told apart from others; GRUB 2 for guests
	libvirt-daemon-system libvirt-clients     # libvirtd, virsh: a domain whose disk is handed over
	ovmf grub-efi-amd64-bin                   # UEFI firmware, and a program for it
	libhivex-bin libwin-hivex-perl            # hivexget, hivexsh, hivexml, hivexregedit: second opinion on registry hives
	libregf-utils wimtools                    # regfexport: a third one; wimapply: folders in NTFS without a mount
	libguestfs-tools                          # guestfish, virt-alignment-scan
	libvirt-clients                           # virt-xml-validate: lines for libvirt by its schema
	libnbd-bin python3-libnbd nbd-client      # nbdinfo, nbdcopy, nbdsh, the client of Linux: clients of the NBD server
	nbdkit                                    # a server with odd blocks and errors, for the NBD client
	python3 python3-venv                      # makes the library of the tests (scripts/make-library.py); strict CSV and XML
	python3-prometheus-client                 # second opinion on metrics
	libxml2-utils shellcheck                  # xmllint: JUnit by its schema; scripts that we write
	chromium fonts-dejavu-core poppler-utils  # opens the HTML report; pdftotext reads what it prints
	sqlite3                                   # locks that a file system may not upgrade
	fio                                       # measures storage: trueup bench
	fuse3                                     # fusermount3: file systems of the tests, for an ordinary user
	gcc libc6-dev                             # go test -race needs cgo
	git jq make mount strace time xxd xz-utils
)

# For make test-release only.
if [ "${1:-}" = release ]; then
	packages+=(debootstrap lintian rpm skopeo systemd)        # installs, checks and lists packages; unpacks images; checks units
	packages+=(man-db mandoc bash-completion zsh fish)        # read manual pages and completions
	packages+=(podman runc)                                   # run the image
fi

# For make chaos only.
if [ "${1:-}" = chaos ]; then
	packages+=(nats-server) # a cluster of three keeps the jobs
fi

# For make test-systems only: a compiler for the library that Wine lacks.
if [ "${1:-}" = wine ]; then
	packages+=(wine64 gcc-mingw-w64-x86-64-win32)
fi

# For make test-recipes only.
if [ "${1:-}" = recipes ]; then
	packages+=(virt-v2v packer ansible-core) # pipelines
	packages+=(openssh-server sshfs)         # a host with images, and a client
fi

# Debian keeps mkntfs and sfdisk outside of an ordinary user's PATH.
export PATH="$PATH:/usr/sbin:/sbin"

installed() {
	[ "$(dpkg-query -W -f='${db:Status-Status}' "$1" 2>/dev/null)" = installed ]
}

missing_packages() {
	local package
	for package in "${packages[@]}"; do
		installed "$package" || echo "$package"
	done
}

# libguestfs boots a kernel from /boot, and reads it as the caller. The package may be installed without the
# file: container images often leave /boot out.
kernel_is_usable() {
	local kernel
	for kernel in /boot/vmlinuz-*; do
		[ -r "$kernel" ] && [ -d "/lib/modules/${kernel#/boot/vmlinuz-}" ] && return 0
	done
	return 1
}

# kernel_package names the package with the kernel in /boot. If the meta package is installed and the files are
# missing, only its dependency restores them.
kernel_package() {
	if installed linux-image-amd64; then
		dpkg-query -W -f='${Depends}' linux-image-amd64 | grep -o 'linux-image-[^ ,]*' | head -n 1
	else
		echo linux-image-amd64
	fi
}

# give_up prints why tools are still missing. Only a run that requires them fails.
give_up() {
	printf '%s\n' "$@" >&2
	if [ "${REQUIRE_TOOLS:-}" = 1 ]; then
		echo 'The tools are required here (REQUIRE_TOOLS=1). make test skips the tests that need them.' >&2
		exit 1
	fi
	echo 'Tests that need them are skipped.' >&2
	exit 0
}

# Packages of services (openssh-server) start them. On a machine without a policy for that, none is started meanwhile.
policy=/usr/sbin/policy-rc.d
own_policy=

refuse_services() {
	if [ ! -e "$policy" ]; then
		own_policy=yes
		trap allow_services EXIT
		trap 'exit 130' INT
		trap 'exit 143' TERM
		printf '#!/bin/sh\nexit 101\n' >"$policy"
		chmod 0755 "$policy"
	fi
}

allow_services() {
	[ -z "$own_policy" ] || rm -f "$policy"
	own_policy=
}

apt() {
	DEBIAN_FRONTEND=noninteractive apt-get -y -q -o DPkg::Lock::Timeout=600 "$@" </dev/null
}

# GRUB legacy is a program for i386, linked with libc6-i386. Both are unpacked into a folder for the tests
# (internal/disktest/grublegacy.go), without their package scripts.
grub_legacy=/usr/local/lib/trueup-tests/grub-legacy

unpack_grub_legacy() {
	local work package
	work=$(mktemp -d)
	(cd "$work" && apt-get -q -o APT::Sandbox::User=root download grub-legacy libc6-i386) || return 1
	mkdir -p "$grub_legacy"
	for package in "$work"/*.deb; do
		dpkg -x "$package" "$work/root" || return 1
	done
	cp -r "$work/root/lib32" "$work/root/usr/lib/grub/x86_64-pc" "$grub_legacy/"
	cp "$work/root/usr/sbin/grub" "$grub_legacy/" # the last: it tells that all is there
	rm -r "$work"
}

# Readers of registry logs, and an accessibility checker for pages, both missing in Debian, go to a folder for the tests (internal/disktest/python.go).
python_env=/usr/local/lib/trueup-tests/python
python_packages=('regipy==6.5.0' 'python-registry==1.3.1' 'axe-core-python==0.1.0')

install_python_packages() {
	python3 -m venv --clear "$python_env" && "$python_env/bin/pip" -q install "${python_packages[@]}" &&
		printf '%s\n' "${python_packages[@]}" >"$python_env/installed" # the last: it tells that all is there
}

if ! command -v dpkg-query >/dev/null; then
	give_up 'This is not a Debian system, so the outside tools are not looked for.' \
		"Install what provides these Debian packages: ${packages[*]}"
fi

mapfile -t missing < <(missing_packages)
kernel_is_usable || missing+=("$(kernel_package)")
if [ "${#missing[@]}" -gt 0 ]; then
	if [ "$(id -u)" -ne 0 ]; then
		give_up "Missing Debian packages: ${missing[*]}" \
			"Install them: sudo apt-get update && sudo apt-get install --reinstall ${missing[*]}"
	fi
	echo "Installing: ${missing[*]}"
	apt update # the package lists of a fresh machine are empty or too old to fetch from
	refuse_services
	apt install --no-install-recommends --reinstall "${missing[@]}"
	allow_services
fi
if [ ! -e "$grub_legacy/grub" ]; then
	if [ "$(id -u)" -ne 0 ]; then
		give_up "GRUB legacy is not unpacked in $grub_legacy" "Do it: sudo $0"
	fi
	echo "Unpacking GRUB legacy into $grub_legacy"
	unpack_grub_legacy || { apt update && unpack_grub_legacy; } || give_up 'The packages grub-legacy and libc6-i386 cannot be downloaded.'
fi
if ! printf '%s\n' "${python_packages[@]}" | cmp -s - "$python_env/installed"; then
	if [ "$(id -u)" -ne 0 ]; then
		give_up "Python packages are not installed in $python_env: ${python_packages[*]}" "Do it: sudo $0"
	fi
	echo "Installing ${python_packages[*]} into $python_env"
	install_python_packages || give_up "pip cannot install ${python_packages[*]}."
fi
kernel_is_usable || give_up 'libguestfs needs a kernel that it can read in /boot with its modules in /lib/modules.' \
	'Install one: sudo apt-get install linux-image-amd64; if it is there already: sudo chmod 0644 /boot/vmlinuz-*'

echo 'All outside tools are installed.'
