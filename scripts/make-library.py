#!/usr/bin/env python3
"""Makes a library of disk images with outside tools, and a record of the expected results.

sfdisk, sgdisk, mkntfs, mkfs.vfat, mke2fs, mkswap, mkfs.xfs, parted, qemu-img, qemu-io and tar write them; trueup has no part in it. About ninety
templates are multiplied with other signatures, serial numbers and labels, in every format. The same COUNT, SEED and options
give the same record and the same disks, except for times and identifiers that tools choose themselves.

The record has one JSON object a line, for each image that a scan should list:
  path         below DIR, with path_base64 where it is not UTF-8
  also         further names of the same inode; a scan lists one of them
  files        names in the folder of path, the one of path first
  state        judged, or orphan: an extent without a descriptor
  format, subformat, layout (name of the template), verdict (at 64 KiB)
  parents      names of its parents, nearest first
  disks        member of a package, size_bytes, scheme, verdict, volume (kind, label) of a disk without a table, and
               partitions: number, kind, start_bytes, size_bytes, verdict, file_system, label; an extended one has no verdict, and
               values chosen by the tools are left out
"""

import argparse
import base64
import dataclasses
import json
import multiprocessing
import os
import random
import sys
import tempfile
import time

sys.dont_write_bytecode = True

from library import formats, layouts, packages, places, volumes  # noqa: E402
from library.tools import SECTOR, ToolError, patch, sparse_copy  # noqa: E402


@dataclasses.dataclass
class Item:
    """One unit of work: an image, or several that belong together."""

    number: int
    kind: tuple
    rows: int  # in the record


@dataclasses.dataclass
class Job:
    """Shared state."""

    root: bytes
    templates: str
    seed: str


JOB = None  # of a worker
DISKS = {d.name: d for d in layouts.all_disks()}
OFTEN = [d for d in DISKS.values() if d.sectors <= 64 * layouts.MIB_SECTORS]
LARGE = [d for d in DISKS.values() if d.name.startswith("large")]
SEVERAL_FILES = [("vmdk", "twoGbMaxExtentSparse"), ("vmdk", "twoGbMaxExtentFlat")]
HUGE_FORMATS = [("raw", ""), ("qcow2", "v3")]
# Chains are made of disks of one size with one partition and no file system in a place where another's could be.
SINGLES = [d for d in DISKS.values() if d.scheme == "mbr" and len(d.parts) == 1 and d.sectors == 16 * layouts.MIB_SECTORS]
LINKS = 2  # children in a chain


def begin(job):
    global JOB
    JOB = job


def make_template(name):
    """make_template makes one template; its bytes depend on the seed and its name."""
    layouts.make(DISKS[name], JOB.templates, random.Random(f"{JOB.seed}/{name}"))


def template(disk):
    return os.path.join(JOB.templates, disk.name + ".raw")


def renewed(disk, rng, work, number, name):
    """renewed copies a template to work and changes the identifiers that differ between clones."""
    path = os.path.join(work, name)
    sparse_copy(template(disk), path)
    patches, parts = [], []
    if disk.scheme == "mbr":
        patches.append((0x1B8, rng.randbytes(4)))  # the disk signature
    for p in disk.parts:
        with open(path, "rb") as f:
            p = dataclasses.replace(p, data=volumes.data_start(f, p.fs, p.start))
        if p.fs.startswith("ext") and number % 3 == 0:
            p.label = f"{p.label[:4]}{number}"
        patches += volumes.renew(p.fs, p.start, p.sectors * SECTOR, rng, p.label)
        parts.append(p)
    patch(path, patches)
    return dataclasses.replace(disk, parts=parts), path


def build(item, rng, work, stem):
    """build makes the images of an item in the folder work/out."""
    out = os.path.join(work, "out")
    os.mkdir(out)
    group, subformat = item.kind
    disk = rng.choice(OFTEN)
    if group == "split" or (group == "orphan" and item.number % 2):
        disk = rng.choice(LARGE)
    elif group == "chain":
        disk = rng.choice(SINGLES)
    elif group == "orphan":
        disk = rng.choice([d for d in OFTEN if d.scheme == "mbr"])
    elif item.kind in HUGE_FORMATS and rng.random() < 0.05:
        disk = rng.choice([DISKS["huge-gpt"], DISKS["whole-xfs"]])
    disk, raw = renewed(disk, rng, work, item.number, "disk.raw")
    if group == "split":
        return disk, [formats.convert(disk, raw, out, stem, SEVERAL_FILES[item.number % 2])]
    if group == "orphan":
        return disk, [formats.orphan(disk, raw, out, stem, item.number % 2 == 0)]
    if group == "chain":
        other = rng.choice([d for d in SINGLES if d.parts[0].start != disk.parts[0].start])
        return disk, formats.chain(disk, raw, out, stem, subformat, [(other, template(other))], item.rows - 1)
    if group in ("ova", "ovf"):
        disks = [(disk, raw)]
        if rng.random() < 0.3:
            disks.append(renewed(rng.choice(OFTEN), rng, work, item.number + 1, "second.raw"))
        pack = {"ova": packages.archive, "ovf": packages.folder}[group]
        return disk, [pack(disks, out, stem, rng.random() < 0.8)]
    return disk, [formats.convert(disk, raw, out, stem, item.kind)]


def make_item(item):
    """make_item makes the images of an item, moves them into the library and returns their record lines."""
    rng = random.Random(f"{JOB.seed}/{item.number}")
    stem = f"vm-{item.number:05d}"
    folder = places.folder_of(rng)
    with tempfile.TemporaryDirectory(dir=JOB.templates) as work:
        disk, images = build(item, rng, work, stem)
        lone = len(images) == 1 and len(images[0].files) == 1 and images[0].state == "judged"
        renames = {}
        if lone and images[0].format != "vmdk":
            usual = os.path.splitext(images[0].files[0])[1].encode()
            odd = places.odd_stem(rng, item.number)
            bare = images[0].format == "raw" and disk.name == "blank"  # known by its name alone
            renames[images[0].files[0]] = odd + (usual if bare or images[0].format == "ova" else places.suffix_of(rng, usual))
        return [row(image, disk, folder, os.path.join(work, "out"), renames) for image in images]


def row(image, disk, folder, out, renames):
    """row moves the files of an image into place and returns its line."""
    names = [renames.get(n, n.encode()) for n in image.files]
    os.makedirs(os.path.join(JOB.root, folder), exist_ok=True)
    for old, new in zip(image.files, names):
        sparse_copy(os.path.join(out, old), os.path.join(JOB.root, folder, new))
    line = {"path": folder + b"/" + names[0], "files": names, "state": image.state, "format": image.format, "subformat": image.subformat, "layout": disk.name}
    if image.state == "judged":
        line["verdict"] = layouts.worst(d["verdict"] for d in image.disks)
    return dict(line, parents=image.parents, disks=image.disks)


def share(count, seed, plain):
    """share draws the kinds in turn by their weights, in an order shuffled by the seed."""
    kinds = [kind for kind, weight in formats.WEIGHTS.items() for _ in range(weight) if not (plain and kind[0] == "orphan")]
    rng = random.Random(f"{seed}/share")
    items, rows = [], 0
    while rows < count:
        rng.shuffle(kinds)
        for kind in kinds:
            if rows >= count:
                break
            links = 1 + rng.randint(1, LINKS) if kind[0] == "chain" else 1
            if rows + links > count:
                kind, links = ("qcow2", "v3"), 1
            items.append(Item(len(items), kind, links))
            rows += links
    return items


def text_of(name):
    """text_of decodes bytes as the reports do: invalid UTF-8 becomes U+FFFD, with the bytes beside it."""
    return name.decode(errors="replace")


def finish(line, also):
    """finish makes a line of the record JSON."""
    path = line["path"]
    out = {"path": text_of(path)}
    if out["path"].encode() != path:
        out["path_base64"] = base64.b64encode(path).decode()
    if path in also:
        out["also"] = [text_of(also[path])]
    out.update({k: v for k, v in line.items() if k != "path"}, files=[text_of(n) for n in line["files"]])
    return json.dumps(out, ensure_ascii=False)


def disorder(root, lines, count, seed):
    """disorder adds other files of real libraries."""
    rng = random.Random(f"{seed}/disorder")
    folders = sorted({os.path.dirname(line["path"]) for line in lines})
    places.litter(root, folders, max(10, count // 8), rng)
    places.medium(root, folders[0])
    whole = [line["path"] for line in lines if line["state"] == "judged" and line["format"] in ("raw", "qcow2") and not line["parents"]]
    parents = {os.path.join(os.path.dirname(line["path"]), p.encode()) for line in lines for p in line["parents"]}
    return places.links(root, [p for p in whole if p not in parents], folders, rng)


def make_library(args):
    root = os.fsencode(args.dir)
    if os.path.lexists(root) and os.listdir(root):
        raise ToolError(f"{args.dir} is not empty; give a folder that does not exist")
    os.makedirs(root, exist_ok=True)
    items = share(args.count, args.seed, args.plain)
    # Beside the library, since files are then on one file system, and not in it.
    with tempfile.TemporaryDirectory(prefix=".library.", dir=os.path.dirname(os.path.abspath(args.dir))) as work:
        job = Job(root, work, args.seed)
        begin(job)
        layouts.prepare(work)
        with multiprocessing.Pool(4 * args.jobs, begin, (job,)) as pool:  # sfdisk mostly waits
            pool.map(make_template, DISKS, chunksize=1)
        with multiprocessing.Pool(args.jobs, begin, (job,)) as pool:
            lines = [line for lines in pool.imap(make_item, items, chunksize=4) for line in lines]
    also = {} if args.plain else disorder(root, lines, args.count, args.seed)
    with open(args.record, "w", encoding="utf-8", newline="\n") as f:
        f.writelines(finish(line, also) + "\n" for line in lines)
    return lines


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("dir", metavar="DIR", help="folder to make; it must not have anything in it")
    parser.add_argument("count", metavar="COUNT", type=int, help="lines of the record: images and orphans")
    parser.add_argument("seed", metavar="SEED", nargs="?", default="1", help="another one gives another library (1)")
    parser.add_argument("--record", help="where the record goes (DIR/../expected.ndjson)")
    parser.add_argument("--plain", action="store_true", help="images that can be judged, without orphans, links and other files")
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), help="processes (all processors)")
    args = parser.parse_args()
    args.record = args.record or os.path.join(os.path.dirname(os.path.abspath(args.dir)), "expected.ndjson")
    start = time.monotonic()
    try:
        lines = make_library(args)
    except ToolError as e:
        sys.exit(f"make-library: {e}")
    print(f"{len(lines)} images in {args.dir}, expected in {args.record}, {time.monotonic() - start:.0f} s", file=sys.stderr)


if __name__ == "__main__":
    main()
