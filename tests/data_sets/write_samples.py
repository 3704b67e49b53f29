#!/usr/bin/env python3
"""Writes the files that the tests of the readers read, with Python's own csv, gzip and struct, and with numpy where it is there.

    write_samples.py DIRECTORY

What they hold is a function of row and column, so that the tests know it without a second file.
"""
import csv
import gzip
import struct
import sys
from pathlib import Path

directory = Path(sys.argv[1])
directory.mkdir(parents=True, exist_ok=True)

TEXTS = ["plain", "with, comma", 'with "quotes"', "two\nlines", "", "ünïcode", " spaces "]
TYPES = {0x08: "B", 0x09: "b", 0x0B: "h", 0x0C: "i", 0x0D: "f", 0x0E: "d"}
SHAPES = {0x08: (5, 3, 2), 0x09: (6,), 0x0B: (5, 3), 0x0C: (3, 2, 2, 2), 0x0D: (4, 3, 2), 0x0E: (7,)}


def write_csv(name, dialect):
    with open(directory / name, "w", newline="", encoding="utf-8") as out:
        rows = csv.writer(out, **dialect)
        rows.writerow(["number", "text", "half", "count"])
        for i in range(40):
            rows.writerow([repr(1 / (i + 1)), TEXTS[i % len(TEXTS)], i / 2 - 3, (i - 20) * 10**i if i < 18 else -i])


def idx_bytes(code, shape):
    count = 1
    for n in shape:
        count *= n
    values = [(i * 37 + 11) % 251 - (125 if code != 0x08 else 0) for i in range(count)]
    return (
        struct.pack(">BBBB", 0, 0, code, len(shape))
        + struct.pack(f">{len(shape)}I", *shape)
        + struct.pack(f">{count}{TYPES[code]}", *values)
    )


write_csv("python.csv", {})
write_csv("python-unix.csv", {"dialect": "unix"})
write_csv("python-semicolons.csv", {"delimiter": ";"})
for code, shape in SHAPES.items():
    name = f"python-{code:02x}.idx"
    (directory / name).write_bytes(idx_bytes(code, shape))
    with open(directory / (name + ".gz"), "wb") as raw, gzip.GzipFile("", "wb", mtime=0, fileobj=raw) as packed:
        packed.write(idx_bytes(code, shape))

try:
    import numpy
except ImportError:
    sys.exit(0)
# numpy reads and writes bytes and floats independently of us: a second witness.
numbers = numpy.array([1 / (i + 1) for i in range(40)])
numpy.savetxt(directory / "numpy.csv", numpy.stack([numbers, numpy.sqrt(numbers)], axis=1), delimiter=",", header="a,b",
              comments="")
