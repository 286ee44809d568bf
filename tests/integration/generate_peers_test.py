#!/usr/bin/env python3
"""What bench/peers/generate/run.py reports, beside programs that stand for the systems:
tests/integration/generate_peers_test.py TDOCK"""

import json
import pathlib
import subprocess
import sys
import tempfile
import unittest

from messages import mentions
from waiting import LONG

tdock = None
FOLDER = pathlib.Path(__file__).resolve().parents[2] / "bench/peers/generate"
sys.path.insert(0, str(FOLDER))

import run  # noqa: E402
import shapes  # noqa: E402

# Takes part as peer.py does: its figures are the numbers that it is given, one after another.
SYSTEM = """
import signal, sys
figures, rest = sys.argv[1].split(","), sys.argv[2:]
signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR1})
if "--check" in rest:
    sys.exit("needs an abacus") if figures == ["none"] else print("system 1.0")
else:
    print("ready", flush=True)
    for figure in figures:
        signal.sigwait({signal.SIGUSR1})
        print(figure, flush=True)
    signal.sigwait({signal.SIGUSR1})
"""
NAME = "generate/batch=1/dtype=bfloat16"


class GeneratePeers(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        (self.folder / "system.py").write_text(SYSTEM)

    def report(self, systems, *arguments):
        """The report of a run beside systems with these figures, the first of which is not counted."""
        commands = []
        for system, figures in systems.items():
            commands += ["--command", system, f"{sys.executable} {self.folder}/system.py {figures}"]
        file = self.folder / "figures.json"
        done = subprocess.run(
            [sys.executable, str(FOLDER / "run.py"), "--tdock", tdock, "--quick", "--threads", "1", "--json", str(file),
             "--systems", *systems, *commands, *arguments], capture_output=True, text=True,
        )  # fmt: skip
        self.assertEqual(done.returncode, 0, done.stderr)
        return json.loads(file.read_text()), done.stdout

    def test_ours_alternates_with_each_system(self):
        systems = {"transformers": "1,1e-3,4e-3,2e-3", "llama_cpp": "1,1e9,1e9,1e9", "vllm_cpu": "none", "openvino": "1,x"}
        report, told = self.report(systems, "--only", NAME)
        self.assertIn("instructions", report["machine"])
        self.assertEqual(report["settings"], {"runs": 3, "threads": 1, "quick": True})
        self.assertEqual(report["versions"], dict.fromkeys(("transformers", "llama_cpp", "openvino"), "system 1.0"))
        (result,) = report["results"]
        self.assertEqual(result["name"], NAME)
        self.assertGreater(result["ours"], 0)
        self.assertEqual((result["transformers"], result["llama_cpp"]), (2e-3, 1e9))
        self.assertEqual((result["vllm_cpu"], result["openvino"]), (None, None))
        self.assertEqual(result["reasons"]["vllm_cpu"], "needs an abacus")
        self.assertIn("'x'", result["reasons"]["openvino"])
        self.assertEqual(result["fastest"], "llama_cpp")
        self.assertGreater(result["ours/transformers"], 2.5)
        self.assertLess(result["ours/fastest"], 0.95)
        self.assertEqual(result["reached"], {"transformers": True, "fastest": False})
        for system in ("transformers", "llama_cpp"):
            self.assertEqual(len(result["runs"][system]["ours"]), 3)
        row = next(line for line in told.splitlines() if line.startswith(NAME))
        self.assertIn("1,000,000,000", row)
        self.assertTrue(row.endswith("0.00!"), row)
        self.assertIn("vllm_cpu: needs an abacus", told)

    def test_systems_are_measured_without_ours(self):
        names = ["generate/batch=64/dtype=float32", "prefill/tokens=512/dtype=float32"]
        report, _ = self.report({"openvino": "1,7,9"}, "--without-ours", "--runs", "2", "--only", *names)
        self.assertEqual([result["name"] for result in report["results"]], names)
        for result in report["results"]:
            self.assertEqual((result["ours"], result["openvino"], result["ours/fastest"]), (None, 8, None))
            mentions(result["reasons"]["transformers"], "not asked")

    def test_the_ratio_to_the_fastest_is_of_runs_beside_it(self):
        pairs = {
            "transformers": {"ours": [10, 30, 20], "theirs": [5, 10, 8], "ratio": 2.5},
            "llama_cpp": {"ours": [40], "theirs": [20], "ratio": 2.0},
        }
        result = run.entry("generate/batch=16/dtype=float32", pairs, {})
        self.assertEqual((result["ours"], result["fastest"]), (25, "llama_cpp"))
        self.assertEqual((result["ours/transformers"], result["ours/fastest"]), (2.5, 2.0))
        self.assertEqual(result["bars"], {"transformers": 2.5, "fastest": 1.3})
        self.assertEqual(result["reached"], {"transformers": True, "fastest": True})

    def test_bars_depend_on_the_work(self):
        self.assertEqual(run.bars("generate/batch=1/dtype=float32")["fastest"], 1.05)
        self.assertEqual(run.bars("generate/smollm2/batch=16/dtype=int8"), {"fastest": 1.2})
        self.assertEqual(run.bars("prefill/tokens=512/dtype=float32"), {"fastest": 1.0})

    def test_tdock_has_the_same_benchmarks(self):
        listed = subprocess.run([tdock, "bench", "--list"], capture_output=True, text=True, timeout=LONG).stdout
        names = {line.split()[0] for line in listed.splitlines()}
        self.assertLessEqual(set(shapes.NAMES), names)

    def test_a_name_that_is_none_is_refused(self):
        wrong = subprocess.run(
            [sys.executable, str(FOLDER / "run.py"), "--only", "generate/nonsense"], capture_output=True, text=True, timeout=LONG
        )
        self.assertEqual(wrong.returncode, 2)
        self.assertIn("no 'generate/nonsense'", wrong.stderr)


if __name__ == "__main__":
    tdock = str(pathlib.Path(sys.argv.pop(1)).resolve())
    unittest.main()
