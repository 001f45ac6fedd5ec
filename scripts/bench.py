#!/usr/bin/env python3
"""Times trueup beside the tools that do the same work, prints all rows, and writes them to docs/dev/benchmarks.md.

The rows of a group run in turn, --rounds times, in reverse order every time; a row is the median of its rounds.
Writes are flushed before the next row begins. Sources are made once by other tools and kept in .cache/bench.
The page cache is warm unless a row says cold. Bytes are from /proc/PID/io: requested by a program, not moved by the
storage. A missed goal is marked, and does not end the run.
"""

import argparse
import dataclasses
import glob
import json
import os
import platform
import random
import shlex
import shutil
import statistics
import subprocess
import sys
import textwrap
import time

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
CACHE = os.path.join(".cache", "bench")
OUT = os.path.join(CACHE, "out")
TRUEUP = os.path.join("bin", "trueup")
MIB, GIB = 1 << 20, 1 << 30

# Values of --to, and the same as arguments of qemu-img. The limits are the goals of a full and of a structural proof,
# relative to qemu-img convert -t writeback: wall, processor, wall.
PLAIN, SPARSE, PACKED = (1.0, 1.2, 0.8), (1.0, 0.5, 0.3), (0.3, None, None)
KINDS = {
    "raw": (["raw"], PLAIN),
    "vmdk:monolithicFlat": (["vmdk", "-o", "subformat=monolithicFlat"], PLAIN),
    "vhd:fixed": (["vpc", "-o", "subformat=fixed,force_size=on"], PLAIN),
    "vhdx:fixed": (["vhdx", "-o", "subformat=fixed"], PLAIN),
    "vmdk:monolithicSparse": (["vmdk", "-o", "subformat=monolithicSparse"], SPARSE),
    "vmdk:twoGbMaxExtentSparse": (["vmdk", "-o", "subformat=twoGbMaxExtentSparse"], SPARSE),
    "vhd:dynamic": (["vpc", "-o", "subformat=dynamic,force_size=on"], SPARSE),
    "vhdx:dynamic": (["vhdx", "-o", "subformat=dynamic"], SPARSE),
    "qcow2:v3": (["qcow2", "-o", "compat=1.1"], SPARSE),
    "vmdk:streamOptimized": (["vmdk", "-o", "subformat=streamOptimized"], PACKED),
    "qcow2:compressed": (["qcow2", "-c"], PACKED),
}


@dataclasses.dataclass
class Row:
    """One command of a group. prepare runs before each run, untimed."""

    name: str
    argv: list
    prepare: object = None
    ends: tuple = (0,)
    runs: list = dataclasses.field(default_factory=list)
    size: int = 0

    def median(self, what):
        return statistics.median(r[what] for r in self.runs)


@dataclasses.dataclass
class Goal:
    """A limit for a ratio of two rows, or for one row."""

    row: str
    beside: str  # empty: the figure of row itself
    what: str
    most: float
    least: bool = False


class Group:
    """Rows that run in turn, and their goals."""

    def __init__(self, title, text=""):
        self.title, self.text, self.rows, self.goals, self.notes = title, text, [], [], []

    def add(self, name, *argv, **more):
        self.rows.append(Row(name, [str(a) for a in argv], **more))

    def goal(self, row, beside, what, most, least=False):
        if most is not None:
            self.goals.append(Goal(row, beside, what, most, least))

    def row(self, name):
        return next(r for r in self.rows if r.name == name)

    def run(self, rounds):
        for i in range(rounds):
            for row in self.rows if i % 2 == 0 else reversed(self.rows):
                clean()
                if row.prepare:
                    row.prepare()
                os.sync()
                row.runs.append(timed(row))
                row.size = sum(os.stat(f).st_blocks * 512 for f in glob.glob(OUT + "/*"))
            print(f"{self.title}: round {i + 1} of {rounds}", file=sys.stderr)
        clean()

    def judged(self):
        for g in self.goals:
            got = self.row(g.row).median(g.what) if g.what != "size" else self.row(g.row).size
            text = f"{g.row}, {g.what}"
            if g.beside:
                other = self.row(g.beside).median(g.what) if g.what != "size" else self.row(g.beside).size
                got, text = got / max(other, 0.01), f"{g.row} / {g.beside}, {g.what}"
            yield text, got, g.most, got >= g.most if g.least else got <= g.most


def clean():
    shutil.rmtree(OUT, ignore_errors=True)
    os.makedirs(OUT)


def die(text):
    sys.exit("bench: " + text)


def timed(row):
    """Runs a command and returns its figures. A zombie still has its bytes in /proc."""
    start = time.monotonic()
    p = subprocess.Popen(row.argv, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, stdin=subprocess.DEVNULL)
    said = p.stderr.read()
    os.waitid(os.P_PID, p.pid, os.WEXITED | os.WNOWAIT)
    wall = time.monotonic() - start
    with open(f"/proc/{p.pid}/io", encoding="ascii") as f:
        io = dict(line.split(": ") for line in f.read().splitlines())
    _, status, use = os.wait4(p.pid, 0)
    p.returncode = os.waitstatus_to_exitcode(status)
    if p.returncode not in row.ends:
        die(f"{shlex.join(row.argv)}: exit code {p.returncode}: {said.decode(errors='replace')}")
    return {"wall": wall, "CPU": use.ru_utime + use.ru_stime, "RSS": use.ru_maxrss / 1024,
            "read": int(io["rchar"]) / MIB, "written": int(io["wchar"]) / MIB}


def tool(*argv, **more):
    return subprocess.run(argv, check=True, stdout=subprocess.PIPE, **more).stdout


def once(path, make):
    """Makes a missing file. An incomplete one has another name."""
    if os.path.exists(path):
        return path
    print(f"Making {path} (once)", file=sys.stderr)
    new = os.path.join(CACHE, "new")
    shutil.rmtree(new, ignore_errors=True)
    os.makedirs(new)
    make(os.path.join(new, os.path.basename(path)))
    for name in os.listdir(new):
        os.rename(os.path.join(new, name), os.path.join(os.path.dirname(path), name))
    return path


def fill(volume, data):
    """Copies archives of the machine's own programs into an NTFS volume; every second one is compressed."""
    part, copied, i = volume + ".archive", 0, 0
    while copied < data:
        folder, pack = ["/usr/lib", "/usr/share", "/usr/bin"][i % 3], ["cat", "gzip -1"][i % 2]
        size = min(data - copied, 400 * MIB)
        line = f"tar -C / -cf - .{folder} 2>/dev/null | {pack} | head -c {size} >{shlex.quote(part)}"
        subprocess.run(["sh", "-c", line], check=False)  # head ends the pipe early, of which tar complains
        tool("ntfscp", "-q", volume, part, f"archive-{i}")
        copied, i = copied + os.path.getsize(part), i + 1
    os.remove(part)


def xp_disk(size, start=63):
    """Makes a disk with one NTFS at a sector, as after XP's installer, with 5/16 of data."""
    def make(path):
        cylinder = 255 * 63
        sectors = size // 512 // cylinder * cylinder - start
        with open(path + ".volume", "wb") as f:
            f.truncate(sectors * 512)
        tool("mkntfs", "-q", "-F", "-Q", "-p", str(start), "-H", "255", "-S", "63", "-s", "512", path + ".volume",
             stderr=subprocess.DEVNULL)
        fill(path + ".volume", size // 16 * 5)
        with open(path, "wb") as f:
            f.truncate(size)
        table = f"label: dos\nlabel-id: 0x42454e43\nstart={start}, size={sectors}, type=7, bootable\n"
        tool("sfdisk", "-q", path, input=table.encode())
        tool("dd", "if=" + path + ".volume", "of=" + path, "bs=64K", "oflag=seek_bytes", f"seek={start * 512}",
             "conv=sparse,notrunc", "status=none")
        os.remove(path + ".volume")
    return once(f"{CACHE}/xp-{size // MIB}-{start}.raw", make)


def source(raw, kind):
    """Converts a raw disk to an image of a kind by qemu-img, and returns it."""
    if kind == "raw":
        return raw
    folder = f"{raw}-{kind.replace(':', '-')}"
    os.makedirs(folder, exist_ok=True)
    line = ["qemu-img", "convert", "-f", "raw", "-O", *KINDS[kind][0], raw]
    return once(f"{folder}/disk", lambda path: tool(*line, path))


def scattered(size, pieces, table=""):
    """Makes a raw disk with 64 KiB of noise at a random place in each of many equal ranges."""
    def make(path):
        rnd, step = random.Random(1), size // pieces
        with open(path, "wb") as f:
            f.truncate(size)
            for i in range(pieces):
                f.seek((i * step // 65536 + rnd.randrange(step // 65536 - 1)) * 65536)
                f.write(rnd.randbytes(65536))
        if table:
            tool("sfdisk", "-q", path, input=table.encode())
    return once(f"{CACHE}/scattered-{size // GIB}-{pieces}{'-table' if table else ''}.raw", make)


def align(source_path, *more):
    return [TRUEUP, "align", "-q", "--no-progress", *more, source_path, OUT + "/out"]


def convert(kind, source_path, *cache):
    return ["qemu-img", "convert", *cache, "-f", KINDS[kind][0][0], "-O", *KINDS[kind][0], source_path, OUT + "/qemu"]


def copies(o):
    """The copy of each kind, proved and not, beside qemu-img."""
    for kind, (_, (full, cpu, structure)) in KINDS.items():
        packed = full < 1
        src = source(xp_disk(o.packed if packed else o.size), kind)
        for name in glob.glob(os.path.dirname(src) + "/*") if kind != "raw" else [src]:
            tool("dd", "if=" + name, "of=/dev/null", "bs=1M", "status=none")
        g = Group("align of " + kind)
        to = ["--to", kind] if packed else []
        g.add("full", *align(src, *to))
        g.add("structure", *align(src, *to, "--verify", "structure"))
        g.add("qemu-img, synced", *convert(kind, src, "-t", "writeback"))
        if not packed:
            g.add("qemu-img, not synced", *convert(kind, src))
        g.goal("full", "qemu-img, synced", "wall", full)
        g.goal("full", "qemu-img, synced", "CPU", cpu)
        g.goal("structure", "qemu-img, synced", "wall", structure)
        if packed:
            g.goal("full", "qemu-img, synced", "size", 1.03)
        else:
            g.goal("full", "structure", "wall", 1.4)
            g.goal("full", "structure", "CPU", 1.6)
        yield g


def limits(o):
    """The same bytes by the machine's own tools."""
    src = xp_disk(o.size)
    g = Group("the machine's own limit", "The bytes of the raw disk above, read and written by other programs.")
    g.add("dd to /dev/null", "dd", "if=" + src, "of=/dev/null", "bs=1M", "status=none")
    g.add("dd, synced", "dd", "if=" + src, f"of={OUT}/dd", "bs=1M", "conv=sparse,fsync", "status=none")
    g.add("cp and sync", "sh", "-c", f"cp {src} {OUT}/cp && sync {OUT}/cp")
    fio = ["fio", "--name=w", f"--filename={OUT}/fio", "--rw=write", "--bs=1M", f"--size={o.size // 16 * 5 // MIB}M",
           "--end_fsync=1", "--ioengine=psync", "--output=/dev/null"]
    g.add("fio, write and fsync", *fio)
    g.add("fio, direct write", *fio, "--direct=1")
    yield g


def large(o):
    """Large disks with few data: to a sparse VMDK."""
    for size, pieces in [(GIB << 10, 16384), (GIB << 11, 2000), (GIB << 11, 20000)]:
        src = scattered(size, pieces)
        g = Group(f"{size >> 40} TiB with {pieces} pieces of 64 KiB, to a sparse VMDK")
        g.add("full", TRUEUP, "convert", "-q", "--no-progress", "--to", "vmdk", src, OUT + "/out")
        g.add("qemu-img, synced",
              "qemu-img", "convert", "-t", "writeback", "-f", "raw", "-O", "vmdk", src, OUT + "/qemu")
        g.goal("full", "qemu-img, synced", "wall", 0.5)
        g.goal("full", "", "RSS", 64)
        yield g


def handovers(o):
    """The time until a guest can start on its aligned disk, and until the command ends after a failing guest."""
    size = GIB << 11
    table = f"label: dos\nstart=63, size={size // 512 - 8192}, type=83\n"
    for title, src in [(f"{o.size // GIB} GiB", xp_disk(o.size)),
                       ("2 TiB with 20000 pieces of 64 KiB", scattered(size, 20000, table))]:
        g = Group(f"handover of {title}", "Plan, server and overlay, without the copy: the guest ends at once.")
        g.add("handover", TRUEUP, "handover", "-q", "--no-progress", src, OUT + "/new.qcow2", "--run", "--", "true", "{}",
              ends=(1,), prepare=lambda claim=src + ".trueup": subprocess.run(["rm", "-f", claim], check=True))
        g.goal("handover", "", "wall", 2)
        yield g


def memory(o):
    """Peak memory, for any number of workers."""
    for kind in ["raw", "qcow2:v3", "vmdk:streamOptimized"]:
        src = source(xp_disk(o.packed), kind)
        g = Group(f"memory of {kind}", "Peak of one process.")
        for jobs, most in [(4, 64), (64, 128)]:
            g.add(f"-j {jobs}", *align(src, "-j", str(jobs)))
            g.goal(f"-j {jobs}", "", "RSS", most)
        yield g


def scans(o):
    """A library, and one image with virt-alignment-scan."""
    library = f"{CACHE}/library-{o.images}"
    once(library + ".ndjson", lambda path: (shutil.rmtree(library, ignore_errors=True), tool(
        sys.executable, "scripts/make-library.py", "--plain", library, str(o.images), "--record", path)))
    scan = [TRUEUP, "scan", "--jobs", "2", "--fail-on", "never", "-o", "json", "--out"]
    warm = lambda: subprocess.run([*scan, OUT + "/rows", library], check=True, stdout=subprocess.DEVNULL)  # noqa: E731
    warm()
    g = Group(f"scan of {o.images} images", "All formats, --jobs 2. Processor time and bytes include the workers'.")
    g.add("sandboxed", *scan, OUT + "/rows", library)
    g.add("--isolation none", *scan, OUT + "/rows", "--isolation", "none", library)
    g.add("again", *scan, OUT + "/again", "--since", OUT + "/rows", library, prepare=lambda: subprocess.run(
        [*scan, OUT + "/rows", library], check=True))
    if os.access("/proc/sys/vm/drop_caches", os.W_OK):
        g.add("sandboxed, cold", *scan, OUT + "/rows", library, prepare=cold)
    g.goal("sandboxed", "--isolation none", "wall", 1.3)
    g.goal("sandboxed", "", "wall", o.images / 1200)
    g.goal("again", "sandboxed", "wall", 0.1)
    g.notes = list(read_bytes(scan, library))
    yield g
    os.environ.update(LIBGUESTFS_BACKEND="direct")
    os.environ.setdefault("LIBGUESTFS_BACKEND_SETTINGS", "force_tcg")
    g = Group("inspect of one image")
    src = source(xp_disk(o.packed), "qcow2:v3")
    g.add("inspect", TRUEUP, "inspect", "-q", src, ends=(0, 2, 3))
    g.add("virt-alignment-scan", "virt-alignment-scan", "-a", src, ends=(0, 2, 3))
    g.goal("inspect", "virt-alignment-scan", "wall", 0.003)
    yield g


def cold():
    with open("/proc/sys/vm/drop_caches", "w", encoding="ascii") as f:
        f.write("3")


def read_bytes(scan, library):
    """Returns lines on the bytes that a scan reads for an image, by its own count."""
    tool(*scan, OUT + "/rows", library)
    kinds = {"aligned": ([], 64), "planned": ([], 128)}
    with open(OUT + "/rows", encoding="utf-8") as f:
        for line in f:
            row = json.loads(line)
            disks = row.get("disks") or []
            if not disks or row.get("error"):
                continue
            kind = "planned" if any(d.get("depth") == "full" for d in disks) else "aligned"
            kinds[kind][0].append(row["read_bytes"] / 1024)
    clean()
    for name, (read, most) in kinds.items():
        mean = statistics.mean(read)
        yield (f"KiB read for each of {len(read)} images that are {name}, mean (median {statistics.median(read):.0f}, "
               f"most {max(read):.0f})", mean, most, mean <= most)


def report(groups, o):
    """Returns the page."""
    version = lambda *argv: tool(*argv).decode().splitlines()[0]  # noqa: E731
    model = next((line.split(": ")[1] for line in open("/proc/cpuinfo", encoding="ascii") if "model name" in line), "?")
    fs = tool("stat", "-f", "-c", "%T", CACHE).decode().strip()
    intro = (
        f"Written by `make bench`. Medians of {o.rounds}; {os.cpu_count()} processors ({model.strip()}), "
        f"Linux {platform.release()}, {fs}; {version(TRUEUP, '--version')}, {version('qemu-img', '--version')}, "
        f"{version('fio', '--version')}. The disk has {o.size // MIB} MiB, one NTFS at LBA 63, "
        f"{o.size // 16 * 5 // MIB} MiB of data; that of packed kinds and of memory {o.packed // MIB} MiB. The page "
        f"cache is warm. The load of the machine was {o.load:.0f} when it began: with more than the processors, wall "
        "times and their ratios are those of a busy machine. Ratios under 1: the first row needs less. "
        "[performance.md](performance.md) says what bounds what."
    )
    lines = ["# Benchmarks", "", *textwrap.wrap(intro, 120, break_on_hyphens=False), ""]
    for g in groups:
        lines += [f"## {g.title}", "", *([g.text, ""] if g.text else []),
                  "| | wall s | CPU s | RSS MiB | read MiB | written MiB | takes MiB |",
                  "|---|---|---|---|---|---|---|"]
        for r in g.rows:
            m = r.median
            lines.append(f"| {r.name} | {m('wall'):.2f} | {m('CPU'):.2f} | {m('RSS'):.0f} | {m('read'):.0f} | "
                         f"{m('written'):.0f} | {r.size / MIB:.0f} |")
        judged = list(g.judged()) + g.notes
        if judged:
            lines += ["", "| ratio or figure | measured | goal | |", "|---|---|---|---|"]
            lines += [f"| {t} | {got:.3g} | {most:.3g} | {'met' if ok else 'missed'} |" for t, got, most, ok in judged]
        lines += ["", *[f"    {shlex.join(r.argv)}" for r in g.rows], ""]
    return "\n".join(lines)


def main():
    groups = {"limits": limits, "copies": copies, "memory": memory, "scans": scans, "large": large,
              "handovers": handovers}
    p = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    p.add_argument("--rounds", type=int, default=5)
    p.add_argument("--size", type=int, default=8 << 10, help="MiB of the disk")
    p.add_argument("--packed", type=int, default=2 << 10, help="MiB of the disk for compressed kinds")
    p.add_argument("--images", type=int, default=4000, help="of the library")
    p.add_argument("--only", choices=groups, action="append", help="groups; default: all")
    p.add_argument("--filter", default="", help="run only groups whose title has this text")
    p.add_argument("--page", default="docs/dev/benchmarks.md", help="where the page goes; - prints it only")
    o = p.parse_args()
    o.size, o.packed, o.load = o.size * MIB, o.packed * MIB, os.getloadavg()[0]
    os.chdir(ROOT)
    os.environ["PATH"] += ":/usr/sbin:/sbin"
    os.environ["LC_ALL"] = "C"
    for name in ["sfdisk", "mkntfs", "ntfscp", "qemu-img", "fio", "tar", "gzip", TRUEUP]:
        if not shutil.which(name):
            die(f"{name} is missing; make tools build makes it")
    os.makedirs(CACHE, exist_ok=True)
    clean()
    done = []
    for name in o.only or groups:
        for g in groups[name](o):
            if o.filter not in g.title:
                continue
            g.run(o.rounds)
            done.append(g)
            if o.page != "-":
                with open(o.page, "w", encoding="utf-8") as f:  # also when it is ended early
                    f.write(report(done, o))
    print(report(done, o))


if __name__ == "__main__":
    main()
