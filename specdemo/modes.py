"""The modes: who drafts for a path. One row each; `speculative` and `verify` serve them all."""

from collections.abc import Callable

from specdemo.engine.auto import AutoDraft
from specdemo.engine.cache import CachedModel
from specdemo.engine.draft_model import CHAIN, STAGED, TREE, ModelDraft
from specdemo.engine.drafters import BRANCHES, FLOOR, Drafter, NgramDraft
from specdemo.engine.head import HeadDraft
from specdemo.engine.ngram import NgramModel
from specdemo.engine.sampling import Randomness
from specdemo.engine.types import Task
from specdemo.models.costs import costs
from specdemo.models.load import Loaded

Build = Callable[[Loaded, CachedModel, Task, Randomness], Drafter]


def _ngram(loaded: Loaded, target: CachedModel, task: Task, rng: Randomness) -> Drafter:
    return NgramDraft(NgramModel(loaded.ngram), _floor(loaded))


def _chain(loaded: Loaded, target: CachedModel, task: Task, rng: Randomness) -> Drafter:
    if loaded.head is not None:  # it was made for this target, and costs less than any model
        return _head(loaded, target, alone=True, branches=1)
    return ModelDraft(_draft(loaded), loaded.vocabulary, loaded.shared, task.sampling, rng, CHAIN)


def _tree(loaded: Loaded, target: CachedModel, task: Task, rng: Randomness) -> Drafter:
    if loaded.head is not None:
        return _head(loaded, target)
    return ModelDraft(_draft(loaded), loaded.vocabulary, loaded.shared, task.sampling, rng, TREE)


def _staged(loaded: Loaded, target: CachedModel, task: Task, rng: Randomness) -> Drafter:
    ngram = NgramModel(loaded.ngram)
    return ModelDraft(_draft(loaded), loaded.vocabulary, loaded.shared, task.sampling, rng, STAGED, ngram)


def _auto(loaded: Loaded, target: CachedModel, task: Task, rng: Randomness) -> Drafter:
    dear, draws = None, False
    if loaded.head is not None:
        dear = _head(loaded, target)
    elif loaded.draft is not None:
        dear, draws = _staged(loaded, target, task, rng), not task.sampling.greedy
    return AutoDraft(_ngram(loaded, target, task, rng), dear, costs(loaded), draws)


def _head(loaded: Loaded, target: CachedModel, alone: bool = False, branches: int = BRANCHES) -> Drafter:
    head = CachedModel(loaded.head, keep_states=True)
    return HeadDraft(head, target, NgramModel(loaded.ngram), _floor(loaded), alone, branches)


def _floor(loaded: Loaded) -> float:
    """Least probability of a node. On a GPU further rows of a pass are nearly free (reasoned, not measured)."""
    return FLOOR if loaded.target.device.type == "cpu" else FLOOR / 5


def _draft(loaded: Loaded) -> CachedModel:
    assert loaded.draft is not None, "config.NEEDS keeps such a mode from a pair without a draft model"
    return CachedModel(loaded.draft)


DRAFTERS: dict[str, Build] = {
    "tree": _tree,
    "staged": _staged,
    "ngram": _ngram,
    "chain": _chain,
    "auto": _auto,
}
