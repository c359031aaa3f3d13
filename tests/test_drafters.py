"""What the drafters propose."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specdemo.engine.drafters import Draft, NgramLookup
from specdemo.engine.types import Origin


def propose(text, budget=4, longest=3, shortest=1):
    lookup = NgramLookup(longest, shortest)
    lookup.begin(text)
    return list(lookup.propose(text, budget).tokens)


def test_the_longest_match_wins_over_a_more_recent_shorter_one():
    assert propose([1, 2, 3, 9, 9, 3, 7, 7, 1, 2, 3], budget=2) == [9, 9]


def test_of_equal_matches_the_most_recent_wins():
    assert propose([5, 1, 6, 5, 2, 6, 5], budget=1) == [2]


def test_a_continuation_that_reaches_the_present_goes_on_through_itself():
    assert propose([1, 2, 3, 1, 2, 3], budget=7) == [1, 2, 3, 1, 2, 3, 1]


def test_without_an_earlier_occurrence_it_proposes_nothing_and_says_so():
    lookup = NgramLookup()
    lookup.begin([1, 2, 3])
    assert lookup.propose([1, 2, 3], 4) == Draft(note="no earlier occurrence")


def naive(text, budget, longest, shortest):
    for n in range(longest, shortest - 1, -1):
        for start in range(len(text) - n - 1, -1, -1):
            if len(text) > n and text[start : start + n] == text[-n:]:
                grown = list(text)
                for i in range(budget):
                    grown.append(grown[start + n + i])
                return grown[len(text) :]
    return []


@given(
    text=st.lists(st.integers(0, 3), min_size=1, max_size=40),
    cuts=st.lists(st.integers(1, 5), max_size=10),
    budget=st.integers(1, 6),
    longest=st.integers(1, 4),
)
def test_the_index_grown_step_by_step_finds_what_a_search_of_the_whole_text_finds(text, cuts, budget, longest):
    lookup = NgramLookup(longest, 1)
    at = 1
    lookup.begin(text[:at])
    for cut in [*cuts, len(text)]:
        at = min(at + cut, len(text))
        assert list(lookup.propose(text[:at], budget).tokens) == naive(text[:at], budget, longest, 1)


def test_a_second_run_starts_from_nothing():
    lookup = NgramLookup(2, 1)
    lookup.begin([1, 2, 1])
    lookup.begin([1])
    assert not lookup.propose([1], 3).tokens


def test_a_malformed_draft_is_refused():
    with pytest.raises(ValueError, match="parent must come before"):
        Draft((1, 2), (-1, 1), (Origin.DRAFT,) * 2, None, (None,) * 2)
    with pytest.raises(ValueError, match="one parent, origin and confidence"):
        Draft((1, 2), (-1,), (Origin.DRAFT,) * 2, None, (None,) * 2)


def test_a_chain_is_a_tree_of_only_children():
    chain = Draft.chain([7, 8, 9], Origin.NGRAM)
    assert chain.parents == (-1, 0, 1)
    assert [chain.children(node) for node in (-1, 0, 1, 2)] == [[0], [1], [2], []]
