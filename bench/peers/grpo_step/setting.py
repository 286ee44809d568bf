"""What a step is: the model, its samples, and what both sides compute with."""

import dataclasses

# Ours should be so many times as fast: in float32, and in bfloat16 beside the fastest dtype of TRL's.
BARS = {
    "grpo_step/dtype=float32": 3.5,
    "grpo_step/dtype=bfloat16": 5.0,
    "grpo_step/smollm2/full/dtype=bfloat16": 2.5,
    "grpo_step/smollm2/lora/dtype=bfloat16": 2.5,
}
NAMES = tuple(BARS)
LORA_RANK, LORA_ALPHA = 16, 32.0  # on all linear layers

LEARNING_RATE, WEIGHT_DECAY, KL, CLIP, CLIP_GRAD = 1e-6, 0.01, 0.04, 0.2, 1.0


@dataclasses.dataclass(frozen=True)
class Setting:
    vocabulary: int = 8192
    hidden: int = 512
    ffn: int = 1536
    layers: int = 8
    heads: int = 8
    kv_heads: int = 4
    prompts: int = 4  # of a step
    samples: int = 8  # of each
    prompt_tokens: int = 48  # of each prompt
    new_tokens: int = 128  # of each sample

    @property
    def length(self):
        return self.prompt_tokens + self.new_tokens

    @property
    def most_characters(self):
        """The reward is minus the share of these that an answer has."""
        return 12 * self.new_tokens


REAL = Setting(prompts=8, samples=8, prompt_tokens=48, new_tokens=64)  # of SmolLM2-135M-Instruct, which has its own sizes
QUICK = Setting(
    vocabulary=512, hidden=64, ffn=96, layers=2, heads=4, kv_heads=2, prompts=2, samples=4, prompt_tokens=12, new_tokens=8
)


def is_real(name):
    return "/smollm2/" in name


def is_lora(name):
    return "/lora/" in name


def dtype_of(name):
    """In which ours computes."""
    return name.rpartition("=")[2]


def setting_of(name, quick):
    return QUICK if quick else REAL if is_real(name) else Setting()
