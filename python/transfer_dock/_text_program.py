"""The beginning of a program of several modules that is one text.

After it stands, for each module in an order in which they can be imported, add(NAME, TEXT), and last run(NAME, TEXT).
Tracebacks call them <transfer_dock/NAME.py>.
"""

import sys
import types

_PACKAGE = "tdock_programs"
sys.modules[_PACKAGE] = types.ModuleType(_PACKAGE)


def _compiled(name: str, text: str) -> types.CodeType:
    return compile(text, f"<transfer_dock/{name}.py>", "exec")


def add(name, text):  # type: ignore[no-untyped-def]
    module = sys.modules[f"{_PACKAGE}.{name}"] = types.ModuleType(f"{_PACKAGE}.{name}")
    module.__package__ = _PACKAGE
    exec(_compiled(name, text), module.__dict__)


def run(name, text):  # type: ignore[no-untyped-def]
    exec(_compiled(name, text), globals() | {"__package__": _PACKAGE})
