#!/usr/bin/env python3
"""Writes the generated parts of README.md and docs/*.md, and the generated modules of the Python package.

usage: scripts/generate_docs.py [--check] [--sources] [FOLDER]     FOLDER: with the executables; default: build/release

A part begins with `<!-- generated: COMMAND -->`, where COMMAND is one of `tdock` or of a script, and ends with
`<!-- end -->`. --check changes nothing and fails if a part is not what its command prints, or if a row of a generated
table stands elsewhere as well. --sources makes the parts of scripts only, which need no executables.
"""

import argparse
import pathlib
import re
import shlex
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
PART = re.compile(r"<!-- generated: (?P<command>(?:tdock|scripts/\w+\.py) [^>]*?) -->\n(?P<text>.*?)<!-- end -->\n", re.DOTALL)
SHORTEST_ROW = 40
# Modules that scripts/python_keys.py prints; those with an executable, from its list of keys.
MODULES = {"_trl_names.py": ["names"], "_keys.py": ["keys", "tdock"], "_trl_fields.py": ["fields", "tdock"]}


def pages():
    return [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]


def printed(command, folder):
    words = shlex.split(command)
    program = [folder / words[0]] if words[0] == "tdock" else [sys.executable, ROOT / words[0]]
    return subprocess.run([*program, *words[1:]], capture_output=True, text=True, check=True).stdout


def generated(page, folder):
    """The text of the page, with its parts made anew; with those of scripts, if there is no folder."""

    def made(part):
        command = part["command"]
        if folder is None and command.startswith("tdock "):
            return part[0]
        return f"<!-- generated: {command} -->\n\n{printed(command, folder)}\n<!-- end -->\n"

    return PART.sub(made, page)


def modules(folder):
    """{module: its text}"""
    made = {}
    for name, words in MODULES.items():
        if folder is not None or "tdock" not in words:
            words = [folder / word if word == "tdock" else word for word in words]
            script = [sys.executable, ROOT / "scripts/python_keys.py", *words]
            printed = subprocess.run(script, capture_output=True, text=True, check=True).stdout
            made[ROOT / "python/transfer_dock" / name] = printed
    return made


def copies(texts):
    """["PAGE: ROW"] of rows that stand more than once although they are generated."""
    rows = {row for text in texts.values() for part in PART.finditer(text) for row in part["text"].splitlines()}
    rows = {row for row in rows if row.startswith("|") and len(row) >= SHORTEST_ROW and not set(row) <= set("|- ")}
    headings = {row for row in rows if any(row in text and row + "\n|--" in text for text in texts.values())}
    found, seen = [], set()
    for page, text in texts.items():
        for line in text.splitlines():
            row = next((row for row in (line, line[line.find("|") :]) if row in rows - headings), None)
            if row in seen:
                found.append(f"{page.relative_to(ROOT)}: {row[:100]}")
            seen.add(row)
            seen.discard(None)
    return found


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="change nothing, and fail if something is not up to date")
    parser.add_argument("--sources", action="store_true", help="only the parts that need no executables")
    parser.add_argument("folder", nargs="?", type=pathlib.Path, default=ROOT / "build/release", help="with the executables")
    arguments = parser.parse_args()
    folder = None if arguments.sources else arguments.folder.resolve()
    made = {page: generated(page.read_text(), folder) for page in pages()}
    problems = copies(made)
    for page, text in (made | modules(folder)).items():
        if page.exists() and text == page.read_text():
            continue
        if arguments.check:
            problems.append(f"{page.relative_to(ROOT)} is not up to date: run scripts/generate_docs.py")
        else:
            page.write_text(text)
            print(f"wrote {page.relative_to(ROOT)}")
    sys.exit("\n".join(problems) or None)


if __name__ == "__main__":
    main()
