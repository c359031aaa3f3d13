"""The small model: cut from the target, distilled, written as layers, put together as an ordinary checkpoint."""

import pytest
import torch
from test_head import answers
from tiny import model
from transformers import AutoModelForCausalLM

from specdemo.draft import optimize
from specdemo.draft.distil import agreement, distil
from specdemo.draft.optimize import Checkpoint, Schedule
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
    for _ in distil(small, data, known, Schedule(20, 8, 3e-3, seed=0)):
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


# --- a run that is killed ------------------------------------------------------------------------------------


def test_a_killed_run_goes_on_and_ends_as_one_that_was_not(target, tmp_path, monkeypatch):
    monkeypatch.setattr(optimize, "EVERY", 2)
    data, known, schedule = answers(target, 24), list(range(32)), Schedule(2, 8, 3e-3, seed=0)

    def run(path, until=99):
        small = cut(target, [0, 2])
        checkpoint = Checkpoint(path, {"seed": "0"})
        steps = []
        for step, _, _ in distil(small, data, known, schedule, checkpoint):
            steps.append(step)
            if step == until:
                break
        return steps, small.state_dict()

    steps, whole = run(tmp_path / "whole")
    assert steps == [1, 2, 3, 4, 5, 6] and schedule.steps(len(data)) == 6
    assert run(tmp_path / "killed", until=3)[0] == [1, 2, 3]
    steps, resumed = run(tmp_path / "killed")
    assert steps == [3, 4, 5, 6]
    for name, weights in whole.items():
        assert torch.equal(resumed[name], weights), name


def test_another_run_and_a_file_that_is_none_are_refused_with_what_differs(target, tmp_path, monkeypatch):
    monkeypatch.setattr(optimize, "EVERY", 1)
    path = tmp_path / "small.training"
    checkpoint = Checkpoint(path, {"seed": "0", "rate": "1"})
    next(distil(cut(target, [0, 2]), answers(target, 8), list(range(32)), Schedule(1, 8, 1e-3, 0), checkpoint))
    assert Checkpoint(path, {"seed": "0", "rate": "1"}).step == 1
    with pytest.raises(ValueError, match="was begun with other passes, rate; give the same"):
        Checkpoint(path, {"seed": "0", "rate": "2", "passes": "1"})
    for broken in (b"", b"PK\x03\x04", path.read_bytes()[:-100]):
        path.write_bytes(broken)
        with pytest.raises(ValueError, match="no run that can be gone on with; delete it"):
            Checkpoint(path, {"seed": "0"})
    checkpoint.end()
    assert not path.exists() and Checkpoint(path, {"seed": "0"}).step == 0
