"""Calls of outside tools, and copies that keep holes."""

import os
import subprocess

SECTOR = 512  # bytes; every disk here has such sectors

# Debian keeps mkntfs and sfdisk outside of an ordinary user's PATH. The times are fixed for the tools that allow it.
ENVIRONMENT = dict(
    os.environ,
    PATH=os.environ.get("PATH", "/usr/bin:/bin") + ":/usr/sbin:/sbin",
    LC_ALL="C.UTF-8",
    SOURCE_DATE_EPOCH="1000000000",
    E2FSPROGS_FAKE_TIME="1000000000",
)

ZEROS = bytes(1 << 16)


class ToolError(Exception):
    """A failure of a tool, with its messages."""


def run(*args, text="", cwd=None):
    """run calls a tool with a text on its standard input."""
    try:
        done = subprocess.run(args, input=text.encode(), capture_output=True, env=ENVIRONMENT, cwd=cwd, check=False)
    except FileNotFoundError as e:
        raise ToolError(f"{args[0]} is missing; make tools installs it") from e
    if done.returncode != 0:
        raise ToolError(f"{args}: exit {done.returncode}\n{(done.stdout + done.stderr).decode(errors='replace')}")
    return done.stdout


def blank(path, size):
    """blank makes a sparse file of zeros."""
    with open(path, "wb") as f:
        f.truncate(size)


def copy_data(source, dest, at=0):
    """copy_data copies nonzero data of a file into an open one, from byte at on, and leaves holes for the rest."""
    with open(source, "rb", buffering=0) as f:
        size, off = os.fstat(f.fileno()).st_size, 0
        while off < size:
            try:
                off = os.lseek(f.fileno(), off, os.SEEK_DATA)
            except OSError:  # ENXIO: there are no data behind
                return
            end = os.lseek(f.fileno(), off, os.SEEK_HOLE)
            while off < end:
                chunk = os.pread(f.fileno(), min(len(ZEROS), end - off), off)
                copy_chunk(dest, chunk, at + off)
                off += len(chunk)


def copy_chunk(dest, chunk, at):
    """copy_chunk writes the blocks of 4 KiB that are not all zero."""
    if chunk == ZEROS[: len(chunk)]:
        return
    view = memoryview(chunk)
    start = None
    for off in range(0, len(chunk) + 4096, 4096):  # one step beyond the end writes what is left
        empty = off >= len(chunk) or view[off : off + 4096] == ZEROS[: min(4096, len(chunk) - off)]
        if not empty and start is None:
            start = off
        if empty and start is not None:
            os.pwrite(dest.fileno(), view[start : min(off, len(chunk))], at + start)
            start = None


def sparse_copy(source, dest):
    """sparse_copy is cp --sparse=always, without a process for each of thousands of files. dest is bytes or text, and new."""
    with open(dest, "xb", buffering=0) as f:
        f.truncate(os.stat(source).st_size)
        copy_data(source, f)


def patch(path, patches):
    """patch writes short texts at byte offsets of a file."""
    with open(path, "r+b", buffering=0) as f:
        for off, data in patches:
            os.pwrite(f.fileno(), data, off)
