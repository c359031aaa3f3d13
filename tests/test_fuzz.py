"""Whatever is sent to the API: an answer or one line in words, never a traceback, and the next race is right."""

import json
import os

import httpx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from serving import served
from test_api import ASKED, GOOD, connect, race_once

from specdemo.config import Defaults, Limits, Settings

pytestmark = pytest.mark.model

TRIES = int(os.environ.get("SPECDEMO_FUZZ", "40"))
PATIENCE_S = 60
LIMITS = Limits(max_prompt_characters=300, max_new_tokens=6, max_draft_length=4, max_bench_answers=2)
RACE = {
    "prompt", "mode", "dtype", "quantization", "quantize", "double_quantization", "draft_length", "max_new_tokens",
    "temperature", "top_p", "top_k", "repetition_penalty", "stop", "exact", "seed", "chat_template", "pair",
}  # fmt: skip
BENCHMARK = {
    "prompts",
    "modes",
    "dtypes",
    "quantizations",
    "draft_length",
    "max_new_tokens",
    "repeats",
    "peers",
    "pair",
}

# What JSON can say, with a liking for what programs trip over.
odd = st.sampled_from(
    ["", " ", "\x00", "\ud83d\ude00" * 3, "../../etc/passwd", "{{7*7}}", "${1}", "<img src=x>", "nan", "1e999", "-0",
     "tree", "fp32", "none", "embedded", 0, -1, 2, 3.5, 10**30, -(10**30), 1e308, True, False, None, [], {}, [""], [[]]]
)  # fmt: skip
text = st.text(max_size=400)
values = odd | st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | text,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(text, inner, max_size=3),
    max_leaves=8,
)


def calls(base, fields):
    """A good call with some of its fields changed, and now and then a field that there is not."""
    names = st.sampled_from(sorted(fields)) | st.sampled_from(["target", "draft", "self", "__class__", "trace"])
    return st.dictionaries(names, values, min_size=1, max_size=4).map(lambda changes: base | changes)


@pytest.fixture(scope="module")
def address():
    with served(Settings(limits=LIMITS, defaults=Defaults(max_new_tokens=4))) as place:
        yield place


def sent(address: str, name: str, body: bytes) -> str:
    """All that a caller gets to see."""
    made = httpx.post(f"{address}gradio_api/call/v2/{name}", content=body, headers={"Content-Type": "application/json"})
    assert made.status_code < 500, made.text
    if not made.is_success:
        return made.text
    event = made.json()["event_id"]
    seen = ""
    with httpx.stream("GET", f"{address}gradio_api/call/{name}/{event}", timeout=PATIENCE_S) as stream:
        for part in stream.iter_text():
            seen += part
    assert "event: complete" in seen or "event: error" in seen
    return seen


def harmless(seen: str) -> None:
    for sign in ("Traceback", 'File \\"', "site-packages", ".py", "specdemo/"):
        assert sign not in seen, seen[-2000:]


@given(call=calls(GOOD | {"max_new_tokens": 4, "draft_length": 2}, RACE))
@settings(max_examples=TRIES)
def test_a_race_is_run_or_refused_in_words(address, call):
    for name in ("race_once", "race"):
        harmless(sent(address, name, json.dumps(call).encode()))


@given(call=calls(ASKED | {"max_new_tokens": 2, "draft_length": 2}, BENCHMARK))
@settings(max_examples=TRIES // 2)
def test_a_benchmark_is_run_or_refused_in_words(address, call):
    harmless(sent(address, "benchmark", json.dumps(call).encode()))


@given(body=st.binary(max_size=60) | values.map(lambda value: json.dumps(value).encode()))
@settings(max_examples=TRIES)
def test_a_body_that_is_no_call_is_refused(address, body):
    for name in ("race_once", "no_such_call"):
        harmless(sent(address, name, body))


def test_after_all_that_a_race_is_right(address):
    answer = race_once(connect(address), max_new_tokens=6, draft_length=4)
    assert answer["lossless"]["verdict"] == "identical" and answer["plain"]["tokens"] == 6
