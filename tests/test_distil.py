"""The small model: cut from the target, distilled, written as layers, put together as an ordinary checkpoint."""

import pytest
import torch
from test_head import answers
from tiny import model
from transformers import AutoModelForCausalLM

from specdemo.draft.distil import agreement, distil
from specdemo.models.embedded_draft import cut, read_layers, write_layers


@pytest.fixture
def target():
    return model("llama", tie_word_embeddings=True, num_hidden_layers=3)


def test_all_layers_of_the_target_are_the_target(target):
    ids = torch.arange(12)[None]
    with torch.inference_mode():
        torch.testing.assert_close(cut(target, [0, 1, 2])(ids).logits, target(ids).logits)
        assert not torch.allclose(cut(target, [0, 2])(ids).logits, target(ids).logits)


def test_distilling_raises_agreement_and_leaves_the_embedding_alone(target):
    small, data, known = cut(target, [0, 2]), answers(target), list(range(32))
    before = small.get_input_embeddings().weight.clone()
    untrained = agreement(small, data, known, 8)
    for _ in distil(small, data, known, 20, 8, 3e-3, seed=0):
        pass
    assert agreement(small, data, known, 8) > untrained + 0.1
    assert torch.equal(small.get_input_embeddings().weight, before)


def test_the_target_itself_agrees_with_itself_everywhere(target):
    """Holds off a shift by one position between states and logits."""
    assert agreement(cut(target, [0, 1, 2]), answers(target, 6), list(range(32)), 3) == pytest.approx(1, abs=0.02)


def test_layers_read_back_make_a_checkpoint_that_transformers_loads(target, tmp_path):
    small = cut(target, [0, 2])
    write_layers(small, tmp_path / "layers.safetensors", {"license": "any"})
    read_layers(tmp_path / "layers.safetensors", target).save_pretrained(tmp_path / "checkpoint")
    again = AutoModelForCausalLM.from_pretrained(tmp_path / "checkpoint", dtype=torch.float32)
    ids = torch.arange(12)[None]
    with torch.inference_mode():
        torch.testing.assert_close(again(ids).logits, small(ids).logits, atol=0.02, rtol=0.02)


def test_a_target_that_cannot_be_cut_is_refused():
    with pytest.raises(ValueError, match="Llama family"):
        cut(model("gpt2"), [0])
