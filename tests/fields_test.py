#!/usr/bin/env python3
"""Holds lists of fields to their structs, and docs/wire-format.md to the lists: one that lacks a field does not compile.

usage: tests/fields_test.py COMPILER
"""

import pathlib
import re
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
STRUCT = """
#include "tdock/fields.h"
struct Piece {{
  long end = 0;
  bool partial = false;
  const char* writer = nullptr;

  TDOCK_FIELDS(Piece, {fields})
}};
static_assert(tdock::HasFields<Piece> && tdock::CountFields<Piece>() == 3);
"""


def compiled(fields):
    command = [sys.argv[1], "-std=c++20", "-fsyntax-only", f"-I{ROOT}/include", "-x", "c++", "-"]
    return subprocess.run(command, input=STRUCT.format(fields=fields), text=True, capture_output=True)


def lists():
    """{struct: its fields} of the public headers."""
    texts = [(ROOT / "include/tdock" / name).read_text() for name in ("options.h", "requests.h")]
    found = re.findall(r"TDOCK_FIELDS\((\w+), ([^)]*)\)", "\n".join(texts))
    return {struct: [field.strip() for field in fields.split(",")] for struct, fields in found}


def check_numbers():
    """Messages number the fields of a struct in the order of its list."""
    frames = {"batch": "whether a frame follows", "image": "whether a frame follows"}
    of = {struct: [frames.get(field, field) for field in fields if field != "cancel"] for struct, fields in lists().items()}
    of["RegisterRequest"] = ["partition", *of["ConsumerOptions"]]
    for struct, told in re.findall(r"^\| (\w+) \| (1 .*) \|$", (ROOT / "docs/wire-format.md").read_text(), re.MULTILINE):
        if struct in of and struct not in ("ColumnStatus", "PutRequest"):  # which have numbers of their own
            right = ", ".join(f"{number} {field}" for number, field in enumerate(of[struct], 1))
            assert told == right, f"docs/wire-format.md has {struct} as {told}; it is {right}"


def main():
    check_numbers()
    whole = compiled("writer, end, partial")
    assert whole.returncode == 0, whole.stderr
    for fields, wrong in (("end, partial", "3 elements"), ("end, partial, other", "other"), ("end, partial, end", "end")):
        told = compiled(fields)
        assert told.returncode != 0 and wrong in told.stderr, f"{fields}: {told.stderr}"


main()
