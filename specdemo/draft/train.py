"""Train a feature head on the target's own answers and hidden states.

Each batch runs through the head several times: first on the target's states, then on the head's own predictions, each
position seeing the target's states up to where a draft would begin, and predictions behind it. So the head meets in
training what it meets in drafting. Sources: Zhang et al. 2024 (HASS), section 3.2; Li et al. 2025 (EAGLE-3), section
3.1, training-time test. Shapes: B sequences, T positions, D hidden size, R reduced vocabulary.
"""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch
from torch import nn
from torch.nn.functional import smooth_l1_loss
from transformers import DynamicCache

from specdemo.draft.answers import RAW, Row, read
from specdemo.engine.head import FeatureHead

Agreement = TypeVar("Agreement")
REGRESSION = 0.1  # weight of the distance between predicted and true states beside the cross-entropy
LATER = 0.8  # weight of each further pass relative to the one before it


@dataclass(slots=True)
class Sample:
    """ids [T + 1], states [T, D] (float16) of all but the last, scored: first position whose successor is an answer."""

    ids: torch.Tensor
    states: torch.Tensor
    scored: int


def samples(path: Path, opening: Sequence[int], opening_states: torch.Tensor) -> list[Sample]:
    """All rows of a file of answers with the states beside it, in memory (twice the hidden size in bytes an id)."""
    width = opening_states.shape[-1]
    states = np.memmap(path.with_suffix(".states"), dtype=np.float16, mode="c").reshape(-1, width)
    found, at = [], 0
    for row in read(path):
        count = len(row.ids) - 1
        if at + count > len(states):
            break  # the file of answers is still growing
        own = torch.from_numpy(states[at : at + count])
        at += count
        found.append(_sample(row, own, opening, opening_states))
    return found


def _sample(row: Row, own: torch.Tensor, opening: Sequence[int], opening_states: torch.Tensor) -> Sample:
    if row.kind == RAW:
        return Sample(torch.tensor(row.ids), own, row.message)
    ids = torch.tensor([*opening, *row.ids])
    return Sample(ids, torch.cat([opening_states, own]), len(opening) + row.message)


def vocabulary(answers: Sequence[Path], size: int) -> list[int]:
    """The ids that the answers use most, ascending."""
    counts: Counter[int] = Counter()
    for path in answers:
        for row in read(path):
            counts.update(row.ids[row.message :])
    return sorted(id for id, _ in counts.most_common(size))


def new_head(target: Any, ids: Sequence[int]) -> FeatureHead:
    """An untrained head whose layer begins as the target's last. Raises ValueError for a target it cannot continue."""
    config = target.config
    if config.model_type != "llama" or not config.tie_word_embeddings:
        raise ValueError("a head is made for targets of the Llama family whose output head is their embedding")
    embedding = target.get_input_embeddings().weight.detach().float()
    head = FeatureHead(config, torch.tensor(ids), embedding, embedding[list(ids)].clone())
    return head.float()


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


def unrolled(head: FeatureHead, batch: Batch, passes: int) -> Iterator[torch.Tensor]:
    """Predicted states [B, T, D] of each pass: the first from the target's states, the others from the one before."""
    count, length = batch.ids.shape
    cache = DynamicCache(config=head.config)
    positions = torch.arange(length, device=batch.ids.device)
    features = batch.features
    behind = positions[:, None] - positions[None]  # how far back a key is
    for done in range(passes):
        # Pass j sees the target's states up to j positions back, and of each pass between only the one position.
        blocks = [behind >= done] + [behind == done - j for j in range(1, done + 1)]
        mask = torch.cat(blocks, dim=1).expand(count, 1, -1, -1)
        predicted = head.states(
            batch.ids, features, cache=cache, attention_mask=mask, position_ids=positions[None].expand(count, -1)
        )
        yield predicted
        features = torch.cat([batch.features[:, :1], predicted[:, :-1]], dim=1)


def loss_of(head: FeatureHead, batch: Batch, passes: int) -> tuple[torch.Tensor, list[float]]:
    """Mean loss over the scored positions, and of each pass the share of positions whose best token is the target's."""
    with torch.no_grad():
        truth = head.output(batch.truth[batch.scored]).softmax(-1)
        best = truth.argmax(-1)
    total, agreed = batch.truth.new_zeros(()), []
    for done, predicted in enumerate(unrolled(head, batch, passes)):
        # The first positions of pass j have no j states behind them to begin from; they are part of the opening.
        chosen = predicted[batch.scored]
        logits = head.output(chosen)
        entropy = -(truth * logits.log_softmax(-1)).sum(-1).mean()
        distance = smooth_l1_loss(chosen, batch.truth[batch.scored])
        total = total + LATER**done * (entropy + REGRESSION * distance)
        agreed.append(float((logits.argmax(-1) == best).float().mean()))
    return total, agreed


def train(
    head: FeatureHead, data: Sequence[Sample], epochs: int, batch_size: int, rate: float, passes: int, seed: int
) -> Iterator[tuple[int, float, list[float]]]:
    """Train in place; yields (step, loss, agreement by pass) after every batch."""

    def loss(group: Sequence[Sample]) -> tuple[torch.Tensor, list[float]]:
        return loss_of(head, collate(group, head.device), passes)

    yield from optimized(head, data, loss, epochs, batch_size, rate, seed)


def optimized(
    model: nn.Module,
    data: Sequence[Sample],
    loss_of: Callable[[Sequence[Sample]], tuple[torch.Tensor, Agreement]],
    epochs: int,
    batch_size: int,
    rate: float,
    seed: int,
) -> Iterator[tuple[int, float, Agreement]]:
    """AdamW over the model's trainable weights, rate warmed up and lowered by a cosine; (step, loss, agreement)."""
    parameters = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(parameters, lr=rate, betas=(0.9, 0.95), weight_decay=0.01)
    steps = epochs * math.ceil(len(data) / batch_size)
    warm = min(100, steps // 10 + 1)

    def share(step: int) -> float:
        return min(1.0, (step + 1) / warm) * (0.05 + 0.95 * 0.5 * (1 + math.cos(math.pi * min(1, step / steps))))

    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, share)
    step = 0
    for epoch in range(epochs):
        for group in batches(data, batch_size, seed + epoch):
            loss, agreed = loss_of(group)
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            torch.nn.utils.clip_grad_norm_(parameters, 1.0)
            optimizer.step()
            schedule.step()
            step += 1
            yield step, float(loss.detach()), agreed


@torch.inference_mode()
def agreement(head: FeatureHead, data: Sequence[Sample], batch_size: int, passes: int) -> list[float]:
    """Of each pass the share of scored positions whose best token is the target's, over held-out data."""
    sums, count = [0.0] * passes, 0
    for group in batches(data, batch_size, 0):
        batch = collate(group, head.device)
        scored = int(batch.scored.sum())
        _, agreed = loss_of(head, batch, passes)
        sums = [s + scored * a for s, a in zip(sums, agreed, strict=True)]
        count += scored
    return [s / count for s in sums]
