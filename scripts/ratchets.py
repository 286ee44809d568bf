#!/usr/bin/env python3
"""Counts of what the source should have less of, each of which may only fall. They are kept in scripts/ratchets.json.

usage: scripts/ratchets.py             fails if a count is not the one that is kept
       scripts/ratchets.py --record    keeps counts that have fallen
       scripts/ratchets.py --list NAME prints the places that one of them counts

  comments    product comments that begin with What, Of, Whether, Who or That, instead of with the noun or verb
  most        names with most_ or kMost (the usual word is max)
  sentences   string literals of tests that quote three or more consecutive plain words of a message of the product
  small       product sources and headers under 50 lines
  fields      places that describe a field: product files that contain its name, for the fields in FIELDS
"""

import json
import os
import pathlib
import re
import subprocess
import sys

import size

ROOT = pathlib.Path(__file__).resolve().parent.parent
KEPT = ROOT / "scripts/ratchets.json"
# A number, a list and a flag of a consumer, a counter of its status, and an option of a put.
FIELDS = ["max_deliveries", "reads_optional", "at_most_once", "checkpointed", "quarantined", "weights_version"]
COMMENT = re.compile(r"(?://+|^\s*#) (?:What|Of|Whether|Who|That)\b")
MOST = re.compile(r"\b(?:\w*most_[a-z]\w*|kMost[A-Z]\w*)")
LITERAL = re.compile(r'"((?:[^"\\\n]|\\.)*)"')
LITERALS = re.compile(r'"(?:[^"\\\n]|\\.)*"(?:\s*[rfbu]{0,2}"(?:[^"\\\n]|\\.)*")*')  # adjacent ones are one
PLAIN_WORDS = re.compile(r"[A-Za-z]+(?: [A-Za-z]+){2,}")


def literals(text):
    """(line, text) of each string literal."""
    for match in LITERALS.finditer(text):
        yield text.count("\n", 0, match.start()) + 1, "".join(LITERAL.findall(match[0]))


def is_test(path):
    return path.endswith((".cc", ".h", ".py")) and not size.is_product(path) and path.startswith(("src/", "tests/"))


def places(texts):
    """{ratchet: ["file:line: text"]}. `texts` are the sources by their path."""
    product = {path: text for path, text in texts.items() if size.is_product(path)}
    found = {name: [] for name in ("comments", "most", "sentences", "small", "fields")}
    names = {}
    for path, text in product.items():
        lines = text.splitlines()
        for number, line in enumerate(lines, 1):
            if COMMENT.search(line):
                found["comments"].append(f"{path}:{number}: {line.strip()}")
            for name in MOST.findall(line):
                names.setdefault(name, f"{path}:{number}: {name}")
        if len(lines) < 50 and path.endswith((".cc", ".h", ".py")):
            found["small"].append(f"{path}:{len(lines)}: lines")
        found["fields"] += [f"{path}:1: {field}" for field in FIELDS if re.search(rf"\b{field}\b", text)]
    found["most"] = list(names.values())
    messages = "\n".join(literal for text in product.values() for _, literal in literals(text))
    for path, text in texts.items():
        if is_test(path):
            found["sentences"] += [
                f"{path}:{number}: {literal}"
                for number, literal in literals(text)
                if any(words in messages for words in PLAIN_WORDS.findall(literal))
            ]
    return found


def sources():
    listed = ["git", "ls-files", "--cached", "--others", "--exclude-standard", *size.ROOTS, "tests"]
    texts = {}
    for path in subprocess.run(listed, cwd=ROOT, capture_output=True, text=True, check=True).stdout.splitlines():
        try:
            texts[path] = (ROOT / path).read_text()
        except (UnicodeDecodeError, FileNotFoundError):
            pass  # bytes, or a file that was removed
    return texts


def least_ever():
    """{ratchet: the lowest count that a commit has kept}, so that nobody raises one by editing the file."""
    lowest = {}
    log = subprocess.run(["git", "log", "--format=%h", "--", KEPT], cwd=ROOT, capture_output=True, text=True, check=True)
    for revision in log.stdout.split():
        shown = subprocess.run(["git", "show", f"{revision}:scripts/ratchets.json"], cwd=ROOT, capture_output=True, text=True)
        for name, count in json.loads(shown.stdout or "{}").items():
            lowest[name] = min(count, lowest.get(name, count))
    return lowest


def main():
    arguments = sys.argv[1:]
    if arguments not in ([], ["--record"]) and (len(arguments) != 2 or arguments[0] != "--list"):
        sys.exit(__doc__)
    found = places(sources())
    if len(arguments) == 2:
        if arguments[1] not in found:
            sys.exit(f"scripts/ratchets.py: there is no ratchet '{arguments[1]}'; there are {', '.join(found)}")
        print("\n".join(found[arguments[1]]))
        return
    counts = {name: len(entries) for name, entries in found.items()}
    kept = (json.loads(KEPT.read_text()) if KEPT.exists() else {}) | least_ever()
    risen = [name for name in counts if counts[name] > kept.get(name, counts[name])]
    fallen = [name for name in counts if counts[name] < kept.get(name, counts[name] + 1)]
    for name, count in counts.items():
        print(f"ratchets: {name} {count}" + (f", kept is {kept.get(name)}" if name in risen + fallen else ""))
    if risen:
        sys.exit(f"{', '.join(risen)} may only fall: scripts/ratchets.py --list {risen[0]} prints the places")
    if arguments == ["--record"]:
        KEPT.write_text(json.dumps(counts, indent=1) + "\n")
    elif fallen:
        sys.exit(f"{', '.join(fallen)} has fallen: keep that with scripts/ratchets.py --record")


if __name__ == "__main__":
    main()
