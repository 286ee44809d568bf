#!/usr/bin/env python3
"""Runs of several processes, with real ones that are killed and stopped: tests/integration/ranks_test.py TDOCK [KILLS]

With KILLS, so many of each kind of process are killed and stopped at random moments, in place of one of some, and every
recipe runs, in place of some.
"""

import json
import os
import pathlib
import random
import re
import signal
import socket
import subprocess
import sys
import time
import unittest
import urllib.request

from messages import mentions
from rank_runs import APART, NOT_SILENT, RECIPES, ROOT, SILENCE, RankRuns
from waiting import LONG, NEVER, until

kills = 1
JOIN = 60  # seconds: long enough for all to join, and waited for where one was stopped before
EVERY = [(rank, sign) for rank in range(3) for sign in (signal.SIGKILL, signal.SIGSTOP)]
# kill_phases_test.py stops a rank 0.
SOME = [(0, signal.SIGKILL), (1, signal.SIGKILL), (2, signal.SIGSTOP)]
# Two processes, of which one trains: then weights are those of one process to the bit.
ONE_TRAINS = ["resources.pools=[train=1, others=1]", "resources.roles=[rollout=others, ref=others, reward=others]"]


class Ranks(RankRuns):
    def test_roles_in_processes_of_their_own_give_the_weights_of_one_process(self):
        alone = self.train("grpo", "alone")
        for run, overrides, nproc in (("apart", APART, 3), ("together", ONE_TRAINS, 2),
                                      ("at_once", [*APART, "trainer.executor=concurrent"], 3)):  # fmt: skip
            launched = self.launch("grpo", run, *overrides, nproc=nproc)
            output = self.finish(launched)
            self.assertEqual(launched.returncode, 0, output)
            self.assertEqual(self.weights(run), alone, run)
        self.assertRegex(output, r"rank 1 rollout\] carries out rollout")

    def test_every_recipe_runs_as_several_processes(self):
        # grpo is that of the other tests, and sft and rm train as dpo does.
        for recipe in RECIPES if kills > 1 else ("dpo", "dapo", "ppo"):
            steps = "trainer.total_training_steps=3"  # what trains in one shows in the next
            alone = self.train(recipe, f"{recipe}_alone", steps)
            launched = self.launch(recipe, recipe, steps, *ONE_TRAINS, nproc=2)
            output = self.finish(launched)
            self.assertEqual(launched.returncode, 0, output)
            self.assertEqual(self.weights(recipe), alone, recipe)

    def test_prompts_are_answered_ahead_by_another_process(self):
        launched = self.launch("grpo", "ahead", *APART, "async_training.steps_ahead=1",
                               "trainer.total_training_steps=6")  # fmt: skip
        output = self.finish(launched)
        self.assertEqual(launched.returncode, 0, output)
        steps = [json.loads(line) for line in (self.folder / "ahead/metrics.jsonl").read_text().splitlines()]
        self.assertGreater(max(step.get("async/staleness/max", 0) for step in steps), 0)
        self.assertEqual(steps[-1]["dock/completed/actor"], 6 * 16 * 4)

    def test_log_probs_of_other_processes_are_of_the_newest_weights(self):
        launched = self.launch("grpo", "newest", "async_training.steps_ahead=1", "trainer.total_training_steps=6",
                               "actor.ppo_mini_batch_size=16", "actor.optim.lr=0.01", nproc=2)  # fmt: skip
        output = self.finish(launched)
        self.assertEqual(launched.returncode, 0, output)
        steps = [json.loads(line) for line in (self.folder / "newest/metrics.jsonl").read_text().splitlines()]
        trained = [step for step in steps if "actor/ppo_kl" in step]
        self.assertGreater(max(step["actor/grad_norm"] for step in trained), 0)
        # One optimizer step in each: the policy is compared with itself.
        self.assertEqual([step["actor/ppo_kl"] for step in trained], [0.0] * 6)

    def test_a_process_that_is_killed_or_stopped_ends_the_run_with_its_name(self):
        moments = random.Random(1)
        for rank, sign in EVERY if kills > 1 else SOME:
            for number in range(kills):
                run = f"{sign.name}_{rank}_{number}"
                silence = NOT_SILENT if sign == signal.SIGKILL else f"resources.silence_timeout={SILENCE}"
                # A process that is stopped at any moment may not have joined.
                join = NEVER if sign == signal.SIGKILL or number == 0 else JOIN
                launched = self.launch("grpo", run, *APART, silence, f"resources.join_timeout={join}",
                                       "trainer.total_training_steps=100000")  # fmt: skip
                process = self.process_of(rank, launched)
                if number > 0:
                    time.sleep(moments.uniform(0, 4))
                else:
                    self.await_step(run, 2, launched)
                os.kill(process, sign)
                output = self.finish(launched, within=LONG)
                self.assertNotEqual(launched.returncode, 0, output)
                if sign == signal.SIGKILL:
                    self.assertRegex(output, rf"(?m)^tdock launch: rank {rank} .*signal 9 ")
                else:
                    self.assertRegex(output, rf"tdock train: .*(\brank {rank}\b|joined.* {rank}\b)")

    def test_nothing_is_left_when_the_launcher_is_killed(self):
        launched = self.launch("grpo", "orphans", *APART, "trainer.total_training_steps=100000")
        self.await_step("orphans", 1, launched)
        launched.kill()
        launched.wait()
        until(lambda: not self.processes(), "the end of all processes", every=0.05)

    def test_a_run_that_is_started_again_goes_on_and_loses_nothing(self):
        steps = "trainer.total_training_steps=40"
        alone = self.train("grpo", "alone", steps)
        for rank in (0, 1):
            run = f"again_{rank}"
            launched = self.launch("grpo", run, *APART, steps, NOT_SILENT, options=["--restarts", "3"])
            process = self.process_of(rank, launched)
            self.await_step(run, 3, launched)
            self.await_checkpoint(run, launched)
            os.kill(process, signal.SIGKILL)
            output = self.finish(launched)
            self.assertEqual(launched.returncode, 0, output)
            mentions(output, "going on", f"{run}/checkpoints/step-")
            self.assertEqual(self.weights(run), alone)

    def test_an_interrupted_run_saves_and_ends_everywhere(self):
        launched = self.launch("grpo", "stopped", *APART, "trainer.total_training_steps=100000")
        self.await_step("stopped", 1, launched)
        launched.send_signal(signal.SIGINT)
        output = self.finish(launched, within=LONG)
        mentions(output, "saved in")
        self.assertNotEqual(launched.returncode, 0)

    def test_ranks_that_disagree_end_with_one_error(self):
        errors = self.ranks_by_hand(["seed=1"], ["seed=1"], ["seed=2"])
        self.assert_same_error(errors, "rank 2", "seed is 1 on rank 0 and 2 there")

    def test_pools_that_do_not_fit_the_processes_end_all_of_them(self):
        pools = ["resources.pools=[train=1, rollout=4]", "resources.roles=[rollout=rollout]"]
        errors = self.ranks_by_hand(pools, pools)
        self.assert_same_error(errors, "rollout", "resources.pools")

    def test_a_missing_address_and_a_port_that_is_taken_are_said(self):
        for error in self.ranks_by_hand([], [], MASTER_ADDR=None):
            mentions(error, "MASTER_ADDR")
        with socket.socket() as taken:
            taken.bind(("127.0.0.1", 0))
            taken.listen()
            soon = ["resources.join_timeout=1"]
            errors = self.ranks_by_hand(soon, soon, MASTER_PORT=str(taken.getsockname()[1]))
        self.assertIn("MASTER_PORT", errors[0])

    def test_an_address_that_is_not_of_rank_0_ends_all_in_time(self):
        soon = ["resources.join_timeout=1"]
        # Of no machine that is there, and one where nothing listens.
        errors = self.ranks_by_hand(soon, soon, MASTER_ADDR="198.51.100.1")
        self.assertRegex(errors[0], r"rank 0 .* 198\.51\.100\.1:\d+ .*\b1s")
        mentions(errors[0], "MASTER_ADDR")
        self.assertRegex(errors[1], r"rank 1 .*rank 0 at 198\.51\.100\.1:\d+ .*\b1s")
        (error,) = self.ranks_by_hand(None, soon)
        self.assertRegex(error, r"rank 1 .*rank 0 at 127\.0\.0\.1:\d+ .*\b1s")

    def small_example(self, run):
        """What makes examples/cluster/grpo.yaml small."""
        arguments = self.arguments("grpo", run)
        return ["trainer.run_dir=" + arguments[2], *arguments[3:], "actor.ppo_mini_batch_size=4"]

    def test_the_examples_run_under_torchrun_and_slurm(self):
        for name, script, expected in (
            ("torchrun", "torchrun.sh", "train=1, rollout=1, ref=1"), ("slurm", "slurm.sbatch", "train=1, ref=1, rollout=2"),
        ):  # fmt: skip
            tools = self.folder / f"{name}_tools"
            tools.mkdir()
            for tool, text in FAKE_SLURM.items():
                (tools / tool).write_text(text)
                (tools / tool).chmod(0o755)
            path = f"{tools}:{ROOT}/.venv/bin:{os.environ['PATH']}"
            done = subprocess.run(
                ["bash", f"examples/cluster/{script}", *self.small_example(name)], cwd=ROOT, capture_output=True,
                text=True, env=self.environment | {"PATH": path, "TDOCK": self.tdock,
                                                               "SLURM_JOB_NODELIST": "localhost"},
            )  # fmt: skip
            self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
            self.assertIn("carries out rollout", done.stderr)
            config = (self.folder / name / "config.yaml").read_text()
            self.assertIn(expected.split(",")[0], config)
            self.assertTrue((self.folder / name / "checkpoint/model.safetensors").exists())
            self.assertEqual(self.processes(), {})

    def test_the_example_for_kubernetes_says_what_a_rank_needs(self):
        text = (ROOT / "examples/cluster/kubernetes.yaml").read_text()
        for variable in ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"):
            self.assertIn(f"name: {variable}", text)
        self.assertIn('WORLD_SIZE, value: "3"', text)
        self.assertEqual(text.count("parallelism: 3") + text.count("completions: 3"), 2)


    def test_the_probes_of_the_dock_for_kubernetes_find_a_server_that_answers(self):
        text = (ROOT / "examples/cluster/dock.yaml").read_text()
        token = self.folder / "token"
        token.write_text("open-sesame")

        def command(name):
            words = [word.strip().strip('"') for word in re.search(name + r": \[tdock, (.*?)\]", text, re.S)[1].split(",")]
            return [self.tdock, *words]

        serve = [{"/secret/token": str(token), "0.0.0.0:7077": "127.0.0.1:0", "0.0.0.0:9464": "127.0.0.1:0"}.get(word, word)
                 for word in command("command")]
        with subprocess.Popen(serve, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as server:
            try:
                lines = {}
                for line in server.stdout:
                    what, _, where = line.strip().partition(" ")
                    lines[what] = where
                    if what == "ready":
                        break
                ping = [{"/secret/token": str(token), "127.0.0.1:7077": lines["tcp"]}.get(word, word)
                        for word in command("readinessProbe:\n +exec:\n +command")]
                self.assertEqual(subprocess.run(ping, cwd=ROOT, check=False).returncode, 0)
                path = re.search("httpGet: {path: (.*?),", text)[1]
                page = lines["status"].rstrip("/")
                with urllib.request.urlopen(page + path, timeout=60) as answer:
                    self.assertEqual(answer.status, 200)
            finally:
                server.terminate()
        self.assertNotEqual(subprocess.run([*ping[:-1], "0.2"], cwd=ROOT, check=False, stderr=subprocess.DEVNULL).returncode, 0)


# Two nodes of two tasks each, on this machine.
FAKE_SLURM = {
    "scontrol": "#!/bin/sh\necho 127.0.0.1\n",
    "srun": """#!/usr/bin/env python3
import os, socket, subprocess, sys
with socket.socket() as free:
    free.bind(("127.0.0.1", 0))
    port = str(free.getsockname()[1])
command = [word for word in sys.argv[1:] if not word.startswith("--kill")]
started = []
for task in range(4):
    variables = {"SLURM_STEP_ID": "0", "SLURM_PROCID": str(task), "SLURM_STEP_NUM_TASKS": "4", "SLURM_NTASKS": "4",
                 "SLURM_LOCALID": str(task % 2), "SLURM_NODEID": str(task // 2), "SLURM_STEP_TASKS_PER_NODE": "2(x2)",
                 "MASTER_PORT": port}
    started.append(subprocess.Popen(command, env=os.environ | variables))
sys.exit(max(process.wait() for process in started))
""",
}


if __name__ == "__main__":
    RankRuns.tdock = str(pathlib.Path(sys.argv.pop(1)).resolve())
    if len(sys.argv) > 1 and sys.argv[1].isdigit():
        kills = int(sys.argv.pop(1))
    unittest.main()
