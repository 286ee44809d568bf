"""A step of GRPO by `tdock train` and by TRL's trainer, in turn in one run, on the same cores.

Each run of ours is a program of its own, of which the first step is not counted, nor is TRL's first; TRL's program waits
meanwhile. A ratio is the median over the pairs, above 1 where ours is faster; `ours` and `trl` are medians in seconds.
Needs Python 3.11 and nothing else; TRL has an environment of its own, which `scripts/setup.sh oracle` makes.
"""

import argparse
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

import setting as settings

HERE = Path(__file__).resolve().parent
sys.path.append(str(HERE.parent))
from machine import machine  # noqa: E402

ROOT = HERE.parents[2]
STAGES = ("rollout", "reward", "ref", "advantage", "actor")


def fail(what, text):
    lines = [line for line in text.splitlines() if line.strip()]
    sys.exit("\n".join([what, *lines[-20:]]))


def model_folder(name, options):
    """Made when it is not there yet."""
    folder = options.models / ("quick" if options.quick else "smollm2" if settings.is_real(name) else "llama-33m")
    if not folder.exists():
        command = [options.python, HERE / "model.py", folder, name, *(["--quick"] if options.quick else [])]
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode != 0:
            fail(f"the model cannot be made in {folder}:", done.stderr)
    return folder


def config_of(name, model, setting, options):
    lora = {"lora_rank": settings.LORA_RANK, "lora_alpha": settings.LORA_ALPHA} if settings.is_lora(name) else {}
    return {
        "recipe": "grpo",
        "threads": options.threads,
        "device": options.device,
        "model": {"path": str(model), "compute_dtype": settings.dtype_of(name), **lora},
        "data": {
            "train_files": [str(model / "prompts.jsonl")],
            "train_batch_size": setting.prompts,
            "max_prompt_length": setting.prompt_tokens,
            "max_response_length": setting.new_tokens,
        },
        "rollout": {"n": setting.samples, "ignore_eos": True},
        "actor": {
            "ppo_mini_batch_size": setting.prompts,
            "clip_ratio_low": settings.CLIP,
            "clip_ratio_high": settings.CLIP,
            "kl_loss_coef": settings.KL,
            "kl_loss_type": "k3",
            "optim": {
                "lr": settings.LEARNING_RATE,
                "weight_decay": settings.WEIGHT_DECAY,
                "clip_grad": settings.CLIP_GRAD,
            },
        },
        "reward": {"length": {"weight": 1, "soft_limit": 0, "hard_limit": setting.most_characters}},
        "trainer": {"total_training_steps": 2, "val_before_train": False, "save_freq": "0"},
    }


def our_step(name, model, setting, options):
    """The figures of the second step of a run."""
    with tempfile.TemporaryDirectory() as folder:
        config = Path(folder) / "grpo.yaml"
        config.write_text(json.dumps(config_of(name, model, setting, options)))
        command = [options.tdock, "train", config, "--run-dir", Path(folder) / "run"]
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode != 0:
            fail(f"tdock train ended with code {done.returncode}:", done.stderr)
        figures = json.loads((Path(folder) / "run/metrics.jsonl").read_text().splitlines()[-1])
    lengths = [figures[f"{kind}_length/{end}"] for kind in ("prompt", "response") for end in ("min", "max")]
    wanted = [setting.prompt_tokens] * 2 + [setting.new_tokens] * 2
    if figures["step"] != 2 or lengths != wanted:
        fail("tdock train did other work:", f"step {figures['step']}, lengths {lengths} instead of {wanted}")
    return figures


class Trl:
    """TRL's trainer in a program of its own, which takes a step when it is asked for one."""

    def __init__(self, name, dtype, model, options):
        command = [options.python, HERE / "peer.py", model, name, "--dtype", dtype, "--threads", str(options.threads)]
        command += ["--device", options.device]
        command += ["--quick"] if options.quick else []
        # Steps would otherwise look for packages of the network.
        environment = os.environ | {"HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": str(options.threads)}
        self.log = tempfile.TemporaryFile("w+")
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self.log, text=True, env=environment
        )

    def step(self):
        try:
            self.process.stdin.write("\n")
            self.process.stdin.flush()
            return json.loads(self.process.stdout.readline())["seconds"]
        except (BrokenPipeError, json.JSONDecodeError):
            self.process.wait()
            self.log.seek(0)
            fail(f"TRL ended with code {self.process.returncode}:", self.log.read())

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.kill()
        self.process.wait()
        self.log.close()


def fastest_dtype(name, model, options):
    """TRL's dtype for a benchmark, and the seconds of one step in each that was tried."""
    if settings.dtype_of(name) == "float32":
        return "float32", {}
    tried = {}
    for dtype in ("float32", "autocast", "bfloat16"):
        with Trl(name, dtype, model, options) as trl:
            trl.step()
            tried[dtype] = trl.step()
        print(f"    trl in {dtype}: {tried[dtype]:.2f} s", file=sys.stderr, flush=True)
    return min(tried, key=tried.get), tried


def measured(name, options):
    setting, model = settings.setting_of(name, options.quick), model_folder(name, options)
    trl_dtype, tried = fastest_dtype(name, model, options)
    ours, theirs = [], []
    with Trl(name, trl_dtype, model, options) as trl:
        trl.step()
        for _ in range(options.runs):
            ours.append(our_step(name, model, setting, options))
            theirs.append(trl.step())
    return entry(name, ours, theirs, trl_dtype, tried)


def entry(name, ours, theirs, trl_dtype, tried):
    """ours: the figures of steps; theirs: the seconds of those beside them."""
    seconds = [figures["timing_s/step"] for figures in ours]
    ratio = statistics.median(their / our for our, their in zip(seconds, theirs))

    def stages(prefix):
        medians = {}
        for stage in STAGES:
            if all(prefix + stage in figures for figures in ours):
                medians[stage] = statistics.median(figures[prefix + stage] for figures in ours)
        return medians

    def model_share(figures):
        return sum(figures.get(f"timing_model_s/{stage}", 0) for stage in STAGES) / figures["timing_s/step"]

    return {
        "name": name,
        "unit": "s",
        "ours": statistics.median(seconds),
        "trl": statistics.median(theirs),
        "ratio": ratio,
        "bar": settings.BARS[name],
        "reached": ratio >= settings.BARS[name],
        "trl_dtype": trl_dtype,
        "trl_tried": tried,
        "model_share": statistics.median(map(model_share, ours)),
        "stages": stages("timing_s/"),
        "stages_in_model": stages("timing_model_s/"),
        "runs": {"ours": seconds, "trl": theirs},
    }


def row(result):
    mark = "" if result["reached"] else "!"
    return (
        f"{result['name']:<38}{result['ours']:>9.2f}{result['trl']:>9.2f}  {result['trl_dtype']:<10}"
        f"{result['ratio']:>6.2f}{mark:<1}{100 * result['model_share']:>11.1f} %"
    )


HEAD = f"{'seconds of a step':<38}{'ours':>9}{'trl':>9}  {'its dtype':<10}{'ratio':>6} {'in the model':>13}"


def parsed(arguments):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", metavar="FILE", type=Path, help="file for the figures of every run")
    parser.add_argument(
        "--only", nargs="+", metavar="NAME", default=settings.NAMES, choices=settings.NAMES, help="default: all"
    )
    parser.add_argument("--runs", type=int, default=3, help="of each side")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--quick", action="store_true", help="a tiny model: shows that it works, not how fast")
    parser.add_argument("--tdock", type=Path, default=ROOT / "build/release/tdock", help="the program tdock")
    parser.add_argument("--python", type=Path, default=ROOT / ".venv-oracle/bin/python", help="a Python with TRL")
    parser.add_argument("--models", type=Path, default=ROOT / "build/grpo_step_peers", help="folder for the models")
    options = parser.parse_args(arguments)
    for path, how in ((options.tdock, "make build"), (options.python, "scripts/setup.sh oracle")):
        if not path.exists():
            parser.error(f"there is no {path}: {how} makes it")
    return options


def versions_of(options):
    done = subprocess.run([options.python, HERE / "peer.py", "--check"], capture_output=True, text=True)
    if done.returncode != 0:
        fail("TRL does not run here:", done.stderr)
    return done.stdout.strip()


def main():
    options = parsed(None)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("stopped"))  # and with it the programs that were started
    report = {
        "machine": machine(),
        "settings": {"runs": options.runs, "threads": options.threads, "device": options.device, "quick": options.quick},
        "versions": versions_of(options),
        "results": [],
    }
    print(f"{report['machine']['cpu']}: {' '.join(report['machine']['instructions'])}\n{HEAD}", flush=True)
    for name in options.only:
        report["results"].append(measured(name, options))
        print(row(report["results"][-1]), flush=True)
    if options.json:
        options.json.write_text(json.dumps(report, indent=2, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    main()
