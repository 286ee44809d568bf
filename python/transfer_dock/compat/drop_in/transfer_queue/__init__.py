"""``import transfer_queue`` is ``transfer_dock.compat.transfer_queue`` where this file's folder comes first on PYTHONPATH.

For programs that are not to be edited, and the libraries that they use; Ray's workers take over the variable. Submodules
are the same objects under both names.
"""

from __future__ import annotations

import importlib
import importlib.abc
import importlib.machinery
import importlib.util
import sys
from collections.abc import Sequence
from types import ModuleType
from typing import Any

_NAME = "transfer_queue"
_OURS = "transfer_dock.compat.transfer_queue"


class _Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    def find_spec(self, fullname: str, path: Sequence[str] | None, target: Any = None) -> Any:
        """Raises ModuleNotFoundError for what TransferQueue has, and this package has not."""
        if not fullname.startswith(_NAME + "."):
            return None
        if importlib.util.find_spec(_OURS + fullname.removeprefix(_NAME)) is None:
            raise ModuleNotFoundError(f"{_OURS} has no module '{fullname.removeprefix(_NAME + '.')}'", name=fullname)
        return importlib.machinery.ModuleSpec(fullname, self)

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType:
        module = importlib.import_module(_OURS + spec.name.removeprefix(_NAME))
        spec.loader_state = module.__spec__
        return module

    def exec_module(self, module: ModuleType) -> None:
        # It was executed under its own name, and keeps what it knows of itself.
        assert module.__spec__ is not None
        module.__spec__ = module.__spec__.loader_state


sys.meta_path.insert(0, _Finder())
sys.modules[_NAME] = importlib.import_module(_OURS)
