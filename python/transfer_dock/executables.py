"""The executables of this package: where they are, and whether this environment has what they need.

``tdock`` and those beside it are linked with libtorch, which they find in the torch of the same environment. A wheel says
in bin/torch_version which version that must be; a build folder, whose executables know their libtorch, does not.
"""

from __future__ import annotations

import importlib.util
import os
import pathlib
import re
import sys
from typing import NoReturn

from transfer_dock.errors import DockError, FailedPrecondition, InvalidArgument, NotFound

_FOLDER = pathlib.Path(__file__).parent / "bin"
_WITHOUT_TORCH = "tdock-dock"
_NAMES = ("tdock", "tdock-serve", "tdock-runs", "tdock-launch", _WITHOUT_TORCH)
_INSTALL = 'pip install "transfer-dock[train]"'
# Where the OpenSSL of the wheel, which is Debian's, looks for the certificates that it trusts, and where other systems have them.
_DEBIAN_CERTIFICATES = "/usr/lib/ssl/certs"
_CERTIFICATES = ("/etc/ssl/certs/ca-certificates.crt", "/etc/pki/tls/certs/ca-bundle.crt", "/etc/ssl/ca-bundle.pem", "/etc/ssl/cert.pem")


def find(name: str = "tdock") -> pathlib.Path:
    """The path of an executable: "tdock", "tdock-serve", "tdock-runs", "tdock-launch", "tdock-dock".

    Start it with :func:`environment`. Raises NotFound if this package has none, and FailedPrecondition without the torch
    that it needs; both say what to install.
    """
    if name not in _NAMES:
        raise InvalidArgument(f"no executable '{name}'; there are {', '.join(_NAMES)}")
    path = _FOLDER / name
    if not path.exists():
        raise NotFound(
            f"transfer_dock in {_FOLDER.parent} has no {name}: it was built without libtorch, as `pip install .` does it, "
            "or not completely. In a folder with the sources, `make wheel` makes a wheel with all executables, and "
            "`make build` builds those of build/release/python"
        )
    if name != _WITHOUT_TORCH:
        _check_torch()
    return path


def environment() -> dict[str, str]:
    """The environment variables to start an executable with.

    They are those of this process, and say where the libraries of torch and pyarrow are if these are not beside this
    package, but elsewhere on Python's path; and where a system that is not Debian has the certificates that it trusts.
    """
    variables = dict(os.environ)
    if not (_FOLDER / "torch_version").exists():
        return variables
    if not {"SSL_CERT_FILE", "SSL_CERT_DIR"} & variables.keys() and not os.path.exists(_DEBIAN_CERTIFICATES):
        for file in filter(os.path.exists, _CERTIFICATES):
            variables.setdefault("SSL_CERT_FILE", file)
    elsewhere = []
    for package, libraries in (("torch", "torch/lib"), ("pyarrow", "pyarrow")):
        folder = _folder_of(package)
        if folder is not None and folder.parent != _neighbours():
            elsewhere.append(str(folder.parent / libraries))
    if elsewhere:
        before = variables.get("LD_LIBRARY_PATH")
        variables["LD_LIBRARY_PATH"] = os.pathsep.join([*elsewhere, *([before] if before else [])])
    return variables


def run(name: str, arguments: list[str]) -> NoReturn:
    """Becomes the executable. If it cannot, says why on standard error and exits with 2."""
    # The dock needs no torch, also where it is a subcommand.
    if name == "tdock" and arguments[:1] == ["dock"] and (_FOLDER / _WITHOUT_TORCH).exists():
        name, arguments = _WITHOUT_TORCH, arguments[1:]
    try:
        path = find(name)
        os.execve(path, [str(path), *arguments], environment())
    except (DockError, OSError) as error:
        print(f"{name}: {error}", file=sys.stderr)
        sys.exit(2)


def main() -> NoReturn:
    """The command ``tdock``."""
    run("tdock", sys.argv[1:])


def dock_main() -> NoReturn:
    """The command ``tdock-dock``."""
    run(_WITHOUT_TORCH, sys.argv[1:])


def _check_torch() -> None:
    try:
        wanted = (_FOLDER / "torch_version").read_text().strip()
    except FileNotFoundError:
        return
    folder = _folder_of("torch")
    found = None if folder is None else _version_of(folder)
    if found is not None and found.partition("+")[0] == wanted:
        return
    from transfer_dock import __version__

    raise FailedPrecondition(
        f"transfer-dock {__version__} was built for torch {wanted}, this environment has "
        f"{'no torch' if found is None else f'torch {found}'}; run: {_INSTALL}"
    )


def _neighbours() -> pathlib.Path:
    """The folder in which the executables look for other packages: from where they are, not where links to them are."""
    return (_FOLDER / "tdock").resolve().parents[2]


def _folder_of(package: str) -> pathlib.Path | None:
    """Where the executables find a package, or else Python, which does not import it for this."""
    beside = _neighbours() / package
    if beside.is_dir():
        return beside
    try:
        spec = importlib.util.find_spec(package)
    except ValueError:  # a program has put something of this name into sys.modules
        return None
    return pathlib.Path(spec.origin).parent if spec is not None and spec.origin is not None else None


def _version_of(torch: pathlib.Path) -> str | None:
    try:
        text = (torch / "version.py").read_text()
    except OSError:
        return None
    version = re.search(r"^__version__ = ['\"]([^'\"]+)['\"]", text, re.MULTILINE)
    return version[1] if version else None
