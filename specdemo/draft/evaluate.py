"""What drafting brings on the embedded target: tokens per step and speed-up, by mode and kind of prompt.

Every prompt is answered once plainly and once in every mode, in one run, each by its own clock; greedy.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from statistics import geometric_mean
from time import perf_counter
from typing import Any

import torch

from specdemo import modes
from specdemo.engine.cache import CachedModel
from specdemo.engine.decode import NOTHING, plain, speculative, synchronize
from specdemo.engine.drafters import Drafter
from specdemo.engine.head import HeadDraft
from specdemo.engine.ngram import NgramModel
from specdemo.engine.race import timed
from specdemo.engine.sampling import Randomness
from specdemo.engine.types import Outcome, Step, Task
from specdemo.measure.metrics import Tally
from specdemo.models.load import Loaded
from specdemo.modes import Build
from specdemo.text import encode

PLAIN = "plain"


@dataclass(frozen=True, slots=True)
class Row:
    """One answer. depths[d]: steps that kept more than d drafted tokens; ids: what was committed."""

    id: str
    kind: str
    mode: str
    tokens: int
    steps: int
    drafted: int
    seconds: float
    draft_seconds: float
    depths: tuple[int, ...]
    ids: tuple[int, ...]


def _head_alone(loaded: Loaded, target: CachedModel, task: Task, rng: Randomness) -> Drafter:
    return HeadDraft(CachedModel(loaded.head, keep_states=True), target, NgramModel(loaded.ngram), alone=True)


DRAFTERS: dict[str, Build] = {str(mode): build for mode, build in modes.DRAFTERS.items()} | {"head": _head_alone}


def evaluate(
    loaded: Loaded, prompts: Sequence[dict[str, str]], named: Sequence[str], tokens: int, budgets: Sequence[int]
) -> Iterator[Row]:
    """Rows for every prompt ({id, kind, prompt}), the plain one first, then each mode with each node budget.

    Peers of transformers: "lookup:N" is its prompt lookup with N tokens, "assisted:N" its assisted generation with the
    pair's draft model.
    """
    for prompt in prompts:
        task = Task(tuple(encode(loaded.tokenizer, prompt["prompt"], chat=True)), tokens, loaded.eos)
        rng = Randomness(0, loaded.target.device)
        yield _row(prompt, PLAIN, loaded, plain(CachedModel(loaded.target), task, rng))
        for mode in named:
            peer, _, count = mode.partition(":")
            if peer == "lookup":
                yield _generate(prompt, mode, loaded, task, prompt_lookup_num_tokens=int(count))
                continue
            if peer == "assisted":
                yield _generate(prompt, mode, loaded, task, assistant_model=_assistant(loaded, int(count)))
                continue
            for budget in budgets:
                target = CachedModel(loaded.target)
                path = speculative(target, DRAFTERS[mode](loaded, target, task, rng), task, budget, rng)
                yield _row(prompt, f"{mode}:{budget}", loaded, path)


def _row(prompt: dict[str, str], mode: str, loaded: Loaded, path: Iterator[Step]) -> Row:
    tally, depths = Tally(), [0] * 64
    for step in timed(path, lambda: synchronize(loaded.target.device), lambda: (0, 0)):
        tally.add(step)
        kept = sum(node.outcome is Outcome.ACCEPTED for node in step.nodes)
        for depth in range(kept):
            depths[depth] += 1
    return Row(
        prompt["id"],
        prompt["kind"],
        mode,
        tally.tokens,
        tally.steps,
        tally.drafted,
        tally.latency_s,
        tally.draft_s,
        tuple(depths[: next((i for i, n in enumerate(depths) if not n), 0)]),
        tuple(tally.token_ids),
    )


def _generate(prompt: dict[str, str], mode: str, loaded: Loaded, task: Task, **options: Any) -> Row:
    """What transformers' generate() makes of the same task."""
    model: Any = loaded.target  # transformers' own annotations hide generate()
    ids = torch.tensor([task.prompt], device=loaded.target.device)
    synchronize(loaded.target.device)
    began = perf_counter()
    answer = model.generate(
        ids, attention_mask=torch.ones_like(ids), max_new_tokens=task.max_new_tokens, do_sample=False, **options
    )
    synchronize(loaded.target.device)
    seconds = perf_counter() - began
    new = tuple(answer[0, ids.shape[1] :].tolist())
    return Row(prompt["id"], prompt["kind"], mode, len(new), 0, 0, seconds, 0.0, (), new)


def _assistant(loaded: Loaded, count: int) -> Any:
    """The pair's draft model, told to draft `count` tokens each time."""
    settings: Any = loaded.draft.generation_config if loaded.draft else None
    settings.num_assistant_tokens = count
    settings.num_assistant_tokens_schedule = "constant"
    settings.assistant_confidence_threshold = 0.0
    return loaded.draft


@dataclass(frozen=True, slots=True)
class Summary:
    """Of one mode over some prompts. speed_up: geometric mean of plain latency / latency, by prompt.

    positions[d]: share of steps that kept more than d drafted tokens. identical: answers equal to the plain one's.
    """

    mode: str
    prompts: int
    speed_up: float
    lowest: float
    tokens_per_step: float | None
    drafted_per_step: float | None
    draft_share: float
    positions: tuple[float, ...]
    identical: int


def summaries(rows: Sequence[Row]) -> list[Summary]:
    """One for each mode, in the order in which they came. tokens per step: mean over prompts of each one's own."""
    reference = {row.id: row for row in rows if row.mode == PLAIN}
    found = []
    for mode in dict.fromkeys(row.mode for row in rows if row.mode != PLAIN):
        own = [row for row in rows if row.mode == mode]
        ratios = [reference[row.id].seconds / row.seconds for row in own]
        steps = sum(row.steps for row in own)
        depth = max((len(row.depths) for row in own), default=0)
        kept = [sum(row.depths[d] for row in own if d < len(row.depths)) for d in range(depth)]
        found.append(
            Summary(
                mode,
                len(own),
                geometric_mean(ratios),
                min(ratios),
                sum(row.tokens / row.steps for row in own) / len(own) if steps else None,
                sum(row.drafted for row in own) / steps if steps else None,
                sum(row.draft_seconds for row in own) / sum(row.seconds for row in own),
                tuple(n / steps for n in kept) if steps else (),
                sum(row.ids == reference[row.id].ids for row in own),
            )
        )
    return found


def simulate(drafter: Drafter, rows: Sequence[tuple[Sequence[int], int]], budget: int) -> tuple[int, int]:
    """(tokens, steps) of speculation over known greedy answers, given as (ids, where the answer begins).

    Exact for a drafter that reads ids only: what the target would say is known, so no model has to run.
    """
    tokens = steps = 0
    for ids, start in rows:
        drafter.begin(ids[:start])
        at, steps = start + 1, steps + 1  # the first token after the prompt is the target's own
        while at < len(ids):
            draft = drafter.propose(ids[:at], min(budget, len(ids) - at - 1)) if len(ids) - at > 1 else NOTHING
            node = -1
            while at < len(ids):
                wanted = [child for child in draft.children(node) if draft.tokens[child] == ids[at]]
                if not wanted:
                    break
                node, at = wanted[0], at + 1
            at += 1  # the target's own token
            steps += 1
        tokens += len(ids) - start
    return tokens, steps
