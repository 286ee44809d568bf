"""Environments for sums whose answers are written from their last digit to their first.

    tdock train examples/python-environment/grpo.yaml
"""

from __future__ import annotations


class SecondTry:
    """Our own form: who is wrong is asked once more, and gets half for it."""

    def reset(self, seed, row):
        self.question, self.answer, self.worth = row["prompt"], row["truth"], 1.0

    def step(self, message):
        said = message["content"]
        worth, self.worth = self.worth, self.worth / 2
        if said != self.answer and worth == 1.0:
            return {"observation": self.question}
        right = sum(a == b for a, b in zip(said, self.answer)) / max(len(self.answer), 1)
        return {"rewards": {"digits": worth * right}, "done": True}

    def conclude(self):
        """What an answer is worth that did not come to its end."""
        return {"rewards": {"digits": 0.0}}


class Calculator:
    """TRL's form, for a model that calls tools: its public methods are what it may call."""

    def reset(self, answer: str, **kwargs):
        self.answer, self.results = answer, []
        return " Use the calculator."

    def multiply(self, a: int, b: int) -> int:
        """Multiplies two numbers.

        Args:
            a: The first number.
            b: The second number.

        Returns:
            Their product.
        """
        self.results.append(str(a * b))
        return a * b

    def get_reward(self) -> float:
        return float(self.answer in self.results)
