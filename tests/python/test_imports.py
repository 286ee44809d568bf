"""The modules of the package import each other in one direction."""

from __future__ import annotations

import ast
import graphlib
import os
import pathlib
import subprocess
import sys

import pytest

import transfer_dock
from waiting import LONG

SOURCES = pathlib.Path(os.environ["TDOCK_SOURCE"]) / "python"


def name_of(path: pathlib.Path) -> str:
    return ".".join(path.relative_to(SOURCES).with_suffix("").parts).removesuffix(".__init__")


MODULES = {name_of(path): path for path in sorted(SOURCES.rglob("*.py"))}


def imported(path: pathlib.Path) -> set[str]:
    """The modules of the package that this one imports, in functions and for type checkers as well."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            # What programs are made of is imported under another name as well, and so from beside it.
            relative = node.level == 1 and path.parent.name == "transfer_dock"
            assert node.module is not None and (node.level == 0 or relative), f"{path} has a relative import"
            module = f"transfer_dock.{node.module}" if relative else node.module
            submodules = {f"{module}.{alias.name}" for alias in node.names}
            found.update(one if one in MODULES else module for one in submodules)
    return found & MODULES.keys()


def test_no_two_modules_import_each_other() -> None:
    # The package itself imports its modules for its users, and is what the compatibility packages are made with.
    graph = {name: imported(path) - {"transfer_dock"} for name, path in MODULES.items() if name != "transfer_dock"}
    assert {"transfer_dock.calls", "transfer_dock.errors"} <= graph["transfer_dock.dock"]
    graphlib.TopologicalSorter(graph).prepare()  # CycleError names the circle


# Imports a module into a package whose __init__ has imported nothing.
PROGRAM = """
import importlib, sys, types

package = types.ModuleType("transfer_dock")
package.__path__ = [sys.argv[1]]
sys.modules["transfer_dock"] = package
importlib.import_module(sys.argv[2])
"""


@pytest.mark.parametrize("name", [name_of(path) for path in sorted((SOURCES / "transfer_dock").glob("[!_]*.py"))])
def test_any_module_may_be_imported_first(name: str) -> None:
    subprocess.run([sys.executable, "-c", PROGRAM, *transfer_dock.__path__, name], check=True, timeout=LONG)
