"""Disk layouts of installers of many years. Positions and sizes are in sectors."""

import dataclasses
import itertools
import os

from . import volumes
from .tools import SECTOR, blank, copy_data, patch, run

MIB_SECTORS = volumes.MIB // SECTOR

# A cylinder and a track of the 255/63 geometry, where old systems start partitions.
CYLINDER = 255 * 63
TRACK = 63


@dataclasses.dataclass
class Part:
    """A partition, or with number 0 the file system of a disk without a table. fs may be empty; sectors 0 is the minimum for fs."""

    number: int
    start: int
    fs: str = ""
    kind: str = "primary"
    sectors: int = 0
    label: str = ""
    known: bool = True  # is fs what a reader would find?
    data: int = 0  # bytes in front of the blocks of fs

    def fill(self):
        self.sectors = self.sectors or volumes.SIZES[self.fs] // SECTOR
        return self


@dataclasses.dataclass
class Disk:
    """The requested disk of a template."""

    name: str
    scheme: str  # mbr, gpt, none
    sectors: int
    parts: list
    boot: str = ""  # "chs", "lba": the code in sector 0

    def judged(self):
        """judged returns partitions, and a volume over the whole disk, at 0."""
        return [p for p in self.parts if p.kind != "extended"]


def verdict_at(off, data=0):
    """verdict_at follows the contract: 4 KiB must, 64 KiB should; the better of a start and the data behind it counts."""
    def verdict(at):
        return "misaligned" if at % 4096 else "below_boundary" if at % 65536 else "aligned"
    return min(verdict(off), verdict(off + data), key=VERDICTS.index)


def verdict_of(part):
    """verdict_of is the verdict of a partition by its start and by its file system, if a reader would find it."""
    return verdict_at(part.start * SECTOR, part.data if part.known else 0)


def worst(verdicts):
    """worst is the worst verdict of a disk's partitions, or of an image's disks."""
    return max(verdicts, key=VERDICTS.index, default="nothing_to_judge")


VERDICTS = ["nothing_to_judge", "aligned", "below_boundary", "misaligned"]


def primary(*starts_and_fs):
    """primary numbers partitions from 1 in order."""
    return [Part(n, start, fs) for n, (start, fs) in enumerate(starts_and_fs, 1)]


def gpt(*starts_and_fs):
    return [Part(n, start, fs, "gpt") for n, (start, fs) in enumerate(starts_and_fs, 1)]


def singles():
    """singles are MBR disks with one partition, as XP (63), old tools (1, 34, 56), appliances (8, 16, 40) and Vista (2048) start it. 2049 is off by one sector."""
    starts = [63, 63, 2048, 2048, 128, 8, 16, 40, 34, 56, 1, 2049]
    kinds = ["ntfs", "fat16", "ext4", "ntfs", "ext3"]
    for n, start in enumerate(starts):
        for fs in (kinds[n % 5], kinds[(n + 1) % 5]):
            yield Disk(f"mbr-{start}-{fs}-{n}", "mbr", 16 * MIB_SECTORS, primary((start, fs)), "chs" if start == 63 else "lba")
    for start, fs in [(63, "fat12"), (2048, "ext2"), (63, "fat32"), (2048, "swap"), (63, ""), (128, "")]:
        yield Disk(f"mbr-{start}-{fs or 'empty'}-one", "mbr", 48 * MIB_SECTORS, primary((start, fs)))


def several():
    """several are MBR disks with up to four primaries, good ones beside bad ones."""
    mib = MIB_SECTORS
    rows = {
        "all-on-tracks": [(63, "ntfs"), (2 * CYLINDER, "ntfs")],
        "first-off": [(63, "ext3"), (20 * mib, "ext4"), (30 * mib, "fat16")],
        "last-off": [(2048, "ntfs"), (10 * mib, "ext2"), (20 * mib, "swap"), (3 * CYLINDER + 63, "fat16")],
        "below": [(128, "ntfs"), (10 * mib + 8, "ext4")],
        "below-and-off": [(2048, "fat16"), (10 * mib + 16, "ext4"), (20 * mib + 1, "ext2")],
        "aligned": [(2048, "ntfs"), (10 * mib, "ext4"), (20 * mib, "")],
    }
    for name, parts in rows.items():
        yield Disk(f"mbr-several-{name}", "mbr", 64 * mib, primary(*parts), "lba")


def extended():
    """extended are MBR disks with logical partitions: on tracks as DOS and XP make them, and on MiB."""
    c = CYLINDER

    def box(start, end, number=2):
        return Part(number, start, "", "extended", end - start)

    def logical(number, start, fs):
        return Part(number, start, fs, "logical")

    end = 8 * c
    track = [Part(1, TRACK, "ntfs"), box(c, end), logical(5, c + TRACK, "fat16"), logical(6, 3 * c + TRACK, "ntfs"), logical(7, 5 * c + TRACK, "ext3")]
    yield Disk("mbr-logical-tracks", "mbr", 64 * MIB_SECTORS, track, "chs")
    mib = MIB_SECTORS
    clean = [Part(1, 2048, "ntfs"), box(10 * mib, 60 * mib), logical(5, 11 * mib, "ext4"), logical(6, 30 * mib, "swap")]
    yield Disk("mbr-logical-aligned", "mbr", 64 * mib, clean, "lba")
    mixed = [Part(1, 2048, "ext4"), box(10 * mib + 1, 60 * mib), logical(5, 11 * mib, "fat16"), logical(6, 30 * mib + 63, "ext2")]
    yield Disk("mbr-logical-mixed", "mbr", 64 * mib, mixed, "lba")
    below = [box(2048, 60 * mib, 1), logical(5, 2 * mib + 8, "ntfs")]
    yield Disk("mbr-logical-below", "mbr", 64 * mib, below)


def gpts():
    mib = MIB_SECTORS
    for start, fs in itertools.product([34, 40, 2048, 63, 128], ["fat16", "ext4", "ntfs"]):
        yield Disk(f"gpt-{start}-{fs}", "gpt", 16 * mib, gpt((start, fs)))
    yield Disk("gpt-one-of-four-off", "gpt", 64 * mib, gpt((2048, "fat16"), (12 * mib, "ext4"), (24 * mib + 3, "ntfs"), (40 * mib, "swap")))
    yield Disk("gpt-one-of-three-below", "gpt", 48 * mib, gpt((2048, "ntfs"), (12 * mib + 8, "ext3"), (24 * mib, "")))
    yield Disk("gpt-four-aligned", "gpt", 64 * mib, gpt((2048, "fat16"), (12 * mib, ""), (16 * mib, "ntfs"), (24 * mib, "ext4")))


def without_table():
    """without_table are disks with one file system, and blank ones, without partitions."""
    for fs in ["ntfs", "fat16", "fat32", "ext2", "ext4", "swap", "xfs"]:
        yield Disk(f"whole-{fs}", "none", volumes.SIZES[fs] // SECTOR, [Part(0, 0, fs)])
    yield Disk("blank", "none", 8 * MIB_SECTORS, [])


def large():
    """large are disks of more than 2 GB, split into several files in some formats, and beyond the limit of an MBR."""
    gib = 1024 * MIB_SECTORS
    yield Disk("large-mbr-63", "mbr", 5 * gib, primary((63, "ntfs"), (4 * gib + 8, "ext4")), "chs")
    yield Disk("large-mbr-2048", "mbr", 5 * gib, primary((2048, "ext4"), (3 * gib, "fat16")), "lba")
    yield Disk("huge-gpt", "gpt", 3072 * gib, gpt((2048, "ntfs"), (3000 * gib + 4, "ext4")))


def all_disks():
    """all_disks are the templates, with varying labels."""
    disks = [*singles(), *several(), *extended(), *gpts(), *without_table(), *large()]
    turns = {}
    for disk in disks:
        for part in disk.parts:
            part.fill()
            if part.kind != "extended":
                part.label = next(turns.setdefault(part.fs, itertools.cycle(volumes.labels_of(part.fs))))
    return disks


def make(disk, folder, rng):
    """make writes a template as folder/name.raw."""
    path = os.path.join(folder, disk.name + ".raw")
    blank(path, disk.sectors * SECTOR)
    {"mbr": write_mbr, "gpt": write_gpt, "none": lambda *_: None}[disk.scheme](disk, path, rng)
    if disk.boot:
        patch(path, [(0, boot_code(disk.boot, folder))])
    with open(path, "r+b", buffering=0) as f:
        for part in disk.parts:
            if part.fs:
                volume = f"{path}.{part.number}"
                volumes.make(volume, part.fs, part.sectors * SECTOR, part.label, part.start)
                copy_data(volume, f, part.start * SECTOR)
                os.remove(volume)


def write_mbr(disk, path, rng):
    lines = [f"label: dos\nlabel-id: {rng.getrandbits(32):#010x}\nunit: sectors\n"]
    for n, p in enumerate(disk.parts):
        kind = "5" if p.kind == "extended" else volumes.TYPES[p.fs][0]
        active = ", bootable" if n == 0 and disk.boot else ""
        lines.append(f"disk{p.number} : start={p.start}, size={p.sectors}, type={kind}{active}\n")
    run("sfdisk", "--quiet", "--no-reread", "--no-tell-kernel", path, text="".join(lines))


def write_gpt(disk, path, rng):
    args = ["-a", "1"]
    for p in disk.parts:
        args += ["-n", f"{p.number}:{p.start}:{p.start + p.sectors - 1}", "-t", f"{p.number}:{volumes.TYPES[p.fs][1]}"]
        args += ["-u", f"{p.number}:{guid(rng)}", "-c", f"{p.number}:{p.label or 'part'}"]
    run("sgdisk", "-U", guid(rng), *args, path)


def guid(rng):
    h = rng.randbytes(16).hex().upper()
    return "-".join((h[:8], h[8:12], h[12:16], h[16:20], h[20:]))


# Syslinux's code reads LBAs; parted's reads cylinders, heads and sectors, like Windows XP's.
LBA_CODE = "/usr/lib/syslinux/mbr/mbr.bin"


def boot_code(kind, folder):
    """boot_code is the program of sector 0: at most 440 bytes, in front of the disk signature."""
    if kind == "lba":
        with open(LBA_CODE, "rb") as f:
            return f.read(440)
    with open(os.path.join(folder, "chs.code"), "rb") as f:
        return f.read(440)


def prepare(folder):
    """prepare writes parted's boot code into a scratch disk."""
    path = os.path.join(folder, "chs.code")
    blank(path, volumes.MIB)
    run("parted", "--script", path, "mklabel", "msdos")
