"""One run: a request turned into a race on a loaded pair, and what came of it."""

from __future__ import annotations

import platform
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from threading import Event
from typing import Any

import torch
import transformers

from specdemo import __version__, device
from specdemo.config import Mode
from specdemo.engine.cache import CachedModel
from specdemo.engine.decode import plain, speculative, synchronize
from specdemo.engine.drafters import ChainDraft, Drafter, NgramDraft
from specdemo.engine.head import HeadDraft
from specdemo.engine.ngram import NgramModel
from specdemo.engine.race import race, timed
from specdemo.engine.sampling import Randomness
from specdemo.engine.types import Sampling, Step, Task
from specdemo.measure import memory
from specdemo.measure.metrics import Lossless, Tally, lossless, speed_up
from specdemo.measure.trace import Trace
from specdemo.models.load import Loaded, load, resolve_dtype
from specdemo.models.pairs import PAIRS
from specdemo.request import RaceRequest, RequestError
from specdemo.text import TextStream, decode, encode

PATHS = ("plain", "speculative")


def _tree(loaded: Loaded, target: CachedModel, task: Task, rng: Randomness) -> Drafter:
    if loaded.head is None:
        raise RequestError(f"mode: pair {loaded.pair.name!r} has no draft head; choose ngram, or chain with a draft")
    return HeadDraft(CachedModel(loaded.head, keep_states=True), target, NgramModel(loaded.ngram))


def _ngram(loaded: Loaded, target: CachedModel, task: Task, rng: Randomness) -> Drafter:
    return NgramDraft(NgramModel(loaded.ngram))


def _chain(loaded: Loaded, target: CachedModel, task: Task, rng: Randomness) -> Drafter:
    if loaded.draft is None:
        raise RequestError(f"mode: pair {loaded.pair.name!r} has no draft model; choose ngram or give a draft")
    return ChainDraft(CachedModel(loaded.draft), loaded.vocabulary, loaded.shared, task.sampling, rng)


MODES: dict[Mode, Callable[[Loaded, CachedModel, Task, Randomness], Drafter]] = {
    "tree": _tree,
    "ngram": _ngram,
    "chain": _chain,
}


def load_for(request: RaceRequest) -> Loaded:
    """The pair that a checked request names, loaded. Raises LoadError where that fails."""
    pair = PAIRS[request.pair]
    if request.draft is not None:
        pair = replace(pair, name=f"{pair.name} + {request.draft}", draft=request.draft)
    return load(pair, resolve_dtype(request.dtype, device.pick()))


@dataclass(frozen=True, slots=True)
class Taken:
    """One step of one path, in plain values. pieces: the text of each token. words: the text of each drafted id."""

    path: str
    step: Step
    pieces: list[str]
    words: dict[int, str]


class Run:
    """One race. Iterate it for (path name, step); figures, texts and trace grow as it goes on.

    Raises RequestError at once if the request does not fit the pair.
    """

    def __init__(self, request: RaceRequest, loaded: Loaded, cancelled: Event) -> None:
        self.request = request
        self.loaded = loaded
        self.tallies = {name: Tally() for name in PATHS}
        self.process_bytes = memory.process_bytes()
        self.target_bytes = memory.weight_bytes(loaded.target)
        self.draft_bytes = self._draft_bytes()
        self._streams = {name: TextStream(loaded.tokenizer) for name in PATHS}
        self._cancelled = cancelled
        self.task = self._make_task()
        self.paths = self._make_paths()
        self.trace = Trace(
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

    def __iter__(self) -> Iterator[tuple[str, Step]]:
        for taken in self.taken():
            self.add(taken)
            yield taken.path, taken.step

    def taken(self) -> Iterator[Taken]:
        """Run the race and keep nothing of it: whoever has this run, or a copy of it, adds what comes."""
        for name, step in race(self.paths, self._cancelled):
            pieces = self._streams[name].push([token.id for token in step.tokens])
            words = {node.id: decode(self.loaded.tokenizer, [node.id]) for node in step.nodes}
            yield Taken(name, step, pieces, words)

    def add(self, taken: Taken) -> None:
        """Fold one step into figures, texts and trace."""
        self.tallies[taken.path].add(taken.step)
        self.process_bytes = taken.step.process_bytes
        self.trace.steps.append((taken.path, taken.step))
        self.trace.pieces[taken.path] += taken.pieces
        self.trace.vocabulary |= taken.words

    def __getstate__(self) -> dict[str, Any]:
        """A copy for another process can add and tell, but not race: it leaves the models and all they hold behind."""
        told = {name: value for name, value in self.__dict__.items() if name not in ("paths", "_streams", "_cancelled")}
        return told | {"loaded": self.loaded.without_models()}

    @property
    def lossless(self) -> Lossless:
        return lossless(self.tallies["plain"], self.tallies["speculative"], self.task.sampling.greedy)

    @property
    def speed_up(self) -> float | None:
        return speed_up(self.tallies["plain"], self.tallies["speculative"])

    def result(self) -> dict[str, Any]:
        """The outcome as one JSON object: what `race --json` prints and the API returns."""
        verdict = self.lossless
        ours, theirs = self.tallies["plain"], self.tallies["speculative"]
        return {
            "pair": self.loaded.pair.name,
            "mode": self.request.mode,
            "dtype": self.loaded.dtype,
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
                "origins": {str(origin): count for origin, count in theirs.origins.items()},
            },
            "speed_up": self.speed_up,
            "lossless": {"verdict": verdict.verdict, "position": verdict.position, "margin": verdict.margin},
            "memory": {
                "target_weights_mb": self.target_bytes / memory.MB,
                "draft_weights_mb": self.draft_bytes / memory.MB,
                "plain_cache_mb": ours.cache_bytes / memory.MB,
                "speculative_cache_mb": theirs.cache_bytes / memory.MB,
                "process_mb": self.process_bytes / memory.MB,
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

    def _draft_bytes(self) -> int:
        """What the mode's drafter holds beside the target's weights: models, and the n-gram table."""
        mode, loaded = self.request.mode, self.loaded
        model = {"tree": loaded.head, "chain": loaded.draft}.get(mode)
        weights = memory.weight_bytes(loaded.target, *([model] if model else [])) - self.target_bytes
        return weights + (loaded.ngram.nbytes if mode in ("tree", "ngram") else 0)

    def _make_task(self) -> Task:
        request, loaded = self.request, self.loaded
        chat = request.chat_template and bool(loaded.tokenizer.chat_template)
        try:
            prompt = encode(loaded.tokenizer, request.prompt, chat)
        except ValueError as error:
            raise RequestError(str(error)) from error
        room = loaded.context - request.max_new_tokens
        if len(prompt) > room:
            raise RequestError(
                f"prompt: has {len(prompt):,} tokens; with {request.max_new_tokens} new ones the model's context of "
                f"{loaded.context:,} leaves room for {max(room, 0):,}; shorten it"
            )
        return Task(
            tuple(prompt),
            request.max_new_tokens,
            loaded.eos,
            Sampling(request.temperature, request.top_k, request.top_p),
            request.seed,
        )

    def _make_paths(self) -> dict[str, Iterator[Step]]:
        loaded, task = self.loaded, self.task
        on = loaded.target.device
        # Draft and verification share one source: two sources of equal seed would not be independent.
        rng = Randomness(task.seed, on)
        target = CachedModel(loaded.target, keep_states=self.request.mode == "tree")
        paths = {
            "plain": plain(CachedModel(loaded.target), task, Randomness(task.seed, on)),
            "speculative": speculative(
                target,
                MODES[self.request.mode](loaded, target, task, rng),
                task,
                self.request.draft_length,
                rng,
            ),
        }
        synced = partial(synchronize, on)

        def usage() -> tuple[int, int]:
            return memory.process_bytes(), memory.device_bytes(on)

        return {name: timed(path, synced, usage) for name, path in paths.items()}


def machine(on: torch.device) -> dict[str, Any]:
    """What a run ran on, as a trace names it."""
    return {
        "processor": _processor(),
        "threads": torch.get_num_threads(),
        "accelerator": torch.cuda.get_device_name(on) if on.type == "cuda" else None,
        "system": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "specdemo": __version__,
    }


def _processor() -> str:
    try:
        with open("/proc/cpuinfo") as file:
            names = (line.split(":", 1)[1].strip() for line in file if line.startswith("model name"))
            return next(names, platform.machine())
    except OSError:
        return platform.processor() or platform.machine()
