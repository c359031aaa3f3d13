"""Tokens per step of a drafter that reads ids only, over answers that are known already: exact, and no model runs."""

from __future__ import annotations

from collections.abc import Sequence

from specdemo.engine.decode import NOTHING
from specdemo.engine.drafters import Drafter


def simulate(drafter: Drafter, rows: Sequence[tuple[Sequence[int], int]], budget: int) -> tuple[int, int, int]:
    """(tokens, steps, nodes) of speculation over known greedy answers, given as (ids, where the answer begins)."""
    tokens = steps = nodes = 0
    for ids, start in rows:
        drafter.begin(ids[:start])
        at, steps = start + 1, steps + 1  # the first token after the prompt is the target's own
        while at < len(ids):
            draft = drafter.propose(ids[:at], min(budget, len(ids) - at - 1)) if len(ids) - at > 1 else NOTHING
            nodes += len(draft.tokens)
            node = -1
            while at < len(ids):
                wanted = [child for child in draft.children(node) if draft.tokens[child] == ids[at]]
                if not wanted:
                    break
                node, at = wanted[0], at + 1
            at += 1  # the target's own token
            steps += 1
        tokens += len(ids) - start
    return tokens, steps, nodes
