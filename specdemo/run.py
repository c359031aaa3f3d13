"""One run: a request turned into a race on a loaded pair, and what came of it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial
from threading import Event
from typing import Any

from specdemo import device
from specdemo.config import NEEDS, SCORE
from specdemo.engine.cache import CachedModel
from specdemo.engine.decode import plain, speculative, synchronize
from specdemo.engine.race import broken, race, survivable, timed
from specdemo.engine.sampling import Randomness
from specdemo.engine.score import draft_then_score
from specdemo.engine.types import Finish, Sampling, Step, Task
from specdemo.measure import memory
from specdemo.measure.machine import machine
from specdemo.measure.metrics import Tally
from specdemo.measure.recording import Recording
from specdemo.measure.scoreboard import NEAR_TIE
from specdemo.measure.trace import PATHS, Trace
from specdemo.models import size
from specdemo.models.load import DraftError, Loaded, load, resolve_dtype
from specdemo.models.pairs import GB, PAIRS, ROOM, Pair
from specdemo.models.quantize import Quantization
from specdemo.modes import DRAFTERS
from specdemo.request import RaceRequest, RequestError
from specdemo.text import Stops, TextStream, decode, encode


def named(request: RaceRequest) -> tuple[Pair, Quantization]:
    """The pair that a checked request names, and how its weights are to be quantized.

    A target of one's own stands alone, without the pair's draft. A draft of one's own takes the place of the pair's
    draft, whether that is a model or a head.
    """
    pair = PAIRS[request.pair]
    if request.target is not None:
        pair = Pair(request.target, request.target, request.target)
    if request.draft is not None:
        pair = replace(pair, name=f"{pair.name} + {request.draft}", draft=request.draft, head=None)
    return pair, Quantization(request.quantization, request.quantize == "both", request.double_quantization)


def load_for(request: RaceRequest, drafting: bool = True) -> Loaded:
    """The pair that a checked request names, loaded; drafting=False leaves out all that drafts. Raises LoadError."""
    pair, quantization = named(request)
    if not drafting:
        pair = replace(pair, draft=None, head=None, ngram=None)
    return load(pair, resolve_dtype(request.dtype, device.pick()), quantization)


def started(request: RaceRequest, cancelled: Event) -> Run:
    """The run of a checked request. Raises LoadError, or RequestError if the request does not fit the pair.

    Where all that is wrong is that the draft cannot be loaded, the plain path runs and the other says why it does not.
    """
    try:
        return Run(request, load_for(request), cancelled)
    except DraftError as reason:
        return Run(request, load_for(request, drafting=False), cancelled, broken=str(reason))


@dataclass(frozen=True, slots=True)
class Taken:
    """One step of one path, in plain values. pieces: the text of each token. words: the text of each drafted id."""

    path: str
    step: Step
    pieces: list[str]
    words: dict[int, str]


class Run(Recording):
    """One race. Iterate it for (path name, step); figures, texts and trace grow as it goes on.

    Raises RequestError at once if the request does not fit the pair. broken: why nothing can be drafted; the
    speculative path then only says so.
    """

    def __init__(self, request: RaceRequest, loaded: Loaded, cancelled: Event, broken: str | None = None) -> None:
        self.request = request
        self.loaded = loaded
        self.process_bytes, self.device_bytes = memory.process_bytes(), 0
        self.target_bytes = memory.weight_bytes(loaded.target)
        self.draft_bytes = 0  # the mode's drafter counts
        self._streams = {name: TextStream(loaded.tokenizer) for name in PATHS}
        self._cancelled = cancelled
        self._broken = broken
        self.task = self._make_task()
        self.paths = self._make_paths()
        trace = Trace(
            settings=request.model_dump() | {"dtype": loaded.dtype},
            models={
                "pair": loaded.pair.name,
                "target": loaded.pair.target,
                "draft": loaded.pair.draft,
                "target_weight_bytes": self.target_bytes,
                "draft_weight_bytes": self.draft_bytes,
            },
            machine=machine(loaded.target.device),
            pieces={name: [] for name in PATHS},
        )
        super().__init__(trace)

    def __iter__(self) -> Iterator[tuple[str, Step]]:
        for taken in self.taken():
            self.add(taken)
            yield taken.path, taken.step

    def taken(self) -> Iterator[Taken]:
        """Run the race and keep nothing of it: whoever has this run, or a copy of it, adds what comes."""
        for name, step in race(self.paths, self._cancelled):
            pieces = self._streams[name].push([token.id for token in step.tokens])
            if step.finish and pieces:
                pieces[-1] += self._streams[name].finish()
            words = {node.id: decode(self.loaded.tokenizer, [node.id]) for node in step.nodes}
            yield Taken(name, step, pieces, words)

    def add(self, taken: Taken) -> None:
        """Fold one step into figures, texts and trace."""
        self.take(taken.path, taken.step)
        self.process_bytes, self.device_bytes = taken.step.process_bytes, taken.step.device_bytes
        self.trace.steps.append((taken.path, taken.step))
        self.trace.pieces[taken.path] += taken.pieces
        self.trace.vocabulary |= taken.words

    def __getstate__(self) -> dict[str, Any]:
        """A copy for another process can add and tell, but not race: it leaves the models and all they hold behind."""
        told = {name: value for name, value in self.__dict__.items() if name not in ("paths", "_streams", "_cancelled")}
        return told | {"loaded": self.loaded.without_models()}

    def result(self) -> dict[str, Any]:
        """The outcome as one JSON object: what `race --json` prints and the API returns."""
        verdict = self.lossless
        ours, theirs = self.tallies["plain"], self.tallies["speculative"]
        return {
            "pair": self.loaded.pair.name,
            "mode": self.request.mode,
            "dtype": self.loaded.dtype,
            "quantization": str(self.loaded.quantization),
            "plain": self._answer(ours),
            "speculative": self._answer(theirs)
            | {
                "steps": theirs.steps,
                "drafted": theirs.drafted,
                "tested": theirs.tested,
                "accepted": theirs.accepted,
                "acceptance_rate": theirs.acceptance_rate,
                "tokens_per_step": theirs.tokens_per_step,
                "draft_s": theirs.draft_s,
                "verify_s": theirs.verify_s,
                "rechecked": theirs.rechecked,
                "origins": {str(origin): count for origin, count in theirs.origins.items()},
            },
            "speed_up": self.speed_up,
            "failure": self.failure,
            "lossless": {"verdict": verdict.verdict, "position": verdict.position, "margin": verdict.margin},
            "memory": {
                "target_weights_mb": self.target_bytes / memory.MB,
                "draft_weights_mb": self.draft_bytes / memory.MB,
                "plain_cache_mb": ours.cache_bytes / memory.MB,
                "speculative_cache_mb": theirs.cache_bytes / memory.MB,
                "process_mb": self.process_bytes / memory.MB,
                "device_mb": self.device_bytes / memory.MB,
            },
        }

    def _answer(self, tally: Tally) -> dict[str, Any]:
        return {
            "text": decode(self.loaded.tokenizer, tally.token_ids),
            "token_ids": tally.token_ids,
            "tokens": tally.tokens,
            "latency_s": tally.latency_s,
            "ttft_s": tally.ttft_s,
            "decode_tokens_per_s": tally.decode_tokens_per_s,
            "score": tally.score,
        }

    def _make_task(self) -> Task:
        request, loaded = self.request, self.loaded
        chat = request.chat_template and bool(loaded.tokenizer.chat_template)
        try:
            prompt = encode(loaded.tokenizer, request.prompt, chat)
        except ValueError as error:
            raise RequestError(str(error)) from error
        self._check_room(len(prompt), loaded.context, "model")
        self._check_memory(len(prompt) + request.max_new_tokens)
        return Task(
            tuple(prompt),
            request.max_new_tokens,
            loaded.eos,
            Sampling(request.temperature, request.top_k, request.top_p, request.repetition_penalty),
            request.seed,
            Stops(loaded.tokenizer, request.stop) if request.stop else None,
            NEAR_TIE["int8" if loaded.quantization.kind == "int8" else loaded.dtype] if request.exact else 0.0,
        )

    def _check_room(self, prompt: int, context: int, whose: str) -> None:
        room = context - self.request.max_new_tokens
        if prompt > room:
            raise RequestError(
                f"prompt: has {prompt:,} tokens; with {self.request.max_new_tokens} new ones the {whose}'s context of "
                f"{context:,} leaves room for {max(room, 0):,}; shorten it"
            )

    def _check_memory(self, tokens: int) -> None:
        """The preflight reckons with a length of its own; this is the one that was asked for."""
        models = [(self.loaded.target, 2), (self.loaded.draft, 1)]  # both paths have a cache of the target
        needed = sum(
            caches * size.cached_numbers(model.config) * tokens * model.dtype.itemsize
            for model, caches in models
            if model is not None
        )
        free = memory.free_bytes(self.loaded.target.device)
        if needed > ROOM * free:
            raise RequestError(
                f"max_new_tokens: the caches of {tokens:,} tokens take {needed / GB:.1f} GB, and of {free / GB:.1f} GB "
                f"of free memory at most {ROOM * free / GB:.1f} may be filled; ask for fewer, or shorten the prompt"
            )

    def _make_paths(self) -> dict[str, Iterator[Step]]:
        loaded, task, on = self.loaded, self.task, self.loaded.target.device
        paths = {
            "plain": survivable(plain(CachedModel(loaded.target), task, Randomness(task.seed, on))),
            "speculative": self._survivable(),
        }
        synced = partial(synchronize, on)

        def usage() -> tuple[int, int]:
            return memory.process_bytes(), memory.device_bytes(on)

        return {name: timed(path, synced, usage) for name, path in paths.items()}

    def _survivable(self) -> Iterator[Step]:
        """The speculative path, which may break, even before its first step, without taking the plain one along."""
        try:
            return survivable(self._speculative())
        except RequestError:
            raise
        except Exception as error:
            return iter([broken(error)])

    def _speculative(self) -> Iterator[Step]:
        """The path of the mode; also counts what it holds in memory beside the target's weights."""
        loaded, task, mode = self.loaded, self.task, self.request.mode
        if self._broken:
            return iter([Step((), finish=Finish.FAILED, note=self._broken)])
        if NEEDS[mode] and not any(getattr(loaded, need) is not None for need in NEEDS[mode]):
            needed = " or ".join({"draft": "a draft model", "head": "a draft head"}[need] for need in NEEDS[mode])
            raise RequestError(
                f"mode: {mode} needs {needed}; pair {loaded.pair.name!r} has none; choose another mode, or give a draft"
            )
        # Draft and verification share one source: two sources of equal seed would not be independent.
        rng = Randomness(task.seed, loaded.target.device)
        target = CachedModel(loaded.target)
        if mode == SCORE and loaded.draft is not None:
            draft = CachedModel(loaded.draft)
            self._check_room(len(task.prompt), draft.context, "draft")
            self.draft_bytes = memory.weight_bytes(loaded.target, loaded.draft) - self.target_bytes
            return draft_then_score(target, draft, loaded.shared, task, rng)
        drafter = DRAFTERS[mode](loaded, target, task, rng)
        self.draft_bytes = memory.weight_bytes(loaded.target, *drafter.models) - self.target_bytes + drafter.table_bytes
        return speculative(target, drafter, task, self.request.draft_length, rng)
