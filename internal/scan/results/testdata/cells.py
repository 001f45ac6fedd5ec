"""Reads a CSV with Python's strict parser and prints its records as JSON.

With a second argument, a file of one base64 text in a line, it also escapes each of these as docs/scan.md says, on its own,
and compares them with the columns path and label of the row at the same place.
"""
import base64
import csv
import json
import sys
import unicodedata


def escape(raw):
    out = ""
    for char in raw.decode("utf-8", "surrogateescape"):
        code = ord(char)
        if 0xDC80 <= code <= 0xDCFF:
            out += "\\x%02x" % (code - 0xDC00)
        elif unicodedata.category(char) in ("Cc", "Cf", "Zl", "Zp") or code & 0xFFFE == 0xFFFE:
            out += "\\u%04x" % code
        else:
            out += char
    return out


def guard(text):
    parts = []
    for part in text.split(";"):
        rest = part.lstrip(' "')
        if rest[:1] in tuple("=+-@\uff1d\uff0b\uff0d\uff20"):
            part = part[: len(part) - len(rest)] + "'" + rest
        parts.append(part)
    return ";".join(parts)


with open(sys.argv[1], newline="", encoding="utf-8", errors="strict") as f:
    records = list(csv.reader(f, strict=True))
if len(sys.argv) > 2:
    with open(sys.argv[2]) as f:
        texts = [base64.b64decode(line) for line in f]
    path, label = records[0].index("path"), records[0].index("label")
    if len(texts) != len(records) - 1:
        sys.exit("%d texts, %d rows" % (len(texts), len(records) - 1))
    for text, record in zip(texts, records[1:]):
        want = guard(escape(text))
        if record[path] != want or record[label] != want:
            sys.exit("%r is %r and %r, want %r" % (text, record[path], record[label], want))
json.dump(records, sys.stdout)
