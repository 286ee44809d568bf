"""The beginning of a program of several modules that is one text, for `python -c`.

After it stands, for each module in an order in which they can be imported, add(NAME, TEXT), and last run(TEXT).
"""

import sys
import types

_PACKAGE = "tdock_programs"
sys.modules[_PACKAGE] = types.ModuleType(_PACKAGE)


def add(name, text):  # type: ignore[no-untyped-def]
    module = sys.modules[f"{_PACKAGE}.{name}"] = types.ModuleType(f"{_PACKAGE}.{name}")
    module.__package__ = _PACKAGE
    exec(compile(text, "<string>", "exec"), module.__dict__)


def run(text):  # type: ignore[no-untyped-def]
    exec(compile(text, "<string>", "exec"), globals() | {"__package__": _PACKAGE})
