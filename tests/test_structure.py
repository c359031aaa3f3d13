"""The shape of the source: who imports whom, and how long things are."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

from specdemo.ui.texts import EN

ROOT = Path(__file__).parents[1]
SOURCES = [ROOT / "app.py", *sorted((ROOT / "specdemo").rglob("*.py"))]


def imports(file):
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name.partition(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module.partition(".")[0]


@pytest.mark.parametrize("file", SOURCES, ids=lambda file: str(file.relative_to(ROOT)))
def test_files_and_functions_are_short(file):
    text = file.read_text()
    assert len(text.splitlines()) <= 300
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef):
            assert node.end_lineno - node.lineno < 60, node.name


def test_the_engine_knows_no_user_interface_and_only_app_knows_spaces():
    for file in (ROOT / "specdemo" / "engine").glob("*.py"):
        assert "gradio" not in set(imports(file)), file
    for file in SOURCES[1:]:
        assert "spaces" not in set(imports(file)), file


@pytest.mark.parametrize(
    "module",
    [
        "specdemo.engine.types",
        "specdemo.measure.metrics",
        "specdemo.measure.scoreboard",
        "specdemo.measure.trace",
        "specdemo.measure.recording",
        "specdemo.shipped",
        "specdemo.ui.player",
        "specdemo.measure.memory",
        "specdemo.request",
        "specdemo.config",
        "specdemo.deploy",
        "specdemo.models.embedded",
        "specdemo.ui.build",
        "specdemo.__main__",
        "app",
    ],
)
def test_importing_it_loads_no_torch(module):
    code = f"import sys, {module}; sys.exit('torch' in sys.modules or 'transformers' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT).returncode == 0


def test_every_word_of_the_page_is_used():
    whole, beginnings = set(), set()
    for file in SOURCES:
        if file.name == "texts.py":
            continue
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "text" and node.args:
                key = node.args[0]
                if isinstance(key, ast.JoinedStr) and isinstance(key.values[0], ast.Constant):
                    beginnings.add(key.values[0].value)
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                whole.add(node.value)
    unused = [key for key in EN if key not in whole and not key.startswith(tuple(beginnings))]
    assert unused == []
