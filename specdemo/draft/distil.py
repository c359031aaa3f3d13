"""A small Llama cut from the target and distilled on the target's own answers: an ordinary draft model.

It keeps the target's embedding, which is also its output head, untrained; so only its layers need to be written down,
and `export` puts the whole checkpoint together. Source: Hinton et al. 2015, section 2 (soft targets). Shapes: B
sequences, T positions, D hidden size, R reduced vocabulary.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from copy import deepcopy
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from transformers import LlamaForCausalLM

from specdemo.draft.train import Sample, batches, collate, optimized


def cut(target: Any, layers: Sequence[int]) -> LlamaForCausalLM:
    """A model of the target's `layers`, on its embedding. Raises ValueError for a target that cannot be cut."""
    config = deepcopy(target.config)
    if config.model_type != "llama" or not config.tie_word_embeddings:
        raise ValueError("only targets of the Llama family whose output head is their embedding can be cut")
    config.num_hidden_layers = len(layers)
    small = LlamaForCausalLM(config)
    weights = target.state_dict()
    own = {name: weights[name] for name in ("model.embed_tokens.weight", "model.norm.weight")}
    for new, old in enumerate(layers):
        prefix = f"model.layers.{old}."
        own |= {f"model.layers.{new}.{n.removeprefix(prefix)}": w for n, w in weights.items() if n.startswith(prefix)}
    small.load_state_dict(own, strict=False)
    small.tie_weights()
    small.get_input_embeddings().weight.requires_grad_(False)
    return small


def write_layers(small: LlamaForCausalLM, path: Path, metadata: dict[str, str]) -> None:
    """Write everything but the embedding, in half precision."""
    own = {
        n: w.half().contiguous().cpu() for n, w in small.state_dict().items() if "embed" not in n and "lm_head" not in n
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_suffix(".part")
    save_file(own, part, metadata)
    part.replace(path)


def read_layers(path: Path, target: Any) -> LlamaForCausalLM:
    """The small model on the target's embedding, float32."""
    own = load_file(path)
    count = 1 + max(int(name.split(".")[2]) for name in own if name.startswith("model.layers."))
    small = cut(target, range(count))
    small.load_state_dict({name: weight.float() for name, weight in own.items()}, strict=False)
    return small


def distil(
    small: LlamaForCausalLM,
    data: Sequence[Sample],
    ids: Sequence[int],
    epochs: int,
    batch_size: int,
    rate: float,
    seed: int,
) -> Iterator[tuple[int, float, float]]:
    """Train in place on the target's distributions over `ids` [R]; yields (step, loss, agreement) after every batch."""
    rows = _output(small, ids)
    yield from optimized(small, data, lambda group: _loss(small, group, rows), epochs, batch_size, rate, seed)


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
