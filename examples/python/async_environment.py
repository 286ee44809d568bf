"""An environment loop in asyncio: many episodes at once, each of several turns, whose samples go into the dock.

A guessing game stands for the environment, and binary search for the model: put your own in place of `answer` and
`Game`, which may await a server of an inference engine.

    python async_environment.py
"""

from __future__ import annotations

import asyncio

import numpy as np

import transfer_dock as td
from transfer_dock.calls import AsyncPartition


class Game:
    """Guess a number from 0 to 99."""

    def __init__(self, number: int) -> None:
        self._number = number

    async def step(self, guess: int) -> str:
        await asyncio.sleep(0)  # a tool or a sandbox would take its time here
        return "right" if guess == self._number else "higher" if guess < self._number else "lower"


async def answer(low: int, high: int) -> int:
    await asyncio.sleep(0)  # a request to an inference engine would take its time here
    return (low + high) // 2


async def play(number: int) -> tuple[list[int], float]:
    """The guesses, and the reward: fewer guesses are better."""
    game, low, high, guesses = Game(number), 0, 99, []
    while True:
        guesses.append(await answer(low, high))
        heard = await game.step(guesses[-1])
        if heard == "right":
            return guesses, 1.0 / len(guesses)
        low, high = (guesses[-1] + 1, high) if heard == "higher" else (low, guesses[-1] - 1)


async def episodes(train: AsyncPartition) -> int:
    """Plays what is there to play, four games of a take at once, until nothing more can come."""
    played = 0
    while True:
        try:
            # A task that is cancelled here, or in the block, gives its rows back.
            async with await train.take("rollout", max=4, timeout=60) as rows:
                results = await asyncio.gather(*(play(int(number)) for number in rows["number"].numpy()))
                guesses = [np.array(one, np.int32) for one, _ in results]
                rewards = np.array([reward for _, reward in results], np.float32)
                await train.put({"guesses": guesses, "reward": rewards}, rows=rows.ids, lease=rows)
                played += len(rows)
        except td.EndOfData:
            return played


async def main() -> None:
    dock = td.Dock.local()  # or td.Dock.connect(…), for other processes to train on it
    columns = {"number": "int32", "guesses": td.column("int32", ragged=True), "reward": "float32"}
    dock.create_partition("train", columns)
    dock.register_consumer("train", "rollout", reads=["number"], writes=["guesses", "reward"])
    dock.put("train", {"number": np.arange(100, dtype=np.int32)})
    dock.seal("train")
    loops = await asyncio.gather(*(episodes(dock.aio.partition("train")) for _ in range(8)))
    rows = dock.fetch("train", range(100), ["guesses", "reward"])
    lengths = rows["guesses"].lengths()
    print(f"{sum(loops)} episodes of {lengths.min()} to {lengths.max()} guesses")
    print(f"mean reward {rows['reward'].numpy().mean():.3f}")


if __name__ == "__main__":
    asyncio.run(main())
