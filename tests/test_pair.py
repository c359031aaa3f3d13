"""The real embedded pair: greedy answers in float32 are identical for every mode and draft length.

SPECDEMO_PROMPTS names a .jsonl file with a "prompt" in each line, and SPECDEMO_TOKENS the length of the answers, for a
longer run than the default.
"""

import json
import os
from pathlib import Path
from threading import Event

import pytest
import torch

from specdemo.engine.cache import CachedModel
from specdemo.engine.decode import plain
from specdemo.engine.sampling import Randomness
from specdemo.models import embedded_draft
from specdemo.models.load import LoadError, load, resolve_dtype
from specdemo.models.pairs import PAIRS, Pair
from specdemo.request import RaceRequest, RequestError
from specdemo.run import Run, load_for
from specdemo.ui.texts import EXAMPLES

pytestmark = pytest.mark.model

TOKENS = int(os.environ.get("SPECDEMO_TOKENS", 20))
FILE = os.environ.get("SPECDEMO_PROMPTS")
PROMPTS = [json.loads(line)["prompt"] for line in Path(FILE).read_text().splitlines()] if FILE else EXAMPLES
LENGTHS = range(1, 9) if FILE else (1, 4, 8)


@pytest.fixture(scope="module")
def draft():
    """The small draft model by its directory, as a user names one: in the place of head and table."""
    return str(embedded_draft.fetch())


def request(prompt, **changes):
    return RaceRequest(prompt=prompt, **{"dtype": "fp32", "max_new_tokens": TOKENS} | changes)


@pytest.fixture(scope="module")
def reference():
    """The plain path's ids for every prompt."""
    loaded = load_for(request("x"))
    answers = {}
    for prompt in PROMPTS:
        task = Run(request(prompt), loaded, Event()).task
        steps = plain(CachedModel(loaded.target), task, Randomness(0, loaded.target.device))
        answers[prompt] = [token.id for step in steps for token in step.tokens]
    return answers


@pytest.mark.parametrize("length", LENGTHS)
@pytest.mark.parametrize(
    ("mode", "by"),
    [(mode, "head") for mode in ("tree", "ngram", "chain", "auto")]
    + [(mode, "draft model") for mode in ("chain", "tree", "staged", "auto")],
)
def test_greedy_float32_is_identical(mode, by, length, reference, draft):
    speculated = 0
    for prompt, expected in reference.items():
        asked = request(prompt, mode=mode, draft=draft if by == "draft model" else None, draft_length=length)
        run = Run(asked, load_for(asked), Event())
        steps = list(run.paths["speculative"])
        assert [token.id for step in steps for token in step.tokens] == expected, prompt
        speculated += sum(len(step.nodes) for step in steps)
    assert speculated > 0


def test_a_penalty_a_stop_string_and_exactness_hold_for_both_paths_and_are_recorded():
    asked = request(
        "Count from one to ten in words.", repetition_penalty=1.1, stop=["never", "45"], exact=True, max_new_tokens=60
    )
    run = Run(asked, load_for(asked), Event())
    for _ in run:
        pass
    result = run.result()
    assert result["lossless"]["verdict"] == "identical"
    assert result["plain"]["text"].endswith("45") and "45" not in result["plain"]["text"][:-1]
    assert [str(tally.finish) for tally in run.tallies.values()] == ["stop", "stop"]
    assert run.trace.settings["repetition_penalty"] == 1.1


@pytest.mark.parametrize("quantization", ["none", "nf4"])
def test_exactness_makes_bf16_equal_to_plain_decoding(quantization):
    rechecked = 0
    for prompt in (
        "Generative models like GPT-3 can create ",
        "Write an HTML page with a heading, a paragraph and a list of three links.",
        "Name eight fruits and one fact about each.",
    ):
        asked = request(prompt, dtype="bf16", quantization=quantization, quantize="both", exact=True)
        run = Run(asked, load_for(asked), Event())
        for _ in run:
            pass
        assert run.result()["lossless"]["verdict"] == "identical", prompt
        rechecked += run.result()["speculative"]["rechecked"]
    assert rechecked > 0


def test_draft_then_score_returns_the_drafts_text_and_calls_it_lossy(draft):
    asked = request("Name the days of the week.", mode="draft-then-score", draft=draft)
    run = Run(asked, load_for(asked), Event())
    for _ in run:
        pass
    result = run.result()
    assert result["lossless"]["verdict"] == "lossy"
    assert result["speculative"]["origins"]["unverified"] == result["speculative"]["tokens"]
    assert result["speculative"]["text"] != result["plain"]["text"]
    assert result["speculative"]["score"] < result["plain"]["score"]


@pytest.mark.parametrize("mode", ["staged", "draft-then-score"])
def test_a_mode_whose_draft_the_pair_lacks_is_refused_with_what_it_needs(mode):
    with pytest.raises(RequestError, match=f"mode: {mode} needs a draft model"):
        Run(request("x", mode=mode), load_for(request("x", target="embedded")), Event())


def test_what_passes_cost_is_measured_once_and_kept(monkeypatch, tmp_path):
    from specdemo.models import costs as module

    monkeypatch.setattr(module.embedded, "home", lambda: tmp_path)
    loaded = load_for(request("x"))
    measured, _ = module.measure(loaded)
    assert len(measured.verify) == 17 and list(measured.verify) == sorted(measured.verify)
    for calm in (False, True):  # what other work has disturbed is used by this process, and not kept
        monkeypatch.setattr(module, "_restless", {})
        monkeypatch.setattr(module, "measure", lambda loaded, calm=calm: (measured, calm))
        found = module.costs(loaded)
        assert found == measured and (tmp_path / "costs").exists() == calm
        monkeypatch.setattr(module, "measure", lambda loaded: pytest.fail("measured again"))
        assert module.costs(loaded) == found
    (file,) = (tmp_path / "costs").iterdir()
    for broken in ("", "[]", '{"verify": [0]}', '{"verify": "abc"}', '{"verify": [null]}'):
        file.write_text(broken)
        monkeypatch.setattr(module, "measure", lambda loaded: (found, True))
        assert module.costs(loaded) == found, broken


def test_a_race_records_a_trace_with_the_same_figures_and_texts(tmp_path):
    from specdemo.measure.trace import read, write

    run = Run(request("Count: one, two, one, two, one,"), load_for(request("x")), Event())
    for _ in run:
        pass
    write(run.trace, tmp_path / "race.json")
    again = read(tmp_path / "race.json")
    assert again.tallies() == run.tallies
    result = run.result()
    assert result["lossless"]["verdict"] == "identical"
    for name in ("plain", "speculative"):
        assert "".join(again.pieces[name]) == result[name]["text"]
    # 134,515,008 float32 weights, and the output head's own copy of the 49152 x 576 embedding for the packed kernel.
    assert result["memory"]["target_weights_mb"] == pytest.approx(538.06 + 113.25, abs=0.01)


def test_draft_memory_is_what_the_mode_uses():
    tree, ngram = (
        Run(request("x", mode=mode), load_for(request("x")), Event()).draft_bytes for mode in ("tree", "ngram")
    )
    table = load_for(request("x")).ngram.nbytes
    # Head: join and one layer of the target's shape, and its 4,096 output rows; the embedding is the target's.
    layer = 2 * 576 * 576 + 2 * 192 * 576 + 3 * 1536 * 576 + 2 * 576
    weights = (2 * 576 + 1) * 576 + layer + 576 + 4096 * 576
    assert ngram == table
    assert tree - table == pytest.approx(4 * weights + 8 * 4096, abs=1000)  # and the rotary frequencies


def test_both_paths_share_one_copy_of_the_targets_weights():
    loaded = load_for(request("x"))
    assert load_for(request("y")) is loaded
    run = Run(request("x"), loaded, Event())
    weights = 134_515_008 + 49152 * 576  # the packed output head no longer shares the embedding's memory
    assert run.target_bytes == weights * 4 + sum(buffer.nbytes for buffer in loaded.target.buffers())


def test_auto_is_bf16_only_where_the_processor_computes_in_it(monkeypatch):
    cpu = torch.device("cpu")
    for capabilities, expected in (({"avx512_bf16": True}, "bf16"), ({"avx2": True}, "fp32"), ({"bf16": True}, "bf16")):
        monkeypatch.setattr(torch.cpu, "get_capabilities", lambda found=capabilities: found)
        assert resolve_dtype("auto", cpu) == expected
    assert resolve_dtype("fp32", cpu) == "fp32"


def test_a_draft_with_another_tokenizer_is_refused_with_the_first_differing_id(tmp_path, draft):
    raw = json.loads((Path(draft) / "tokenizer.json").read_text())
    vocabulary = raw["model"]["vocab"]
    one, other = (next(token for token, id in vocabulary.items() if id == wanted) for wanted in (5000, 6000))
    vocabulary[one], vocabulary[other] = 6000, 5000
    for file in Path(draft).iterdir():
        (tmp_path / file.name).symlink_to(file)
    (tmp_path / "tokenizer.json").unlink()
    (tmp_path / "tokenizer.json").write_text(json.dumps(raw))
    with pytest.raises(LoadError, match="id 5000 is"):
        load(Pair("wrong", "", PAIRS["embedded"].target, str(tmp_path)), "fp32")


def test_a_draft_that_is_not_there_is_refused_in_one_line(tmp_path):
    with pytest.raises(LoadError, match="cannot load") as caught:
        load(Pair("missing", "", PAIRS["embedded"].target, str(tmp_path / "nothing")), "fp32")
    assert "\n" not in str(caught.value)
