#!/usr/bin/env python3
"""`tdock launch` with small programs as ranks: tests/integration/launch_test.py TDOCK"""

import contextlib
import os
import pathlib
import re
import signal
import socket
import subprocess
import sys
import tempfile
import time
import unittest
import uuid

from messages import mentions
from processes import is_running
from waiting import LONG, NEVER, until

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
MARK = "TDOCK_LAUNCH_TEST"
tdock = None

# A rank with a descendant that left its session and ignores what can be ignored.
FAMILY = """
import os, signal, subprocess, sys, time
child = subprocess.Popen(["sh", "-c", "trap '' TERM INT HUP; echo ready; while :; do sleep 0.1; done"],
                         start_new_session=True, stdout=subprocess.PIPE)
child.stdout.readline()
print("up", os.getpid(), flush=True)
time.sleep(1000)
"""


def parent_of(pid):
    return int(pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


class Base(unittest.TestCase):
    def setUp(self):
        parent = tempfile.TemporaryDirectory()
        self.addCleanup(parent.cleanup)
        self.folder = pathlib.Path(parent.name).resolve()
        self.mark = uuid.uuid4().hex
        names = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
        self.environment = {name: value for name, value in os.environ.items() if name not in names}
        self.environment[MARK] = self.mark
        self.addCleanup(self.check_that_nothing_is_left)

    def ours(self):
        """The processes that this test has started, directly or not."""
        found = []
        for entry in pathlib.Path("/proc").iterdir():
            if entry.name.isdigit():
                with contextlib.suppress(OSError):
                    if f"{MARK}={self.mark}".encode() in (entry / "environ").read_bytes():
                        found.append(int(entry.name))
        return [pid for pid in found if is_running(pid)]

    def check_that_nothing_is_left(self):
        until(lambda: not self.ours(), "the end of all processes")

    def start(self, *arguments, **options):
        process = subprocess.Popen(
            [tdock, "launch", *map(str, arguments)], cwd=self.folder, text=True, env=self.environment,
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, errors="surrogateescape", **options,
        )  # fmt: skip
        self.addCleanup(self.end, process)
        return process

    @staticmethod
    def end(process):
        process.kill()
        process.wait()
        process.stdout.close()
        process.stderr.close()

    def launch(self, *arguments, code=0):
        process = self.start(*arguments)
        out, err = process.communicate(timeout=LONG)
        self.assertEqual(process.returncode, code, out + err)
        return out, err

    def shell(self, script, *arguments, code=0):
        return self.launch(*arguments, "--", "sh", "-c", script, code=code)


class Launch(Base):
    def start_family(self, *arguments):
        """Two ranks with descendants, and their process numbers."""
        process = self.start("--nproc", 2, *arguments, "--", sys.executable, "-c", FAMILY)
        pids = {}
        while len(pids) < 2:
            rank, pid = re.fullmatch(r"\[rank (\d)\] up (\d+)\n", process.stdout.readline()).groups()
            pids[int(rank)] = int(pid)
        return process, pids

    def finish(self, process, code):
        out, err = process.communicate(timeout=LONG)
        self.assertEqual(process.returncode, code, out + err)
        return err

    def test_each_rank_has_its_environment_and_a_prefix(self):
        self.environment |= {"RANK": "9", "TORCHELASTIC_USE_AGENT_STORE": "True"}
        out, err = self.shell(
            "echo $RANK/$WORLD_SIZE $LOCAL_RANK/$LOCAL_WORLD_SIZE $MASTER_ADDR $TDOCK_RESTART_COUNT"
            " x$TORCHELASTIC_USE_AGENT_STORE; echo $MASTER_PORT; cat; echo bad >&2; printf last",
            "--nproc", 3,
        )  # fmt: skip
        ports = set()
        for rank in range(3):
            lines = [line for line in out.splitlines() if line.startswith(f"[rank {rank}] ")]
            ports.add(lines.pop(1))
            self.assertEqual(lines, [f"[rank {rank}] {rank}/3 {rank}/3 127.0.0.1 0 x", f"[rank {rank}] last"])
        self.assertEqual(len({port.split()[-1] for port in ports}), 1)
        self.assertEqual(sorted(err.splitlines()), [f"[rank {rank}] bad" for rank in range(3)])

    def test_one_rank_writes_as_without_a_launcher(self):
        self.assertEqual(self.shell(r"printf '1%%\r2%%\r'; echo end; echo $RANK/$WORLD_SIZE", "--nproc", 1)[0],
                         "1%\n2%\nend\n0/1\n")  # fmt: skip

    def test_nodes_have_ranks_of_their_own(self):
        node = ("--nproc", 2, "--nnodes", 2, "--node-rank", 1, "--master-addr", "first", "--master-port", 29500)
        out, _ = self.shell("echo $RANK $LOCAL_RANK $WORLD_SIZE $LOCAL_WORLD_SIZE $MASTER_ADDR:$MASTER_PORT", *node)
        self.assertEqual(sorted(out.splitlines()),
                         ["[rank 2] 2 0 4 2 first:29500", "[rank 3] 3 1 4 2 first:29500"])  # fmt: skip

    def test_lines_may_be_long_and_garbage(self):
        program = "import sys; w = sys.stdout.buffer.write; w(b'x' * 200000 + b'\\n'); w(b'\\xff\\x00\\x1b\\n' * 50000)"
        out, _ = self.launch("--nproc", 2, "--log-dir", "logs", "--", sys.executable, "-c", program)
        garbage = b"\xff\x00\x1b".decode(errors="surrogateescape")
        for rank in range(2):
            lines = [line[9:] for line in out.split("\n") if line.startswith(f"[rank {rank}] ")]
            self.assertEqual("".join(lines[:4]), "x" * 200000)
            self.assertEqual(lines[4:], [garbage] * 50000)
            log = (self.folder / f"logs/rank-{rank}.log").read_bytes()
            self.assertRegex(log, rb"\A--- rank \d starts at 20")
            self.assertEqual(log.count(b"\xff\x00\x1b\n"), 50000)
        self.shell("echo again", "--nproc", 2, "--log-dir", "logs")
        self.assertTrue((self.folder / "logs/rank-1.log").read_bytes().endswith(b"\nagain\n"))

    def test_goes_on_where_nobody_reads(self):
        script = "while [ ! -e go ]; do sleep 0.01; done; for i in 1 2 3; do echo $i; done; touch done-$RANK"
        process = self.start("--nproc", 2, "--", "sh", "-c", script)
        process.stdout.close()
        (self.folder / "go").touch()
        err = process.stderr.read()
        self.assertEqual(process.wait(LONG), 0)
        self.assertIn("standard output: ", err)
        self.assertEqual(sorted(path.name for path in self.folder.iterdir()), ["done-0", "done-1", "go"])

    def test_a_failure_ends_all_and_is_explained(self):
        script = """[ $RANK = 1 ] || exec sleep 1000
                    for i in $(seq 30); do echo "line $i"; done; printf 'Error: "no" data' >&2; exit 3"""
        _, err = self.shell(script, "--nproc", 3, "--grace", NEVER, code=3)
        self.assertRegex(err, r"(?m)^tdock launch: rank 1 exited .*\b3, \d+\.\d s ")
        self.assertNotIn("    line 11\n", err)
        self.assertIn("    line 12\n", err)
        self.assertIn('    Error: "no" data\n', err)
        self.assertIn("ranks 0, 2: ended", err)

    def test_a_rank_that_is_done_ends_nothing(self):
        script = """[ $RANK = 0 ] && { echo $PPID > new; mv new supervisor; exit 0; }
                    while [ ! -e go ]; do sleep 0.01; done; echo end"""
        process = self.start("--nproc", 2, "--", "sh", "-c", script)
        file = self.folder / "supervisor"
        until(lambda: file.exists() and not is_running(int(file.read_text())), "the end of rank 0")
        (self.folder / "go").touch()
        self.assertEqual(process.communicate(timeout=LONG), ("[rank 1] end\n", ""))
        self.assertEqual(process.returncode, 0)

    def test_a_killed_rank_is_the_cause_not_the_peer_that_noticed(self):
        peer = ("[ $RANK = 1 ] && { echo $$ > pid; exec sleep 1000; }; while [ ! -s pid ]; do sleep 0.01; done; "
                "kill -9 $(cat pid); exit 1")  # fmt: skip
        _, err = self.shell(peer, "--nproc", 2, "--grace", NEVER, code=137)
        self.assertRegex(err, r"(?m)^tdock launch: rank 1 .*signal 9 \(Killed\)")
        self.assertRegex(err, r"rank 0: (exited .*\b1|ended)")

    def test_what_ignores_the_end_is_killed_after_the_grace(self):
        script = """[ $RANK = 0 ] && { trap '' TERM; touch ready; while :; do sleep 0.05; done; }
                    while [ ! -e ready ]; do sleep 0.01; done; exit 5"""
        start = time.monotonic()
        _, err = self.shell(script, "--nproc", 2, "--grace", 0.5, code=5)
        self.assertGreater(time.monotonic() - start, 0.5)
        self.assertIn("rank 0: killed", err)

    def test_nothing_outlives_a_killed_launcher(self):
        process, _ = self.start_family()
        process.kill()
        self.check_that_nothing_is_left()

    def test_nothing_outlives_a_killed_launcher_whose_processes_are_stopped(self):
        process, pids = self.start_family()
        os.kill(pids[0], signal.SIGSTOP)
        os.kill(parent_of(pids[1]), signal.SIGSTOP)  # its supervising process
        process.kill()
        self.check_that_nothing_is_left()

    def test_nothing_outlives_a_killed_supervising_process(self):
        process, pids = self.start_family()
        os.kill(parent_of(pids[1]), signal.SIGKILL)
        self.assertRegex(self.finish(process, 137), "rank 1 .*signal 9 ")
        self.assertEqual(self.ours(), [])

    def test_a_stopped_rank_ends_with_the_others(self):
        process, pids = self.start_family("--grace", NEVER)
        os.kill(pids[0], signal.SIGSTOP)
        os.kill(pids[1], signal.SIGKILL)
        self.assertIn("rank 0: ended", self.finish(process, 137))
        self.assertEqual(self.ours(), [])

    def test_the_end_of_a_rank_is_seen_although_its_supervising_process_is_stopped(self):
        process, pids = self.start_family()
        os.kill(parent_of(pids[1]), signal.SIGSTOP)
        os.kill(pids[1], signal.SIGKILL)
        self.assertRegex(self.finish(process, 137), "rank 1 .*signal 9 ")

    def test_all_start_again_after_a_failure(self):
        script = """echo "restart $TDOCK_RESTART_COUNT port $MASTER_PORT"
                    [ $RANK = 1 ] && [ $TDOCK_RESTART_COUNT -lt 2 ] && exit 3
                    [ $TDOCK_RESTART_COUNT -lt 2 ] && exec sleep 1000
                    exit 0"""
        out, err = self.shell(script, "--nproc", 2, "--restarts", 2)
        for restart in range(3):
            self.assertIn(f"[rank 1] restart {restart} ", out)
        self.assertEqual(len(set(re.findall(r"\[rank 1\] .* port (\d+)", out))), 3)
        self.assertIn("again (2 of 2)", err)

    def test_says_when_restarts_do_not_help(self):
        _, err = self.shell("exit 4", "--nproc", 1, "--restarts", 2, code=4)
        self.assertEqual(len(re.findall(r"(?m)^tdock launch: rank 0 exited .*\b4, ", err)), 3)
        self.assertRegex(err, r"again 2 times\b.* \d+\.\d s")

    def signalled(self, script, *signals):
        """What two ranks and the launcher end with, once they have caught the first of the signals."""
        process = self.start("--nproc", 2, "--restarts", 1, "--grace", NEVER, "--", "sh", "-c", script)
        for _ in range(2):
            self.assertRegex(process.stdout.readline(), "up")
        for sent in signals:
            process.send_signal(sent)
            for _ in range(2 if sent != signals[-1] or len(signals) == 1 else 0):
                self.assertRegex(process.stdout.readline(), "caught")
        _, err = process.communicate(timeout=LONG)
        return process.returncode, err

    def test_a_signal_stops_the_ranks_once(self):
        catch = "trap 'echo caught; exit {}' {}; echo up; while :; do sleep 0.02; done"
        code, err = self.signalled(catch.format(143, "TERM"), signal.SIGTERM)
        self.assertEqual(code, 143, err)
        self.assertIn("stopped by signal 15 (Terminated)", err)
        self.assertNotIn("again", err.replace("another", ""))
        code, err = self.signalled(catch.format(130, "INT"), signal.SIGINT)
        self.assertEqual(code, 130, err)
        self.assertEqual(self.signalled(catch.format(0, "TERM"), signal.SIGTERM)[0], 0)
        code, err = self.signalled(catch.format(7, "TERM"), signal.SIGTERM)
        self.assertEqual(code, 7)
        self.assertIn("the launcher was sent signal 15 (Terminated)", err)

    def test_a_second_signal_kills(self):
        stubborn = "trap 'echo caught' TERM; trap '' INT; echo up; while :; do sleep 0.02; done"
        code, err = self.signalled(stubborn, signal.SIGTERM, signal.SIGINT)
        self.assertEqual(code, 128 + signal.SIGINT, err)
        self.assertIn("ran killed", err)

    def test_other_signals_are_passed_on(self):
        saves = "trap 'echo caught; exit 0' USR1; echo up; while :; do sleep 0.02; done"
        self.assertEqual(self.signalled(saves, signal.SIGUSR1)[0], 0)

    def test_a_taken_port_is_refused(self):
        with socket.socket() as taken:
            taken.bind(("127.0.0.1", 0))
            taken.listen()
            port = taken.getsockname()[1]
            out, err = self.shell("echo run", "--nproc", 1, "--master-port", port, code=2)
        self.assertEqual(out, "")
        mentions(err, "--master-port: ", f"port {port} ", "another program")

    def test_wrong_calls_are_refused(self):
        for arguments, words in [
            (("--nproc", 0, "--restarts", -1, "--", "true"), ["--nproc is 0", "--restarts is -1"]),
            (("--nproc", 1, "--master-port", 70000, "--", "true"), ["--master-port is 70000"]),
            (("--nproc", 1, "--nnodes", 2, "--node-rank", 2, "--master-addr", "a", "--", "true"),
             ["--node-rank is 2", "--master-port "]),
            (("--nproc", 1, "--", "no-such-program"), ["cannot run 'no-such-program'"]),
        ]:  # fmt: skip
            _, err = self.launch(*arguments, code=2)
            mentions(err, *words)


class Command(Base):
    """What only the whole command has."""

    def test_help_names_every_option(self):
        out, _ = self.launch("--help")
        for name in ("nproc", "nnodes", "node-rank", "master-addr", "master-port", "restarts", "grace", "log-dir"):
            self.assertIn(f"--{name}", out)
        self.assertIn("config", out)
        self.assertIn("-- PROGRAM", out)

    def test_needs_one_thing_to_run(self):
        mentions(self.launch("--nproc", 1, code=2)[1], "tdock launch --nproc 2 sft.yaml")
        self.assertIn("not both", self.launch("--nproc", 1, "a.yaml", "--", "true", code=2)[1])
        self.assertIn("--nproc is required", self.launch("--", "true", code=2)[1])
        several = self.launch("--nproc", 1, "--nnodes", 2, "--", "true", code=2)[1]
        self.assertIn("each needs --node-rank", several)

    def configuration(self):
        subprocess.run([sys.executable, ROOT / "examples/arithmetic/make_data.py", self.folder], check=True)
        small = ["model.hidden_size=32", "model.num_hidden_layers=2", "data.train_batch_size=4", "threads=1"]
        data = [f"data.train_files={self.folder}/train.jsonl", f"data.val_files={self.folder}/validation.jsonl"]
        return [ROOT / "examples/arithmetic/sft.yaml", *small, *data, "trainer.run_dir="]

    def test_a_refused_run_leaves_no_folder(self):
        _, err = self.launch("--nproc", 1, *self.configuration(), "trainer.no_such_key=1", code=2)
        self.assertIn("no_such_key", err)
        missing = "data.train_files=no-such-file.jsonl"
        _, err = self.launch("--nproc", 1, *self.configuration(), missing, code=2)
        mentions(err, "runs/sft-001")
        self.assertRegex(err, r"(?m)^tdock launch: rank 0 exited .*\b2, ")
        self.assertFalse((self.folder / "runs/sft-001").exists())
        _, err = self.launch(
            "--nproc", 1, "--restarts", 1, *self.configuration(), "trainer.resume_mode=disable", code=2
        )  # fmt: skip
        mentions(err, "trainer.resume_mode is disable", "auto")

    def training(self):
        """The processes of this test that are ranks, not what launches and supervises them."""
        found = []
        for pid in self.ours():
            with contextlib.suppress(OSError):
                if b"\0train\0" in pathlib.Path(f"/proc/{pid}/cmdline").read_bytes():
                    found.append(pid)
        return found

    def test_a_run_that_is_killed_goes_on_by_itself(self):
        steps = ["trainer.total_training_steps=100", "trainer.save_freq=1"]
        process = self.start("--nproc", 1, "--restarts", 1, *self.configuration(), *steps)
        [trains] = until(self.training, "the rank")
        run = self.folder / "runs/sft-001"
        until(lambda: list(run.glob("checkpoints/step-*/manifest.json")), "a checkpoint")
        os.kill(trains, signal.SIGKILL)
        out, err = process.communicate()
        self.assertEqual(process.returncode, 0, out + err)
        mentions(err, "again (1 of 1)", "runs/sft-001/checkpoints/step-")
        self.assertTrue((run / "checkpoint/config.json").exists())


if __name__ == "__main__":
    tdock = str(pathlib.Path(sys.argv.pop(1)).resolve())
    unittest.main()
