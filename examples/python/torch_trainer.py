"""A trainer of your own in PyTorch: batches from the dock by a DataLoader, and checkpoints that agree with the dock.

The consumer is checkpointed: rows are final only once the checkpoint that learned from them is saved. A trainer that dies
goes on from its last checkpoint, and gets again what it had learned since. Here it dies in its sixth step.

    python torch_trainer.py
"""

from __future__ import annotations

import pathlib
import tempfile

import torch

import transfer_dock as td
from transfer_dock.datasets import DockDataset

SAVE_EVERY = 4


def model_and_optimizer() -> tuple[torch.nn.Linear, torch.optim.Optimizer]:
    torch.manual_seed(0)
    model = torch.nn.Linear(2, 1)
    return model, torch.optim.Adam(model.parameters(), lr=0.1)


def train(dock: td.Dock, checkpoint: pathlib.Path, die_in_step: int | None = None) -> tuple[int, float]:
    """From the last checkpoint on, until all rows are done. Returns the last step and its loss."""
    model, optimizer = model_and_optimizer()
    step, loss = 0, torch.tensor(0.0)
    if checkpoint.exists():
        state = torch.load(checkpoint)
        step = state["step"]
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
    # What was completed after that step is ready again.
    dock.rollback("train", "trainer", step)

    # With hold=True the loader's workers may be ahead: rows are done when the trainer says so.
    batches = DockDataset(dock, "train", "trainer", batch_size=8, hold=True)
    for batch in batches.loader(num_workers=1):
        step += 1
        if step == die_in_step:
            raise KeyboardInterrupt
        loss = torch.nn.functional.mse_loss(model(batch["x"])[:, 0], batch["y"])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        batch.complete(dock, step=step)
        if step % SAVE_EVERY == 0:
            # First the checkpoint, then the commit: in between, the rows of these steps could come again after a crash,
            # but none is lost.
            torch.save({"step": step, "model": model.state_dict(), "optimizer": optimizer.state_dict()}, checkpoint)
            dock.commit("train", "trainer", step)
    dock.commit("train", "trainer", step)
    return step, loss.item()


def main() -> None:
    dock = td.serve().connect()  # a server, since the loader's workers are processes of their own
    dock.create_partition("train", {"x": td.column(torch.float32, 2), "y": torch.float32})
    dock.register_consumer("train", "trainer", reads=["x", "y"], checkpointed=True)
    x = torch.randn(160, 2, generator=torch.Generator().manual_seed(1))
    dock.put("train", {"x": x, "y": x @ torch.tensor([2.0, -1.0]) + 0.5})
    dock.seal("train")
    with tempfile.TemporaryDirectory() as folder:
        checkpoint = pathlib.Path(folder) / "checkpoint.pt"
        try:
            train(dock, checkpoint, die_in_step=6)
        except KeyboardInterrupt:
            status = dock.consumer_status("train", "trainer")
            print(f"died: {status.done} rows done, {status.uncommitted} of them not committed")
        step, _ = train(dock, checkpoint)
    status = dock.consumer_status("train", "trainer")
    print(f"step {step}: {status.done} rows done, {status.uncommitted} of them not committed")


if __name__ == "__main__":
    main()
