"""Greedy decoding equals plain decoding even where kernels for several tokens round otherwise than those for one."""

import pytest
import torch
from test_decode import check_books
from tiny import CONFIGS, model

from specdemo.draft.train import new_head
from specdemo.engine import decode
from specdemo.engine.auto import AutoDraft, Costs
from specdemo.engine.cache import CachedModel
from specdemo.engine.decode import plain, speculative
from specdemo.engine.draft_model import CHAIN, STAGED, TREE, ModelDraft
from specdemo.engine.drafters import NgramDraft
from specdemo.engine.head import HeadDraft
from specdemo.engine.ngram import NgramModel, NgramTable
from specdemo.engine.sampling import Randomness
from specdemo.engine.types import RECHECKED, Outcome, Sampling, Task
from specdemo.measure.metrics import Tally

CPU = torch.device("cpu")
PROMPTS = [(3, 4, 5, 3, 4, 5, 3, 4, 6, 7, 3, 4), *((n, 31 - n, n + 1, n, 31 - n) for n in range(2, 10))]
DRAFTERS = ["ngram", "chain", "tree", "staged", "auto", "head"]
NOISE = 0.1
ALWAYS = 1e9  # no decision is far enough from a tie
NEAR = 1.0  # far more than the noise moves a logit


class Rounding(CachedModel):
    """Passes over several tokens are a little off: their logits, and what they leave for later tokens to read."""

    def forward(self, tokens, *args, **options):
        logits = super().forward(tokens, *args, **options)
        if len(tokens) == 1:
            return logits
        noise = torch.Generator().manual_seed(len(self))
        for layer in self.layers:
            for buffer in layer.buffers:
                rows = buffer.data[..., buffer.length - len(tokens) : buffer.length, :]
                rows += NOISE * torch.randn(rows.shape, generator=noise)
        return logits + NOISE * torch.randn(logits.shape, generator=noise)


def rng():
    return Randomness(7, CPU)


def drafter(kind, target):
    ngram = NgramDraft(NgramModel(NgramTable()))
    if kind == "ngram":
        return ngram
    if kind == "head":
        head = CachedModel(new_head(target.model, list(range(32))), keep_states=True)
        return HeadDraft(head, target, NgramModel(NgramTable()), floor=0.001)
    growth = {"chain": CHAIN, "staged": STAGED}.get(kind, TREE)
    known = NgramModel(NgramTable()) if growth is STAGED else None
    dear = ModelDraft(CachedModel(model("llama", seed=1)), 32, 32, Sampling(), rng(), growth, known)
    return AutoDraft(ngram, dear, Costs((1.0,) * 9)) if kind == "auto" else dear


def tokens(steps):
    return [token for step in steps for token in step.tokens]


def ids(steps):
    return [token.id for token in tokens(steps)]


def run(kind, prompt, recheck, architecture="llama", sampling=None):
    task = Task(prompt, 40, recheck=recheck, sampling=sampling or Sampling())
    target = Rounding(model(architecture, tie_word_embeddings=True))
    return list(speculative(target, drafter(kind, target), task, 5, rng()))


def reference(prompt, architecture="llama"):
    return list(plain(Rounding(model(architecture, tie_word_embeddings=True)), Task(prompt, 40), rng()))


@pytest.mark.parametrize("kind", DRAFTERS)
def test_near_ties_are_decided_as_plain_decoding_decides_them(kind):
    expected = [ids(reference(prompt)) for prompt in PROMPTS]
    assert [ids(run(kind, prompt, 0.0)) for prompt in PROMPTS] != expected, "the noise must matter"
    steps = [run(kind, prompt, NEAR) for prompt in PROMPTS]
    assert [ids(each) for each in steps] == expected
    assert any(step.note == RECHECKED for each in steps for step in each)
    for prompt, each in zip(PROMPTS, steps, strict=True):
        check_books(each, Task(prompt, 40))
    kept = [step for each in steps for step in each if any(node.outcome is Outcome.ACCEPTED for node in step.nodes)]
    assert kept, "what is certain is still speculated"


@pytest.mark.parametrize("architecture", CONFIGS)
def test_what_is_decided_again_is_plain_decodings_to_the_bit(architecture):
    for prompt in PROMPTS:
        assert tokens(run("tree", prompt, ALWAYS, architecture)) == tokens(reference(prompt, architecture))


@pytest.mark.parametrize("kind", DRAFTERS)
def test_the_last_pass_alone_is_not_enough(kind, monkeypatch):
    """A mutant: the keys and values of the tokens before stay those of passes over several tokens."""
    honest = decode._alone
    monkeypatch.setattr(decode, "_alone", lambda target, ids, own, *rest: honest(target, ids, len(ids) - 1, *rest))
    assert [ids(run(kind, prompt, NEAR)) for prompt in PROMPTS] != [ids(reference(prompt)) for prompt in PROMPTS]


def test_passes_made_again_are_counted_and_told_from_a_prefill():
    tally = Tally()
    for step in run("tree", PROMPTS[0], ALWAYS):
        tally.add(step)
        assert step.tokens or step.nodes or step.note == RECHECKED
    # The first and the last token have no draft; each other one needs a second pass, since the first did not count.
    assert (tally.tokens, tally.rechecked, tally.steps) == (40, 38, 40 + 38)


def test_sampling_knows_no_near_ties():
    steps = run("tree", PROMPTS[0], ALWAYS, sampling=Sampling(temperature=1.0))
    assert steps and all(step.note != RECHECKED for step in steps)
