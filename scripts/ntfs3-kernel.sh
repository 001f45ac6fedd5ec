#!/usr/bin/env bash
# Builds a small Linux with ntfs3, which replays the log of NTFS, into the folder of the tests (internal/fs/ntfs).
# Debian's kernels come without ntfs3. It takes some minutes, too long for scripts/install-tools.sh.
set -euo pipefail

kernel=/usr/local/lib/trueup-tests/ntfs3/bzImage
packages=(flex bison libelf-dev bc gcc make xz-utils)
options=(
	64BIT PRINTK TTY SERIAL_8250 SERIAL_8250_CONSOLE BLK_DEV_INITRD RD_GZIP BINFMT_ELF MULTIUSER FILE_LOCKING FUTEX EPOLL POSIX_TIMERS
	PCI ACPI BLOCK BLK_DEV VIRTIO_MENU VIRTIO_PCI VIRTIO_BLK DEVTMPFS PROC_FS SYSFS NTFS3_FS NLS_UTF8
)

[ ! -e "$kernel" ] || exit 0
if [ "$(id -u)" -ne 0 ]; then
	echo "The kernel with ntfs3 is not in $kernel. Build it: sudo $0" >&2
	exit 1
fi

apt() {
	DEBIAN_FRONTEND=noninteractive apt-get -y -q -o DPkg::Lock::Timeout=600 "$@" </dev/null
}

missing=()
for package in "${packages[@]}"; do
	[ "$(dpkg-query -W -f='${db:Status-Status}' "$package" 2>/dev/null)" = installed ] || missing+=("$package")
done
if [ "${#missing[@]}" -gt 0 ]; then
	echo "Installing: ${missing[*]}"
	apt update
	apt install --no-install-recommends "${missing[@]}"
fi

work=$(mktemp -d)
trap 'rm -r "$work"' EXIT
cd "$work"
apt-get -q -o APT::Sandbox::User=root download linux-source-6.1
dpkg -x linux-source-6.1_*.deb root
tar -xf root/usr/src/linux-source-6.1.tar.xz
cd linux-source-6.1
make -s tinyconfig
for option in "${options[@]}"; do
	scripts/config --enable "$option"
done
make -s olddefconfig
for option in "${options[@]}"; do
	grep -q "^CONFIG_$option=y" .config || { echo "Linux cannot be built with $option" >&2 && exit 1; }
done
make -s -j"$(nproc)" bzImage
install -D -m 0644 arch/x86/boot/bzImage "$kernel"
echo "The kernel with ntfs3 is in $kernel."
