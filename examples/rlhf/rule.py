"""The hidden rule that judges answers. The models never see it: they see which of two answers it prefers, or nothing.

A prompt is some letters and a colon, such as "bgkm:", and asks for ten letters. Each of the answer's first ten earns a point
if it is one of the prompt's; each letter after the tenth costs a point.
"""

from __future__ import annotations

LENGTH = 10


def points(prompt, answer):
    wanted = prompt.rstrip(":")
    return sum(letter in wanted for letter in answer[:LENGTH]) - len(answer[LENGTH:])


def hidden_rule(prompts: list[str], completions: list[str], **kwargs):
    """The same as a reward function in TRL's style, for `reward.function`."""
    return [points(prompt, completion) for prompt, completion in zip(prompts, completions)]
