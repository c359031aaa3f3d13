"""A small Llama cut from the target and distilled on the target's own answers: an ordinary draft model.

It keeps the target's embedding, which is also its output head, untrained; so only its layers need to be written down,
and models/embedded_draft.py puts the whole checkpoint together. Source: Hinton et al. 2015, section 2 (soft targets).
Shapes: B sequences, T positions, D hidden size, R reduced vocabulary.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from transformers import LlamaForCausalLM

from specdemo.draft.optimize import Checkpoint, Schedule, optimized
from specdemo.draft.samples import Sample, batches, collate


def distil(
    small: LlamaForCausalLM,
    data: Sequence[Sample],
    ids: Sequence[int],
    schedule: Schedule,
    checkpoint: Checkpoint | None = None,
) -> Iterator[tuple[int, float, float]]:
    """Train in place on the target's distributions over `ids` [R]; yields (step, loss, agreement) after every batch."""
    rows = _output(small, ids)
    yield from optimized(small, data, lambda group: _loss(small, group, rows), schedule, checkpoint)


@torch.inference_mode()
def agreement(small: LlamaForCausalLM, data: Sequence[Sample], ids: Sequence[int], batch_size: int) -> float:
    """Share of scored positions of held-out data whose best id (of `ids`) is the target's."""
    rows = _output(small, ids)
    found = [_loss(small, group, rows)[1] for group in batches(data, batch_size, 0)]
    return sum(found) / len(found)


def _output(small: Any, ids: Sequence[int]) -> torch.Tensor:
    """Rows [R, D] of the output head for `ids`."""
    rows: torch.Tensor = small.get_input_embeddings().weight[list(ids)].detach()
    return rows


def _loss(small: Any, group: Sequence[Sample], rows: torch.Tensor) -> tuple[torch.Tensor, float]:
    """Mean cross-entropy with the target's distribution at the scored positions, and the agreement there."""
    batch = collate(group, rows.device)
    ids = torch.cat([batch.first, batch.ids], dim=1)
    predicted = small.model(ids).last_hidden_state[:, 1:][batch.scored]
    logits = predicted @ rows.T
    with torch.no_grad():
        truth = (batch.truth[batch.scored] @ rows.T).softmax(-1)
    loss = -(truth * logits.log_softmax(-1)).sum(-1).mean()
    return loss, float((logits.argmax(-1) == truth.argmax(-1)).float().mean())
