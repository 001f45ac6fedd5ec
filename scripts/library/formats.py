"""Images of a disk by qemu-img: files in a work folder that the caller then moves."""

import dataclasses
import os

from . import layouts
from .tools import SECTOR, blank, copy_data, run

# Arguments for qemu-img, by trueup's name of a format: driver, options, further arguments, suffix.
WRITERS = {
    ("raw", ""): ("raw", "", [], ".raw"),
    ("vmdk", "monolithicSparse"): ("vmdk", "subformat=monolithicSparse,adapter_type=lsilogic", [], ".vmdk"),
    ("vmdk", "monolithicFlat"): ("vmdk", "subformat=monolithicFlat", [], ".vmdk"),
    ("vmdk", "twoGbMaxExtentSparse"): ("vmdk", "subformat=twoGbMaxExtentSparse", [], ".vmdk"),
    ("vmdk", "twoGbMaxExtentFlat"): ("vmdk", "subformat=twoGbMaxExtentFlat", [], ".vmdk"),
    ("vmdk", "streamOptimized"): ("vmdk", "subformat=streamOptimized", [], ".vmdk"),
    ("vhd", "fixed"): ("vpc", "subformat=fixed,force_size=on", [], ".vhd"),
    ("vhd", "dynamic"): ("vpc", "subformat=dynamic,force_size=on", [], ".vhd"),
    ("vhdx", "fixed"): ("vhdx", "subformat=fixed", [], ".vhdx"),
    ("vhdx", "dynamic"): ("vhdx", "subformat=dynamic,block_size=1M", [], ".vhdx"),
    ("qcow2", "v2"): ("qcow2", "compat=0.10", [], ".qcow2"),
    ("qcow2", "v3"): ("qcow2", "compat=1.1", [], ".qcow2"),
    ("qcow2", "compressed"): ("qcow2", "compat=1.1", ["-c"], ".qcow2"),
}

# Percentage of each format, about as in a library of a virtualisation team.
WEIGHTS = {
    ("raw", ""): 12,
    ("vmdk", "monolithicSparse"): 18,
    ("vmdk", "monolithicFlat"): 12,
    ("vmdk", "streamOptimized"): 6,
    ("vhd", "fixed"): 6,
    ("vhd", "dynamic"): 8,
    ("vhdx", "fixed"): 3,
    ("vhdx", "dynamic"): 6,
    ("qcow2", "v2"): 4,
    ("qcow2", "v3"): 8,
    ("qcow2", "compressed"): 4,
    ("chain", "qcow2"): 2,
    ("chain", "vmdk"): 2,
    ("ova", ""): 5,
    ("ovf", ""): 2,
    ("split", ""): 1,
    ("orphan", ""): 1,
}


@dataclasses.dataclass
class Made:
    """An image in the work folder: its files, the one to open first, and the expected results."""

    files: list
    format: str
    subformat: str
    disks: list
    state: str = "judged"
    parents: list = dataclasses.field(default_factory=list)


def describe(disk, member=""):
    """describe returns the record of a disk."""
    out = {"size_bytes": disk.sectors * SECTOR, "scheme": disk.scheme, "partitions": []}
    if member:
        out["member"] = member
    for p in disk.parts:
        if p.number == 0:
            out["volume"] = {"kind": p.fs, "label": p.label}
            continue
        row = {"number": p.number, "kind": p.kind, "start_bytes": p.start * SECTOR, "size_bytes": p.sectors * SECTOR}
        if p.kind != "extended":
            row["verdict"] = layouts.verdict_of(p)
            if p.known:
                row["file_system"], row["label"] = p.fs, p.label
        out["partitions"].append(row)
    out["verdict"] = layouts.worst(layouts.verdict_of(p) for p in disk.judged())
    return out


def convert(disk, raw, work, stem, kind):
    """convert writes a disk in a format. A VMDK contains the file names used here."""
    driver, options, more, suffix = WRITERS[kind]
    path = os.path.join(work, stem + suffix)
    if driver == "raw":
        with open(path, "xb", buffering=0) as f:
            f.truncate(os.stat(raw).st_size)
            copy_data(raw, f)
    else:
        run("qemu-img", "convert", "-q", "-f", "raw", "-O", driver, *more, "-o", options, raw, path)
    names = sorted(os.listdir(work), key=lambda n: (n != stem + suffix, n))
    subformat = "v3" if kind[1] == "compressed" else kind[1]
    return Made([n for n in names if n.startswith(stem)], kind[0], subformat, [describe(disk)])


def orphan(disk, raw, work, stem, flat):
    """orphan makes a disk of several files, or of descriptor and extent, and keeps one that is useless alone: the flat extent, or the second of several."""
    if flat:
        made = convert(disk, raw, work, stem, ("vmdk", "monolithicFlat"))
        keep = stem + "-flat.vmdk"
    else:
        made = convert(disk, raw, work, stem, ("vmdk", "twoGbMaxExtentSparse"))
        keep = stem + "-s002.vmdk"
    for name in made.files:
        if name != keep:
            os.remove(os.path.join(work, name))
    return Made([keep], "vmdk", "", [], "orphan")


def chain(disk, raw, work, stem, driver, others, depth):
    """chain makes an image and children of it, each a child of the last. The first child has the partition table of another disk, so that a reader
    of the parent alone fails; the content of its partition is undefined. others are paths of templates with their disks."""
    kind = {"qcow2": ("qcow2", "v3"), "vmdk": ("vmdk", "monolithicSparse")}[driver]
    links = [convert(disk, raw, work, stem, kind)]
    for n in range(1, depth + 1):
        below = links[-1].files[0]
        name = f"{stem}-snap{n}.{driver}"
        run("qemu-img", "create", "-q", "-f", driver, "-b", below, "-F", driver, name, cwd=work)
        if n == 1 and others:
            other, path = others[0]
            disk = write_table(disk, other, path, work, driver, name)
        parents = [link.files[0] for link in reversed(links)]
        links.append(Made([name], driver, kind[1], [describe(disk)], parents=parents))
    return links


def write_table(disk, other, path, work, driver, name):
    """write_table writes sector 0 of another template into a child by qemu-io, and returns the resulting disk."""
    sector = os.path.join(work, "sector0")
    blank(sector, SECTOR)
    with open(path, "rb") as source, open(sector, "r+b", buffering=0) as f:
        f.write(source.read(SECTOR))
    run("qemu-io", "-f", driver, "-c", "write -q -s sector0 0 512", name, cwd=work)
    os.remove(sector)
    parts = [layouts.Part(p.number, p.start, "", p.kind, p.sectors, known=False) for p in other.parts]
    return layouts.Disk(disk.name, "mbr", disk.sectors, parts)
