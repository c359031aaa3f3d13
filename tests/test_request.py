"""What is refused before anything is loaded, and in which words."""

import gradio as gr
import pytest
from hypothesis import given
from hypothesis import strategies as st

from specdemo.config import LENGTHS, UNLIMITED, Limits, Settings
from specdemo.request import RaceRequest, RequestError, checked
from specdemo.ui.fields import fields
from specdemo.ui.race_tab import RaceTab

LIMITS = Limits(max_prompt_characters=100, max_new_tokens=64, max_draft_length=8)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"prompt": ""}, "prompt: is empty"),
        ({"prompt": " \n\t"}, "prompt: is empty"),
        ({"prompt": "x" * 101}, "prompt: has 101 characters, at most 100"),
        ({"prompt": 5}, "prompt: Input should be a valid string"),
        ({"prompt": None}, "prompt: "),
        ({"mode": "magic"}, "mode: Input should be 'tree', 'staged', 'ngram', 'chain', 'auto' or 'draft-then-score'"),
        ({"dtype": "fp8"}, "dtype: "),
        ({"pair": "other"}, "pair: there is no 'other'; choose one of embedded"),
        ({"max_new_tokens": 65}, "max_new_tokens: 65 is more than the 64 allowed"),
        ({"max_new_tokens": 0}, "max_new_tokens: "),
        ({"max_new_tokens": "many"}, "max_new_tokens: Input should be a valid integer"),
        ({"draft_length": 9}, "draft_length: 9 is more than the 8 allowed"),
        ({"draft_length": 0}, "draft_length: "),
        ({"temperature": -0.1}, "temperature: "),
        ({"temperature": float("nan")}, "temperature: "),
        ({"top_p": 0}, "top_p: "),
        ({"top_p": 1.5}, "top_p: "),
        ({"top_k": -1}, "top_k: "),
        ({"repetition_penalty": 0}, "repetition_penalty: "),
        ({"repetition_penalty": float("inf")}, "repetition_penalty: "),
        ({"stop": [""]}, "stop.0: "),
        ({"stop": ["a"] * 9}, "stop: "),
        ({"stop": 3}, "stop: "),
        ({"quantization": "int3"}, "quantization: "),
        ({"quantize": "draft"}, "quantize: "),
        ({"double_quantization": True}, "double_quantization: only nf4"),
        ({"exact": "very"}, "exact: "),
        ({"seed": -1}, "seed: "),
        ({"seed": 2**63}, "seed: "),
        ({"colour": "red"}, "colour: Extra inputs are not permitted"),
    ],
)
def test_a_bad_value_is_refused_by_name(wrong, message):
    with pytest.raises(RequestError, match="^" + message.replace("(", r"\(")) as caught:
        checked(LIMITS, ["embedded"], **{"prompt": "hello", "max_new_tokens": 16} | wrong)
    assert "\n" not in str(caught.value)


values = st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=9), st.just([1]))


@given(st.dictionaries(st.sampled_from([*RaceRequest.model_fields, "other"]), values))
def test_whatever_comes_in_is_a_request_or_a_refusal(sent):
    sent.setdefault("prompt", "hello")
    try:
        request = checked(LIMITS, ["embedded"], **sent)
    except RequestError as error:
        assert str(error) and "\n" not in str(error)
    else:
        assert request.max_new_tokens <= 64 and request.draft_length <= 8 and request.prompt.strip()


def test_stop_strings_may_come_as_lines_of_a_text_or_one_by_one():
    for sent, expected in [("a\n\nb c", ("a", "b c")), (["a", "\n\n"], ("a", "\n\n")), ("", ()), (None, ())]:
        assert checked(Limits(), ["embedded"], prompt="x", stop=sent).stop == expected


def test_the_page_sends_every_field_but_models_of_ones_own():
    with gr.Blocks():
        found = fields(Settings(), own_draft=False)
    assert {"prompt", *found} == RaceRequest.model_fields.keys() - {"target", "draft"}


def test_the_shipped_configuration_is_valid_and_its_defaults_keep_its_limits():
    settings = Settings()
    defaults = settings.defaults
    checked(settings.limits, settings.pairs, prompt="x", **defaults.model_dump())


def test_the_environment_overrides_the_file(monkeypatch):
    monkeypatch.setenv("SPECDEMO_QUEUE__MAX_SIZE", "3")
    assert Settings().queue.max_size == 3


def test_an_unknown_key_in_the_file_is_named(monkeypatch, tmp_path):
    file = tmp_path / "spaces_config.yaml"
    file.write_text("pairs: [embedded]\nlimits: {max_tokens: 3}\n")
    monkeypatch.setitem(Settings.model_config, "yaml_file", file)
    with pytest.raises(ValueError, match="max_tokens"):
        Settings()


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"defaults": {"max_new_tokens": 65}, "limits": {"max_new_tokens": 64}}, "defaults.max_new_tokens is more"),
        ({"defaults": {"pair": "other"}}, "defaults.pair 'other' is not one of pairs"),
    ],
)
def test_defaults_outside_the_limits_are_refused_at_start(wrong, message):
    with pytest.raises(ValueError, match=message):
        Settings(**wrong)


def test_the_page_is_built_with_the_smallest_limits():
    smallest = {"max_new_tokens": 2, "max_draft_length": 2}
    settings = Settings(limits=smallest, defaults={"max_new_tokens": 2})
    with gr.Blocks():
        RaceTab(settings, None, None).build()


def test_a_draft_length_that_nobody_gave_is_the_modes_own_within_the_limit():
    for unsaid in ({}, {"draft_length": None}):
        assert checked(UNLIMITED, ["embedded"], prompt="x", mode="chain", **unsaid).draft_length == LENGTHS["chain"]
        assert checked(LIMITS, ["embedded"], prompt="x", mode="tree", max_new_tokens=8, **unsaid).draft_length == 8
    assert RaceRequest(prompt="x").draft_length == LENGTHS["tree"]
