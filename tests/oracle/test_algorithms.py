"""Our losses and advantages beside those of TRL, and beside verl's formulas written in numpy.

TRL's trainers compute their losses in methods that take a model and a batch. They are called here on stand-ins, with a
"model" that gives the log-probabilities of the test, so that what runs is TRL's own code: every number and gradient is
compared at 1e-5, in float64 (found: 1e-12). verl cannot be installed beside the others; its formulas are written here a
second time, with loops, from its documentation.
"""

import json
import subprocess
from collections import defaultdict
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from conftest import BUILD

LENGTHS = [4, 7, 1, 5, 6, 3]
WIDTH = max(LENGTHS)
TOLERANCE = 1e-5


@pytest.fixture(scope="module", autouse=True)
def algorithms():
    """One process for all calls: to start it takes longer than to ask it."""
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with subprocess.Popen(BUILD / "tdock_algorithms", **pipes) as process:
        Batch.process = process
        yield
        process.stdin.close()
        assert process.wait() == 0


def ours(call):
    """What tdock_algorithms gives for a call."""
    Batch.process.stdin.write(json.dumps(call) + "\n")
    Batch.process.stdin.flush()
    answer = json.loads(Batch.process.stdout.readline())
    assert "error" not in answer, answer
    return answer


class Batch:
    """Sequences as rows of a padded matrix, and as the flat vectors that ours takes."""

    process = None  # tdock_algorithms

    def __init__(self, seed, lengths=LENGTHS):
        generator = np.random.default_rng(seed)
        self.shape = (len(lengths), WIDTH)
        self.present = np.arange(WIDTH) < np.array(lengths)[:, None]
        tool = generator.random(self.shape) < 0.2
        tool[:, 0] = False
        self.mask = (self.present & ~tool).astype(float)
        self.lengths = list(lengths)
        self.old = -np.abs(generator.normal(size=self.shape))
        self.new = self.old + 0.3 * generator.normal(size=self.shape)
        self.ref = self.old + 0.2 * generator.normal(size=self.shape)
        self.rollout = self.old + 0.4 * generator.normal(size=self.shape)
        self.entropy = np.abs(generator.normal(size=self.shape))
        self.rewards = np.round(generator.normal(size=len(lengths)), 1)
        self.values = generator.normal(size=self.shape)

    def flat(self, matrix):
        return np.broadcast_to(matrix, self.shape)[self.present].tolist()

    def call(self, name, options, **tensors):
        flat = {k: self.flat(v) if np.ndim(v) == 2 else np.asarray(v, float).tolist() for k, v in tensors.items()}
        mask = self.flat(self.mask)
        return {"call": name, "lengths": self.lengths, "mask": mask, "tensors": flat, "options": options}

    def actor(self, advantages, options, **more):
        advantages = np.asarray(advantages)[:, None]
        tensors = {"log_probs": self.new, "old_log_probs": self.old, "advantages": advantages, **more}
        return ours(self.call("actor", options, **tensors))


def assert_same(batch, answer, loss, gradient, name="log_probs"):
    assert answer["loss"] == pytest.approx(float(loss), abs=TOLERANCE, rel=TOLERANCE)
    np.testing.assert_allclose(answer["gradients"][name], batch.flat(np.asarray(gradient)), rtol=TOLERANCE, atol=1e-9)


# ---- TRL.


ACCELERATOR = SimpleNamespace(
    num_processes=1, device=torch.device("cpu"), sync_gradients=True, gather=lambda x: x,
    gather_for_metrics=lambda x: x,
    reduce=lambda x, reduction: x,
)  # fmt: skip
MODEL = SimpleNamespace(training=False)
SAPO_AND_VESPO = {
    "sapo_temperature_pos": 1.0, "sapo_temperature_neg": 1.05, "vespo_k_pos": 2.0, "vespo_lambda_pos": 3.0,
    "vespo_k_neg": 3.0, "vespo_lambda_neg": 2.0,
}  # fmt: skip


def metrics():
    return defaultdict(lambda: defaultdict(list))


def leaf(matrix):
    return torch.tensor(np.ascontiguousarray(matrix), dtype=torch.float64, requires_grad=True)


def trl_policy(method, batch, advantages, *, inputs=None, **settings):
    """The loss of a trainer of TRL, and its gradients by the log-probabilities and the entropies."""
    log_probs, entropies = leaf(batch.new), leaf(batch.entropy)
    delta = settings.pop("delta", None)
    arguments = SimpleNamespace(use_bias_correction_kl=False, delta=delta, steps_per_generation=1, **SAPO_AND_VESPO)
    trainer = SimpleNamespace(**{
        "_get_per_token_logps_and_entropies": lambda *args, **kwargs: (log_probs, entropies, None),
        "model": MODEL, "accelerator": ACCELERATOR, "_metrics": metrics(), "aux_loss_enabled": False,
        "top_entropy_quantile": 1.0, "off_policy_mask_threshold": None, "importance_sampling_level": "token",
        "beta": 0.0, "epsilon_low": 0.2, "epsilon_high": 0.28, "loss_type": "grpo", "use_vllm": False,
        "max_completion_length": 11,
        "vllm_importance_sampling_correction": True, "_entropy_bonus_enabled": False, "use_adaptive_entropy": False,
        "entropy_coef": 0.0, "current_gradient_accumulation_steps": 1,
        "args": arguments, **settings,
    })  # fmt: skip
    mask = torch.tensor(batch.mask)
    ids = torch.zeros(batch.shape, dtype=torch.long)
    loss = method(trainer, MODEL, {
        "prompt_ids": ids, "prompt_mask": ids, "completion_ids": ids, "completion_mask": mask,
        "advantages": torch.tensor(advantages), "old_per_token_logps": torch.tensor(batch.old),
        "ref_per_token_logps": torch.tensor(batch.ref), "num_items_in_batch": mask.sum(), **(inputs or {}),
    })  # fmt: skip
    loss.backward()
    return loss.item(), log_probs.grad.numpy(), entropies.grad


ADVANTAGES = np.array([1.0, -0.5, 2.0, -1.5, 0.3, -2.0])
BY_SEQUENCE = {"aggregation": "seq-mean-token-mean"}
GRPO = {
    "grpo": ({"loss_type": "grpo", "beta": 0.04}, {"kind": "ppo", **BY_SEQUENCE, "kl_coef": 0.04}),
    "bnpo": ({"loss_type": "bnpo", "beta": 0.04}, {"kind": "ppo", "aggregation": "token-mean", "kl_coef": 0.04}),
    "dapo": ({"loss_type": "dapo", "_entropy_bonus_enabled": True, "entropy_coef": 0.3},
             {"kind": "ppo", "aggregation": "token-mean", "entropy_coef": 0.3}),
    "dr_grpo": ({"loss_type": "dr_grpo", "beta": 0.1},
                {"kind": "ppo", "aggregation": "seq-mean-token-sum-norm", "norm": 11, "kl_coef": 0.1}),
    "luspo": ({"loss_type": "luspo", "importance_sampling_level": "sequence"},
              {"kind": "gspo", "aggregation": "seq-mean-token-sum"}),
    "luspo, by token": ({"loss_type": "luspo"}, {"kind": "ppo", "aggregation": "seq-mean-token-sum"}),
    "sapo": ({"loss_type": "sapo", "beta": 0.04}, {"kind": "sapo", **BY_SEQUENCE, "kl_coef": 0.04}),
    "vespo": ({"loss_type": "vespo"}, {"kind": "vespo", "aggregation": "token-mean"}),
    "two-sided": ({"delta": 1.5}, {"kind": "ppo", **BY_SEQUENCE, "dual_clip": 1.5}),
    "gspo": ({"importance_sampling_level": "sequence"}, {"kind": "gspo", **BY_SEQUENCE}),
    # TRL limits the weight itself, and from above only.
    "cispo": ({"loss_type": "cispo", "epsilon_high": 1.2},
              {"kind": "cispo", "aggregation": "token-mean", "clip_low": 1, "clip_high": 0.2}),
}  # fmt: skip


@pytest.mark.parametrize("name", GRPO)
def test_policy_losses_are_those_of_trl_grpo(name):
    from trl.trainer.grpo_trainer import GRPOTrainer

    batch = Batch(1)
    settings, options = GRPO[name]
    if name == "vespo":
        settings = {**settings, "get_gamma_weights": GRPOTrainer.get_gamma_weights}
    loss, gradient, entropy_gradient = trl_policy(GRPOTrainer._compute_loss, batch, ADVANTAGES, **settings)
    answer = batch.actor(ADVANTAGES, {"clip_low": 0.2, "clip_high": 0.28, **options}, ref_log_probs=batch.ref,
                         entropy=batch.entropy)  # fmt: skip
    assert_same(batch, answer, loss, gradient)
    if entropy_gradient is not None:
        assert_same(batch, answer, loss, entropy_gradient.numpy(), "entropy")


def test_rollout_weights_are_those_of_trl():
    from trl.trainer.grpo_trainer import GRPOTrainer

    batch = Batch(2)
    weights = np.minimum(np.exp(batch.old - batch.rollout), 2.0)
    loss, gradient, _ = trl_policy(GRPOTrainer._compute_loss, batch, ADVANTAGES, use_vllm=True,
                                   inputs={"importance_sampling_ratio": torch.tensor(weights)})  # fmt: skip
    own = ours(batch.call("weights", {"level": "token"}, training=batch.old, rollout=batch.rollout))["weights"]
    np.testing.assert_allclose(own, batch.flat(weights * batch.mask), rtol=1e-12)
    options = {"kind": "ppo", **BY_SEQUENCE, "clip_high": 0.28}
    assert_same(batch, batch.actor(ADVANTAGES, options, rollout_weights=weights), loss, gradient)


def test_the_geometric_mean_is_that_of_trl_gmpo():
    from trl.experimental.gmpo.gmpo_trainer import GMPOTrainer

    batch = Batch(3)
    loss, gradient, _ = trl_policy(GMPOTrainer._compute_loss, batch, ADVANTAGES, beta=0.05, epsilon_low=0.4,
                                   epsilon_high=0.4)  # fmt: skip
    options = {"kind": "gmpo", **BY_SEQUENCE, "clip_low": 0.4, "clip_high": 0.4, "kl_coef": 0.05}
    assert_same(batch, batch.actor(ADVANTAGES, options, ref_log_probs=batch.ref), loss, gradient)


def test_the_sequence_clip_is_that_of_trl_rloo():
    from trl.trainer.rloo_trainer import RLOOTrainer

    batch = Batch(4)
    batch.new = batch.old + 0.1 * (batch.new - batch.old)
    old = torch.tensor((batch.old * batch.mask).sum(1))
    loss, gradient, _ = trl_policy(RLOOTrainer._compute_loss, batch, ADVANTAGES, inputs={"old_logps": old})
    answer = batch.actor(ADVANTAGES, {"kind": "sequence", **BY_SEQUENCE, "clip_high": 0.28})
    assert_same(batch, answer, loss, gradient)


def trl_dpo(batch, loss_type, rows, **settings):
    from trl.trainer.dpo_trainer import DPOTrainer

    mask = torch.tensor(batch.mask)[rows]
    log_probs = leaf(batch.new[rows])
    chosen, rejected = torch.tensor(batch.ref * batch.mask)[rows].sum(1).chunk(2)
    zeros = torch.zeros(len(rows), WIDTH, dtype=torch.double)
    outputs = SimpleNamespace(log_probs=log_probs * mask, entropy=zeros, mean_logits=zeros, is_top1=zeros.bool())
    trainer = SimpleNamespace(**{
        "model": MODEL, "accelerator": ACCELERATOR, "_metrics": metrics(), "aux_loss_enabled": False,
        "_total_train_tokens": 0, "ld_alpha": None, "precompute_ref_logps": True, "f_divergence_type": "reverse_kl",
        "loss_types": [loss_type], "loss_weights": [1.0], "beta": 0.3, "label_smoothing": 0.0, "use_weighting": False,
        **settings,
    })  # fmt: skip
    # A prompt of one token, which predicts the first of the answer.
    shifted = torch.cat([torch.zeros(len(rows), 1, dtype=torch.double), mask], dim=1)
    loss = DPOTrainer._compute_loss(trainer, lambda **kwargs: outputs, {
        "input_ids": torch.zeros_like(shifted, dtype=torch.long), "completion_mask": shifted,
        "ref_chosen_logps": chosen, "ref_rejected_logps": rejected,
    }, return_outputs=False)  # fmt: skip
    loss.backward()
    return loss.item(), log_probs.grad.numpy()


@pytest.mark.parametrize(("loss_type", "smoothing"), [("sigmoid", 0.0), ("robust", 0.1), ("ipo", 0.0)])
def test_dpo_losses_are_those_of_trl(loss_type, smoothing):
    batch = Batch(5)
    loss, gradient = trl_dpo(batch, loss_type, range(6), label_smoothing=smoothing)
    options = {"kind": loss_type, "beta": 0.3, "label_smoothing": smoothing}
    assert_same(batch, ours(batch.call("dpo", options, log_probs=batch.new, ref_log_probs=batch.ref)), loss, gradient)


def test_label_smoothing_is_that_of_trl():
    """TRL smooths labels in `aot`, which sorts the pairs of a batch: over single pairs it is the conservative DPO."""
    batch = Batch(6)
    loss, gradient = 0, np.zeros(batch.shape)
    for pair in range(3):
        rows = [pair, pair + 3]
        more, gradient[rows] = trl_dpo(batch, "aot", rows, label_smoothing=0.2)
        loss += more / 3
    options = {"kind": "sigmoid", "beta": 0.3, "label_smoothing": 0.2}
    answer = ours(batch.call("dpo", options, log_probs=batch.new, ref_log_probs=batch.ref))
    assert_same(batch, answer, loss, gradient / 3)


@pytest.mark.parametrize(("margins", "centre"), [(None, 0.0), ([0.5, 1.0, 0.0], 0.0), (None, 0.01)])
def test_reward_losses_are_those_of_trl(margins, centre):
    from trl.trainer.reward_trainer import RewardTrainer

    batch = Batch(7)
    last = np.array([np.flatnonzero(row)[-1] for row in batch.mask])
    values = leaf(batch.values)
    scores = values[torch.arange(6), torch.tensor(last)].unsqueeze(1)
    trainer = SimpleNamespace(model=MODEL, accelerator=ACCELERATOR, _metrics=metrics(), _total_train_tokens=0,
                              args=SimpleNamespace(center_rewards_coefficient=centre or None))  # fmt: skip
    inputs = {} if margins is None else {"margin": torch.tensor(margins, dtype=torch.double)}
    loss = RewardTrainer.compute_loss(trainer, lambda **kwargs: SimpleNamespace(logits=scores), inputs)
    loss.backward()
    more = {} if margins is None else {"margins": margins}
    answer = ours(batch.call("bradley_terry", {"centre_coef": centre}, values=batch.values, **more))
    assert_same(batch, answer, loss.item(), values.grad.numpy(), "values")


# ---- transformers.


@pytest.mark.parametrize(
    ("kind", "options", "kwargs"),
    [
        ("constant", {}, {}),
        ("linear", {}, {}),
        ("cosine", {}, {}),
        ("cosine", {"cycles": 1.5}, {"num_cycles": 1.5}),
        ("cosine_with_restarts", {}, {}),
        ("cosine_with_restarts", {"cycles": 3}, {"num_cycles": 3}),
        ("polynomial", {"power": 2.5}, {"power": 2.5, "lr_end": 0.0}),
        ("polynomial", {"power": 2, "floor": 0.1}, {"power": 2, "lr_end": 0.1}),
        ("inverse_sqrt", {}, {}),
        ("inverse_sqrt", {"timescale": 50}, {"timescale": 50}),
        ("cosine", {"floor": 0.2}, {"min_lr_rate": 0.2}),
        ("cosine_warmup_with_min_lr", {"floor": 0.2}, {"min_lr_rate": 0.2}),
        ("cosine_warmup_with_min_lr", {"floor": 0.2, "warmup_start": 0.1}, {"min_lr_rate": 0.2, "warmup_lr_rate": 0.1}),
        *(
            ("warmup_stable_decay",
             {"floor": 0.2, "decay_steps": 30, "warmup_curve": curve, "decay_curve": curve},
             {"min_lr_ratio": 0.2, "num_decay_steps": 30, "warmup_type": curve, "decay_type": curve})
            for curve in ("linear", "cosine", "1-sqrt")
        ),
    ],
)  # fmt: skip
@pytest.mark.parametrize("warmup", [0, 20])
def test_learning_rates_are_those_of_transformers(kind, options, kwargs, warmup):
    from transformers import get_scheduler

    steps, total = 130, 120
    with_floor = {"cosine": "cosine_with_min_lr"} if "floor" in options else {}
    name = {"constant": "constant_with_warmup", **with_floor}.get(kind, kind)
    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=1.0)
    scheduler = get_scheduler(name, optimizer, warmup, total, scheduler_specific_kwargs=kwargs)
    theirs = []
    for _ in range(steps + 1):
        theirs.append(scheduler.get_last_lr()[0])
        optimizer.step()
        scheduler.step()
    call = {"call": "schedule", "lengths": [1], "mask": [1], "tensors": {}}
    options = {"kind": kind, "warmup": warmup, "total": total, "steps": steps, **options}
    factors = ours(call | {"options": options})["factors"]
    # Warm-ups begin a step earlier there, at 0, except for the one whose name says that it has one.
    ahead = 0 if kind == "cosine_warmup_with_min_lr" else 1
    assert factors[:warmup] == pytest.approx(theirs[ahead : warmup + ahead], abs=1e-12)
    # A cosine goes on in waves behind the last step there.
    end = total if "cosine" in kind else steps
    assert factors[warmup:end] == pytest.approx(theirs[warmup:end], abs=1e-12)


# ---- verl, whose formulas are written here a second time.


GROUPS = [0, 0, 0, 1, 1, 2]


def members(i):
    return [j for j in range(6) if GROUPS[j] == GROUPS[i]]


def whitened(matrix, mask):
    values = matrix[mask > 0]
    return np.where(mask > 0, (matrix - values.mean()) / np.sqrt(values.var(ddof=1) + 1e-8), 0)


def verl_outcome_advantage(kind, r, batch):
    """One number for each sample."""
    lengths = batch.mask.sum(1)
    result = np.zeros(6)
    for i in range(6):
        group = members(i)
        n, alone = len(group), len(group) == 1
        mean = 0.0 if alone else np.mean([r[j] for j in group])
        deviation = 1.0 if alone else np.std([r[j] for j in group], ddof=1)
        if kind == "grpo":
            result[i] = (r[i] - mean) / (deviation + 1e-6)
        elif kind == "dr_grpo":
            result[i] = r[i] - mean
        elif kind == "rloo":
            result[i] = r[i] if alone else r[i] - np.mean([r[j] for j in group if j != i])
        elif kind == "opo":
            result[i] = r[i] if alone else r[i] - sum(lengths[j] * r[j] for j in group) / sum(lengths[j] for j in group)
        elif kind == "gpg":
            result[i] = 6 / np.count_nonzero(r) * (r[i] - mean)
        else:
            first, second = sorted((r[j] for j in group), reverse=True)[:2]
            result[i] = (first - second) / (deviation + 1e-6) if r[i] == first else 0.0
    return result


@pytest.mark.parametrize("kind", ["grpo", "dr_grpo", "rloo", "opo", "gpg"])
def test_advantages_of_samples_are_those_of_verl(kind):
    batch = Batch(8)
    rewards = np.array([0.0, 1.5, -0.5, 2.0, 1.0, 3.0])
    options = {"kind": "grpo" if kind == "dr_grpo" else kind, "divide": kind != "dr_grpo"}
    answer = ours(batch.call("advantage", options, rewards=rewards, groups=GROUPS))
    np.testing.assert_allclose(answer["advantages"], verl_outcome_advantage(kind, rewards, batch), atol=1e-9)


def test_the_advantage_of_pass_at_k_is_that_of_verl(monkeypatch):
    batch = Batch(9)
    monkeypatch.setattr(f"{__name__}.GROUPS", [0, 0, 0, 1, 1, 1])
    rewards = np.array([0.5, 2.0, 1.0, -1.0, -3.0, -2.0])
    answer = ours(batch.call("advantage", {"kind": "grpo_passk"}, rewards=rewards, groups=GROUPS))
    np.testing.assert_allclose(answer["advantages"], verl_outcome_advantage("grpo_passk", rewards, batch), atol=1e-9)


def without_tools(seed):
    """Where a tool's output is masked, verl cuts the return to go, and ours does not."""
    batch = Batch(seed)
    batch.mask = batch.present.astype(float)
    return batch


def test_reinforce_plus_plus_is_that_of_verl():
    batch = without_tools(10)
    rewards = 0.1 * batch.values
    returns = np.zeros(batch.shape)
    for i, length in enumerate(LENGTHS):
        for t in range(length):
            returns[i, t] = sum(0.9 ** (later - t) * rewards[i, later] for later in range(t, length))
    answer = ours(batch.call("advantage", {"kind": "reinforce_plus_plus", "gamma": 0.9}, token_rewards=rewards))
    np.testing.assert_allclose(answer["returns"], batch.flat(returns), atol=1e-12)
    np.testing.assert_allclose(answer["advantages"], batch.flat(whitened(returns, batch.mask)), atol=1e-9)


def test_the_baseline_of_reinforce_plus_plus_is_that_of_verl():
    batch = Batch(11)
    centred = verl_outcome_advantage("dr_grpo", batch.rewards, batch)
    expected = whitened(np.broadcast_to(centred[:, None], batch.shape), batch.mask)
    options = {"kind": "reinforce_plus_plus_baseline"}
    answer = ours(batch.call("advantage", options, rewards=batch.rewards, groups=GROUPS))
    np.testing.assert_allclose(answer["advantages"], batch.flat(expected), atol=1e-9)


def test_remax_is_that_of_verl():
    batch = without_tools(12)
    returns = np.flip(np.cumsum(np.flip(batch.values * batch.mask, 1), 1), 1)
    expected = (returns - batch.rewards[:, None]) * batch.mask
    answer = ours(batch.call("advantage", {"kind": "remax"}, token_rewards=batch.values, baselines=batch.rewards))
    np.testing.assert_allclose(answer["advantages"], batch.flat(expected), atol=1e-12)


def test_gae_is_that_of_verl():
    """With a tool's tokens, which are passed over."""
    batch = Batch(13)
    rewards = 0.1 * batch.ref
    advantages, returns = np.zeros(batch.shape), np.zeros(batch.shape)
    for i in range(6):
        places = np.flatnonzero(batch.mask[i])
        v = np.append(batch.values[i, places], 0.0)
        delta = rewards[i, places] + 0.95 * v[1:] - v[:-1]
        for a, place in enumerate(places):
            advantages[i, place] = sum((0.95 * 0.9) ** (b - a) * delta[b] for b in range(a, len(places)))
            returns[i, place] = advantages[i, place] + v[a]
    options = {"kind": "gae", "gamma": 0.95, "lambda": 0.9}
    answer = ours(batch.call("advantage", options, token_rewards=rewards, values=batch.values))
    np.testing.assert_allclose(answer["returns"], batch.flat(returns), atol=1e-12)
    np.testing.assert_allclose(answer["advantages"], batch.flat(whitened(advantages, batch.mask)), atol=1e-9)


def aggregated(losses, mask, how):
    counted = mask.sum(1)
    if how == "token-mean":
        return (losses * mask).sum() / mask.sum()
    sums = (losses * mask).sum(1)
    return (sums / counted).mean() if how == "seq-mean-token-mean" else sums.mean() / (1 if how.endswith("sum") else 9)


def verl_policy_loss(kind, new, batch, how, selected):
    """Loss by loops and numpy, without gradients. The kinds whose gradient is not that of their value are left out."""
    a, ratio = ADVANTAGES[:, None], np.exp(new - batch.old)
    losses = np.maximum(-a * ratio, -a * np.clip(ratio, 0.8, 1.28))
    if kind == "ppo":
        losses = np.where(a < 0, np.minimum(losses, -a * 1.5), losses)
    elif kind == "gpg":
        losses = -a * new
    elif kind == "clip_cov":
        losses = np.where(selected, 0, losses)
    elif kind == "kl_cov":
        losses = -a * ratio + selected * np.abs(new - batch.old)
    elif kind == "gspo":
        mean = ((new - batch.old) * batch.mask).sum(1, keepdims=True) / batch.mask.sum(1, keepdims=True)
        losses = np.maximum(-a * np.exp(mean), -a * np.clip(np.exp(mean), 0.8, 1.28)) * np.ones(batch.shape)
    elif kind == "gmpo":
        x, sign = new - batch.old, np.sign(a)
        held = sign * np.minimum(sign * x, sign * np.clip(x, -0.2, 0.28))
        losses = -a * np.exp((held * batch.mask).sum(1, keepdims=True) / batch.mask.sum(1, keepdims=True)) + 0 * new
    return aggregated(losses, batch.mask, how)


def central_differences(function, at, step=1e-6):
    gradient = np.zeros_like(at)
    for place in np.ndindex(*at.shape):
        moved = np.zeros_like(at)
        moved[place] = step
        gradient[place] = (function(at + moved) - function(at - moved)) / (2 * step)
    return gradient


OF_TOKENS = ["token-mean", "seq-mean-token-sum", "seq-mean-token-mean", "seq-mean-token-sum-norm"]


@pytest.mark.parametrize(
    ("kind", "how"),
    [(kind, how) for kind in ("ppo", "gpg", "clip_cov", "kl_cov") for how in OF_TOKENS]
    + [(kind, "seq-mean-token-mean") for kind in ("gspo", "gmpo")],
)
def test_policy_losses_are_those_of_verl(kind, how):
    batch = Batch(14)
    selected = batch.values > 0.5
    options = {"kind": kind, "aggregation": how, "norm": 9, "clip_high": 0.28, "dual_clip": 1.5 if kind == "ppo" else 0}
    answer = batch.actor(ADVANTAGES, options, selected=selected.astype(float))
    function = lambda new: verl_policy_loss(kind, new, batch, how, selected)  # noqa: E731
    loss, gradient = function(batch.new), central_differences(function, batch.new)
    assert answer["loss"] == pytest.approx(loss, abs=1e-12)
    np.testing.assert_allclose(answer["gradients"]["log_probs"], batch.flat(gradient), atol=1e-8)


def test_kl_cov_selects_the_tokens_of_verl():
    batch = Batch(15)
    a = np.broadcast_to(ADVANTAGES[:, None], batch.shape)
    counted = batch.mask > 0
    covariance = (a - a[counted].mean()) * (batch.new - batch.new[counted].mean())
    count = int(0.3 * counted.sum())
    chosen = counted & (covariance >= np.sort(covariance[counted])[-count])
    answer = ours(batch.call("covariance", {"fraction": 0.3}, log_probs=batch.new, advantages=a))
    assert answer["selected"] == batch.flat(chosen.astype(float))


@pytest.mark.parametrize("estimator", ["k1", "abs", "k2", "k3"])
def test_the_kl_in_a_loss_is_that_of_verl(estimator):
    batch = Batch(16)

    def function(new):
        x = batch.ref - new
        kl = {"k1": -x, "abs": np.abs(x), "k2": x**2 / 2, "k3": np.exp(x) - x - 1}[estimator]
        return aggregated(kl, batch.mask, "token-mean")

    options = {"kind": "ppo", "aggregation": "token-mean", "kl_coef": 1.0, "kl_type": estimator}
    answer = batch.actor(np.zeros(6), options, ref_log_probs=batch.ref)
    assert answer["loss"] == pytest.approx(function(batch.new), abs=1e-12)
    gradient = batch.flat(central_differences(function, batch.new))
    np.testing.assert_allclose(answer["gradients"]["log_probs"], gradient, atol=1e-8)
    if estimator == "k2":
        straight = batch.actor(np.zeros(6), {**options, "kl_type": "k3+"}, ref_log_probs=batch.ref)
        np.testing.assert_allclose(straight["gradients"]["log_probs"], gradient, atol=1e-8)


def test_the_value_loss_is_that_of_verl():
    batch = Batch(17)

    def function(values):
        held = np.clip(values, batch.ref - 0.2, batch.ref + 0.2)
        losses = 0.5 * np.maximum((values - batch.old) ** 2, (held - batch.old) ** 2)
        return aggregated(losses, batch.mask, "token-mean")

    options = {"clip": 0.2, "aggregation": "token-mean"}
    answer = ours(batch.call("value", options, values=batch.values, old_values=batch.ref, returns=batch.old))
    assert_same(batch, answer, function(batch.values), central_differences(function, batch.values), "values")


def test_rollout_weights_of_sequences_are_those_of_verl():
    batch = Batch(18)
    sums = ((batch.old - batch.rollout) * batch.mask).sum(1, keepdims=True)
    expected = np.minimum(np.exp(sums), 1.5) * batch.mask
    answer = ours(batch.call("weights", {"level": "sequence", "cap": 1.5}, training=batch.old, rollout=batch.rollout))
    np.testing.assert_allclose(answer["weights"], batch.flat(expected), rtol=1e-12)


def test_gspo_with_rollout_weights_that_differ_within_a_sequence_is_that_of_verl_and_not_of_trl():
    from trl.trainer.grpo_trainer import GRPOTrainer

    batch = Batch(19)
    weights = np.minimum(np.exp(batch.old - batch.rollout), 2.0)
    options = {"kind": "gspo", **BY_SEQUENCE, "clip_high": 0.28}
    answer = batch.actor(ADVANTAGES, options, rollout_weights=weights)
    new, mask, a = leaf(batch.new), torch.tensor(batch.mask), torch.tensor(ADVANTAGES)[:, None]
    counted = mask.sum(1, keepdim=True)
    mean = ((new - torch.tensor(batch.old)) * mask).sum(1, keepdim=True) / counted
    ratio = (mean.detach() + (new - new.detach())).exp()
    losses = torch.maximum(-a * ratio, -a * ratio.clamp(0.8, 1.28)) * torch.tensor(weights)
    loss = (losses * mask / counted).sum(1).mean()
    loss.backward()
    assert_same(batch, answer, loss.item(), new.grad.numpy())
    trl_loss, trl_gradient, _ = trl_policy(GRPOTrainer._compute_loss, batch, ADVANTAGES, use_vllm=True,
                                           importance_sampling_level="sequence",
                                           inputs={"importance_sampling_ratio": torch.tensor(weights)})  # fmt: skip
    assert trl_loss == pytest.approx(loss.item(), abs=1e-10)
    assert np.abs(trl_gradient - new.grad.numpy()).max() > 1e-3
