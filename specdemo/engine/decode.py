"""The two loops: `plain` and `speculative`, generators of `Step`.

They know ids only, not text; they know nothing of the other path, of clocks beyond their own stopwatch, or of who
reads them. After every step that commits tokens the target's cache holds all tokens but the last.
"""

from collections.abc import Generator, Iterator, Sequence
from dataclasses import replace
from time import perf_counter

import torch

from specdemo.engine.cache import CachedModel
from specdemo.engine.drafters import Draft, Drafter
from specdemo.engine.sampling import Randomness, log_probs, margins, penalised
from specdemo.engine.types import RECHECKED, Finish, Node, Origin, Outcome, Step, Task, Token
from specdemo.engine.verify import Verdict, certain, verify

NOTHING = Draft()
AGAIN = Draft(note=RECHECKED)


@torch.inference_mode()
def plain(target: CachedModel, task: Task, rng: Randomness) -> Iterator[Step]:
    """One token a target pass: the baseline. It decides with the same function as the speculative path."""
    if task.max_new_tokens == 0:
        return
    watch = Stopwatch(target.device)
    ids = list(task.prompt)
    # 1. Prefill.
    logits = yield from prefill(target, task, watch)
    while True:
        # 2. Choose one token.
        decided = penalised(logits, ids, [()], task.sampling.repetition_penalty)
        step = _commit(NOTHING, verify(NOTHING, decided, task.sampling, rng), logits, decided, ids, task)
        yield watch.stamped(step, target.cache_bytes)
        if step.finish:
            return
        # 3. Target pass.
        watch.start()
        logits = target.forward(ids[-1:])
        watch.lap("verify")


@torch.inference_mode()
def speculative(
    target: CachedModel, drafter: Drafter, task: Task, draft_length: int, rng: Randomness
) -> Iterator[Step]:
    """Draft up to `draft_length` nodes, verify them in one target pass, keep what the target stands behind.

    Source: Leviathan et al. 2023, section 2.3; Chen et al. 2023, algorithm 2. The first step verifies nothing: it
    commits the target's token after the prompt, so that both paths reach their first token after the same work,
    apart from what the drafter needs to read the prompt. With task.recheck, what is decided from passes other than
    plain decoding's own and is nearly a tie is decided again from plain decoding's own passes, see `_alone`.
    """
    if task.max_new_tokens == 0:
        return
    watch = Stopwatch(target.device)
    ids = list(task.prompt)
    strict = task.recheck > 0 and task.sampling.greedy
    # 1. Prefill of every model involved.
    logits = yield from prefill(target, task, watch)
    drafter.begin(task.prompt)
    watch.lap("draft")
    draft = NOTHING
    own = len(target)  # positions whose keys and values came from passes such as plain decoding makes
    while True:
        # 2. Accept and commit.
        decided = penalised(logits, ids, [(), *draft.paths()], task.sampling.repetition_penalty)
        verdict, start = verify(draft, decided, task.sampling, rng), len(ids) - 1
        if strict and own < len(target):
            verdict = certain(verdict, decided, task.recheck)
            if verdict.token is None and not draft.tokens:
                draft = AGAIN  # a pass in vain is told from a part of the prefill by its note
        step = _commit(draft, verdict, logits, decided, ids, task)
        # 3. Keep the accepted path and roll the rest back: the cache holds all tokens but the last.
        target.keep(start, [0, *(i + 1 for i in verdict.path)][: len(ids) - 1 - start])
        yield watch.stamped(step, target.cache_bytes + drafter.cache_bytes)
        if step.finish:
            return
        watch.start()
        # 4. Decide a near-tie again.
        if verdict.token is None:
            logits = yield from _alone(target, ids, own, drafter.cache_bytes, watch)
            draft, own = AGAIN, len(target)
            continue
        # 5. Draft. One place is left for the target's own token.
        left = task.max_new_tokens - (len(ids) - len(task.prompt))
        room = min(draft_length, left - 1, target.context - len(ids))
        draft = drafter.propose(ids, room) if room > 0 else NOTHING
        watch.lap("draft")
        # 6. Target pass over the last token and the draft.
        alike = not draft.tokens and own == len(target)
        logits = target.forward([ids[-1], *draft.tokens], draft.rows if draft.tokens else None)
        own = len(target) if alike else own
        watch.lap("verify")


def prefill(target: CachedModel, task: Task, watch: "Stopwatch") -> Generator[Step, None, torch.Tensor]:
    """Read the prompt; yields an empty step for every chunk but the last, returns the last logits [1, V]."""
    watch.start()
    chunks = target.prefill(task.prompt)
    while True:
        logits = next(chunks)
        watch.lap("verify")
        if len(target) == len(task.prompt):
            return logits
        yield watch.stamped(Step(()), target.cache_bytes)
        watch.start()


def _alone(
    target: CachedModel, ids: Sequence[int], own: int, drafter_bytes: int, watch: "Stopwatch"
) -> Generator[Step, None, torch.Tensor]:
    """Read `ids` behind the first `own` positions again, one token a pass, as plain decoding did; logits [1, V].

    A kernel for several rows rounds otherwise than the one for a single row, and what it rounded lives on in the keys
    and values that later tokens read. So the last pass alone is not enough: all passes since the cache was last plain
    decoding's own are made again. Yields an empty step for each pass but the last.
    """
    target.keep(own)
    while True:
        logits = target.forward([ids[len(target)]])
        watch.lap("verify")
        if len(target) == len(ids):
            return logits
        yield watch.stamped(Step((), note=RECHECKED), target.cache_bytes + drafter_bytes)
        watch.start()


def _commit(
    draft: Draft, verdict: Verdict, logits: torch.Tensor, decided: torch.Tensor, ids: list[int], task: Task
) -> Step:
    """Append what was accepted and the target's own token to `ids`, cut where the answer ends.

    Sets each token's origin, here and nowhere else. logits [N + 1, V]: the target's; decided: with penalties.
    """
    chosen = [draft.tokens[i] for i in verdict.path]
    origins = [draft.origins[i] for i in verdict.path]
    if verdict.token is not None:
        chosen.append(verdict.token)
        origins.append(Origin.TARGET)
    kept, finish = end_of_answer([*ids[len(task.prompt) :], *chosen], len(chosen), task)
    rows = [0, *(i + 1 for i in verdict.path)][:kept]
    ids += chosen[:kept]
    tokens = tuple(map(Token, chosen[:kept], origins, *scores(logits[rows], decided[rows], chosen[:kept])))
    return Step(tokens, _nodes(draft, verdict, kept), finish=finish, note=draft.note)


def end_of_answer(answer: Sequence[int], new: int, task: Task) -> tuple[int, Finish | None]:
    """How many of the `new` ids at the end of `answer` are kept, and why it ends there: the reason that comes first."""
    before = len(answer) - new
    ends = [(task.max_new_tokens, Finish.LENGTH)]
    ends += [(i + 1, Finish.EOS) for i in range(before, len(answer)) if answer[i] in task.eos][:1]
    stop = task.stop(answer, new) if task.stop and new else None
    if stop is not None:
        ends.append((stop, Finish.STOP))
    end, finish = min(ends, key=lambda end: (end[0], ORDER.index(end[1])))
    return (end - before, finish) if end <= len(answer) else (new, None)


ORDER = (Finish.EOS, Finish.STOP, Finish.LENGTH)  # what counts where two reasons meet at one token


def scores(logits: torch.Tensor, decided: torch.Tensor, chosen: list[int]) -> tuple[list[float], list[float]]:
    """Log-probability of each chosen id under its row of logits [N, V], and each decision's top-2 margin."""
    return log_probs(logits, chosen).tolist(), margins(decided).tolist()


def _nodes(draft: Draft, verdict: Verdict, kept: int) -> tuple[Node, ...]:
    """What was drafted and what became of it. A node behind the cut of an answer's end counts as never tested."""
    accepted = set(verdict.path[:kept])
    tested = list(verdict.tested)
    if 0 < kept <= len(verdict.path):
        tested = tested[: tested.index(verdict.path[kept - 1]) + 1]
    p = {i: verdict.tested[i] for i in tested}
    return tuple(
        Node(
            id=token,
            parent=draft.parents[i],
            origin=draft.origins[i],
            outcome=Outcome.ACCEPTED if i in accepted else Outcome.REJECTED if i in p else Outcome.UNTESTED,
            p=p.get(i),
            q=draft.confidence[i],
        )
        for i, token in enumerate(draft.tokens)
    )


class Stopwatch:
    """Own-clock time of the parts of one step, the device synchronised at every reading."""

    def __init__(self, device: torch.device) -> None:
        self._device = device

    def start(self) -> None:
        """Begin a step: called right after the path was resumed, so time spent elsewhere is not counted."""
        self._seconds = {"draft": 0.0, "verify": 0.0}
        self._last = self._now()

    def lap(self, part: str) -> None:
        """Book the time since the last reading on `part`, "draft" or "verify"."""
        now = self._now()
        self._seconds[part] += now - self._last
        self._last = now

    def stamped(self, step: Step, cache_bytes: int) -> Step:
        return replace(step, draft_s=self._seconds["draft"], verify_s=self._seconds["verify"], cache_bytes=cache_bytes)

    def _now(self) -> float:
        synchronize(self._device)
        return perf_counter()


def synchronize(device: torch.device) -> None:
    """Wait for the work queued on an accelerator; the CPU has no queue."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    elif device.type == "mps":
        torch.mps.synchronize()
