"""spaces_config.yaml: the one place that says what is served and what the Space is; nothing else may drift from it."""

import ast
import re
import tomllib
from pathlib import Path
from typing import get_args

import pytest
import yaml
from dockerfile_parse import DockerfileParser
from huggingface_hub import SpaceCard
from pydantic import BaseModel, ValidationError

from specdemo import config
from specdemo.config import ConfigError, Settings, read
from specdemo.models.pairs import PAIRS
from specdemo.space import TARGETS, Space

ROOT = Path(__file__).parents[1]
RAW = yaml.safe_load((ROOT / "spaces_config.yaml").read_text())
SPACE = read().space


def keys(raw, path=()):
    """Every path of keys that leads to a value."""
    for key, value in raw.items():
        yield from keys(value, (*path, key)) if isinstance(value, dict) and value else [(*path, key)]


def changed(path, value):
    """RAW["space"] with another value at one path."""
    raw = yaml.safe_load((ROOT / "spaces_config.yaml").read_text())
    *parents, last = path
    at = raw
    for key in parents:
        at = at[key]
    at[last] = value
    return raw["space"]


def schema(model: type[BaseModel], path=()):
    """Every path of fields that leads to a value."""
    for name, field in model.model_fields.items():
        inner = field.annotation
        if isinstance(inner, type) and issubclass(inner, BaseModel):
            yield from schema(inner, (*path, name))
        else:
            yield (*path, name)


# --- the schema ----------------------------------------------------------------------------------------------------


def test_every_key_is_in_the_schema_and_every_key_of_the_schema_is_written_down():
    """`variables` may be left out. Whoever wants to know what can be set reads the file."""
    optional = {("space", "targets", target, "variables") for target in TARGETS}
    assert set(keys(RAW)) | optional == set(schema(Settings)) | optional


def test_every_key_is_read_by_the_program():
    """A key that nothing reads promises what does not happen."""
    read_names = set()
    for file in [ROOT / "app.py", *(ROOT / "specdemo").rglob("*.py")]:
        tree = ast.parse(file.read_text())
        read_names |= {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
        read_names |= {  # python_version and app_port are dumped into the front matter by name
            name.value
            for node in ast.walk(tree)
            if isinstance(node, ast.keyword) and node.arg == "include"
            for name in ast.walk(node.value)
            if isinstance(name, ast.Constant)
        }
    unread = {path for path in schema(Settings) if path[-1] not in read_names}
    assert {path[:2] for path in unread} <= {("space", "card")}
    for target in TARGETS:  # the card is dumped as a whole
        assert {path[2] for path in unread} <= set(SPACE.front_matter(target))


@pytest.mark.parametrize(
    ("path", "value", "word"),
    [
        (("space", "card", "colorFrom"), "mauve", "card.colorFrom"),
        (("space", "card", "short_description"), "x" * 61, "card.short_description"),
        (("space", "card", "pinned"), True, "card.pinned"),
        (("space", "card", "startup_duration_timeout"), "soon", "card.startup_duration_timeout"),
        (("space", "sdk_version"), "6.x", "sdk_version"),
        (("space", "secrets"), ["HF_TOKEN=hf_abc"], "secrets.0"),
        (("space", "targets", "gradio", "hardware"), "cpu-huge", "targets.gradio.hardware"),
        (("space", "targets", "gradio", "app_port"), 7860, "targets.gradio.app_port"),
        (("space", "targets", "gradio", "python_version"), 3.12, "targets.gradio.python_version"),
        (("space", "targets", "gradio", "variables"), {"lower": "1"}, "targets.gradio.variables.lower"),
        (("space", "targets", "docker", "app_port"), 80, "targets.docker.app_port"),
        (("space", "targets", "zerogpu", "python_version"), "3.12", "targets.zerogpu.python_version"),
        (("space", "targets", "zerogpu", "hardware"), "cpu-basic", "targets.zerogpu.hardware"),
        (("space", "targets", "zerogpu", "duration_s"), 0, "targets.zerogpu.duration_s"),
    ],
    ids=lambda value: ".".join(value) if isinstance(value, tuple) else None,
)
def test_a_wrong_value_is_refused_and_its_key_named(path, value, word):
    with pytest.raises(ValidationError) as refusal:
        Space.model_validate(changed(path, value))
    assert [".".join(map(str, wrong["loc"])).removesuffix(".[key]") for wrong in refusal.value.errors()] == [word]
    assert "hf_abc" not in str(refusal.value)


def test_reading_says_in_one_line_which_keys_are_wrong(monkeypatch):
    monkeypatch.setenv("SPECDEMO_LIMITS__MAX_NEW_TOKENS", "many")
    monkeypatch.setenv("SPECDEMO_SPACE__CARD__COLORFROM", "mauve")
    with pytest.raises(ConfigError) as refusal:
        read()
    message = str(refusal.value)
    assert "limits.max_new_tokens: " in message and "space.card.colorFrom: " in message and "\n" not in message


@pytest.mark.parametrize("text", ["pairs: [", "", "- a\n- b\n", "\t"])
def test_a_file_that_is_no_config_is_refused_in_words(text, tmp_path, monkeypatch):
    (tmp_path / "spaces_config.yaml").write_text(text)
    monkeypatch.setitem(Settings.model_config, "yaml_file", tmp_path / "spaces_config.yaml")
    with pytest.raises(ConfigError, match="^spaces_config.yaml"):
        read()


def test_what_is_read_cannot_be_changed():
    settings = read()
    for section, name in [(settings, "pairs"), (settings.limits, "max_new_tokens"), (settings.space.card, "title")]:
        with pytest.raises(ValidationError):
            setattr(section, name, None)


def test_a_variable_of_the_space_overrides_the_file(monkeypatch):
    """That is what `variables` of a target are for: the same file, other limits on smaller hardware."""
    monkeypatch.setenv("SPECDEMO_LIMITS__MAX_NEW_TOKENS", "200")
    assert read().limits.max_new_tokens == 200
    assert read().limits.max_draft_length == RAW["limits"]["max_draft_length"]


# --- drift ---------------------------------------------------------------------------------------------------------


def test_every_served_pair_is_one_of_the_table():
    assert set(read().pairs) <= set(PAIRS)


def test_requirements_pin_the_gradio_of_the_space():
    pins = (ROOT / "requirements.txt").read_text().splitlines()
    assert [line for line in pins if line.startswith("gradio==")] == [f"gradio=={SPACE.sdk_version}"]


def test_the_pythons_of_all_targets_are_ones_that_the_project_runs_on():
    floor = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["requires-python"]
    least = tuple(map(int, re.fullmatch(r">=(\d+)\.(\d+)", floor).groups()))
    for place in (SPACE.targets.gradio, SPACE.targets.zerogpu):
        assert tuple(map(int, place.python_version.split(".")))[:2] >= least
    assert f"Python {least[0]}.{least[1]} or later" in " ".join((ROOT / "README.md").read_text().split())


def test_the_dockerfile_has_the_port_and_the_python_of_the_config():
    steps = DockerfileParser(fileobj=(ROOT / "Dockerfile").open("rb")).structure
    values = [(step["instruction"], step["value"]) for step in steps]
    assert ("EXPOSE", str(SPACE.targets.docker.app_port)) in values
    assert any(name == "ENV" and f"PORT={SPACE.targets.docker.app_port} " in value for name, value in values)
    assert ("ARG", f"PYTHON={SPACE.targets.gradio.python_version}") in values


def test_the_readme_leaves_the_front_matter_to_the_config():
    """There is one block for each target, and on GitHub a block is a table above the title."""
    readme = (ROOT / "README.md").read_text()
    assert readme.startswith("# ") and SpaceCard(readme).data.to_dict() == {}


def test_the_readme_names_the_ports_and_the_licence_of_the_config():
    readme = (ROOT / "README.md").read_text()
    assert f"127.0.0.1:{SPACE.targets.docker.app_port}" in readme
    assert SPACE.card.license in readme.lower()


def test_the_card_names_the_models_that_are_served():
    from specdemo.models import embedded

    targets = {embedded.NAME if PAIRS[name].target == "embedded" else PAIRS[name].target for name in read().pairs}
    assert targets <= set(SPACE.card.models)


def test_the_defaults_are_ones_that_the_page_offers():
    settings = read()
    assert settings.defaults.mode in get_args(config.Mode) and settings.defaults.pair in settings.pairs
