#!/usr/bin/env python3
"""Fails on an include that the order of modules does not allow, and on a stop request that looks at no lock.

The order is what cmake/Modules.cmake declares: a module may include its own headers, those of the modules that it
uses, directly or not, and libtorch only where it is declared TORCH. Public headers belong to the module that
implements them.
"""

import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
PUBLIC = {  # header of include/tdock -> its module
    "batch.h": "tensor",
    "buffer.h": "tensor",
    "column.h": "tensor",
    "dtype.h": "tensor",
    "frame.h": "tensor",
    "meta.h": "tensor",
    "mesh_rules.h": "tensor",
    "meta_batch.h": "tensor",
    "packing.h": "tensor",
    "padding.h": "tensor",
    "plans.h": "tensor",
    "dock.h": "dock",
    "dock_server.h": "remote",
    "fork_guard.h": "remote",
    "remote_dock.h": "remote",
    "local_dock.h": "dock",
    "mindspeed.h": "mindspeed",
    "options.h": "dock",
    "requests.h": "dock",
    "rows.h": "dock",
    "sampler.h": "dock",
}
TORCH_FOLDERS = ("ATen/", "c10/", "torch/", "caffe2/")
# A library that only these modules may know, so that it can be replaced there.
OWNED_LIBRARIES = {
    "yaml-cpp/": {"config"},
    "CLI/": {"command", "console"},
    "arrow/": {"parquet"},
    "parquet/": {"parquet"},
    "simdjson": {"data", "bench_text"},
    "xxhash": {"tensor", "text"},
    "prometheus/": {"console"},
    "httplib": {"console"},
    "grpc": {"rpc"},
    "nanobind/": {"python"},
    "openssl/": {"rpc"},
    "pcre2": {"text"},
    "sentencepiece": {"text"},
    "utf8proc": {"text"},
    "tdock.pb.h": {"wire", "remote"},
}
INCLUDE = re.compile(r'^\s*#\s*include\s*[<"]([^>"]+)[>"]', re.MULTILINE)


def declared_modules():
    """Module -> (modules that it may include, whether it may include libtorch)."""
    text = (ROOT / "cmake/Modules.cmake").read_text()
    text = re.sub(r"#.*", "", text)
    modules = {}
    for body in re.findall(r"tdock_(?:module|python_module|plugin)\(([^)]*)\)", text):
        words = body.split()
        keywords = {"TORCH", "NO_TSAN", "USES", "LINKS", "PRIVATE_LINKS", "TEST_USES", "ALONE", "LONG_TESTS"}
        uses, part = [], None
        for word in words[1:]:
            if word in keywords:
                part = word
            elif part == "USES":
                uses.append(word)
        reachable = set()
        for used in uses:
            if used not in modules:
                sys.exit(f"cmake/Modules.cmake: '{words[0]}' uses '{used}', which is not declared before it")
            reachable |= {used} | modules[used][0]
        modules[words[0]] = (reachable, "TORCH" in words)
    return modules


def violations(name, text, module, modules):
    allowed, torch = modules[module]
    for include in INCLUDE.findall(text):
        folder = include.split("/")[0]
        where = f"{name}: module '{module}' may not include {include}"
        if include.startswith(TORCH_FOLDERS) and not torch:
            yield f"{where}: it is not declared TORCH"
        elif folder == "tdock":
            owner = PUBLIC.get(include.removeprefix("tdock/"))
            if owner is None:
                yield f"{where}: name the module of this public header in tests/layering_test.py"
            elif owner != module and owner not in allowed:
                yield f"{where}: it uses {sorted(allowed)}"
        elif folder in modules and folder != module and folder not in allowed:
            yield f"{where}: it uses {sorted(allowed)}"
        for library, owners in OWNED_LIBRARIES.items():
            if include.startswith(library) and module not in owners:
                yield f"{where}: only {sorted(owners)} may know this library"


def stop_requests(name, text):
    """Of code that is no test: base/callback.h has the one that is allowed."""
    is_test = "testing" in name.parts or name.stem.endswith(("_test", "_fuzz"))
    if not is_test and name.name != "callback.h" and "request_stop()" in text:
        yield f"{name}: request stops with RequestStop() of base/callback.h, which sees to it that no lock is held"


def check_that_it_can_fail(modules):
    if not list(stop_requests(pathlib.Path("src/wire/session.cc"), "source.request_stop();")):
        sys.exit("the test does not see stop requests")
    for module, include in [
        ("base", "tdock/dock.h"),
        ("tensor", "dock/table.h"),
        ("dock", "ATen/ATen.h"),
        ("text", "yaml-cpp/yaml.h"),
        ("train", "cli/commands.h"),
    ]:
        for form in (f'#include "{include}"', f"  # include <{include}>"):
            if not list(violations("planted", f"// A file.\n{form}\n", module, modules)):
                sys.exit(f"the test does not see that '{module}' may not include {include}")


def main():
    modules = declared_modules()
    check_that_it_can_fail(modules)
    found = []
    for path in sorted((ROOT / "src").rglob("*")):
        if path.suffix not in (".h", ".cc"):
            continue
        module = path.relative_to(ROOT / "src").parts[0]
        if module not in modules:
            found.append(f"{path.relative_to(ROOT)}: folder '{module}' is not declared in cmake/Modules.cmake")
        else:
            found += violations(path.relative_to(ROOT), path.read_text(), module, modules)
            found += stop_requests(path.relative_to(ROOT), path.read_text())
    for path in sorted((ROOT / "include/tdock").glob("*.h")):
        if path.name not in PUBLIC:
            found.append(f"{path.relative_to(ROOT)}: name its module in tests/layering_test.py")
        else:
            found += violations(path.relative_to(ROOT), path.read_text(), PUBLIC[path.name], modules)
    for module in modules:
        if not (ROOT / "src" / module / "README.md").exists():
            found.append(f"src/{module}/README.md is missing")
    print("\n".join(found) or f"{len(modules)} modules respect their order")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
