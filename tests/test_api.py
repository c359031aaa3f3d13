"""The API of the page, over the network: what it answers, what it refuses, and what it leaves behind."""

import json
import os
import random
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

import httpx
import psutil
import pytest
from gradio_client import Client
from gradio_client.exceptions import AppError
from serving import served

from specdemo.config import Defaults, Limits, Settings

pytestmark = pytest.mark.model

TOKENS = 16
GOOD = {"prompt": "Name the days of the week.", "mode": "ngram", "dtype": "fp32", "max_new_tokens": TOKENS}
LONG = GOOD | {"prompt": "Tell me everything about the sea.", "max_new_tokens": 512}
SOAK = int(os.environ.get("SPECDEMO_SOAK", "8"))
POOLS = ("AnyIO worker thread", "ThreadPoolExecutor-")  # of the server, and of the client in this process
FREE_S = 20  # seconds within which a small race must be over once the device is free

ANSWER = {"text", "token_ids", "tokens", "latency_s", "ttft_s", "decode_tokens_per_s", "score"}
SPECULATION = {
    "steps",
    "drafted",
    "tested",
    "accepted",
    "acceptance_rate",
    "tokens_per_step",
    "draft_s",
    "verify_s",
    "rechecked",
    "origins",
}
MEMORY = {"target_weights_mb", "draft_weights_mb", "plain_cache_mb", "speculative_cache_mb", "process_mb", "device_mb"}

# What is wrong, and the field that the message must name.
BAD = {
    "empty prompt": ({"prompt": ""}, "prompt"),
    "blank prompt": ({"prompt": " \n\t "}, "prompt"),
    "a number as prompt": ({"prompt": 7}, "prompt"),
    "no prompt": ({"prompt": None}, "prompt"),
    "a million characters": ({"prompt": "a" * 1_000_000}, "prompt"),
    "more tokens than the context": ({"prompt": "\U0001f9ff" * 19_000}, "prompt"),
    "unknown mode": ({"mode": "magic"}, "mode"),
    "unknown dtype": ({"dtype": "int3"}, "dtype"),
    "unknown pair": ({"pair": "../etc"}, "pair"),
    "a word for a number": ({"max_new_tokens": "many"}, "max_new_tokens"),
    "no new tokens": ({"max_new_tokens": 0}, "max_new_tokens"),
    "too many new tokens": ({"max_new_tokens": 9999}, "max_new_tokens"),
    "too long a draft": ({"draft_length": 17}, "draft_length"),
    "temperature below 0": ({"temperature": -1}, "temperature"),
    "top_p of 0": ({"top_p": 0}, "top_p"),
    "top_k below 0": ({"top_k": -1}, "top_k"),
    "a penalty of 0": ({"repetition_penalty": 0}, "repetition_penalty"),
    "an empty stop": ({"stop": [""]}, "stop.0"),
    "a number as stop": ({"stop": 3}, "stop"),
    "exact by word": ({"exact": "very"}, "exact"),
    "seed below 0": ({"seed": -1}, "seed"),
}


@pytest.fixture(scope="module")
def address():
    with served(Settings()) as place:
        yield place


def connect(address: str) -> Client:
    return Client(address, verbose=False, analytics_enabled=False)


@pytest.fixture(scope="module")
def client(address) -> Client:
    return connect(address)


@pytest.fixture(scope="module")
def good(client) -> dict:
    """The answer to GOOD from a machine that does nothing else."""
    return race_once(client)


def race_once(client: Client, **changes) -> dict:
    return client.predict(api_name="/race_once", **GOOD | changes)


def race_logs(client: Client, **changes) -> list[str]:
    """Every state of the log of a streamed race."""
    return list(client.submit(api_name="/race", **GOOD | changes))


def events(log: str) -> list[dict]:
    return [json.loads(line) for line in log.splitlines()]


def under_way(job) -> None:
    """Wait until a streamed race has committed a token."""
    deadline = time.monotonic() + FREE_S
    while not any('"e":"step"' in log for log in job.outputs()[-1:]):
        assert time.monotonic() < deadline and not job.done(), "the race does not begin"
        time.sleep(0.05)


def assert_free(client: Client, good: dict) -> None:
    """A small race gets the device and is right."""
    job = client.submit(api_name="/race_once", **GOOD)
    assert job.result(timeout=FREE_S)["plain"]["token_ids"] == good["plain"]["token_ids"]


# --- answers -------------------------------------------------------------------------------------------


def test_a_race_returns_both_answers_and_all_figures(good):
    assert set(good) == {
        "pair",
        "mode",
        "dtype",
        "quantization",
        "plain",
        "speculative",
        "speed_up",
        "failure",
        "lossless",
        "memory",
    }
    assert good["failure"] is None
    assert set(good["plain"]) == ANSWER
    assert set(good["speculative"]) == ANSWER | SPECULATION
    assert set(good["memory"]) == MEMORY
    assert (good["pair"], good["mode"], good["dtype"]) == ("embedded", "ngram", "fp32")
    assert good["lossless"] == {"verdict": "identical", "position": None, "margin": None}
    plain, other = good["plain"], good["speculative"]
    assert plain["token_ids"] == other["token_ids"] and plain["text"] == other["text"] != ""
    for side in (plain, other):
        assert side["tokens"] == len(side["token_ids"]) == TOKENS
        assert 0 < side["ttft_s"] < side["latency_s"]
    assert sum(other["origins"].values()) == TOKENS
    assert other["accepted"] <= other["tested"] <= other["drafted"]
    assert good["speed_up"] == pytest.approx(plain["latency_s"] / other["latency_s"])
    # An n-gram model drafts: what it needs is its table, not the head that the pair has as well.
    assert 0 < good["memory"]["draft_weights_mb"] < 5 < 600 < good["memory"]["target_weights_mb"]


def test_a_streamed_race_is_a_log_that_only_grows_and_says_the_same(client, good):
    logs = race_logs(client)
    assert len(logs) > 3
    for shorter, longer in zip(logs, logs[1:], strict=False):
        assert longer.startswith(shorter) and longer.endswith("\n")
    told = events(logs[-1])
    kinds = [event["e"] for event in told]
    assert kinds[0] == "start" and kinds[-1] == "end" and {"status", "step", "figures", "verdict"} <= set(kinds)
    for side in ("plain", "speculative"):
        steps = [event for event in told if event["e"] == "step" and event["side"] == side]
        tokens = [token for step in steps for token in step["tokens"]]
        assert "".join(token["text"] for token in tokens) == good[side]["text"]
        assert len(tokens) == TOKENS
    figures = [event["values"] for event in told if event["e"] == "figures"][-1]
    assert figures["speed_up"]["joint"].endswith("×")
    assert figures["tokens"] == {"plain": str(TOKENS), "speculative": str(TOKENS)}
    assert [event["kind"] for event in told if event["e"] == "verdict"] == ["identical"]
    assert told[-1]["finish"] == {"plain": "length", "speculative": "length"}


def test_a_seed_repeats_a_sampled_race(client):
    first, second = (race_once(client, temperature=0.8, top_k=40, top_p=0.9, seed=7) for _ in range(2))
    assert first["lossless"]["verdict"] == "same distribution"
    for side in ("plain", "speculative"):
        assert first[side]["token_ids"] == second[side]["token_ids"]


@pytest.mark.parametrize(
    "prompt",
    [
        "a\x00b\x07\x1b[31mc\x7f",
        "\U0001f469\u200d\U0001f680 \U0001f1eb\U0001f1f7",
        "\u0645\u0631\u062d\u0628\u0627 \u202eabc\u202c",
    ],
    ids=["control characters", "emoji", "right to left"],
)
def test_any_text_is_raced(client, prompt):
    answer = race_once(client, prompt=prompt)
    assert answer["plain"]["tokens"] > 0 and answer["lossless"]["verdict"] == "identical"


# --- refusals ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("changes", "field"), BAD.values(), ids=BAD)
def test_bad_input_is_refused_in_words_that_name_the_field(client, changes, field):
    with pytest.raises(AppError) as refusal:
        race_once(client, **changes)
    message = str(refusal.value)
    assert message.startswith(f"{field}: ") and len(message) < 300 and "\n" not in message
    told = events(race_logs(client, **changes)[-1])
    assert [event["e"] for event in told].count("error") == 1
    assert told[-1] == {"e": "error", "text": message}


def test_after_all_refusals_a_race_still_works(client, good):
    assert_free(client, good)


def test_the_limits_of_the_served_page_hold_for_the_api(good):
    limits = Limits(max_new_tokens=TOKENS + 8, max_draft_length=2, max_prompt_characters=40)
    with served(Settings(limits=limits, defaults=Defaults(max_new_tokens=TOKENS))) as place:
        tight = connect(place)
        # What a call does not give is what the page shows first, not some number that this page may not allow.
        assert tight.predict("Write a long story.", api_name="/race_once")["plain"]["tokens"] == TOKENS
        for changes in ({"max_new_tokens": TOKENS + 9}, {"draft_length": 3}, {"prompt": "a" * 41}):
            with pytest.raises(AppError, match=next(iter(changes))):
                race_once(tight, **changes)
        answer = race_once(tight)
    assert answer["plain"]["token_ids"] == good["plain"]["token_ids"]


# --- the device is shared --------------------------------------------------------------------------------


def test_a_cancelled_race_frees_the_device(client, good):
    job = client.submit(api_name="/race", **LONG)
    under_way(job)
    job.cancel()
    assert_free(client, good)


def test_a_race_whose_client_goes_away_frees_the_device(address, client, good):
    call = f"{address}gradio_api/call/v2/race"
    made = httpx.post(call, json=LONG)
    made.raise_for_status()
    with httpx.stream("GET", f"{address}gradio_api/call/race/{made.json()['event_id']}", timeout=FREE_S) as stream:
        assert any('\\"e\\":\\"step\\"' in line for line in stream.iter_lines())
    assert_free(client, good)


def test_no_call_passes_the_queue_by(address):
    for path in ("run/race_once", "api/race_once"):
        answer = httpx.post(f"{address}gradio_api/{path}", json={"data": ["x"], "session_hash": "s"})
        assert answer.status_code == 404 and "join the queue" in answer.text, path


def test_two_clients_at_once_are_served_one_after_the_other(address, good):
    with ThreadPoolExecutor() as pool:
        first, second = pool.map(lambda _: race_once(connect(address)), range(2))
    for answer in (first, second):
        for side in ("plain", "speculative"):
            assert answer[side]["token_ids"] == good[side]["token_ids"]


def test_many_stopped_races_leave_nothing_behind(client, good):
    """SPECDEMO_SOAK=50 runs it for longer."""
    delays, process = random.Random(0), psutil.Process()
    own, pooled, sizes = [], [], []
    for _ in range(SOAK):
        job = client.submit(api_name="/race", **LONG)
        time.sleep(delays.uniform(0.1, 2))
        job.cancel()
        assert_free(client, good)
        names = sorted(thread.name for thread in threading.enumerate())
        own.append([name for name in names if not name.startswith(POOLS)])
        pooled.append(len(names) - len(own[-1]))
        sizes.append(process.memory_info().rss / 1e6)
    # The server's and this client's pools start a worker when none is idle at that moment; a worker that a race held
    # for good would make one more each time.
    # Threads that tests before this one left may end meanwhile; none may be added.
    assert not Counter(own[-1]) - Counter(own[0]) and sum(name.startswith("device") for name in own[-1]) == 1
    assert pooled[-1] <= pooled[0] + 4, pooled
    assert sizes[-1] - sizes[2] < 60, sizes
    last = race_once(client)
    assert last["lossless"]["verdict"] == "identical"
    assert last["plain"]["token_ids"] == last["speculative"]["token_ids"] == good["plain"]["token_ids"]


# --- the benchmark ---------------------------------------------------------------------------------------

ASKED = {"prompts": ["Name two colours."], "modes": ["ngram"], "dtypes": ["fp32"], "max_new_tokens": 8}


def test_a_benchmark_returns_rows_averages_and_the_machine(client):
    found = client.predict(api_name="/benchmark", **ASKED)
    assert found.keys() == {"rows", "averages", "advice", "machine"}
    assert [(row["mode"], row["lossless"], row["tokens"]) for row in found["rows"]] == [
        ("plain", "identical", 8), ("ngram", "identical", 8),
    ]  # fmt: skip
    assert [entry["mode"] for entry in found["averages"]] == ["plain", "ngram"] and found["machine"]["processor"]
    assert found["advice"][0].startswith("fp32: no verdict yet, measure more prompts. The best way so far, ngram")


def test_a_benchmark_ends_when_whoever_asked_goes_away(client):
    job = client.submit(api_name="/benchmark", **ASKED | {"prompts": ["Name two colours."] * 40, "max_new_tokens": 300})
    while not job.outputs():
        time.sleep(0.05)
    job.cancel()
    again = client.submit(api_name="/race_once", **GOOD)
    assert again.result(timeout=60)["plain"]["tokens"] == TOKENS  # the whole benchmark takes many minutes


@pytest.mark.parametrize(
    ("changes", "word"),
    [
        ({"prompts": []}, "prompts"),
        ({"prompts": "x"}, "prompts"),
        ({"prompts": [""]}, "prompt: is empty"),
        ({"prompts": ["x"] * 101}, "at most 200"),
        ({"modes": []}, "modes"),
        ({"modes": ["magic"]}, "mode: "),
        ({"modes": ["chain:" + "9" * 5000]}, "mode: "),
        ({"modes": ["transformers prompt lookup:999"]}, "is not measured here"),
        ({"modes": [f"tree:{length}" for length in range(1, 17)]}, "17 ways"),
        ({"draft_length": [1]}, "draft_length"),
        ({"dtypes": ["fp8"]}, "dtype"),
        ({"quantizations": ["nf5"]}, "quantization"),
        ({"repeats": 99}, "repeats"),
        ({"prompts": ["x"] * 90, "max_new_tokens": 512}, "at most 30000 are measured here"),
        ({"max_new_tokens": "many"}, "max_new_tokens"),
        ({"max_new_tokens": 0}, "max_new_tokens"),
        ({"pair": ""}, "pair"),
        ({"max_new_tokens": 9999}, "max_new_tokens"),
        ({"pair": "../etc"}, "pair"),
    ],
)
def test_a_bad_benchmark_is_refused_in_words(client, changes, word):
    with pytest.raises(AppError, match=word):
        client.predict(api_name="/benchmark", **ASKED | changes)
