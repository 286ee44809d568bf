#!/usr/bin/env python3
"""Holds lists of fields to their structs, and docs/wire-format.md to the lists: one that lacks a field does not compile.

usage: tests/fields_test.py COMPILER
"""

import pathlib
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


def check_pages():
    """The messages in docs/wire-format.md are made of the lists."""
    script = [sys.executable, ROOT / "scripts/generate_docs.py", "--check", "--sources"]
    checked = subprocess.run(script, text=True, capture_output=True)
    assert checked.returncode == 0, checked.stderr


def main():
    check_pages()
    whole = compiled("writer, end, partial")
    assert whole.returncode == 0, whole.stderr
    for fields, wrong in (("end, partial", "3 elements"), ("end, partial, other", "other"), ("end, partial, end", "end")):
        told = compiled(fields)
        assert told.returncode != 0 and wrong in told.stderr, f"{fields}: {told.stderr}"


main()
