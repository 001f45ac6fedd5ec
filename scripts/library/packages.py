"""OVA archives and OVF folders in ovftool's order: the OVF, the manifest, the disks."""

import hashlib
import os
from xml.sax.saxutils import quoteattr

from .formats import Made, convert
from .tools import run

STREAM = "http://www.vmware.com/interfaces/specifications/vmdk.html#streamOptimized"


def envelope(disks):
    """envelope names disks, given as (file name, bytes of the file, bytes of the disk)."""
    files = "".join(f'    <File ovf:href={quoteattr(n)} ovf:id="file{i}" ovf:size="{size}"/>\n' for i, (n, size, _) in enumerate(disks, 1))
    sections = "".join(
        f'    <Disk ovf:capacity="{capacity}" ovf:diskId="vmdisk{i}" ovf:fileRef="file{i}" ovf:format="{STREAM}"/>\n' for i, (_, _, capacity) in enumerate(disks, 1)
    )
    return (
        '<?xml version="1.0" encoding="UTF-8"?>\n'
        '<Envelope xmlns="http://schemas.dmtf.org/ovf/envelope/1" xmlns:ovf="http://schemas.dmtf.org/ovf/envelope/1">\n'
        f"  <References>\n{files}  </References>\n  <DiskSection>\n    <Info>Virtual disks</Info>\n{sections}  </DiskSection>\n"
        '  <VirtualSystem ovf:id="vm"><Info>A virtual machine</Info></VirtualSystem>\n</Envelope>\n'
    )


def folder(disks, work, stem, manifest=True):
    """folder writes an OVF with its disks, which are given as (disk, path of the raw template)."""
    members, expected = [], []
    for n, (disk, raw) in enumerate(disks, 1):
        made = convert(disk, raw, work, f"{stem}-disk{n}", ("vmdk", "streamOptimized"))
        name = made.files[0]
        members.append((name, os.path.getsize(os.path.join(work, name)), made.disks[0]["size_bytes"]))
        expected.append(dict(made.disks[0], member=name))
    ovf = stem + ".ovf"
    with open(os.path.join(work, ovf), "w", encoding="utf-8") as f:
        f.write(envelope(members))
    files = [ovf] + [name for name, _, _ in members]
    if manifest:
        files.insert(1, stem + ".mf")
        write_manifest(work, files)
    return Made(files, "ovf", "", expected)


def write_manifest(work, files):
    with open(os.path.join(work, files[1]), "w", encoding="utf-8") as f:
        for name in [files[0], *files[2:]]:
            with open(os.path.join(work, name), "rb") as member:
                f.write(f"SHA256({name})= {hashlib.sha256(member.read()).hexdigest()}\n")


def archive(disks, work, stem, manifest=True):
    """archive packs such a folder with tar."""
    made = folder(disks, work, stem, manifest)
    ova = stem + ".ova"
    run("tar", "--format=ustar", "--owner=vm:64", "--group=vm:64", "--mtime=@1000000000", "-cf", ova, *made.files, cwd=work)
    for name in made.files:
        os.remove(os.path.join(work, name))
    return Made([ova], "ova", "", made.disks)
