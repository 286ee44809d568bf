"""The executables of the package, in every kind of environment, with torch and without."""

from __future__ import annotations

import os
import pathlib
import subprocess
import sys

import pytest

import transfer_dock as td
from transfer_dock import executables
from waiting import LONG

HAS_TDOCK = (pathlib.Path(os.environ["TDOCK_BUILD"]) / "tdock").exists()


@pytest.mark.parametrize("name", ["tdock-dock", *(["tdock", "tdock-serve", "tdock-runs", "tdock-launch"] if HAS_TDOCK else [])])
def test_those_of_the_build_folder_are_found(name: str) -> None:
    path = executables.find(name)
    assert path.resolve().parent == pathlib.Path(os.environ["TDOCK_BUILD"]).resolve()
    assert executables.environment() == dict(os.environ)
    assert subprocess.run([path, "--version"], check=True, capture_output=True, timeout=LONG).stdout


def test_others_are_not() -> None:
    with pytest.raises(td.InvalidArgument, match="no executable 'tdock-brew'; there are tdock, tdock-serve"):
        executables.find("tdock-brew")


def test_the_package_is_a_command() -> None:
    command = [sys.executable, "-m", "transfer_dock", "dock", "--help"]
    assert "serve" in subprocess.run(command, check=True, capture_output=True, text=True, timeout=LONG).stdout


class Site:
    """A folder with packages, of which transfer_dock was installed from a wheel that was built for torch 2.13.0."""

    def __init__(self, folder: pathlib.Path) -> None:
        self.folder = folder
        self.bin = folder / "transfer_dock/bin"
        self.bin.mkdir(parents=True)
        self.add("tdock")
        (self.bin / "torch_version").write_text("2.13.0\n")

    def add(self, name: str) -> pathlib.Path:
        path = self.bin / name
        path.write_text(f"#!/bin/sh\necho {name} $* $LD_LIBRARY_PATH\n")
        path.chmod(0o755)
        return path


def make_package(folder: pathlib.Path, name: str, version: str) -> None:
    (folder / name / "lib").mkdir(parents=True)
    (folder / name / "__init__.py").write_text("raise RuntimeError('it was imported')")
    (folder / name / "version.py").write_text(f"from typing import Optional\n__all__ = []\n__version__ = '{version}'\n")


@pytest.fixture
def site(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> Site:
    site = Site(tmp_path / "site")
    monkeypatch.setattr(executables, "_FOLDER", site.bin)
    monkeypatch.setattr(sys, "path", [str(site.folder)])
    monkeypatch.delitem(sys.modules, "torch", raising=False)
    monkeypatch.delitem(sys.modules, "pyarrow", raising=False)
    monkeypatch.delenv("LD_LIBRARY_PATH", raising=False)
    return site


@pytest.mark.parametrize("version", ["2.13.0", "2.13.0+cpu", "2.13.0+cu130"])
def test_the_right_torch_is_used_where_the_executables_look_for_it(site: Site, version: str) -> None:
    make_package(site.folder, "torch", version)
    assert executables.find() == site.bin / "tdock"
    assert "LD_LIBRARY_PATH" not in executables.environment()


def test_libraries_elsewhere_on_the_path_are_found(
    site: Site, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("torch", "pyarrow"):
        make_package(tmp_path / "other", name, "2.13.0")
    monkeypatch.setattr(sys, "path", [str(site.folder), str(tmp_path / "other")])
    monkeypatch.setenv("LD_LIBRARY_PATH", "/mine")
    assert executables.find()
    assert executables.environment()["LD_LIBRARY_PATH"] == f"{tmp_path}/other/torch/lib:{tmp_path}/other/pyarrow:/mine"


def test_systems_that_are_not_debian_have_certificates(site: Site, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_package(site.folder, "torch", "2.13.0")
    for name in ("SSL_CERT_FILE", "SSL_CERT_DIR"):
        monkeypatch.delenv(name, raising=False)
    bundles = [tmp_path / name for name in ("missing", "first", "second")]
    for bundle in bundles[1:]:
        bundle.touch()
    monkeypatch.setattr(executables, "_CERTIFICATES", tuple(map(str, bundles)))
    monkeypatch.setattr(executables, "_DEBIAN_CERTIFICATES", str(tmp_path))
    assert "SSL_CERT_FILE" not in executables.environment()
    monkeypatch.setattr(executables, "_DEBIAN_CERTIFICATES", str(tmp_path / "none"))
    assert executables.environment()["SSL_CERT_FILE"] == str(bundles[1])
    monkeypatch.setenv("SSL_CERT_FILE", "/mine")
    assert executables.environment()["SSL_CERT_FILE"] == "/mine"


# As uv makes environments with --link-mode symlink.
def test_links_to_a_package_find_libraries_on_the_path(site: Site, tmp_path: pathlib.Path) -> None:
    cache = Site(tmp_path / "cache")
    (site.bin / "tdock").unlink()
    (site.bin / "tdock").symlink_to(cache.bin / "tdock")
    make_package(site.folder, "torch", "2.13.0")
    assert executables.environment()["LD_LIBRARY_PATH"] == f"{site.folder}/torch/lib"


@pytest.mark.parametrize(
    ("version", "told"),
    [("2.6.0", "torch 2.6.0"), ("2.13.1+cpu", r"torch 2.13.1\+cpu"), ("2.13.0a0+git", r"torch 2.13.0a0\+git"), (None, "no torch")],
)
def test_another_torch_is_refused_with_what_puts_it_right(site: Site, version: str | None, told: str) -> None:
    if version is not None:
        make_package(site.folder, "torch", version)
    with pytest.raises(td.FailedPrecondition, match=rf'built for torch 2.13.0, this environment has {told}; run: pip install "transfer-dock\[train\]"'):
        executables.find()


def test_what_is_no_package_is_no_torch(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(td.FailedPrecondition, match="no torch"):
        executables.find()
    (site.folder / "torch").mkdir()
    with pytest.raises(td.FailedPrecondition, match="no torch"):
        executables.find()


def test_a_package_without_executables_says_what_has_them(site: Site) -> None:
    with pytest.raises(td.NotFound, match="has no tdock-serve: .*make wheel"):
        executables.find("tdock-serve")
    site.add("tdock-dock")
    assert executables.find("tdock-dock")  # which needs no torch


def test_the_command_ends_with_the_reason(site: Site, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        executables.run("tdock", ["train"])
    assert ended.value.code == 2
    assert capsys.readouterr().err.startswith("tdock: transfer-dock ")
