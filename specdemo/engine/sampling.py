"""Logits to distributions, and the one source of randomness.

Shapes: N positions, V vocabulary. All randomness of a path goes through `Randomness`, so that a test can replace
it by a script that walks every branch of the real code.
"""

from collections.abc import Sequence

import torch

from specdemo.engine.types import Sampling

_CANDIDATES = 512  # top-p first looks at so many; a full sort of the vocabulary can cost more than a small model


def penalised(
    logits: torch.Tensor, text: Sequence[int], paths: Sequence[Sequence[int]], penalty: float
) -> torch.Tensor:
    """Make ids that have occurred less probable: logits [N, V], row i behind `text` and paths[i], its own ancestors.

    A drafted token counts for the nodes behind it only, so a rejected one leaves no trace. Positive logits are divided
    by `penalty`, negative ones multiplied. Source: Keskar et al. 2019 (CTRL), section 4.1; the sign rule is that of
    transformers.
    """
    if penalty == 1:
        return logits
    common = {id for id in text if id < logits.shape[-1]}
    pairs = [(row, id) for row, path in enumerate(paths) for id in common.union(path)]
    at = torch.tensor(pairs, device=logits.device).T
    found = logits[at[0], at[1]]
    return logits.index_put((at[0], at[1]), torch.where(found > 0, found / penalty, found * penalty))


def distribution(logits: torch.Tensor, sampling: Sampling) -> torch.Tensor:
    """The distribution that tokens are drawn from: temperature, then top-k, then top-p.

    logits [N, V] in any floating dtype; returns probabilities [N, V] in float32 or wider. Greedy is not a
    distribution: raises ValueError at temperature 0.
    Source: Holtzman et al. 2020, section 3.1 (top-p); the order of the cuts is that of transformers.
    """
    if sampling.greedy:
        raise ValueError("temperature 0 has no distribution; take the argmax")
    scores = logits.to(torch.promote_types(logits.dtype, torch.float32)) / sampling.temperature
    vocabulary = scores.shape[-1]
    if 0 < sampling.top_k < vocabulary:
        kept = scores.topk(sampling.top_k, dim=-1)
        scores = torch.full_like(scores, -torch.inf).scatter(-1, kept.indices, kept.values)
    probs = scores.softmax(-1)
    if sampling.top_p < 1:
        probs = _nucleus(probs, sampling.top_p)
    return probs


def _nucleus(probs: torch.Tensor, top_p: float) -> torch.Tensor:
    """Keep the fewest most probable tokens that reach `top_p` together; [N, V] -> [N, V], rows sum to 1."""
    count = min(_CANDIDATES, probs.shape[-1])
    top = probs.topk(count, dim=-1)
    if count < probs.shape[-1] and bool((top.values.sum(-1) < top_p).any()):
        top = probs.topk(probs.shape[-1], dim=-1)
    before = top.values.cumsum(-1) - top.values
    kept = torch.where(before < top_p, top.values, 0)
    return torch.zeros_like(probs).scatter(-1, top.indices, kept / kept.sum(-1, keepdim=True))


def log_probs(logits: torch.Tensor, tokens: Sequence[int]) -> torch.Tensor:
    """Natural log of the probability of tokens[i] under logits[i], temperature 1; [N, V] -> [N]."""
    logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
    return logits[torch.arange(len(tokens)), list(tokens)] - logits.logsumexp(-1)


def margins(logits: torch.Tensor) -> torch.Tensor:
    """The best logit minus the second best of each row, [N, V] -> [N]; 0 for a vocabulary of one."""
    top = logits.topk(min(2, logits.shape[-1]), dim=-1).values.double()
    return top[:, 0] - top[:, -1]


class Randomness:
    """The random source of one path, seeded."""

    def __init__(self, seed: int, device: torch.device) -> None:
        self._generator = torch.Generator(device).manual_seed(seed)
        self._device = device

    def uniform(self) -> float:
        """A number from [0, 1)."""
        draw = torch.rand((), generator=self._generator, device=self._device, dtype=torch.float64)
        return float(draw)

    def choose(self, probs: torch.Tensor) -> int:
        """An index drawn from `probs` [V]; the weights need not sum to 1."""
        return int(torch.multinomial(probs, 1, generator=self._generator))
