#!/usr/bin/env python3
"""The installed dock as another project meets it: tests/integration/install_test.py CMAKE BUILD CXX CXX_FLAGS

Installs the build into a folder that is then moved away, and builds and runs programs against it: the examples, and one
that knows every public header.
"""

import pathlib
import shutil
import subprocess
import sys
import tempfile
import unittest

from waiting import LONG

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
cmake, build, compiler, flags = None, None, None, None


def run(*command):
    result = subprocess.run(command, capture_output=True, text=True)
    if result.returncode != 0:
        raise AssertionError(f"{command} exits {result.returncode}:\n{result.stdout}\n{result.stderr}")
    return result.stdout


class Install(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        folder = tempfile.TemporaryDirectory()
        cls.addClassCleanup(folder.cleanup)
        cls.folder = pathlib.Path(folder.name)
        cls.prefix = cls.folder / "elsewhere"
        run(cmake, "--install", build, "--prefix", str(cls.folder / "first"))
        shutil.move(cls.folder / "first", cls.prefix)

    def test_an_example_builds_and_runs_against_it(self):
        self.assertEqual(run(self.build_example("cpp-local")), "37+85=\n12+30=\n")

    def build_example(self, name):
        source, out = self.folder / f"{name}-source", self.folder / f"{name}-build"
        shutil.copytree(ROOT / "examples" / name, source)
        self.configure(source, out)
        run(cmake, "--build", str(out))
        return str(out / name)

    def configure(self, source, out, *definitions):
        run(cmake, "-S", str(source), "-B", str(out), f"-DCMAKE_PREFIX_PATH={self.prefix}",
            f"-DCMAKE_CXX_COMPILER={compiler}", f"-DCMAKE_CXX_FLAGS={flags}", *definitions)  # fmt: skip

    def test_an_example_of_a_client_runs_against_the_installed_server(self):
        client = self.build_example("cpp-service")
        socket = self.folder / "dock.sock"
        command = [str(self.prefix / "bin/tdock-dock"), "serve", "--listen", "127.0.0.1:0", "--socket", str(socket)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
            try:
                addresses = []
                for line in server.stdout:
                    if line == "ready\n":
                        break
                    addresses.append(line.strip().removeprefix("tcp "))
                self.assertEqual(len(addresses), 2)
                for address in addresses:
                    self.assertEqual(run(client, address), "37+85=\n12+30=\n")
                server.terminate()
                self.assertEqual(server.wait(timeout=LONG), 0)
            finally:
                server.kill()

    def test_the_readme_shows_that_example(self):
        shown = "\n".join("    " + line if line else "" for line in (ROOT / "examples/cpp-service/main.cc").read_text().splitlines())
        self.assertIn(shown, (ROOT / "README.md").read_text())

    def test_another_version_is_refused(self):
        source = self.folder / "later"
        source.mkdir()
        (source / "CMakeLists.txt").write_text(
            "cmake_minimum_required(VERSION 3.25)\nproject(later LANGUAGES CXX)\nfind_package(tdock 99.0 REQUIRED)\n"
        )
        with self.assertRaisesRegex(AssertionError, "99.0"):
            run(cmake, "-S", str(source), "-B", str(self.folder / "no"), f"-DCMAKE_PREFIX_PATH={self.prefix}")

    def test_nothing_points_back_to_the_sources_or_the_build(self):
        files = [path for path in self.prefix.rglob("*") if path.suffix in (".cmake", ".h")]
        self.assertGreater(len(files), 10)
        for path in files:
            for place in (str(ROOT), str(pathlib.Path(build).resolve())):
                self.assertNotIn(place, path.read_text(), path)

    def test_exactly_the_public_headers_are_there(self):
        def headers(folder):
            return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())

        self.assertEqual(headers(self.prefix / "include"), headers(ROOT / "include"))

    def test_each_header_compiles_alone_and_a_program_brings_its_own_clock_and_files(self):
        source, out = self.folder / "installed-source", self.folder / "installed-build"
        shutil.copytree(ROOT / "tests/integration/installed", source)
        headers = [path.relative_to(ROOT / "include") for path in (ROOT / "include").rglob("*.h")]
        sources = [source / f"{str(header).replace('/', '_')}.cc" for header in headers]
        for header, path in zip(headers, sources, strict=True):
            path.write_text(f'#include "{header}"\n')
        self.configure(source, out, f"-DHEADERS={';'.join(map(str, sources))}")
        run(cmake, "--build", str(out), "--parallel", "2")
        expected = "1 file, 2 rows\nleased: DEADLINE_EXCEEDED\nan hour later: 1 row\n"
        self.assertEqual(run(str(out / "own_outside")), expected)

    def test_the_command_is_there(self):
        self.assertIn("serve", run(str(self.prefix / "bin/tdock-dock"), "--help"))


if __name__ == "__main__":
    cmake, build, compiler, flags = sys.argv[1:5]
    unittest.main(argv=sys.argv[:1])
