"""What a draft is trained on: answers with their hidden states, one by one and in batches.

Shapes: B sequences, T positions, D hidden size.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from specdemo.draft.answers import RAW, Row, read


@dataclass(slots=True)
class Sample:
    """ids [T + 1], states [T, D] (float16) of all but the last, scored: first position whose successor is an answer."""

    ids: torch.Tensor
    states: torch.Tensor
    scored: int


def samples(path: Path, opening: Sequence[int], opening_states: torch.Tensor) -> list[Sample]:
    """All rows of a file of answers with the states beside it, in memory (twice the hidden size in bytes an id).

    Raises ValueError unless every row has its states and no other states are there: what is trained on is the file.
    """
    width, states_path = opening_states.shape[-1], path.with_suffix(".states")
    rows = list(read(path))
    due = 2 * width * sum(len(row.ids) - 1 for row in rows)
    size = states_path.stat().st_size if states_path.exists() else 0
    if not rows:
        raise ValueError(f"{path} holds no answer")
    if size != due:
        raise ValueError(f"{states_path} has {size:,} bytes in place of {due:,}; `draft states {path}` puts that right")
    states = np.memmap(states_path, dtype=np.float16, mode="c").reshape(-1, width)
    found, at = [], 0
    for row in rows:
        count = len(row.ids) - 1
        own = torch.from_numpy(states[at : at + count])
        at += count
        found.append(_sample(row, own, opening, opening_states))
    return found


def _sample(row: Row, own: torch.Tensor, opening: Sequence[int], opening_states: torch.Tensor) -> Sample:
    if row.kind == RAW:
        return Sample(torch.tensor(row.ids), own, row.message)
    ids = torch.tensor([*opening, *row.ids])
    return Sample(ids, torch.cat([opening_states, own]), len(opening) + row.message)


def batches(data: Sequence[Sample], size: int, seed: int) -> Iterator[list[Sample]]:
    """Batches of sequences of similar length, in random order."""
    order = sorted(range(len(data)), key=lambda i: len(data[i].ids))
    groups = [order[i : i + size] for i in range(0, len(order), size)]
    random.Random(seed).shuffle(groups)
    for group in groups:
        yield [data[i] for i in group]


@dataclass(slots=True)
class Batch:
    """first [B, 1]: the ids at position 0. ids [B, T] are one ahead of features [B, T, D]; truth [B, T, D]: the states
    to be predicted; scored [B, T]: where an answer's tokens are chosen."""

    first: torch.Tensor
    ids: torch.Tensor
    features: torch.Tensor
    truth: torch.Tensor
    scored: torch.Tensor


def collate(group: Sequence[Sample], device: torch.device) -> Batch:
    """Position t: feature t and token t + 1 predict state t + 1, for t = 0 .. T - 2."""
    length = max(len(sample.states) for sample in group) - 1
    width = group[0].states.shape[-1]
    ids = torch.zeros(len(group), length, dtype=torch.long)
    features, truth = torch.zeros(2, len(group), length, width)
    scored = torch.zeros(len(group), length, dtype=torch.bool)
    for i, sample in enumerate(group):
        n = len(sample.states) - 1
        ids[i, :n] = sample.ids[1 : n + 1]
        features[i, :n], truth[i, :n] = sample.states[:-1], sample.states[1:]
        scored[i, max(sample.scored - 2, 0) : n] = True  # state t + 1 chooses token t + 2
    first = torch.stack([sample.ids[:1] for sample in group])
    return Batch(first.to(device), ids.to(device), features.to(device), truth.to(device), scored.to(device))
