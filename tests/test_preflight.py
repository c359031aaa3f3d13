"""The preflight on directories: what a pair can be refused for, each in one sentence, with no weights anywhere."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import transformers as t
from tiny import CONFIGS, SMALL, folder, tokenizer

from specdemo.measure import memory
from specdemo.models import placement, size
from specdemo.models.findings import Level
from specdemo.models.load import LoadError, load
from specdemo.models.pairs import Pair
from specdemo.models.preflight import preflight
from specdemo.models.quantize import Quantization

ROOT = Path(__file__).parents[1]
WORDS = [f"w{i}" for i in range(32)]


@pytest.fixture
def make(tmp_path):
    """A function that writes a directory of a config and a tokenizer and returns its name."""
    count = iter(range(100))

    def write(architecture="llama", words=WORDS, special=None, template=None, **changes):
        config = CONFIGS[architecture]() if isinstance(architecture, str) else architecture
        config.update({"vocab_size": len(words) + len(special or {})} | changes)
        return folder(tmp_path / str(next(count)), config, tokenizer(words, special, template))

    return write


def look(target, draft=None, quantization=None, context=None, dtype="fp32"):
    return preflight(Pair("tried", "", target, draft), dtype, quantization, context)


def sentences(report, level, topic=None):
    return [x.sentence for x in report.findings if x.level is level and topic in (None, x.topic)]


@pytest.mark.parametrize("architecture", CONFIGS)
def test_every_architecture_of_the_table_is_usable(architecture, make):
    report = look(make(architecture), make(architecture))
    assert report.refusal is None and report.shared == 32
    said = " ".join(sentences(report, Level.OK, "attention"))
    assert ("windows of 8" in said) == (architecture in ("mistral", "mixtral", "gemma2", "qwen2"))
    assert ("eager" in said) == (architecture == "gemma2")


def test_widths_that_differ_by_padding_are_said_and_allowed(make):
    words = [f"w{i}" for i in range(50277)]
    report = look(make("gpt_neox", words, vocab_size=50688), make("gpt_neox", words, vocab_size=50304))
    assert report.refusal is None and report.shared == 50277
    assert "50,688 (target) and 50,304 (draft)" in sentences(report, Level.OK, "logits")[0]


def test_vocabularies_of_equal_size_that_differ_are_refused_with_the_first_id(make):
    other = [*WORDS[:7], "x", *WORDS[8:]]
    report = look(make(), make(words=other))
    assert report.refusal == (
        "the draft's tokenizer is not the target's: id 7 is 'x' in the draft and 'w7' in the target; choose a draft "
        "of the same model family"
    )


def test_added_tokens_may_differ(make):
    """Reserved tokens that a later version gave a name, as between Llama 3 and 3.2."""
    report = look(make(special={32: "<a>", 33: "<b>"}), make(special={32: "<a>", 33: "<c>"}))
    assert report.refusal is None and report.shared == 34
    assert "1 added or unused ids differ (33)" in sentences(report, Level.WARNING, "vocabulary")[0]


def test_an_added_token_does_not_hide_an_ordinary_one(make):
    """Only both being added tokens is harmless: a word that is a mark in the other model is another text."""
    report = look(make(words=[*WORDS, "w32"]), make(special={32: "<c>"}))
    assert report.refusal is not None and "id 32" in report.refusal


def test_another_end_of_an_answer_is_said(make):
    target, draft = make(special={32: "<end>"}), make(special={32: "<end>"})
    (Path(target) / "tokenizer_config.json").write_text('{"eos_token": "<end>"}')
    report = look(target, draft)
    assert report.refusal is None and "'<end>' in the target" in sentences(report, Level.WARNING, "vocabulary")[0]
    assert sentences(look(draft, draft), Level.WARNING, "vocabulary") == []


def test_a_draft_with_a_shorter_context_is_said_and_allowed(make):
    report = look(make(max_position_embeddings=4096), make(max_position_embeddings=2048))
    assert report.refusal is None
    assert "draft's context is 2,048 tokens, the target's 4,096" in sentences(report, Level.WARNING, "context")[0]


def test_a_chat_model_beside_a_base_model_is_said(make):
    chat, base = make(template="{{ messages[0].content }}"), make()
    assert f"{base} has none" in sentences(look(chat, base), Level.WARNING, "chat")[0]
    assert sentences(look(base, base), Level.WARNING, "chat") == []


@pytest.mark.parametrize(
    ("config", "reason"),
    [
        (t.MambaConfig(vocab_size=32, hidden_size=16, num_hidden_layers=1, state_size=4), "cannot be rolled back"),
        (
            t.GPTNeoConfig(hidden_size=16, num_layers=2, num_heads=2, attention_types=[[["global", "local"], 1]]),
            "its local layers hide rows",
        ),
        (t.T5Config(vocab_size=32, d_model=16, num_layers=1), "no causal language model"),
    ],
)
def test_models_that_cannot_be_rolled_back_or_do_not_write_are_refused(config, reason, make):
    assert reason in (look(make(config)).refusal or "")


def test_a_context_ends_where_the_rotation_of_its_positions_would_change(make):
    rope = {"rope_type": "longrope", "rope_theta": 10000.0, "short_factor": [1.0] * 4, "long_factor": [2.0] * 4}
    config = t.Phi3Config(**SMALL, rope_parameters=rope, original_max_position_embeddings=64)
    report = look(make(config), make(config), context=200)
    assert report.refusal is None and report.context == 64
    assert "64 tokens (target), 64 (draft)" in sentences(report, Level.OK, "context")[0]


@pytest.mark.parametrize("quantization", [None, Quantization("nf4", "target")])
def test_a_checkpoint_that_is_quantized_already_is_refused_by_name(make, quantization):
    config = CONFIGS["llama"]()
    config.quantization_config = {"quant_method": "gptq", "bits": 4}
    assert "its checkpoint is quantized already" in (look(make(config), quantization=quantization).refusal or "")


def test_memory_is_weights_and_the_caches_of_both_paths_and_of_the_draft(make):
    """Llama of SMALL: per token 2 (keys, values) x 2 layers x 1 head x 8 numbers."""
    target, draft = make(max_position_embeddings=4096), make(max_position_embeddings=1024)
    report = look(target, draft, context=3000, dtype="bf16")
    assert report.needed["target cache"] == 2 * 3000 * 32 * 2
    assert report.needed["draft cache"] == 1024 * 32 * 2
    weights = size.weight_bytes(size.skeleton(t.AutoConfig.from_pretrained(target), torch.bfloat16), torch.bfloat16)
    assert report.needed["target weights"] == report.needed["draft weights"] == weights
    assert "at 3,000 tokens of context" in sentences(report, Level.OK, "memory")[0]


@pytest.mark.skipif(not torch.backends.mkldnn.is_available(), reason="needs oneDNN")
def test_the_packed_heads_copy_of_a_tied_embedding_is_reckoned_with(make):
    tied, own = (look(make(tie_word_embeddings=tied)).needed["target weights"] for tied in (True, False))
    assert tied == own == look(make()).needed["target weights"]


def test_what_does_not_fit_is_refused_before_any_weights(make, monkeypatch):
    name = make()
    needed = sum(look(name).needed.values())
    monkeypatch.setattr(memory, "free_bytes", lambda on: int(needed / 0.85) - 10)
    report = look(name)
    assert report.refusal is not None and "does not fit" in report.refusal and "choose bf16" in report.refusal
    with pytest.raises(LoadError, match="does not fit"):  # the directory has no weights to read
        load(Pair("large", "", name), "fp32")
    monkeypatch.setattr(memory, "free_bytes", lambda on: int(needed / 0.85) + 10)
    assert look(name).refusal is None


def test_a_containers_limit_is_what_is_free(tmp_path):
    (tmp_path / "memory.max").write_text("1000\n")
    (tmp_path / "memory.current").write_text("900\n")
    (tmp_path / "memory.stat").write_text("anon 500\ninactive_file 300\n")
    assert list(memory._container_free(tmp_path)) == [400]
    (tmp_path / "memory.max").write_text("max\n")
    assert list(memory._container_free(tmp_path)) == []


def test_experts_in_one_block_are_not_quantized_and_the_figure_is_said(make):
    wide = dict(hidden_size=64, intermediate_size=4096, num_local_experts=8)
    report = look(make("mixtral", **wide), quantization=Quantization("nf4"), dtype="bf16")
    stays = 2 * 8 * 3 * 64 * 4096 * 2  # layers, experts, projections, bf16
    assert report.refusal is not None and f"{stays / 1e9:.1f} of" in report.refusal
    assert look(make("mixtral", **wide)).refusal is None


def test_quantization_is_said_for_the_models_it_is_for(make):
    target, draft = make(), make()
    one, both = (look(target, draft, Quantization("int8", both=both)) for both in (False, True))
    assert len(sentences(one, Level.OK, "quantization")) == 1 and len(sentences(both, Level.OK, "quantization")) == 2
    assert both.needed["draft weights"] < one.needed["draft weights"]
    assert any("more than rounding" in sentence for sentence in sentences(one, Level.WARNING, "quantization"))


@pytest.mark.parametrize(
    ("file", "content", "reason"),
    [
        ("config.json", "{", "its config.json is broken"),
        ("config.json", "[]", "cannot read its config.json"),
        ("config.json", '{"model_type": "magic"}', "(model_type 'magic')"),
        ("config.json", json.dumps({"model_type": "llama"} | SMALL | {"hidden_size": "wide"}), "cannot read"),
        ("config.json", json.dumps({"model_type": "llama"} | SMALL | {"num_attention_heads": 3}), "cannot"),
        ("tokenizer.json", "{", "its tokenizer cannot be read"),
    ],
)
def test_broken_files_are_refused_in_one_line(file, content, reason, make):
    broken = make()
    (Path(broken) / file).write_text(content)
    for report in (look(broken), look(make(), broken)):
        assert report.refusal is not None and reason in report.refusal and f"cannot load {broken!r}" in report.refusal
        assert "\n" not in report.refusal


def test_missing_files_are_refused(make, tmp_path):
    name = make()
    (Path(name) / "config.json").unlink()
    assert "has no config.json" in (look(name).refusal or "")
    assert "there is no such directory" in (look(str(tmp_path / "nothing" / "here")).refusal or "")


def test_a_target_larger_than_one_gpu_is_spread_and_never_put_off_to_the_cpu(make):
    """As far as it goes without GPUs: accelerate's own placement on invented sizes."""
    skeleton = size.skeleton(t.LlamaConfig(**SMALL | {"num_hidden_layers": 12}), torch.float32)
    whole = size.weight_bytes(skeleton, torch.float32)
    assert placement.place(skeleton, torch.float32, whole, {}) is None
    assert placement.place(skeleton, torch.float32, whole, {0: whole, 1: 2 * whole}) == {"": 1}
    assert placement.place(skeleton, torch.float32, whole, {0: 2 * whole, 1: 3 * whole}, prefer=0) == {"": 0}
    spread = placement.place(skeleton, torch.float32, whole, {0: int(0.9 * whole), 1: int(0.9 * whole)})
    assert spread is not None and set(spread.values()) == {0, 1}
    with pytest.raises(LoadError, match="left to the CPU"):
        placement.place(skeleton, torch.float32, whole, {0: int(0.4 * whole), 1: int(0.4 * whole)})


def test_a_quantized_target_is_spread_by_its_quantized_size():
    config = t.LlamaConfig(**SMALL | {"hidden_size": 256, "intermediate_size": 1024, "num_hidden_layers": 12})
    skeleton = size.skeleton(config, torch.float32, Quantization("nf4"))
    whole = size.weight_bytes(skeleton, torch.float32)
    spread = placement.place(skeleton, torch.float32, whole, {0: int(0.8 * whole), 1: int(0.9 * whole)})
    assert spread is not None and set(spread.values()) == {0, 1}


def specdemo(*arguments, **environment):
    command = [sys.executable, "-m", "specdemo", "preflight", *map(str, arguments)]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, env=os.environ | environment)


def test_the_command_prints_a_report_and_refuses_with_status_2(make):
    target, other = make(), make(words=[*WORDS[:7], "[red]x", *WORDS[8:]])
    done = specdemo("--target", target, "--draft", other, "--json")
    assert done.returncode == 2 and len(done.stderr.strip().splitlines()) == 1 and "id 7" in done.stderr
    report = json.loads(done.stdout)
    assert not report["usable"] and "refusal" in {x["level"] for x in report["findings"]}
    done = specdemo("--target", target, "--draft", target)
    assert done.returncode == 0 and done.stderr == "" and "memory" in done.stdout


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--pair", "none"], "there is no 'none'"),
        (["--pair", "gemma2", "--target", "x"], "not both"),
        (["--quantization", "int3"], "quantization: there is no 'int3'"),
        (["--quantize", "draft"], "quantize: there is no 'draft'"),
        (["--quantization", "int8", "--double-quantization"], "only nf4"),
        (["--dtype", "fp8"], "dtype: there is no 'fp8'"),
        (["--context", "0"], "context: 0"),
    ],
)
def test_bad_options_are_one_line_and_status_2(arguments, message):
    done = specdemo(*arguments)
    assert done.returncode == 2 and done.stdout == ""
    assert message in done.stderr and len(done.stderr.strip().splitlines()) == 1
