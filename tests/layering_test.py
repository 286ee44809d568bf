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
    "clock.h": "core/base",
    "env.h": "core/base",
    "fields.h": "core/base",
    "batch.h": "core/tensor",
    "buffer.h": "core/tensor",
    "column.h": "core/tensor",
    "dtype.h": "core/tensor",
    "frame.h": "core/tensor",
    "meta.h": "core/tensor",
    "mesh_rules.h": "core/tensor",
    "meta_batch.h": "core/tensor",
    "packing.h": "core/tensor",
    "padding.h": "core/tensor",
    "plans.h": "core/tensor",
    "dock.h": "dock/table",
    "dock_server.h": "dock/service/wire",
    "remote_dock.h": "dock/service/wire",
    "local_dock.h": "dock/local",
    "compat/mindspeed.h": "dock/compat/mindspeed",
    "options.h": "dock/table",
    "requests.h": "dock/table",
    "rows.h": "dock/table",
    "sampler.h": "dock/table",
    "verbs.h": "dock/table",
}
TORCH_FOLDERS = ("ATen/", "c10/", "torch/", "caffe2/")
# A library that only these modules may know, so that it can be replaced there.
OWNED_LIBRARIES = {
    "yaml-cpp/": {"core/config"},
    "CLI/": {"core/command", "dock/service/console"},
    "arrow/": {"data/parquet"},
    "parquet/": {"data/parquet"},
    "simdjson": {"data", "bench/text", "trainer/run_page"},
    "xxhash": {"core/tensor", "text"},
    "prometheus/": {"dock/service/console", "inference"},
    "httplib": {"dock/service/console", "trainer/reward/external"},
    "boost/": {"core/http", "core/net"},
    "nanobind/": {"python"},
    "openssl/": {"core/net", "trainer/reward/external", "trainer/rollout_servers"},
    "pcre2": {"text"},
    "seccomp": {"trainer/reward/external"},
    "sentencepiece": {"text"},
    "utf8proc": {"text", "text/jinja"},
}
INCLUDE = re.compile(r'^\s*#\s*include\s*[<"]([^>"]+)[>"]', re.MULTILINE)


class Module:
    """What a module may include: modules, in its tests also suites, and libtorch."""

    def __init__(self, uses, suites, torch):
        self.uses = uses
        self.suites = suites
        self.torch = torch


def declared_modules():
    """Module -> what it may include."""
    text = (ROOT / "cmake/Modules.cmake").read_text()
    text = re.sub(r"#.*", "", text)
    modules = {}
    for body in re.findall(r"tdock_(?:module|python_module|plugin|test_suites)\(([^)]*)\)", text):
        words = body.split()
        keywords = {"TORCH", "COLD", "NO_TSAN", "USES", "LINKS", "PRIVATE_LINKS", "TEST_USES", "ALONE", "HOT_TESTS", "LONG_TESTS"}
        given, part = {"USES": [], "TEST_USES": []}, None
        for word in words[1:]:
            if word in keywords:
                part = word
            elif part in given:
                given[part].append(word)
        modules[words[0]] = Module(given["USES"], set(given["TEST_USES"]), "TORCH" in words)
    for name, module in modules.items():
        module.uses = reachable(name, modules, ())
    return modules


def reachable(name, modules, above):
    """All modules that one uses, directly or not."""
    if name in above:
        sys.exit(f"cmake/Modules.cmake: '{name}' uses itself, by way of {above[above.index(name) + 1:]}")
    found = set()
    for used in modules[name].uses:
        if used not in modules:
            sys.exit(f"cmake/Modules.cmake: '{name}' uses '{used}', which is not declared")
        found |= {used} | reachable(used, modules, (*above, name))
    return found


def module_of(path, modules):
    """The module that a file below src/ or an included header belongs to: the innermost folder that is one."""
    for folder in pathlib.PurePath(path).parents:
        if str(folder) in modules:
            return str(folder)
    return None


def violations(name, text, module, modules):
    allowed = modules[module].uses | {module}
    if is_test(pathlib.Path(name)):
        allowed |= modules[module].suites
    for include in INCLUDE.findall(text):
        where = f"{name}: module '{module}' may not include {include}"
        if include.startswith(TORCH_FOLDERS):
            if not modules[module].torch:
                yield f"{where}: it is not declared TORCH"
        elif include.startswith("tdock/"):
            owner = PUBLIC.get(include.removeprefix("tdock/"))
            if owner is None:
                yield f"{where}: name the module of this public header in tests/layering_test.py"
            elif owner not in allowed:
                yield f"{where}: it uses {sorted(allowed)}"
        elif (owner := module_of(include, modules)) is not None and owner not in allowed:
            yield f"{where}: it uses {sorted(allowed)}"
        if "testing" in include.split("/")[:-1] and not is_test(name):
            yield f"{where}: only tests and fuzzers may use what is in testing/"
        for library, owners in OWNED_LIBRARIES.items():
            if include.startswith(library) and module not in owners:
                yield f"{where}: only {sorted(owners)} may know this library"


def is_test(path):
    return "testing" in path.parts or path.stem.endswith(("_test", "_fuzz"))


def stop_requests(name, text):
    """Of code that is no test: core/base/callback.h has the one that is allowed."""
    if not is_test(name) and name.name != "callback.h" and "request_stop()" in text:
        yield f"{name}: request stops with RequestStop() of core/base/callback.h, which sees to it that no lock is held"


def check_that_it_can_fail(modules):
    if not list(stop_requests(pathlib.Path("src/dock/service/wire/session.cc"), "source.request_stop();")):
        sys.exit("the test does not see stop requests")
    for module, include in [
        ("core/base", "tdock/dock.h"),
        ("core/tensor", "dock/table/table.h"),
        ("dock/table", "ATen/ATen.h"),
        ("text", "yaml-cpp/yaml.h"),
        ("dock/table", "dock/store/block.h"),
        ("dock/local", "dock/testing/dock_conformance.h"),
        ("trainer/recipes", "cli/commands.h"),
    ]:
        for form in (f'#include "{include}"', f"  # include <{include}>"):
            if not list(violations(pathlib.Path("src/planted.cc"), f"// A file.\n{form}\n", module, modules)):
                sys.exit(f"the test does not see that '{module}' may not include {include}")


def main():
    modules = declared_modules()
    check_that_it_can_fail(modules)
    found = []
    for path in sorted((ROOT / "src").rglob("*")):
        if path.suffix not in (".h", ".cc"):
            continue
        module = module_of(path.relative_to(ROOT / "src"), modules)
        if module is None:
            found.append(f"{path.relative_to(ROOT)}: its folder is not declared in cmake/Modules.cmake")
        else:
            found += violations(path.relative_to(ROOT), path.read_text(), module, modules)
            found += stop_requests(path.relative_to(ROOT), path.read_text())
    for path in sorted((ROOT / "include/tdock").rglob("*.h")):
        header = str(path.relative_to(ROOT / "include/tdock"))
        if header not in PUBLIC:
            found.append(f"{path.relative_to(ROOT)}: name its module in tests/layering_test.py")
        else:
            found += violations(path.relative_to(ROOT), path.read_text(), PUBLIC[header], modules)
    for module in modules:
        if not (ROOT / "src" / module / "README.md").exists():
            found.append(f"src/{module}/README.md is missing")
    print("\n".join(found) or f"{len(modules)} modules respect their order")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
