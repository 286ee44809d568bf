"""The benchmarks of `tdock bench` that peers take part in, and how large they are there (generate_benchmarks.cc)."""

import dataclasses
import random

VOCABULARY = 8192
DTYPES = ("float32", "bfloat16")
WORK = ("generate/batch=1", "generate/batch=16", "generate/batch=64", "prefill/tokens=512")
NAMES = tuple(f"{work}/dtype={dtype}" for work in WORK for dtype in DTYPES)


@dataclasses.dataclass(frozen=True)
class Shape:
    dtype: str  # of weights, and of products where a system lets one choose
    batch: int
    prompt: int  # tokens of each row
    new_tokens: int  # of each row; 1: reading the prompts is what is timed

    @property
    def is_prefill(self):
        return self.new_tokens == 1

    @property
    def length(self):
        return self.prompt + self.new_tokens

    def prompts(self):
        generator = random.Random(1)
        return [[generator.randrange(VOCABULARY) for _ in range(self.prompt)] for _ in range(self.batch)]


def shape_of(name, quick):
    """Raises ValueError where there is no such benchmark."""
    if name not in NAMES:
        raise ValueError(f"there is no '{name}' here; there are {', '.join(NAMES)}")
    work, _, dtype = name.rpartition("/dtype=")
    group, _, size = work.partition("/")
    count = int(size.partition("=")[2])
    if group == "prefill":
        return Shape(dtype, batch=1, prompt=16 if quick else count, new_tokens=1)
    return Shape(dtype, batch=count, prompt=8 if quick else 32 if count == 1 else 128, new_tokens=4 if quick else 128)
