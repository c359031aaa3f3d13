"""A training run: order of the samples, learning rate, and where it stands, so that a killed one goes on."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import torch
from torch import nn

from specdemo.draft.samples import Sample, batches

Agreement = TypeVar("Agreement")
WARM = 100  # steps until the rate is at its highest, at most a tenth of all
LAST = 0.05  # of the highest rate at the end
EVERY = 50  # steps between two checkpoints


@dataclass(frozen=True, slots=True)
class Schedule:
    """epochs: times that all samples are read. batch: sequences a step. rate: the highest. seed: of the order."""

    epochs: int
    batch: int
    rate: float
    seed: int

    def steps(self, samples: int) -> int:
        return self.epochs * math.ceil(samples / self.batch)

    def rate_at(self, step: int, steps: int) -> float:
        """Of step 1, 2, ...: warmed up, then lowered by a cosine."""
        warm = min(WARM, steps // 10 + 1)
        cosine = 0.5 * (1 + math.cos(math.pi * (step - 1) / steps))
        return self.rate * min(1.0, step / warm) * (LAST + (1 - LAST) * cosine)

    def groups(self, data: Sequence[Sample]) -> Iterator[list[Sample]]:
        """The batches of all epochs."""
        for epoch in range(self.epochs):
            yield from batches(data, self.batch, self.seed + epoch)


class Checkpoint:
    """Where a run stands: its weights and the optimizer's averages, beside what it makes, until it is through.

    run: all that the outcome depends on. Raises ValueError if the file is another run's, or none.
    """

    def __init__(self, path: Path, run: Mapping[str, str]) -> None:
        self.path, self.run, self.step = path, dict(run), 0
        if not path.exists():
            return
        try:
            held = torch.load(path, weights_only=True, mmap=True)
            begun, self.step = held["run"], held["step"]
        except Exception as error:  # whatever a foreign file makes of torch's reader
            raise ValueError(f"{path} is no run that can be gone on with; delete it to begin anew") from error
        differing = sorted(name for name in begun.keys() | run.keys() if begun.get(name) != run.get(name))
        if differing:
            raise ValueError(
                f"{path} was begun with other {', '.join(differing)}; give the same to go on, or delete it"
            )

    def read(self, parameters: Sequence[nn.Parameter], optimizer: torch.optim.Optimizer) -> None:
        """Put weights and averages back as they were after `step` steps."""
        if not self.step:
            return
        held = torch.load(self.path, weights_only=True)
        for ours, theirs in zip(parameters, held["weights"], strict=True):
            ours.data.copy_(theirs)
        optimizer.load_state_dict(held["optimizer"])

    def write(self, step: int, parameters: Sequence[nn.Parameter], optimizer: torch.optim.Optimizer) -> None:
        part = self.path.with_suffix(".part")
        weights = [p.detach() for p in parameters]
        torch.save({"run": self.run, "step": step, "weights": weights, "optimizer": optimizer.state_dict()}, part)
        part.replace(self.path)

    def end(self) -> None:
        """What the run makes is written: nothing is left to go on with."""
        self.path.unlink(missing_ok=True)


def optimized(
    model: nn.Module,
    data: Sequence[Sample],
    loss_of: Callable[[Sequence[Sample]], tuple[torch.Tensor, Agreement]],
    schedule: Schedule,
    checkpoint: Checkpoint | None = None,
) -> Iterator[tuple[int, float, Agreement]]:
    """AdamW over the model's trainable weights, in place; yields (step, loss, agreement), from the checkpoint on."""
    parameters = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(parameters, lr=schedule.rate, betas=(0.9, 0.95), weight_decay=0.01)
    if checkpoint:
        checkpoint.read(parameters, optimizer)
    steps = schedule.steps(len(data))
    for step, group in enumerate(schedule.groups(data), 1):
        if checkpoint and step <= checkpoint.step:
            continue
        loss, agreed = loss_of(group)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(parameters, 1.0)
        for settings in optimizer.param_groups:
            settings["lr"] = schedule.rate_at(step, steps)
        optimizer.step()
        if checkpoint and step % EVERY == 0:
            checkpoint.write(step, parameters, optimizer)
        yield step, float(loss.detach()), agreed
