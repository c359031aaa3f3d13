"""Sampling is lossless, exactly: the real loop driven through every branch of its randomness.

All randomness goes through Randomness.uniform and .choose. `Script` replaces both by a walk over a tree of outcomes
with exact probabilities, so the distribution of the answer is computed, not estimated. The mutants at the end are the
well-known mistakes; each must be caught.
"""

from collections import defaultdict
from dataclasses import replace
from itertools import count
from types import SimpleNamespace

import pytest
import torch
from tiny import Table

from specdemo.engine import draft_model as draft_model_module
from specdemo.engine import verify as verify_module
from specdemo.engine.auto import AutoDraft, Costs
from specdemo.engine.decode import plain, speculative
from specdemo.engine.draft_model import CHAIN, STAGED, TREE, ModelDraft, shape
from specdemo.engine.drafters import Draft, NgramDraft
from specdemo.engine.head import HeadDraft
from specdemo.engine.ngram import NgramModel, NgramTable
from specdemo.engine.sampling import distribution
from specdemo.engine.types import Origin, Sampling, Task

SAMPLING = Sampling(temperature=0.7, top_p=0.9)


class Script:
    """One walk: follows `choices`, then takes the first branch everywhere; remembers what else it could have done."""

    def __init__(self, choices):
        self.choices, self.taken, self.open = list(choices), [], []
        self.probability = 1.0

    def branch(self, weights):
        options = [(i, w) for i, w in enumerate(weights) if w > 0]
        at = len(self.taken)
        pick = self.choices[at] if at < len(self.choices) else options[0][0]
        if at >= len(self.choices):
            self.open += [self.taken + [i] for i, _ in options[1:]]
        self.taken = [*self.taken, pick]
        self.probability *= weights[pick] / sum(w for _, w in options)
        return pick

    def uniform(self):
        return Uniform(self)

    def choose(self, probs):
        return self.branch(probs.tolist())


class Uniform:
    """A uniform number known only by what it was compared with: an interval that each comparison cuts."""

    def __init__(self, script):
        self.script, self.low, self.high = script, 0.0, 1.0

    def __mul__(self, scale):
        return Scaled(self, scale)

    def below(self, limit):
        limit = min(max(limit, self.low), self.high)
        yes = self.script.branch([self.high - limit, limit - self.low])
        self.low, self.high = (self.low, limit) if yes else (limit, self.high)
        return bool(yes)


class Scaled:
    def __init__(self, uniform, scale):
        self.uniform, self.scale = uniform, scale

    def __lt__(self, other):
        return self.uniform.below(other / self.scale) if self.scale else other > 0


def exact(answer):
    """The exact distribution of answer(script), over every branch."""
    outcomes, pending = defaultdict(float), [[]]
    while pending:
        script = Script(pending.pop())
        outcome = answer(script)
        outcomes[outcome] += script.probability
        pending += script.open
    assert sum(outcomes.values()) == pytest.approx(1, abs=1e-12)
    return outcomes


def distance(left, right):
    return max(abs(left.get(key, 0) - right.get(key, 0)) for key in left.keys() | right.keys())


def task(tokens, eos=frozenset(), prompt=(0, 1)):
    return Task(prompt, tokens, frozenset(eos), SAMPLING)


def ids(steps):
    return tuple(token.id for step in steps for token in step.tokens)


def reference(vocabulary, job):
    expected = exact(lambda script: ids(plain(Table(vocabulary, 1), job, script)))
    assert len(expected) > 4, "a target that is sure of itself would hide every mistake"
    return expected


BROAD = replace(TREE, acceptance=0.4)  # shapes with siblings within budgets that can be enumerated


def by_model(vocabulary, job, length, growth=CHAIN, draft_vocabulary=None, sampling=SAMPLING):
    shared = draft_vocabulary or vocabulary

    def answer(script):
        ngram = NgramModel(NgramTable()) if growth.rows == STAGED.rows else None
        drafter = ModelDraft(Table(shared, 2), vocabulary, shared, sampling, script, growth, ngram)
        return ids(speculative(Table(vocabulary, 1), drafter, job, length, script))

    return exact(answer)


def test_plain_is_the_product_of_the_targets_distributions():
    job, table = task(2), Table(3, 1)
    expected = {}
    for first in range(3):
        for second in range(3):
            p = distribution(table.logits(job.prompt)[None], SAMPLING)[0, first]
            p = p * distribution(table.logits((*job.prompt, first))[None], SAMPLING)[0, second]
            expected[first, second] = float(p)
    assert distance(reference(3, job), expected) < 1e-12


# The first token is the target's own and one place is kept for its last, so a draft of n needs n + 2 tokens.
@pytest.mark.parametrize(("vocabulary", "length"), [(5, 1), (3, 2), (2, 3)])
def test_chain_is_lossless(vocabulary, length):
    job = task(length + 2)
    assert distance(by_model(vocabulary, job, length), reference(vocabulary, job)) < 1e-12


def test_chain_is_lossless_with_end_of_text_inside_the_draft():
    job = task(4, eos={2})
    assert distance(by_model(3, job, 2), reference(3, job)) < 1e-12


def test_chain_is_lossless_with_a_draft_of_fewer_ids():
    assert distance(by_model(4, task(3), 1, draft_vocabulary=3), reference(4, task(3))) < 1e-12


def test_chain_is_lossless_with_other_processors_on_the_draft():
    got = by_model(3, task(4), 2, sampling=Sampling(temperature=1.5, top_k=2))
    assert distance(got, reference(3, task(4))) < 1e-12


@pytest.mark.parametrize(("vocabulary", "length", "tokens"), [(5, 2, 4), (2, 3, 5)])
def test_a_drawn_tree_is_lossless(vocabulary, length, tokens):
    assert (1,) in shape(2, BROAD.branches, BROAD.acceptance, spine=False), "a tree without siblings would be a chain"
    job = task(tokens)
    assert distance(by_model(vocabulary, job, length, BROAD), reference(vocabulary, job)) < 1e-12


# The prompt repeats itself, so that the n-gram model has something to say to the draft.
@pytest.mark.parametrize(("vocabulary", "length", "tokens"), [(3, 2, 4), (3, 3, 4), (2, 4, 4)])
@pytest.mark.parametrize("acceptance", [0.7, 0.4], ids=["spine", "with siblings"])
def test_staged_drafting_is_lossless(vocabulary, length, tokens, acceptance):
    job = task(tokens, prompt=(0, 1, 0, 1, 0))
    growth = replace(STAGED, acceptance=acceptance)
    assert distance(by_model(vocabulary, job, length, growth), reference(vocabulary, job)) < 1e-12


@pytest.mark.parametrize("growth", [CHAIN, BROAD, STAGED], ids=["chain", "tree", "staged"])
def test_with_a_repetition_penalty_every_growth_is_lossless(growth):
    sampling = Sampling(temperature=0.7, repetition_penalty=1.8)
    job = replace(task(4, prompt=(0, 1, 0)), sampling=sampling)
    got = by_model(3, job, 2, growth, sampling=sampling)
    assert distance(got, reference(3, job)) < 1e-12
    assert distance(got, reference(3, task(4, prompt=(0, 1, 0)))) > 1e-3  # the penalty does something


@pytest.mark.parametrize("length", [1, 2])
def test_ngram_lookup_is_lossless(length):
    job = task(length + 2, prompt=(0, 1, 2, 0, 1))
    got = exact(lambda script: ids(speculative(Table(3, 1), NgramDraft(NgramModel(NgramTable())), job, length, script)))
    assert distance(got, reference(3, job)) < 1e-12


@pytest.mark.parametrize("draws", [True, False], ids=["drawn", "cut"])
@pytest.mark.parametrize("rows", [1.0, 1.4], ids=["rows are free", "rows are dear"])
def test_auto_is_lossless_however_it_chooses(rows, draws):
    """What it chooses follows costs and what was accepted; its clock is a fixed one here."""
    job, costs = task(4, prompt=(0, 1, 0, 1, 0)), Costs((1.0, rows, rows, rows))

    def answer(script):
        target, free = Featured(3, 1), NgramDraft(NgramModel(NgramTable()))
        dear = ModelDraft(Table(3, 2), 3, 3, SAMPLING, script, CHAIN) if draws else head_draft(3)(target)
        auto = AutoDraft(free, dear, costs, draws, clock=count().__next__)
        return ids(speculative(target, auto, job, 2, script))

    assert distance(exact(answer), reference(3, job)) < 1e-12


class Featured(Table):
    """A table that has hidden states, which say nothing; as a head it drafts every id."""

    model = SimpleNamespace(ids=torch.arange(3))

    def keep_states(self):
        pass

    @property
    def states(self):
        return torch.zeros(len(self.ids), 1)

    def forward(self, tokens, parents=None, keep_logits=None, features=None):
        return super().forward(tokens, parents, keep_logits)


def head_draft(vocabulary, **options):
    """Makes the drafter for a target."""
    return lambda target: HeadDraft(Featured(vocabulary, 2), target, NgramModel(NgramTable()), **options)


@pytest.mark.parametrize(
    "options", [{}, {"alone": True}, {"alone": True, "branches": 1}], ids=["mixed", "tree", "chain"]
)
def test_a_feature_head_is_lossless(options):
    job = task(4, prompt=(0, 1, 0))

    def answer(script):
        target = Featured(3, 1)
        return ids(speculative(target, head_draft(3, floor=0.0, **options)(target), job, 3, script))

    assert distance(exact(answer), reference(3, job)) < 1e-12


class TwoChildren:
    """A tree drafter: two children of the root without replacement, and one child of the first of them."""

    cache_bytes = 0

    def __init__(self, script, order=lambda children: children):
        self.script, self.table, self.order = script, Table(3, 2), order

    def begin(self, prompt):
        pass

    def q(self, prefix):
        return distribution(self.table.logits(tuple(prefix))[None], Sampling(temperature=1))[0]

    def propose(self, tokens, budget):
        q = self.q(tokens)
        first = self.script.choose(q)
        rest = q.clone()
        rest[first] = 0
        children = self.order([(first, q), (self.script.choose(rest), q)])
        deeper = self.q([*tokens, children[0][0]])
        tokens = [children[0][0], children[1][0], self.script.choose(deeper)]
        return Draft(tuple(tokens), (-1, -1, 0), (Origin.DRAFT,) * 3, torch.stack([q, q, deeper]), (None,) * 3)


def verify_tree(script, drafter):
    """One verification of a tree, and plain sampling for what it left open: always two tokens."""
    target = Table(3, 1)
    prompt = (0, 1)
    draft = drafter.propose(prompt, 3)
    prefixes = [prompt] + [
        prompt + ((draft.tokens[0],) if draft.parents[i] == 0 else ()) + (draft.tokens[i],) for i in range(3)
    ]
    logits = torch.stack([target.logits(prefix) for prefix in prefixes])
    verdict = verify_module.verify(draft, logits, SAMPLING, script)
    answer = [*(draft.tokens[i] for i in verdict.path), verdict.token][:2]
    while len(answer) < 2:
        answer.append(script.choose(distribution(target.logits((*prompt, *answer))[None], SAMPLING)[0]))
    return tuple(answer)


def test_a_tree_of_sampled_children_is_lossless():
    got = exact(lambda script: verify_tree(script, TwoChildren(script)))
    assert distance(got, reference(3, task(2))) < 1e-12


# --- mutants: each is a mistake that has been made, and must change the distribution -------------------------------


def test_mutant_sorted_children_is_caught():
    def by_probability(children):
        return sorted(children, key=lambda child: -float(child[1][child[0]]))

    got = exact(lambda script: verify_tree(script, TwoChildren(script, by_probability)))
    assert distance(got, reference(3, task(2))) > 1e-3


def test_mutant_residual_is_p_is_caught(monkeypatch):
    monkeypatch.setattr(verify_module, "_residual", lambda p, q, x: p)
    assert distance(by_model(3, task(4), 2), reference(3, task(4))) > 1e-3


def test_mutant_raw_q_is_caught(monkeypatch):
    honest = ModelDraft.propose

    def raw(self, tokens, budget):
        draft = honest(self, tokens, budget)
        return replace(
            draft,
            probs=None if draft.probs is None else draft.probs.sqrt() / draft.probs.sqrt().sum(-1, True),
        )

    monkeypatch.setattr(ModelDraft, "propose", raw)
    assert distance(by_model(3, task(4), 2), reference(3, task(4))) > 1e-3


def test_mutant_dropped_weak_token_is_caught(monkeypatch):
    honest = ModelDraft.propose

    def timid(self, tokens, budget):
        draft = honest(self, tokens, budget)
        return draft if min(draft.confidence, default=1) > 0.3 else Draft()

    monkeypatch.setattr(ModelDraft, "propose", timid)
    assert distance(by_model(3, task(4), 2), reference(3, task(4))) > 1e-3


def test_mutant_reused_uniform_is_caught(monkeypatch):
    def once(self):
        self.number = getattr(self, "number", None) or Uniform(self)
        return self.number

    monkeypatch.setattr(Script, "uniform", once)
    assert distance(by_model(3, task(4), 2), reference(3, task(4))) > 1e-3


def test_mutant_second_child_tested_as_if_it_were_the_first_is_caught(monkeypatch):
    monkeypatch.setattr(verify_module, "without", lambda q, x: q)
    assert distance(by_model(5, task(4), 2, BROAD), reference(5, task(4))) > 1e-3


def test_mutant_shape_that_follows_the_draws_is_caught(monkeypatch):
    honest = ModelDraft._drawn

    def pruned(self, tokens, budget):
        draft = honest(self, tokens, budget)
        kept = max(range(len(draft.tokens)), key=lambda i: draft.confidence[i])
        if draft.parents[kept] != -1:
            return draft
        return Draft(
            (draft.tokens[kept],), (-1,), (Origin.DRAFT,), draft.probs[kept : kept + 1], (draft.confidence[kept],)
        )

    monkeypatch.setattr(ModelDraft, "_drawn", pruned)
    assert distance(by_model(5, task(4), 2, BROAD), reference(5, task(4))) > 1e-3


def test_mutant_staged_draft_that_hands_up_guesses_as_draws_is_caught(monkeypatch):
    def gullible(draft, logits, sampling, rng):
        path, at = [], -1
        while draft.children(at):
            at = draft.children(at)[0]
            path.append(at)
        token = rng.choose(distribution(logits[at + 1][None], sampling)[0])
        return verify_module.Verdict(tuple(path), {}, token)

    monkeypatch.setattr(draft_model_module, "verify", gullible)
    job = task(4, prompt=(0, 1, 0, 1, 0))
    assert distance(by_model(3, job, 3, STAGED), reference(3, job)) > 1e-3


def test_mutant_penalty_that_a_rejected_token_leaves_behind_is_caught(monkeypatch):
    from specdemo.engine import decode as decode_module

    honest = decode_module.penalised

    def smeared(logits, text, paths, penalty):
        return honest(logits, text, [sum(paths, ())] * len(paths), penalty)

    monkeypatch.setattr(decode_module, "penalised", smeared)
    sampling = Sampling(temperature=0.7, repetition_penalty=1.8)
    job = replace(task(4, prompt=(0, 1)), sampling=sampling)
    assert distance(by_model(3, job, 2, sampling=sampling), reference(3, job)) > 1e-3
