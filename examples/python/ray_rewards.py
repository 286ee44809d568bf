"""Reward workers on Ray: actors that score answers from the dock, as many as are wanted, on any machine of the cluster.

    python ray_rewards.py
"""

from __future__ import annotations

import ray

import transfer_dock as td


@ray.remote(num_cpus=0.5)
class RewardWorker:
    def __init__(self) -> None:
        self.dock = td.ray.connect()

    def ready(self) -> bool:
        return True

    def work(self) -> int:
        """Until nothing more can come. Returns how many answers it scored."""
        scored = 0
        while True:
            try:
                # `max` is how many answers one worker holds at a time, and so how evenly they are shared: a worker that
                # asks for 1,000 gets all that are there, and the others none.
                with self.dock.take("train", "reward", max=8) as rows:
                    rewards = [float(answer == truth) for answer, truth in zip(rows["answer"], rows["truth"])]
                    rows.put({"reward": rewards})
                    scored += len(rows)
            except td.EndOfData:
                return scored


def main() -> None:
    dock = td.ray.start(memory="256MiB")
    dock.create_partition("train", {"answer": "str", "truth": "str", "reward": "float32"})
    dock.register_consumer("train", "reward", reads=["answer", "truth"], writes=["reward"])
    workers = [RewardWorker.remote() for _ in range(2)]
    ray.get([worker.ready.remote() for worker in workers])

    answers = [str(n if n % 5 else -n) for n in range(400)]
    dock.put("train", {"answer": answers, "truth": [str(n) for n in range(400)]})
    dock.seal("train")
    shares = ray.get([worker.work.remote() for worker in workers])
    rewards = dock.fetch("train", range(400), ["reward"])["reward"].numpy()
    print(f"{sum(shares)} answers scored, {int(rewards.sum())} of them right")
    print("by each worker:", shares)
    td.ray.stop()


if __name__ == "__main__":
    ray.init(num_cpus=2, include_dashboard=False)
    main()
