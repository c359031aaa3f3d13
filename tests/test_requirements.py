"""requirements.txt: exact, complete, free of what nobody uses, and installable as a Space does it."""

import ast
import re
import subprocess
import sys
from importlib.metadata import packages_distributions
from pathlib import Path

ROOT = Path(__file__).parents[1]
LINES = [line.strip() for line in (ROOT / "requirements.txt").read_text().splitlines()]
REQUIREMENTS = [line for line in LINES if line and not line.startswith("#")]

PIN = re.compile(r"(?P<name>[A-Za-z0-9][A-Za-z0-9._-]*)==(?P<version>[0-9][A-Za-z0-9.+]*)")

# What a Gradio Space installs beside requirements.txt, in the same pip run.
SPACE_ADDS = ["gradio[oauth,mcp]=={gradio}", "uvicorn>=0.14.0", "websockets>=10.4", "spaces"]
PROVIDED_BY_THE_SPACE = {"spaces"}

USED_BY_OTHERS = {
    "gguf": "transformers reads the embedded target's file with it",
    "safetensors": "transformers reads and writes checkpoints with it",
    "pyyaml": "pydantic-settings reads spaces_config.yaml with it",
}


def normalized(name):
    """A distribution's name as PEP 503 compares it."""
    return re.sub(r"[-_.]+", "-", name).lower()


def pins():
    """Normalized name -> version, for every line that is a pin."""
    found = [match for line in REQUIREMENTS if (match := PIN.fullmatch(line))]
    return {normalized(match["name"]): match["version"] for match in found}


def imported_modules():
    """Top-level names of what the program imports, inside functions too, without the standard library."""
    names = set()
    for file in [ROOT / "app.py", *(ROOT / "specdemo").rglob("*.py")]:
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.Import):
                names |= {alias.name for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and node.level == 0:
                names.add(node.module)
    return {name.partition(".")[0] for name in names} - sys.stdlib_module_names - {"specdemo"}


def imported_distributions():
    """What must be installed for these imports; a module that no distribution has keeps its own name."""
    owners = packages_distributions()
    return {normalized(owners.get(module, [module])[0]) for module in imported_modules()}


def test_every_line_is_an_exact_pin_of_a_package_of_its_own():
    assert [line for line in REQUIREMENTS if not PIN.fullmatch(line)] == []
    assert len(pins()) == len(REQUIREMENTS)


def test_everything_imported_is_pinned():
    assert imported_distributions() - PROVIDED_BY_THE_SPACE - set(pins()) == set()


def test_everything_pinned_is_used():
    assert set(pins()) - imported_distributions() - set(USED_BY_OTHERS) == set()


def test_the_pins_install_together_with_what_a_space_adds():
    added = [line.format(gradio=pins()["gradio"]) for line in SPACE_ADDS]
    # Not --ignore-installed: pip before 23.3 then downloads every wheel, gigabytes for torch, to
    # learn what the installed copies say as well.
    command = [sys.executable, "-m", "pip", "install", "--dry-run", "--disable-pip-version-check"]
    command += ["-r", str(ROOT / "requirements.txt"), *added]
    outcome = subprocess.run(command, capture_output=True, text=True)
    assert outcome.returncode == 0, outcome.stdout[-2000:] + outcome.stderr[-2000:]
