"""File systems, made by their own tools in separate files."""

import struct

from .tools import SECTOR, blank, run

MIB = 1 << 20

# Sizes in bytes. mkntfs gives a volume below 4,000,000 bytes a journal of 512 KiB, which is all ones and so stored; a larger one has 2 MiB.
# FAT needs more than 4085 clusters to be FAT16, more than 65525 to be FAT32; xfsprogs makes nothing below 300 MiB.
SIZES = {
    "ntfs": 3_900_416,
    "fat12": 1 * MIB,
    "fat16": 8 * MIB,
    "fat32": 34 * MIB,
    "ext2": 6 * MIB,
    "ext3": 8 * MIB,
    "ext4": 8 * MIB,
    "swap": 2 * MIB,
    "xfs": 300 * MIB,
    "": 2 * MIB,
}

# MBR type byte, GPT type code of sgdisk.
TYPES = {
    "ntfs": ("7", "0700"),
    "fat12": ("1", "0700"),
    "fat16": ("6", "ef00"),
    "fat32": ("c", "ef00"),
    "ext2": ("83", "8300"),
    "ext3": ("83", "8300"),
    "ext4": ("83", "8300"),
    "swap": ("82", "8200"),
    "xfs": ("83", "8300"),
    "": ("83", "8300"),
}

# Labels that a report has to escape, by file system.
LABELS = {
    "ntfs": ["System", "XP System", "Größe & Maß", "<script>alert(1)</script>", '=cmd|" /C calc"!A0', "it's \"quoted\"", "データ", "`id`; $(id)", "", "a,b;c\td", "@SUM(1)", "-1+1"],
    "fat": ["SYSTEM", "NO DATA", "D-1", "IT'S", "$(ID)", "A&B", "-1", "@SUM(1)", "", "X{Y}", "#1"],
    "ext": ["root", "/var", "ümläut", "<b>home</b>", "=1+1", "a \"b\" 'c'", "", "+49", "x;y,z", "`id`"],
    "swap": ["swap", "=swap", "", "<swap>"],
    "xfs": ["data", "<x>", "=x"],
    "": [""],
}


def labels_of(kind):
    """labels_of lists the labels for a kind of file system."""
    family = "fat" if kind.startswith("fat") else "ext" if kind.startswith("ext") else kind
    return LABELS[family]


def make(path, kind, size, label, start):
    """make writes a volume that will lie at LBA start. size is in bytes."""
    blank(path, size)
    if kind == "":
        return
    if kind == "ntfs":
        run("mkntfs", "-q", "-F", "-Q", "-p", str(start), "-H", "255", "-S", "63", "-s", str(SECTOR), "-c", "4096", "-L", label, path)
    elif kind.startswith("fat"):
        name = ["-n", label] if label else []
        run("mkfs.vfat", "-F", kind[3:], "-s", "1", "-h", str(start), "-g", "255/63", *name, path)
    elif kind.startswith("ext"):
        # Without checksums a label can be changed in place; no reserved descriptors and few inodes keep it small.
        journal = [] if kind == "ext2" else ["-J", "size=1"]
        run("mke2fs", "-q", "-F", "-t", kind, "-O", "^metadata_csum,^resize_inode", "-N", "64", *journal, "-L", label, path)
    elif kind == "swap":
        run("mkswap", *(["-L", label] if label else []), path)
    elif kind == "xfs":
        run("mkfs.xfs", "-q", "-f", *(["-L", label] if label else []), path)


def data_start(f, kind, start):
    """data_start is the byte offset of the first FAT cluster: behind reserved sectors, FATs and root directory (FAT specification 1.03)."""
    if not kind.startswith("fat"):
        return 0
    f.seek(start * SECTOR)
    b = f.read(SECTOR)
    reserved, fats, root, size = struct.unpack_from("<HBH", b, 14) + struct.unpack_from("<H", b, 22)
    size = size or struct.unpack_from("<I", b, 36)[0]
    return SECTOR * (reserved + fats * size) + 32 * root


def renew(kind, start, size, rng, label):
    """renew lists patches that make another volume of a template: its serial number or UUID, and the label of an ext. Offsets are in the
    boot sectors and superblocks read by Linux's blkid: NTFS serial at 0x48 and in the copy in the last sector, FAT at 0x27 or 0x43, ext
    UUID at 0x68 and label at 0x78 of the superblock at byte 1024, swap UUID at 0x40c."""
    at = start * SECTOR
    if kind == "ntfs":
        serial = rng.randbytes(8)
        return [(at + 0x48, serial), (at + size - SECTOR + 0x48, serial)]
    if kind == "fat32":
        serial = rng.randbytes(4)
        return [(at + 0x43, serial), (at + 6 * SECTOR + 0x43, serial)]
    if kind.startswith("fat"):
        return [(at + 0x27, rng.randbytes(4))]
    if kind.startswith("ext"):
        return [(at + 1024 + 0x68, rng.randbytes(16)), (at + 1024 + 0x78, struct.pack("16s", label.encode()))]
    if kind == "swap":
        return [(at + 0x40C, rng.randbytes(16))]
    return []
