"""What the drafters propose."""

import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specdemo.engine.drafters import Draft, NgramDraft, grow
from specdemo.engine.ngram import NgramModel, NgramTable
from specdemo.engine.types import Origin


def propose(text, budget=4, floor=0.05, table=None):
    drafter = NgramDraft(NgramModel(table or NgramTable()), floor)
    drafter.begin(text)
    return drafter.propose(text, budget)


def paths(draft):
    """Each node's ids from the root down."""
    found = []
    for i, token in enumerate(draft.tokens):
        found.append((*(found[draft.parents[i]] if draft.parents[i] >= 0 else ()), token))
    return found


def test_what_repeats_is_proposed_as_repeating():
    assert propose([1, 2, 3] * 4, budget=5, floor=0.2).tokens == (1, 2, 3, 1, 2)


def test_what_followed_in_two_ways_is_proposed_in_both_the_more_frequent_first():
    draft = propose([7, 1, 7, 2, 7, 1, 7, 1, 7], budget=4)
    first = [draft.tokens[i] for i in draft.children(-1)]
    assert first[:2] == [1, 2]


def test_where_nothing_is_known_nothing_is_proposed_and_it_says_so():
    assert propose([1, 2, 3]) == Draft(note="nothing probable enough to propose")


def test_a_second_text_starts_from_nothing():
    drafter = NgramDraft(NgramModel(NgramTable()))
    drafter.begin([1, 2, 1, 2, 1])
    assert drafter.propose([1, 2, 1, 2, 1], 3).tokens
    drafter.begin([1])
    assert not drafter.propose([1], 3).tokens


def spans(seed):
    """A fixed random tree of continuations: expand(node, context) for grow()."""

    def expand(node, context):
        source = random.Random(repr((seed, context)))
        weights = [source.random() for _ in range(3)]
        return [(id, w / sum(weights), Origin.NGRAM) for id, w in enumerate(weights)]

    return expand


@given(seed=st.integers(0, 10**6), budget=st.integers(1, 20), floor=st.sampled_from([0.0, 0.05, 0.2]))
def test_the_grown_tree_holds_the_most_probable_nodes_and_no_other(seed, budget, floor):
    draft = grow((9,), spans(seed), budget, floor)
    everything, level = {}, {(): 1.0}
    while level:
        level = {
            (*path, id): p * share
            for path, p in level.items()
            for id, share, _ in spans(seed)(0, (9, *path))
            if len(path) < 6 and p * share >= max(floor, 0.002)
        }
        everything |= level
    best = sorted(everything, key=lambda path: -everything[path])[:budget]
    assert set(paths(draft)) == set(best) and len(paths(draft)) == len(set(paths(draft)))
    for node, path in enumerate(paths(draft)):
        chain = [node]
        while draft.parents[chain[-1]] >= 0:
            chain.append(draft.parents[chain[-1]])
        assert math.prod(draft.confidence[i] for i in chain) == pytest.approx(everything[path])


def test_a_malformed_draft_is_refused():
    with pytest.raises(ValueError, match="parent must come before"):
        Draft((1, 2), (-1, 1), (Origin.DRAFT,) * 2, None, (None,) * 2)
    with pytest.raises(ValueError, match="one parent, origin and confidence"):
        Draft((1, 2), (-1,), (Origin.DRAFT,) * 2, None, (None,) * 2)


def test_a_chain_is_a_tree_of_only_children():
    chain = Draft.chain([7, 8, 9], Origin.NGRAM)
    assert chain.parents == (-1, 0, 1)
    assert [chain.children(node) for node in (-1, 0, 1, 2)] == [[0], [1], [2], []]
