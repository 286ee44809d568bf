"""Frames, as docs/frame.md describes them, of dense columns of float32 and of columns of bytes."""

import array
import struct

from xxh3 import xxh3

DENSE, BYTES, UINT8, FLOAT32 = 0, 2, 1, 8


def frame(columns):
    """`columns`: {name: an array of floats, or a list of bytes}."""
    described, blocks = [], []
    for name, values in columns.items():
        parts = [values]
        if isinstance(values, list):
            offsets = array.array("q", [0])
            for value in values:
                offsets.append(offsets[-1] + len(value))
            parts = [offsets, b"".join(values)]
        kind = (BYTES, UINT8) if len(parts) == 2 else (DENSE, FLOAT32)
        described.append((name.encode(), kind, [bytes(part) for part in parts]))
    header_bytes = 40 + sum(8 + len(name) + 24 * len(parts) for name, _, parts in described) + 16
    at, body, texts = header_bytes, b"", b""
    for name, kind, parts in described:
        texts += struct.pack("<I", len(name)) + name + struct.pack("<BBH", *kind, 0)
        for part in parts:
            zeros = -at % 64
            body += bytes(zeros) + part
            texts += struct.pack("<QQQ", at + zeros, len(part), 0)
            at += zeros + len(part)
    body += bytes(-at % 64)
    rows = len(next(iter(columns.values())))
    version = 2  # without checksums of the blocks: messages have some
    header = bytes.fromhex("8a54444b0d0a1a0a") + struct.pack("<IIQQQ", version, len(columns), rows, header_bytes, header_bytes + len(body))
    header += texts + struct.pack("<Q", 0)  # no meta
    return header + struct.pack("<Q", xxh3(header)) + body
