"""The feature head: what it is trained on is what it meets, and with it speculation stays lossless."""

import pytest
import torch
from safetensors.torch import save_file
from tiny import model

from specdemo.draft.optimize import Schedule
from specdemo.draft.samples import Batch, Sample, collate
from specdemo.draft.train import loss_of, new_head, train, unrolled
from specdemo.engine import head as head_module
from specdemo.engine.cache import CachedModel
from specdemo.engine.decode import plain, speculative
from specdemo.engine.head import HeadDraft, read_head, write_head
from specdemo.engine.ngram import NgramModel, NgramTable
from specdemo.engine.sampling import Randomness
from specdemo.engine.types import Origin, Outcome, Sampling, Task
from specdemo.models.kernels import pack

PROMPT = (3, 4, 5, 3, 4, 5, 3, 4, 6, 7, 3, 4)
KNOWN = [0, 2, 3, 4, 5, 6, 7, 9, 11, 15, 20, 28, 31]


@pytest.fixture
def target():
    return model("llama", tie_word_embeddings=True)


def rng():
    return Randomness(7, torch.device("cpu"))


def head_draft(target, head, cached):
    return HeadDraft(CachedModel(head, keep_states=True), cached, NgramModel(NgramTable()), floor=0.001)


def answers(target, count=24, length=30):
    """Sequences that the target wrote itself, with its states."""
    found = []
    for seed in range(count):
        cached = CachedModel(target, keep_states=True)
        task = Task((seed % 32, (3 * seed) % 32), length, sampling=Sampling(0.5), seed=seed)
        ids = [*task.prompt]
        for step in plain(cached, task, Randomness(seed, torch.device("cpu"))):
            ids += [token.id for token in step.tokens]
        found.append(Sample(torch.tensor(ids), cached.states.half().clone(), 2))
    return found


def test_each_pass_of_training_predicts_what_drafting_to_that_depth_predicts(target):
    head = new_head(target, KNOWN)
    (sample,) = answers(target, 1, 12)
    batch = collate([sample], torch.device("cpu"))
    with torch.inference_mode():
        passes = [predicted[0] for predicted in unrolled(head, batch, 4)]
        for end in range(4, batch.ids.shape[1]):
            cached = CachedModel(head, keep_states=True)
            cached.forward(batch.ids[0, : end - 3].tolist(), features=batch.features[0, : end - 3])
            for depth in range(1, 4):
                row = end - 4 + depth
                cached.forward([int(batch.ids[0, row])], [depth - 2], features=cached.states[-1:])
            for depth in range(4):
                torch.testing.assert_close(cached.states[end - 4 + depth], passes[depth][end - 4 + depth])


@pytest.mark.parametrize("sampling", [Sampling(), Sampling(0.9)])
@pytest.mark.parametrize("length", [1, 3, 8])
def test_with_a_head_the_cache_is_true_after_every_step_and_greedy_equals_plain(target, length, sampling):
    task = Task(PROMPT, 30, sampling=sampling)
    cached = CachedModel(target, keep_states=True)
    head = new_head(target, KNOWN)
    ids, steps = [*PROMPT], []
    for step in speculative(cached, head_draft(target, head, cached), task, length, rng()):
        steps.append(step)
        ids += [token.id for token in step.tokens]
        assert len(cached) == len(cached.states) == len(ids) - 1
        with torch.inference_mode():
            fresh = target(torch.tensor([ids]), output_hidden_states=True)
        torch.testing.assert_close(cached.states, fresh.hidden_states[-1][0, :-1], atol=1e-4, rtol=1e-4)
    assert any(node.origin is Origin.DRAFT for step in steps for node in step.nodes)
    assert len(ids) == len(PROMPT) + 30
    if sampling.greedy:
        reference = [token.id for step in plain(CachedModel(target), task, rng()) for token in step.tokens]
        assert ids[len(PROMPT) :] == reference


def test_the_end_of_the_context_is_reached_with_a_wide_tree(monkeypatch):
    """A tree of the head has more rows than positions: it overran the context a few tokens before its end."""
    monkeypatch.setattr(head_module, "WORTH", 0.0)
    target = model("llama", tie_word_embeddings=True, max_position_embeddings=len(PROMPT) + 20)
    cached, task = CachedModel(target, keep_states=True), Task(PROMPT, 20)
    head = CachedModel(new_head(target, KNOWN), keep_states=True)
    drafter = HeadDraft(head, cached, NgramModel(NgramTable()), floor=0.001, alone=True)
    ours = [token.id for step in speculative(cached, drafter, task, 8, rng()) for token in step.tokens]
    assert ours == [token.id for step in plain(CachedModel(target), task, rng()) for token in step.tokens]


def test_the_heads_cache_holds_the_targets_states_only(target):
    """After a proposal nothing of what the head dreamt is left: the next one starts from the target's states."""
    cached, task = CachedModel(target, keep_states=True), Task(PROMPT, 20)
    head = new_head(target, KNOWN)
    drafter = head_draft(target, head, cached)
    ids = [*PROMPT]
    for step in speculative(cached, drafter, task, 6, rng()):
        ids += [token.id for token in step.tokens]
        with torch.inference_mode():
            done = len(drafter.head)
            fresh = CachedModel(head, keep_states=True)
            fresh.forward(ids[1 : done + 1], features=cached.states[:done])
        torch.testing.assert_close(drafter.head.states, fresh.states, atol=1e-4, rtol=1e-4)


def test_training_makes_the_head_agree_and_its_tokens_accepted(target):
    head, data = new_head(target, KNOWN), answers(target)
    seen = [agreed for _, _, agreed in train(head, data, Schedule(25, 8, 3e-3, seed=0), 2)]
    assert sum(a[0] for a in seen[-5:]) / 5 > sum(a[0] for a in seen[:5]) / 5 + 0.2
    accepted = []
    for start in range(8):
        cached = CachedModel(target, keep_states=True)
        drafter = head_draft(target, head.eval(), cached)
        steps = list(speculative(cached, drafter, Task((start, 3 * start % 32), 20), 6, rng()))
        accepted += [node for step in steps for node in step.nodes if node.outcome is Outcome.ACCEPTED]
    assert any(node.origin is Origin.DRAFT for node in accepted)


def test_only_positions_before_an_answer_are_scored(target):
    (sample,) = answers(target, 1, 12)
    sample.scored = 5  # ids[5] is the answer's first
    batch = collate([sample], torch.device("cpu"))
    first = int(batch.scored[0].nonzero()[0])
    # Position t predicts the state of t + 1, which chooses token t + 2.
    assert first + 2 == 5
    head = new_head(target, KNOWN)
    loss, _ = loss_of(head, batch, 2)
    changed = Batch(batch.first, batch.ids, batch.features, batch.truth.clone(), batch.scored)
    changed.truth[:, :first] += 1
    assert torch.equal(loss_of(head, changed, 2)[0], loss)


def test_a_head_read_back_and_packed_predicts_the_same(target, tmp_path):
    head = new_head(target, KNOWN)
    write_head(head, tmp_path / "head.safetensors", {"license": "any"})
    again = read_head(tmp_path / "head.safetensors", target)
    pack(again)
    ids, features = torch.tensor([[3, 4, 5]]), torch.randn(1, 3, 16)
    with torch.inference_mode():
        torch.testing.assert_close(again.states(ids, features), head.eval().states(ids, features), atol=5e-3, rtol=5e-3)
    assert again.ids.tolist() == KNOWN


def test_a_file_that_lacks_weights_of_the_head_is_refused(target, tmp_path):
    own = new_head(target, KNOWN).trained()
    del own["join.bias"]
    save_file(own, tmp_path / "head.safetensors")
    with pytest.raises(ValueError, match=r"no head for this target: \['join.bias'\]"):
        read_head(tmp_path / "head.safetensors", target)


def test_a_target_that_a_head_cannot_continue_is_refused():
    with pytest.raises(ValueError, match="Llama family"):
        new_head(model("gpt2"), KNOWN)
