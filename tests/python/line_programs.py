"""Programs that talk in lines of JSON, as real processes."""

from __future__ import annotations

import json
import os
import pathlib
import re
import select
import subprocess
import time

from waiting import LONG

ROOT = pathlib.Path(os.environ["TDOCK_SOURCE"])
PACKAGE = ROOT / "python/transfer_dock"


def package(environment: str, path: str) -> pathlib.Path:
    """A file or folder of a package in an environment of tests."""
    found = list(ROOT.glob(f"{environment}/lib/python3*/site-packages/{path}"))
    assert found, f"{environment} lacks {path}: run `scripts/setup.sh oracle`"
    return found[0]


def as_text(name: str) -> str:
    """A module of the package as the one text that tdock starts."""
    modules: list[str] = []

    def add(module: str) -> None:
        for imported in re.findall(r"^from \.(\w+) import", (PACKAGE / f"{module}.py").read_text(), re.MULTILINE):
            if imported not in modules:
                add(imported)
        modules.append(module)

    add(name)
    texts = {module: f"r'''{(PACKAGE / f'{module}.py').read_text()}'''" for module in modules}
    calls = [f"add({module!r}, {texts[module]})" for module in modules[:-1]] + [f"run({name!r}, {texts[name]})"]
    return (PACKAGE / "_text_program.py").read_text() + "\n".join(calls)


class LineProgram:
    """One that has been sent a hello, and has answered it."""

    def __init__(self, *command: object, hello: dict, cwd: pathlib.Path | None = None, env: dict | None = None) -> None:
        self.process = subprocess.Popen(
            command, cwd=cwd, bufsize=0, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            env=os.environ | (env or {}),
        )  # fmt: skip
        self._unread = b""
        self.send({"type": "hello", "protocol": 1} | hello)
        self.hello = self.read()

    def __enter__(self):
        return self

    def __exit__(self, *error: object) -> None:
        self.process.kill()
        self.process.communicate()

    def send(self, message: object) -> None:
        # As tdock's own lines: their keys are sorted.
        self.process.stdin.write(json.dumps(message, sort_keys=True, separators=(",", ":")).encode() + b"\n")

    def read(self) -> dict:
        until = time.monotonic() + LONG
        while b"\n" not in self._unread:
            assert select.select([self.process.stdout], [], [], max(until - time.monotonic(), 0))[0], "it writes nothing"
            read = os.read(self.process.stdout.fileno(), 1 << 16)
            assert read, self.process.stderr.read().decode()
            self._unread += read
        line, _, self._unread = self._unread.partition(b"\n")
        return json.loads(line)

    def end(self) -> str:
        """What it wrote to its standard error, if it ends well and has said nothing more."""
        output, errors = self.process.communicate(timeout=LONG)
        assert (self.process.returncode, output + self._unread) == (0, b""), errors.decode()
        return errors.decode()
