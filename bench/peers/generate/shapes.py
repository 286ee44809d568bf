"""The benchmarks of `tdock bench` that peers take part in, and how large they are there (generate_benchmarks.cc)."""

import dataclasses
import random

VOCABULARIES = {"llama": 8192, "smollm2": 49152, "qwen3": 151936}  # by model
FLOATS = ("float32", "bfloat16")
BATCHES = tuple(f"batch={rows}/dtype={dtype}" for dtype in (*FLOATS, "int8") for rows in (1, 16, 64))
NAMES = (
    *(f"generate/{batch}" for batch in BATCHES),
    *(f"generate/{model}/{batch}" for model in ("smollm2", "qwen3") for batch in BATCHES),
    *(f"prefill/tokens=512/dtype={dtype}" for dtype in FLOATS),
)


@dataclasses.dataclass(frozen=True)
class Shape:
    model: str
    dtype: str  # of weights, and of products where a system lets one choose; int8: products of 8 bits
    batch: int
    prompt: int  # tokens of each row
    new_tokens: int  # of each row; 1: reading the prompts is what is timed

    @property
    def is_prefill(self):
        return self.new_tokens == 1

    @property
    def length(self):
        return self.prompt + self.new_tokens

    @property
    def vocabulary(self):
        return VOCABULARIES[self.model]

    def prompts(self):
        generator = random.Random(1)
        return [[generator.randrange(self.vocabulary) for _ in range(self.prompt)] for _ in range(self.batch)]


def shape_of(name, quick):
    """Raises ValueError where there is no such benchmark."""
    if name not in NAMES:
        raise ValueError(f"there is no '{name}' here; there are {', '.join(NAMES)}")
    work, _, dtype = name.rpartition("/dtype=")
    group, *model, size = work.split("/")
    [model] = model or ["llama"]
    count = int(size.partition("=")[2])
    if group == "prefill":
        return Shape(model, dtype, batch=1, prompt=16 if quick else count, new_tokens=1)
    return Shape(model, dtype, batch=count, prompt=8 if quick else 32 if count == 1 else 128, new_tokens=4 if quick else 128)
