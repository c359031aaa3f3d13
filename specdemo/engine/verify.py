"""The place where a token is accepted.

One function, `verify`, decides for every mode: plain decoding is the verification of an empty draft, a chain is a
tree whose every node has one child. Shapes: N drafted nodes, V vocabulary. Row 0 of a [N + 1, V] tensor belongs to
the last committed token, row i + 1 to node i.

p and q are the processed distributions (temperature, top-k, top-p) of target and draft at one and the same prefix.
"""

from dataclasses import dataclass

import torch

from specdemo.engine.drafters import Draft
from specdemo.engine.sampling import Randomness, distribution, log_probs, margins
from specdemo.engine.types import Sampling


@dataclass(frozen=True, slots=True)
class Verdict:
    """path: accepted nodes from the root down. tested: nodes that reached a test, in order, each with the target's
    probability of it. token: the target's own correction (a node was rejected) or bonus (none was), at the end of
    the path; None if it is still to be decided."""

    path: tuple[int, ...]
    tested: dict[int, float]
    token: int | None


def verify(draft: Draft, logits: torch.Tensor, sampling: Sampling, rng: Randomness) -> Verdict:
    """Accept the part of `draft` that the target stands behind and add the target's own token.

    logits: the target's, [N + 1, V]. Lossless: greedy commits exactly the target's argmax ids, sampling commits
    tokens distributed exactly as the target's own.
    """
    if sampling.greedy:
        return _verify_greedy(draft, logits)
    return _verify_sampling(draft, distribution(logits, sampling), rng)


def certain(verdict: Verdict, logits: torch.Tensor, margin: float) -> Verdict:
    """The part of a greedy verdict before its first decision with a top-2 margin below `margin`; logits [N + 1, V]."""
    rows = [0, *(i + 1 for i in verdict.path)]
    doubtful = (margins(logits[rows]) < margin).tolist()
    if not any(doubtful):
        return verdict
    path = verdict.path[: doubtful.index(True)]
    tested = list(verdict.tested)
    known = tested[: tested.index(path[-1]) + 1] if path else []
    return Verdict(path, {i: verdict.tested[i] for i in known}, None)


def _verify_greedy(draft: Draft, logits: torch.Tensor) -> Verdict:
    """Accept the child that is the argmax; the lowest id wins a tie, as torch.argmax guarantees."""
    choices = logits.argmax(-1).tolist()
    path: list[int] = []
    tested: list[int] = []
    at = -1
    while True:
        wanted = choices[at + 1]
        for child in draft.children(at):
            tested.append(child)
            if draft.tokens[child] == wanted:
                path.append(child)
                at = child
                break
        else:
            rows = [draft.parents[i] + 1 for i in tested]
            p = log_probs(logits[rows], [draft.tokens[i] for i in tested]).exp()
            return Verdict(tuple(path), dict(zip(tested, p.tolist(), strict=True)), wanted)


def _verify_sampling(draft: Draft, p: torch.Tensor, rng: Randomness) -> Verdict:
    """Rejection sampling down the tree.

    A child x ~ q is accepted with probability min(1, p(x) / q(x)); a rejection leaves norm(max(0, p - q)) to its
    next sibling, which was drawn from q without x. A child without a distribution is a point mass: accepted with
    probability p(x), else x is taken out of p.
    Sources: Leviathan et al. 2023, algorithm 1; Miao et al. 2024 (SpecInfer), algorithm 2; for siblings drawn
    without replacement Jeon et al. 2024 (recursive speculative decoding), section 3.2.
    """
    path: list[int] = []
    tested: dict[int, float] = {}
    at = -1
    while True:
        rest = p[at + 1]
        q = None
        for child in draft.children(at):
            x = draft.tokens[child]
            tested[child] = float(p[at + 1, x])
            if draft.probs is not None and q is None:
                q = draft.probs[child].to(rest)
            if rng.uniform() * (1.0 if q is None else float(q[x])) < float(rest[x]):
                path.append(child)
                at = child
                break
            rest = _residual(rest, q, x)
            q = None if q is None else without(q, x)
        else:
            return Verdict(tuple(path), tested, rng.choose(rest))


def _residual(p: torch.Tensor, q: torch.Tensor | None, x: int) -> torch.Tensor:
    """norm(max(0, p - q)) [V] after x was rejected; p itself where rounding left nothing of it."""
    rest = _zeroed(p, x) if q is None else (p - q).clamp(min=0)
    total = rest.sum()
    return rest / total if total > 0 else p


def without(q: torch.Tensor, x: int) -> torch.Tensor:
    """q [V] given that x was not drawn."""
    rest = _zeroed(q, x)
    total = rest.sum()
    return rest / total if total > 0 else rest


def _zeroed(probs: torch.Tensor, x: int) -> torch.Tensor:
    rest = probs.clone()
    rest[x] = 0
    return rest
