"""Train a feature head on the target's own answers and hidden states.

Each batch runs through the head several times: first on the target's states, then on the head's own predictions, each
position seeing the target's states up to where a draft would begin, and predictions behind it. So the head meets in
training what it meets in drafting. Sources: Zhang et al. 2024 (HASS), section 3.2; Li et al. 2025 (EAGLE-3), section
3.1, training-time test. Shapes: B sequences, T positions, D hidden size, R reduced vocabulary.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from torch.nn.functional import smooth_l1_loss
from transformers import DynamicCache

from specdemo.draft.answers import read
from specdemo.draft.optimize import Checkpoint, Schedule, optimized
from specdemo.draft.samples import Batch, Sample, batches, collate
from specdemo.engine.head import FeatureHead

REGRESSION = 0.1  # weight of the distance between predicted and true states beside the cross-entropy
LATER = 0.8  # weight of each further pass relative to the one before it


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
    head: FeatureHead,
    data: Sequence[Sample],
    schedule: Schedule,
    passes: int,
    checkpoint: Checkpoint | None = None,
) -> Iterator[tuple[int, float, list[float]]]:
    """Train in place; yields (step, loss, agreement by pass) after every batch."""

    def loss(group: Sequence[Sample]) -> tuple[torch.Tensor, list[float]]:
        return loss_of(head, collate(group, head.device), passes)

    yield from optimized(head, data, loss, schedule, checkpoint)


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
