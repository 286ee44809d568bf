#!/usr/bin/env python3
"""What `tdock bench` prints and writes: tests/integration/bench_test.py TDOCK"""

import contextlib
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import unittest
import uuid

from messages import mentions
from waiting import until

tdock = None


def run(*arguments):
    return subprocess.run([tdock, "bench", *arguments], capture_output=True, text=True)


def processes_with(mark):
    """Those with this in their environment."""
    found = []
    for entry in pathlib.Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                if mark.encode() in (entry / "environ").read_bytes():
                    found.append(int(entry.name))
    return found


class Bench(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.file = pathlib.Path(folder.name) / "figures.json"

    def test_the_dock_is_measured(self):
        result = run("dock", "--quick", "--json", str(self.file))
        self.assertEqual(result.returncode, 0, result.stderr)
        report = json.loads(self.file.read_text())

        machine = report["machine"]
        for key in ("cpu", "instructions", "cores", "memory_bytes", "kernel", "compiler", "build_type", "libtorch", "time"):
            self.assertTrue(machine[key], key)
        self.assertEqual(len(machine["load_average"]), 3)

        names = [entry["name"] for entry in report["results"]]
        for name in ("dock/put1", "dock/put16", "dock/put_dense", "dock/read_views", "dock/read_batch", "dock/put_mixed",
                     "dock/read_mixed", "dock/sweep_put/columns=1", "dock/sweep_get/columns=32", "dock/pipeline",
                     "dock/wake", "dock/row_overhead", "dock/take32/rows=1000", "dock/take32_uniform/rows=10000",
                     "dock/status/rows=1000", "dock/growth/clear/rows=10000"):
            self.assertIn(name, names)
        self.assertEqual(len(set(names)), len(names))
        for entry in report["results"]:
            self.assertTrue(entry["name"].startswith("dock/"))
            self.assertGreaterEqual(len(entry["runs"]), 5)
            self.assertEqual(entry["median"], sorted(entry["runs"])[len(entry["runs"]) // 2])
            self.assertGreater(entry["median"], 0)
            self.assertTrue(entry["unit"])
            self.assertEqual("ratio" in entry, "of" in entry)
            self.assertIn(entry["name"], result.stdout)
        put16 = report["results"][names.index("dock/put16")]
        self.assertEqual((put16["unit"], put16["of"]), ("rows/s", "memcpy"))
        self.assertGreater(put16["ratio"], 0)
        wake = report["results"][names.index("dock/wake")]
        self.assertEqual(wake["median"], wake["p50"])
        self.assertGreaterEqual(wake["p99"], wake["p50"])
        wide = report["results"][names.index("dock/sweep_put/columns=32")]
        self.assertEqual(wide["of"], "columns=1")

    def test_models_are_measured(self):
        result = run("generate/arithmetic", "train_step/arithmetic", "--quick", "--runs", "1", "--json", str(self.file))
        self.assertEqual(result.returncode, 0, result.stderr)
        units = {entry["name"]: entry["unit"] for entry in json.loads(self.file.read_text())["results"]}
        self.assertEqual(units, {"generate/arithmetic": "tokens/s", "train_step/arithmetic": "tokens/s"})

    def test_kernels_and_what_the_same_numbers_cost_are_measured(self):
        names = ["kernels", "prefill/tokens=512/dtype=bfloat16", "prefill/log_probs/dtype=float32",
                 "generate/batch=16/dtype=float32", "generate/invariant", "train_step/invariant"]  # fmt: skip
        result = run(*names, "--quick", "--runs", "1", "--threads", "2", "--json", str(self.file))
        self.assertEqual(result.returncode, 0, result.stderr)
        results = {entry["name"]: entry for entry in json.loads(self.file.read_text())["results"]}
        self.assertTrue(set(names[1:]) < results.keys(), results.keys())
        for name, entry in results.items():
            self.assertGreater(entry["median"], 0, name)
            if name.endswith("/invariant"):
                self.assertEqual(entry["of"], "libtorch's products")

    def test_a_step_of_adapters_says_how_much_memory_it_took(self):
        result = run("lora_step", "--quick", "--runs", "1", "--json", str(self.file))
        self.assertEqual(result.returncode, 0, result.stderr)
        (entry,) = json.loads(self.file.read_text())["results"]
        self.assertGreater(entry["peak_rss_gib"], 0.2)  # the weights alone
        self.assertLess(entry["peak_rss_gib"], 6)

    def test_runs_in_turn_at_the_same_time_and_asynchronous_are_measured(self):
        result = run("recipe", "--quick", "--runs", "1", "--threads", "2", "--json", str(self.file))
        self.assertEqual(result.returncode, 0, result.stderr)
        results = {entry["name"]: entry for entry in json.loads(self.file.read_text())["results"]}
        rows = ("recipe/sync", "recipe/sync/executor=concurrent", "recipe/async")
        self.assertEqual(set(results), {f"{row}/stage={stage}" for row in rows for stage in ("none", "sleeps")})
        for name, entry in results.items():
            self.assertEqual(entry.get("of"), None if name.startswith("recipe/sync/stage=") else "recipe/sync", name)
            for stage in ("rollout", "reward", "actor"):
                self.assertTrue(0 <= entry[f"idle_{stage}"] <= 1, entry)
            self.assertEqual(entry["slept_share"] > 0, name.endswith("sleeps"), entry)
        for stage in ("none", "sleeps"):
            self.assertNotIn("staleness", results[f"recipe/sync/stage={stage}"])
            entry = results[f"recipe/async/stage={stage}"]
            self.assertTrue(0 <= entry["staleness"] <= entry["staleness_max"] <= 2, entry)

    def test_tokenizers_and_data_sets_are_measured(self):
        result = run("text", "--quick", "--runs", "1", "--json", str(self.file))
        self.assertEqual(result.returncode, 0, result.stderr)
        results = {entry["name"]: entry for entry in json.loads(self.file.read_text())["results"]}
        for kind in ("gpt2", "llama3", "qwen2", "sentencepiece"):
            self.assertGreater(results[f"text/tokenize/{kind}"]["median"], 0)
        for order in ("file", "shuffled"):
            for workers in (0, 2):
                self.assertGreater(results[f"text/stream/jsonl/order={order}/workers={workers}"]["ratio"], 0)

    def test_a_dock_in_another_process_is_measured(self):
        result = run("service", "--quick", "--runs", "1", "--json", str(self.file))
        self.assertEqual(result.returncode, 0, result.stderr)
        results = {entry["name"]: entry for entry in json.loads(self.file.read_text())["results"]}
        for name in [
            *(f"service/{kind}/tcp/{verb}" for kind in ("dense", "mixed") for verb in ("put", "get")),
            *("service/dense/shm/put", "service/dense/shm/get", "service/put16/clients=4"),
            *("service/rtt/tcp", "service/rtt/unix", "service/take32/rows=1000", "service/sweep_get/columns=32"),
        ]:
            self.assertIn(name, results)
        self.assertEqual(results["service/dense/shm/put"]["of"], "memcpy")
        self.assertGreater(results["service/dense/shm/get"]["us_per_cell"], 0)
        self.assertGreaterEqual(results["service/rtt/unix"]["p99"], results["service/rtt/unix"]["median"])

    def test_a_served_model_is_measured(self):
        names = ["serve/throughput/dtype=float32", "serve/overhead/dtype=bfloat16", "serve/update_weights/dtype=float32"]
        result = run(*names, "--quick", "--runs", "1", "--threads", "2", "--json", str(self.file))
        self.assertEqual(result.returncode, 0, result.stderr)
        results = {entry["name"]: entry for entry in json.loads(self.file.read_text())["results"]}
        throughput, overhead, update = (results[name] for name in names)
        self.assertEqual((throughput["unit"], throughput["median"]), ("tokens/s", throughput["tokens_per_s"]))
        self.assertGreaterEqual(throughput["first_token_p99_ms"], throughput["first_token_p50_ms"])
        self.assertIn("next_token_p99_ms", throughput)  # 0 where a busy machine reads all tokens of an answer at once
        self.assertGreater(throughput["events_per_token"], 0)
        mentions(overhead["of"], "engine")
        self.assertGreater(overhead["ratio"], 0)
        self.assertEqual(update["unit"], "steps")
        for key in ("median", "longest_before", "step_ms", "update_ms"):
            self.assertGreater(update[key], 0, key)

    def test_runs_of_several_processes_are_measured_and_leave_none_behind(self):
        result = run("runtime", "--quick", "--runs", "1", "--threads", "2", "--json", str(self.file))
        self.assertEqual(result.returncode, 0, result.stderr)
        results = {entry["name"]: entry for entry in json.loads(self.file.read_text())["results"]}
        self.assertEqual(set(results), {"runtime/call", "runtime/weights", "runtime/grpo_step", "runtime/grpo_step/roles=apart"})
        call = results["runtime/call"]
        self.assertEqual(call["unit"], "ms")
        mentions(call["of"], "echo")
        for key in ("p99_ms", "mib1_ms", "mib1_memcpys", "mib16_ms", "mib16_memcpys"):
            self.assertGreater(call[key], 0, key)
        weights = results["runtime/weights"]
        self.assertEqual((weights["unit"], weights["of"]), ("GB/s", "memcpy"))
        for name in ("runtime/grpo_step", "runtime/grpo_step/roles=apart"):
            step = results[name]
            self.assertLess(step["median"], 100)
            self.assertAlmostEqual(step["outside_s"] / step["step_s"], step["median"] / 100)

    def test_training_on_several_ranks_is_measured(self):
        result = run("parallel", "--quick", "--runs", "1", "--threads", "2", "--json", str(self.file))
        self.assertEqual(result.returncode, 0, result.stderr)
        results = {of["name"]: of for of in json.loads(self.file.read_text())["results"]}
        self.assertEqual(set(results), {"parallel/reduction", "parallel/memory"})
        for of in results.values():
            self.assertGreater(of["ratio"], 0)
        self.assertGreater(results["parallel/memory"]["median"], 10)  # MB

    def test_the_workers_of_a_benchmark_end_with_it_when_it_is_killed(self):
        mark = f"TDOCK_BENCH_TEST={uuid.uuid4().hex}"
        name, value = mark.split("=")
        process = subprocess.Popen([tdock, "bench", "runtime/call", "--quick", "--runs", "1000"], env=os.environ | {name: value},
                                   stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)  # fmt: skip
        try:
            until(lambda: len(processes_with(mark)) >= 10, "8 workers, and the echo")
        finally:
            process.kill()
            process.wait()
        until(lambda: not processes_with(mark), "the end of the workers")

    def test_the_list_has_every_group(self):
        names = [line.split()[0] for line in run("--list").stdout.splitlines()]
        groups = {"dock", "service", "text", "kernels", "generate", "prefill", "forward", "train_step", "sft_step", "lora_step", "dpo_loss",
                  "load", "recipe", "runtime", "parallel", "serve"}
        self.assertEqual({name.split("/")[0] for name in names}, groups)
        self.assertIn("dock/take32/rows=10000000", names)

    def test_what_is_wrong_is_named_and_nothing_is_written(self):
        for arguments, names in [
            (["dok"], ["'dok'", "dock", "service", "text", "kernels", "generate", "prefill", "forward", "train_step",
                       "sft_step", "lora_step", "dpo_loss", "load", "recipe", "runtime", "--list"]),
            (["--filter", "zzz"], ["zzz"]),
            (["--runs", "0"], ["--runs"]),
            (["generate/arithmetic", "--device", "abacus"], ["abacus"]),
        ]:  # fmt: skip
            result = run(*arguments, "--json", str(self.file))
            self.assertEqual(result.returncode, 2, result.stderr)
            mentions(result.stderr, *names)
            self.assertEqual(result.stdout, "")
            self.assertFalse(self.file.exists())


if __name__ == "__main__":
    tdock = str(pathlib.Path(sys.argv.pop(1)).resolve())
    unittest.main()
