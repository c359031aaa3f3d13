"""Runs the benchmark's cases on the real models; measure/results.py says what a case and a row are."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from itertools import groupby
from threading import Event
from time import perf_counter
from typing import Any

import torch
from transformers import StoppingCriteriaList
from transformers.generation.streamers import BaseStreamer

from specdemo.config import Limits
from specdemo.engine.decode import scores, synchronize
from specdemo.engine.race import race
from specdemo.engine.types import Finish, Origin, Token
from specdemo.measure import memory
from specdemo.measure.metrics import Tally
from specdemo.measure.results import PLAIN, BenchError, Book, Case, Plan, Row, is_peer, row, tally_of
from specdemo.models.load import Loaded
from specdemo.request import RaceRequest, RequestError, checked
from specdemo.run import Run, load_for

WARM_TOKENS = 8
LOOKUP = 10  # tokens of transformers' prompt lookup where no number is given: it has no default, its guide takes 10


def bench(plan: Plan, book: Book, limits: Limits, pairs: Collection[str], cancelled: Event) -> Iterator[Row]:
    """Measure what the book does not have yet; yields rows once their whole heat is in the book.

    Stops when cancelled. Raises RequestError where a case cannot be run, before anything is measured for it.
    """
    cases = plan.cases()
    for case in cases:
        _asked(case, plan, limits, pairs)  # what cannot be asked is refused before anything is measured
    models: tuple[str, str] | None = None
    for _, heat in groupby((case for case in cases if not book.get(case.key)), key=lambda case: case.heat):
        if cancelled.is_set():
            return
        together = list(heat)
        if models != (together[0].dtype, together[0].quantization):
            models = (together[0].dtype, together[0].quantization)
            _warm(plan, together[0], limits, pairs, cancelled)
        yield from _heat(together, plan, book, limits, pairs, cancelled)


def _heat(
    cases: Sequence[Case], plan: Plan, book: Book, limits: Limits, pairs: Collection[str], cancelled: Event
) -> list[Row]:
    """Measure one heat; its rows, which are in the book by then, and none if cancelled.

    Whatever holds the models ends here, so that the next precision finds their memory free.
    """
    runs = {case: _run(case, plan, limits, pairs) for case in cases}
    first = cases[0]
    taken = {first: _generate(first, runs[first], cancelled)} if is_peer(first.mode) else _race(runs, cancelled)
    if cancelled.is_set():
        return []  # half an answer is no row
    found: list[Row] = []
    for case, tally in taken.items():
        plain = book.get(case.reference)
        measured = row(
            case,
            tally,
            tally_of(plain) if plain else tally,
            greedy=runs[case].task.sampling.greedy,
            dtype=runs[case].loaded.dtype,
            target_weights_mb=runs[case].target_bytes / memory.MB,
            draft_weights_mb=_draft_bytes(case, runs[case]) / memory.MB,
            cache_mb=None if is_peer(case.mode) else tally.cache_bytes / memory.MB,
        )
        book.add(measured)
        found.append(measured)
    return found


def _asked(case: Case, plan: Plan, limits: Limits, pairs: Collection[str], **changes: Any) -> RaceRequest:
    settings = plan.settings or {}
    quantization, _, quantize = case.quantization.partition(":")
    return checked(
        limits,
        pairs,
        **settings
        | {"prompt": case.prompt.text, "dtype": case.dtype, "quantization": quantization}
        | ({"quantize": quantize} if quantize else {})
        | ({"mode": case.mode, "draft_length": case.draft_length} if case.draft_length else {"mode": "ngram"})
        | changes,
    )


def _run(case: Case, plan: Plan, limits: Limits, pairs: Collection[str], **changes: Any) -> Run:
    asked = _asked(case, plan, limits, pairs, **changes)
    return Run(asked, load_for(asked), Event())


def _draft_bytes(case: Case, run: Run) -> int:
    """Weights that are needed beside the target's: our drafter's, or transformers' assistant's."""
    assistant = _peer_options(case.mode, run.loaded).get("assistant_model") if is_peer(case.mode) else None
    if assistant is not None:
        return memory.weight_bytes(run.loaded.target, assistant) - run.target_bytes
    return 0 if case.draft_length is None else run.draft_bytes


def _race(runs: Mapping[Case, Run], cancelled: Event) -> dict[Case, Tally]:
    """All answers at once, a step of one and a step of another: a slow moment of the machine hits all of them alike.

    The caches of all paths are held meanwhile.
    """
    paths = {case: run.paths[PLAIN if case.mode == PLAIN else "speculative"] for case, run in runs.items()}
    tallies = {case: Tally() for case in runs}
    for case, step in race(paths, cancelled):
        tallies[case].add(step)
        if step.finish is Finish.FAILED:
            raise BenchError(f"{case.mode} broke on prompt {case.prompt.id!r}: {step.note}")
    return tallies


def _warm(plan: Plan, first: Case, limits: Limits, pairs: Collection[str], cancelled: Event) -> None:
    """A few tokens in every mode: whoever comes first must not pay for what is set up only once."""
    for case in plan.cases():
        if (case.dtype, case.quantization, case.prompt, case.repeat) == (
            first.dtype,
            first.quantization,
            first.prompt,
            first.repeat,
        ):
            run = _run(case, plan, limits, pairs, max_new_tokens=WARM_TOKENS)
            _generate(case, run, cancelled) if is_peer(case.mode) else _race({case: run}, cancelled)


class _Watch(BaseStreamer):
    """Notes when each batch of new tokens was there."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.ends: list[tuple[int, float]] = []
        self._prompt = True
        self._began = perf_counter()

    def put(self, value: torch.Tensor) -> None:
        if self._prompt:
            self._prompt = False
            return
        synchronize(self.device)
        before = self.ends[-1][0] if self.ends else 0
        self.ends.append((before + value.numel(), perf_counter() - self._began))

    def end(self) -> None:
        pass


def _generate(case: Case, run: Run, cancelled: Event) -> Tally:
    """What transformers' generate() makes of the same task, with the same weights and kernels."""
    loaded, task = run.loaded, run.task
    model: Any = loaded.target  # transformers' own annotations hide generate()
    options = _peer_options(case.mode, loaded)
    ids = torch.tensor([task.prompt], device=model.device)
    sampling = task.sampling
    if not sampling.greedy:
        torch.manual_seed(task.seed)
        options |= {"temperature": sampling.temperature, "top_p": sampling.top_p, "top_k": sampling.top_k}
    watch = _Watch(model.device)
    answer = model.generate(
        ids,
        attention_mask=torch.ones_like(ids),
        max_new_tokens=task.max_new_tokens,
        do_sample=not sampling.greedy,
        repetition_penalty=sampling.repetition_penalty,
        streamer=watch,
        stopping_criteria=StoppingCriteriaList([lambda ids, _: torch.full(ids.shape[:1], cancelled.is_set())]),
        **options,
    )[0]
    new = answer[ids.shape[1] :].tolist()
    ends = [(min(count, len(new)), seconds) for count, seconds in watch.ends]  # a draft may overrun the answer's end
    tally = Tally(latency_s=ends[-1][1], ttft_s=ends[0][1], ends=ends, first=ends[0][0])
    with torch.inference_mode():
        logits = model(answer[None, :-1]).logits[0, ids.shape[1] - 1 :]
    found = zip(new, *scores(logits, logits, new), strict=True)
    tally.committed = [Token(id, Origin.TARGET, logprob, margin) for id, logprob, margin in found]
    tally.finish = Finish.EOS if new[-1] in loaded.eos else Finish.LENGTH
    return tally


def _peer_options(mode: str, loaded: Loaded) -> dict[str, Any]:
    """What generate() is told for a mode of transformers."""
    way, _, count = mode.removeprefix("transformers ").partition(":")
    if way == "prompt lookup":
        return {"prompt_lookup_num_tokens": int(count or LOOKUP)}
    if way == "assisted":
        if loaded.draft is None:
            raise RequestError(
                f"mode: {mode} needs a draft model, and pair {loaded.pair.name!r} has none; give --draft"
            )
        return {"assistant_model": _assistant(loaded.draft, int(count) if count else None)}
    return {}


def _assistant(draft: Any, count: int | None) -> Any:
    """The pair's draft model as an assistant; count None leaves transformers' own settings."""
    settings = draft.generation_config
    settings.num_assistant_tokens = count
    settings.num_assistant_tokens_schedule = None if count is None else "constant"
    settings.assistant_confidence_threshold = None if count is None else 0.0
    return draft
