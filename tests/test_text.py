"""Text at the edge, on the real tokenizer."""

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from transformers import AutoTokenizer

from specdemo.models import embedded
from specdemo.text import Stops, TextStream, decode, encode

pytestmark = pytest.mark.model
TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=40)
once = settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


@pytest.fixture(scope="module")
def tokenizer():
    return AutoTokenizer.from_pretrained(embedded.fetch(), local_files_only=True)


@given(text=TEXTS, cut=st.integers(0, 200))
@once
def test_the_pieces_of_any_ids_join_to_their_decoded_text(tokenizer, text, cut):
    ids = tokenizer(text, add_special_tokens=False).input_ids
    ids = ids[: cut % (len(ids) + 1)]  # often in the middle of a character
    stream = TextStream(tokenizer)
    pieces = stream.push(ids)
    assert len(pieces) == len(ids)
    assert "".join(pieces) + stream.finish() == decode(tokenizer, ids)


@given(ids=st.lists(st.integers(0, 49151), max_size=30))
@once
def test_the_pieces_of_random_ids_join_too(tokenizer, ids):
    stream = TextStream(tokenizer)
    assert "".join(stream.push(ids)) + stream.finish() == decode(tokenizer, ids)


def test_a_split_character_appears_whole_with_the_token_that_completes_it(tokenizer):
    ids = tokenizer("a🙂", add_special_tokens=False).input_ids
    assert len(ids) > 2
    pieces = TextStream(tokenizer).push(ids)
    assert pieces[0] == "a" and set(pieces[1:-1]) == {""} and pieces[-1] == "🙂"


def test_a_chat_turn_has_its_special_tokens_once(tokenizer):
    ids = encode(tokenizer, "Hello", chat=True)
    template = [{"role": "user", "content": "Hello"}]
    expected = tokenizer.apply_chat_template(template, add_generation_prompt=True, return_dict=False)
    assert ids == expected
    assert encode(tokenizer, "Hello", chat=False) == tokenizer("Hello").input_ids


def test_half_a_surrogate_pair_is_refused_with_its_place(tokenizer):
    with pytest.raises(ValueError, match="character 2 is half of a pair"):
        encode(tokenizer, "ab\ud83d", chat=True)


def test_an_answer_ends_with_the_token_that_completes_its_first_stop_string(tokenizer):
    ids = tokenizer("one two\n\nthree four five").input_ids
    for strings, expected in [(["\n\n"], "one two\n\n"), (["five", "ee f"], "one two\n\nthree f"), (["six"], None)]:
        stops = Stops(tokenizer, strings)
        ends = {
            block: next(
                (e for n in range(block, len(ids) + block, block) if (e := stops(ids[:n], min(block, n)))), None
            )
            for block in (1, 3, len(ids))
        }
        assert len(set(ends.values())) == 1  # whatever the size of a block
        end = ends[1]
        if expected is None:
            assert end is None
        else:
            assert tokenizer.decode(ids[:end]).startswith(expected)
            assert not any(string in tokenizer.decode(ids[: end - 1]) for string in strings)
