"""The n-gram model: probabilities, backing off, pruning, the table's file."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specdemo.engine.ngram import DISCOUNT, NgramModel, NgramTable

TEXTS = [([1, 2, 3, 1, 2, 4, 1, 2, 3], 0), ([5, 1, 2, 3], 1)]


def everything(model, context):
    return dict(model.next(context, 10**6))


@given(text=st.lists(st.integers(0, 4), max_size=60), context=st.lists(st.integers(0, 4), max_size=6))
def test_p_is_a_part_of_a_distribution(text, context):
    model = NgramModel(NgramTable.count([(text[:30], 0)], 3, 1, 9))
    model.read(text[30:])
    p = everything(model, tuple(context))
    assert all(0 < value <= 1 for value in p.values()) and sum(p.values()) <= 1 + 1e-9


def test_p_of_the_table_is_the_discounted_share_and_the_rest_goes_to_shorter_contexts():
    model = NgramModel(NgramTable.count(TEXTS, 2, 1, 9))
    byte = 1 / 255
    # 1 2 was followed by 3 and 4 in one text, by 3 in the other.
    assert everything(model, (1, 2))[3] == pytest.approx((2 - DISCOUNT) / 3 * (1 + 2 * DISCOUNT / 3), abs=3 * byte)
    assert everything(model, (9, 2)) == everything(model, (2,))
    assert everything(model, (9,)) == {}


def test_the_text_so_far_outweighs_the_table_where_they_differ():
    model = NgramModel(NgramTable.count(TEXTS, 3, 1, 9))
    assert model.next((1, 2), 1)[0][0] == 3
    model.read([1, 2, 8, 1, 2, 8, 1, 2])
    assert model.next((8, 1, 2), 1)[0][0] == 8


def test_reading_step_by_step_is_reading_at_once():
    source = random.Random(0)
    text = [source.randrange(4) for _ in range(50)]
    once, steps = NgramModel(NgramTable()), NgramModel(NgramTable())
    once.read(text)
    for end in (1, 2, 7, 30, 50):
        steps.read(text[:end])
    assert all(once.next(tuple(text[i : i + 4]), 5) == steps.next(tuple(text[i : i + 4]), 5) for i in range(46))


def test_rare_followers_are_pruned_but_those_of_a_single_id_stay():
    table = NgramTable.count(TEXTS, 2, 2, 9)
    assert [id for id, _ in table.levels[1].followers((1, 2))] == [3]
    assert {id for id, _ in table.levels[0].followers((2,))} == {3, 4}
    assert len(NgramTable.count([(list(range(50)) * 2, 0)], 1, 1, 1).levels[0].followers((7,))) == 1


def test_a_text_that_goes_round_in_circles_counts_as_any_other():
    circles, others = ([1, 2] * 40, 0), [([1, 3], 0), ([1, 3, 1, 3], 0)]
    ((best, _), (other, _)) = NgramTable.count([circles, *others], 1, 1, 9).levels[0].followers((1,))
    assert (best, other) == (3, 2)


def test_of_followers_that_are_equally_frequent_the_lower_ids_are_kept():
    texts = [([1, id], 0) for id in (9, 4, 7)]
    assert [id for id, _ in NgramTable.count(texts, 2, 1, 1).levels[0].followers((1,))] == [4, 7, 9]
    pairs = [([1, 2, id], 0) for id in (9, 4, 7)]
    assert [id for id, _ in NgramTable.count(pairs, 2, 1, 1).levels[1].followers((1, 2))] == [4]


def test_counting_begins_where_it_is_told():
    table = NgramTable.count([([1, 2, 1, 3], 3)], 1, 1, 9)
    assert [id for id, _ in table.levels[0].followers((1,))] == [3]


def test_a_table_read_back_says_the_same(tmp_path):
    table = NgramTable.count(TEXTS + [([70_000, 2_000_000, 3], 0)], 3, 1, 9)
    table.write(tmp_path / "table.safetensors", {"license": "any"})
    again = NgramTable.read(tmp_path / "table.safetensors")
    for context in [(1,), (1, 2), (2, 3, 1), (70_000, 2_000_000), (9,), (0, 0, 0)]:
        level = len(context) - 1
        assert again.levels[level].followers(context) == table.levels[level].followers(context)
