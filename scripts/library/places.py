"""Folders and names of images, as in a real library. Paths are bytes."""

import gzip
import os

from .tools import run

# Folders of a library; the first has every third image, and so hundreds.
CROWD = b"templates"
FOLDERS = [
    b"2009/xp",
    b"2009/w2k3",
    b"2014/linux/web",
    b"2019/appliances",
    b"2024",
    b"with blanks in it/and more",
    "größe/データ".encode(),
    b"quote's \"here\"",
    b"line\nbreak",
    b"-dash",
    b"latin1-\xe4\xf6\xfc",
    b"$(id)/`id`",
    b"/".join(b"d%02d" % n for n in range(24)),
]

# Prefixes of a number in the name of an image of one file. An image whose files name each other has the plain one.
ODD_STEMS = [
    b"-rf ",
    b"with blank ",
    b"quo'te\"d ",
    b"new\nline ",
    "größe ".encode(),
    b"bad\xff\xfe ",
    b"=cmd ",
    b"<script>alert(1)</script> ".replace(b"/", b"|"),
    b"tab\tbed ",
    b"esc\x1b[31m ",
    b"rtl\xe2\x80\xaegpj.",
    b"percent%20",
]


def folder_of(rng):
    """folder_of draws the folder of an image."""
    return CROWD if rng.random() < 0.34 else rng.choice(FOLDERS)


def odd_stem(rng, number):
    """odd_stem draws a unique name, sometimes an odd one, for a number."""
    prefix = rng.choice(ODD_STEMS) if rng.random() < 0.2 else b"vm-"
    return prefix + b"%05d" % number


# Wrong or unknown suffixes. An image is recognised by its content, so that any will do.
OTHER_SUFFIXES = [b".bin", b".disk", b"", b".vmdk.bak", b".jpg", b".old"]


def suffix_of(rng, usual):
    return rng.choice(OTHER_SUFFIXES) if rng.random() < 0.05 else usual


def litter(root, folders, count, rng):
    """litter writes other files beside images. None of them may become a row."""
    for n in range(count):
        where = os.path.join(root, rng.choice(folders))
        write_other(os.path.join(where, b"other-%05d" % n), n, rng)
    run("mkfifo", os.path.join(root, folders[0], b"pipe.img"))


def write_other(stem, n, rng):
    kinds = [
        (b".txt", b"Notes on a template.\n" * (n % 9 + 1)),
        (b".pdf", b"%PDF-1.4\n%\xe2\xe3\xcf\xd3\n1 0 obj\n<<>>\nendobj\n%%EOF\n"),
        (b".gz", gzip.compress(rng.randbytes(3000), mtime=0)),
        (b".img", b"no disk\n"),
        (b".vmx", b'.encoding = "UTF-8"\nconfig.version = "8"\nscsi0:0.fileName = "vm.vmdk"\n'),
        (b".nvram", b"MRVN" + rng.randbytes(8680)),
        (b".mf", b"SHA256(gone.ovf)= " + b"0" * 64 + b"\n"),
        (b".log", b"2026-01-01T00:00:00Z| vmx| I125: Log for VMware\n" * 40),
        (b".xml", b"<domain type='kvm'><name>vm</name></domain>\n"),
        (b".md5", b"d41d8cd98f00b204e9800998ecf8427e  vm.vmdk\n"),
    ]
    suffix, data = kinds[n % len(kinds)]
    with open(stem + suffix, "xb") as f:
        f.write(data)


def medium(root, folder):
    """medium writes an installation medium by xorriso, which is no disk image either."""
    tree = os.path.join(root, folder, b"medium.tree")
    os.mkdir(tree)
    with open(os.path.join(tree, b"readme.txt"), "xb") as f:
        f.write(b"Install me.\n")
    run("xorriso", "-as", "mkisofs", "-quiet", "-o", tree[: -len(b".tree")] + b".iso", tree)
    os.remove(os.path.join(tree, b"readme.txt"))
    os.rmdir(tree)


def links(root, paths, folders, rng):
    """links adds symbolic links to images, to folders, to nothing and in a circle, none of which is followed, and hard links to some images of one
    file, which are read once. It returns the new names by old ones."""
    os.symlink(b".", os.path.join(root, folders[0], b"circle"))
    os.symlink(b"../" * folders[0].count(b"/") + folders[-1], os.path.join(root, os.path.dirname(folders[0]), b"link to a folder"))
    os.symlink(b"gone.vmdk", os.path.join(root, folders[0], b"dangling.vmdk"))
    also = {}
    for n, path in enumerate(rng.sample(paths, min(len(paths), 12))):
        where = os.path.join(rng.choice(folders), b"link-%02d-" % n + (os.path.splitext(path)[1] or b".img"))
        if n % 2:
            os.symlink(os.path.relpath(path, os.path.dirname(where)), os.path.join(root, where))
        else:
            os.link(os.path.join(root, path), os.path.join(root, where))
            also[path] = where
    return also
