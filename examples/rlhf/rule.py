"""The hidden rule that judges answers. The models never see it: they see which of two answers it prefers, or nothing.

A prompt is some letters and a colon, such as "bgkm:". A letter of the answer earns a point if it is one of the prompt's
and not the same as the letter before it, and costs a point otherwise: "bgbk" has 4 points, "bbgx" 1 - 1 + 1 - 1 = 0.
"""

from __future__ import annotations


def points(prompt, answer):
    wanted = prompt.rstrip(":")
    return sum(1 if letter in wanted and letter != before else -1 for before, letter in zip(" " + answer, answer))


def hidden_rule(prompts: list[str], completions: list[str], **kwargs):
    """The same as a reward function in TRL's style, for `reward.function`."""
    return [points(prompt, completion) for prompt, completion in zip(prompts, completions)]
