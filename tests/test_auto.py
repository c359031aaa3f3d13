"""Drafting as much as pays: the choice follows costs and experience, and never the outcome of a draw."""

from itertools import count

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tiny import model

from specdemo.engine.auto import LIKELY, REST, AutoDraft, Costs
from specdemo.engine.cache import CachedModel
from specdemo.engine.decode import plain, speculative
from specdemo.engine.draft_model import STAGED, ModelDraft
from specdemo.engine.drafters import Draft, NgramDraft
from specdemo.engine.ngram import NgramModel, NgramTable
from specdemo.engine.sampling import Randomness
from specdemo.engine.types import Origin, Sampling, Task

FREE_ROWS = Costs((1.0,) * 20)  # a GPU: more rows cost nothing
COSTLY_ROWS = Costs(tuple(1 + 0.15 * n for n in range(9)))
DEAR_ROWS = Costs(tuple(float(n) for n in range(1, 20)))  # every row costs a whole pass


class Fixed:
    """Proposes one chain with a given confidence, and counts how often it was asked."""

    models, table_bytes, cache_bytes = (), 7, 3

    def __init__(self, length, p):
        self.length, self.p, self.asked = length, p, 0

    def begin(self, prompt):
        pass

    def propose(self, tokens, budget):
        self.asked += 1
        n = min(self.length, budget)
        return Draft.chain([5] * n, Origin.DRAFT, None, [self.p] * n)


def auto(*args, **options):
    """Drafting takes half a second a look at the clock, so that tests do not depend on the machine."""
    now = count()
    return AutoDraft(*args, **{"clock": lambda: next(now) / 2} | options)


def simulated(drafter, accepts, steps=200):
    """Run with a target that accepts up to accepts(step) drafted tokens; the drafts, in order."""
    tokens, drafts = [1, 2, 3], []
    drafter.begin(tokens)
    for step in range(steps):
        drafts.append(drafter.propose(tokens, 8))
        tokens += [5] * (min(accepts(step), len(drafts[-1].tokens)) + 1)
    return drafts


def rng():
    return Randomness(7, torch.device("cpu"))


def test_where_rows_cost_nothing_everything_is_proposed_and_where_they_cost_a_pass_nothing_is():
    drafts = simulated(auto(Fixed(6, 0.6), None, FREE_ROWS), lambda _: 1, 5)
    assert all(len(draft.tokens) == 6 for draft in drafts)
    drafts = simulated(auto(Fixed(6, 0.6), None, DEAR_ROWS), lambda _: 1, 5)
    assert all(not draft.tokens and "plain" in draft.note for draft in drafts)


@given(
    p=st.lists(st.floats(0.01, 1), min_size=1, max_size=8), rows=st.lists(st.floats(0.0, 0.5), min_size=9, max_size=9)
)
def test_the_number_of_nodes_is_the_best_of_all(p, rows):
    """At what a second is presumed to bring, as long as nothing is known of the answer."""
    costs = Costs(tuple(1.0 + sum(rows[: i + 1]) for i in range(9)))
    whole = Draft.chain([5] * len(p), Origin.DRAFT, None, p)
    free = Fixed(0, 0.0)
    free.propose = lambda tokens, budget: whole
    chosen = auto(free, None, costs).propose([1, 2], 8)

    def gain(n):
        return sum(whole.reach()[:n]) - LIKELY / costs.step(0) * costs.step(n)

    assert gain(len(chosen.tokens)) == pytest.approx(max(gain(n) for n in range(len(p) + 1)))


def test_a_drafter_that_promises_too_much_is_believed_less_and_less():
    drafts = simulated(auto(Fixed(4, 0.9), None, COSTLY_ROWS), lambda _: 0)
    assert len(drafts[0].tokens) == 4
    assert 0 < sum(bool(draft.tokens) for draft in drafts[-100:]) < 20


def test_a_free_drafter_that_failed_for_long_is_tried_again_and_comes_back():
    """It was cut to nothing, learnt nothing from that, and stayed off for the rest of the answer."""
    drafts = simulated(auto(Fixed(4, 0.9), None, COSTLY_ROWS), lambda step: 4 if step > 100 else 0, 300)
    assert all(draft.tokens for draft in drafts[200:])


def test_a_dear_drafter_that_brings_nothing_is_asked_ever_more_rarely_but_asked():
    dear = Fixed(4, 0.9)
    simulated(auto(Fixed(0, 0.0), dear, FREE_ROWS), lambda _: 0, 400)
    assert 400 / 64 - 2 < dear.asked < 400 / REST


def test_a_dear_drafter_whose_proposals_are_not_worth_their_rows_is_asked_ever_more_rarely():
    """Its proposals were cut to nothing, so it was never compared with anything and asked at every step."""
    dear = Fixed(4, 0.3)
    costs = Costs((1.0, 1.32, 1.64, 1.96, 2.28))
    drafts = simulated(auto(Fixed(0, 0.0), dear, costs, clock=(n / 10 for n in count()).__next__), lambda _: 0, 200)
    assert not any(draft.tokens for draft in drafts)
    assert 2 < dear.asked < 60


def test_where_the_dear_drafters_proposal_is_cut_to_nothing_that_of_the_free_one_stands():
    free, dear = Fixed(2, 0.9), Fixed(4, 0.1)
    draft = auto(free, dear, COSTLY_ROWS, clock=lambda: 0.0).propose([1, 2, 3], 8)
    assert (dear.asked, draft.confidence) == (1, (0.9, 0.9))


def test_a_row_is_worth_what_the_answer_makes_of_one():
    """0.12 tokens for a tenth of a pass: too few before anything is known and where answers run fast, else enough."""
    free = Fixed(1, 0.12)
    drafter, tokens = auto(free, None, Costs(tuple(1 + 0.1 * n for n in range(9)))), [1, 2, 3]

    def proposed(accepted):
        drafts = [drafter.propose(tokens, 8).tokens]
        tokens.extend([5] * (len(drafts[0]) * accepted + 1))
        return len(drafts[0])

    assert proposed(0) == 0
    for _ in range(30):
        proposed(1)
    assert proposed(1) == 1
    free.length, free.p = 4, 0.9
    for _ in range(100):
        proposed(1)
    free.length, free.p = 1, 0.12
    drafter._trust[0][1]._upper = drafter._trust[0][1]._lower  # what it says is believed, whatever it said before
    assert proposed(0) == 0


def test_a_dear_drafter_that_brings_much_is_asked_at_every_step():
    dear = Fixed(6, 0.9)
    simulated(auto(Fixed(0, 0.0), dear, FREE_ROWS), lambda _: 6, 100)
    assert dear.asked == 100


def test_it_comes_back_when_the_text_becomes_easy():
    dear = Fixed(6, 0.9)
    drafts = simulated(auto(Fixed(0, 0.0), dear, FREE_ROWS), lambda step: 6 if step > 100 else 0, 300)
    assert sum(bool(draft.tokens) for draft in drafts[:100]) < 30
    assert all(draft.tokens for draft in drafts[200:])


def test_what_was_drawn_is_never_cut():
    q = torch.full((3, 8), 1 / 8)

    class Drawing(Fixed):
        def propose(self, tokens, budget):
            return Draft.chain([5, 6, 7], Origin.DRAFT, q, [0.01] * 3)

    for costs in (FREE_ROWS, Costs((1.0, 1.0, 9.0, 9.0))):
        draft = auto(Fixed(0, 0.0), Drawing(3, 0.1), costs, draws=True).propose([1, 2], 8)
        assert draft.tokens == (5, 6, 7)
    with pytest.raises(AssertionError, match="drawn"):
        draft.first(1)


def test_its_memory_is_that_of_both_drafters():
    drafter = auto(Fixed(1, 0.5), Fixed(1, 0.5), FREE_ROWS)
    assert (drafter.cache_bytes, drafter.table_bytes) == (6, 7)


@pytest.mark.parametrize("sampling", [Sampling(), Sampling(0.9)], ids=["greedy", "sampling"])
@pytest.mark.parametrize("costs", [FREE_ROWS, DEAR_ROWS], ids=["rows are free", "rows are dear"])
def test_with_real_models_it_is_lossless_and_its_cache_is_true(costs, sampling):
    target, draft, source = model(), CachedModel(model(seed=1)), rng()
    dear = ModelDraft(draft, 32, 32, sampling, source, STAGED, NgramModel(NgramTable()))
    drafter = auto(NgramDraft(NgramModel(NgramTable())), dear, costs, draws=not sampling.greedy)
    task = Task((3, 4, 5, 3, 4, 5, 3, 4), 40, sampling=sampling)
    cached, ids = CachedModel(target), list(task.prompt)
    for step in speculative(cached, drafter, task, 6, source):
        ids += [token.id for token in step.tokens]
        with torch.inference_mode():
            resumed = cached.forward(ids[-1:])[0]
            cached.keep(len(ids) - 1)
            torch.testing.assert_close(resumed, target(torch.tensor([ids])).logits[0, -1], atol=1e-4, rtol=1e-4)
    assert len(ids) == len(task.prompt) + 40
    if sampling.greedy:
        expected = [t.id for s in plain(CachedModel(target), task, rng()) for t in s.tokens]
        assert ids[len(task.prompt) :] == expected


def test_costs_without_a_pass_are_refused():
    for wrong in ((), (0.0,), (1.0, -1.0)):
        with pytest.raises(ValueError, match="at least one target pass"):
            Costs(wrong)
