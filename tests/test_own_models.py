"""Models of one's own on the page: offered where the machine is the visitor's, and nowhere else."""

import pytest
from test_broken_draft import TOKENS, WORDS, Ready, told
from tiny import model, tokenizer

from specdemo.config import ConfigError, Settings, read
from specdemo.models.pairs import PAIRS
from specdemo.staging import DeployError, stage
from specdemo.ui import fit
from specdemo.ui.build import build
from specdemo.ui.links import presets
from specdemo.ui.race_tab import RaceTab

OWN = Settings(own_models=True, pairs=list(PAIRS))


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    """Directories of a target, a draft, and one whose words are in another order."""
    root = tmp_path_factory.mktemp("own")
    for name, seed, words in (("target", 0, WORDS), ("draft", 1, WORDS), ("wrong", 1, WORDS[:5] + WORDS[:4:-1])):
        model(seed=seed).save_pretrained(root / name)
        tokenizer(words).save_pretrained(root / name)
    return {path.name: str(path) for path in root.iterdir()}


def asked(**changes):
    return {"prompt": "w3 w4 w5 w3", "mode": "chain", "dtype": "fp32", "max_new_tokens": TOKENS} | changes


def show(settings=OWN, **values):
    return RaceTab(settings, Ready(), None).show(**asked(**values))


def names(page):
    return {block.elem_id for block in page.blocks.values()}


def test_the_fields_are_there_only_where_they_are_allowed():
    fields = {"own-target", "own-draft"}
    assert fields <= names(build(OWN, lent=lambda request: iter(())))
    assert not fields & names(build(Settings(), lent=lambda request: iter(())))


def test_a_target_and_a_draft_of_ones_own_are_raced(models):
    events = told(show(target=models["target"], draft=f" {models['draft']} "))
    assert events[-1]["finish"] == {"plain": "length", "speculative": "length"}
    assert [event["kind"] for event in events if event["e"] == "verdict"] == ["identical"]


def test_a_wrong_pair_is_refused_with_the_first_id_and_nothing_is_loaded(models):
    events = told(show(target=models["target"], draft=models["wrong"]))
    assert [event["e"] for event in events].count("step") == 0
    assert events[-1]["e"] == "error" and "id 5 is" in events[-1]["text"]


def test_the_look_says_what_a_race_would(models):
    first, blank, *lines = fit.told(show(target=models["target"], draft=models["draft"]).request()).splitlines()
    assert first == f"{models['target']} + {models['draft']} can be raced here." and blank == ""
    assert len(lines) > 3 and all(line[0] in "✓!" for line in lines)
    first, _, *lines = fit.told(show(target=models["target"], draft=models["wrong"]).request()).splitlines()
    assert "cannot be raced here" in first and "id 5 is" in first
    assert [line[0] for line in lines].count("✗") == 1
    assert "cannot be raced here" in fit.told(show(target="/nothing/there").request())


def test_a_link_chooses_no_model_to_be_fetched():
    fields = {"target": None, "draft": None}
    values, wrong = presets({"target": "a/b", "draft": "c/d"}, OWN, fields)
    assert values == {} and len(wrong) == 2


def test_a_space_refuses_to_offer_it(monkeypatch, tmp_path):
    monkeypatch.setenv("SPECDEMO_OWN_MODELS", "true")
    assert read().own_models
    with pytest.raises(DeployError, match="own_models"):
        stage(OWN.model_copy(update={"pairs": ["embedded"]}), "gradio", tmp_path / "folder")
    monkeypatch.setenv("SPACE_ID", "owner/name")
    with pytest.raises(ConfigError, match="own_models is for a machine of one's own"):
        read()
