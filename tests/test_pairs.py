"""The pair table: typed counts follow from the configs that the models publish."""

from types import SimpleNamespace

import pytest
import torch
from pair_configs import CONFIGS

from specdemo.models import size
from specdemo.models.pairs import HARDWARE, MODELS, PAIRS
from specdemo.models.quantize import Quantization
from specdemo.models.vocabulary import compare

NF4 = Quantization("nf4", both=True)


@pytest.mark.parametrize("name", MODELS)
def test_counts_follow_from_the_config(name):
    config, row = CONFIGS[name](), MODELS[name]
    skeleton = size.skeleton(config, torch.bfloat16, NF4)
    assert size.counts(skeleton) == (row.parameters, row.linear)
    assert size.cached_numbers(config) == row.cached
    assert config.max_position_embeddings == row.context


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("quantization", [None, NF4, Quantization("nf4", double=True), Quantization("int8")], ids=str)
def test_bytes_of_the_table_are_those_of_the_layers(name, quantization):
    """The table knows one count of quantized weights, the skeleton each layer's scales and tables: within 1%."""
    skeleton = size.skeleton(CONFIGS[name](), torch.bfloat16, quantization)
    told = MODELS[name].weight_bytes(2, quantization or Quantization())
    assert told == pytest.approx(size.weight_bytes(skeleton, torch.bfloat16), rel=0.01)


def test_every_pair_is_made_of_listed_models_and_has_its_own_name():
    for name, pair in PAIRS.items():
        assert name == pair.name and pair.target in MODELS and pair.draft in {None, *MODELS}
        assert len(pair.models) == 1 + (pair.draft is not None)
        # A draft that is not much smaller than its target cannot pay.
        assert pair.draft is None or MODELS[pair.draft].parameters < 0.4 * MODELS[pair.target].parameters


def test_memory_of_a_pair_is_weights_and_three_caches():
    pair = PAIRS["llama2"]  # the draft's context, 2048, ends before 4000 tokens
    weights = 2 * (13_015_864_320 + 1_100_048_384)
    caches = 2 * 4000 * 409_600 * 2 + 2048 * 11_264 * 2
    assert pair.memory_bytes(2, tokens=4000) == weights + caches


def test_quantization_makes_a_pair_fit_less_hardware_except_experts():
    order = [*HARDWARE, None]
    assert order.index(PAIRS["gemma2"].hardware(NF4)) < order.index(PAIRS["gemma2"].hardware())
    assert PAIRS["embedded"].hardware() == order[0]
    mixtral = PAIRS["mixtral"]
    assert mixtral.memory_bytes(2, NF4) > 90e9  # the experts stay


def test_gated_ids_and_templates_are_told():
    assert PAIRS["gemma2"].gated == ("google/gemma-2-9b-it", "google/gemma-2-2b-it")
    assert PAIRS["llama2"].gated == ("meta-llama/Llama-2-13b-chat-hf",)
    assert not PAIRS["pythia"].chat and PAIRS["qwen3"].chat


def test_pythias_padded_logits_are_never_drafted():
    words = {f"w{i}": i for i in range(50277)}
    tokenizer = SimpleNamespace(get_vocab=lambda: words, added_tokens_decoder={})
    widths = [CONFIGS[f"EleutherAI/pythia-{size}"]().vocab_size for size in ("12b", "70m")]
    assert widths == [50688, 50304]
    assert compare(tokenizer, tokenizer, *widths).shared == 50277
