"""The repository of a Space as a folder: what is in it, with its front matter, checked before anybody uploads it."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

from huggingface_hub import SpaceCard
from huggingface_hub.utils import filter_repo_objects, yaml_dump

from specdemo.config import Settings
from specdemo.models.pairs import PAIRS
from specdemo.space import Space, Target

ROOT = Path(__file__).parent.parent
SHIPPED = ["app.py", "requirements.txt", "spaces_config.yaml", "LICENSE", "README.md", "docs/**/*", "specdemo/**/*"]
DOCKER_TOO = ["Dockerfile", ".dockerignore"]
IGNORED = ["*__pycache__/*", "*.pyc", "*/.*"]


class DeployError(RuntimeError):
    """The Space was not deployed; the message says why and what to change, and holds no secret."""


def stage(settings: Settings, target: Target, folder: Path) -> list[str]:
    """Write the Space's repository to `folder`, new or empty; returns its files. Raises DeployError."""
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise DeployError(f"{folder} is not an empty folder; name a new one")
    found = {path for pattern in _patterns(target) for path in ROOT.glob(pattern) if path.is_file()}
    names = sorted(filter_repo_objects((path.relative_to(ROOT).as_posix() for path in found), ignore_patterns=IGNORED))
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(ROOT / name, folder / name)
    readme = folder / "README.md"
    front = yaml_dump(settings.space.front_matter(target), sort_keys=False)
    readme.write_text(f"---\n{front}---\n\n{readme.read_text('utf-8')}", "utf-8")
    problems = [*_problems(settings.space, target, folder), *_unreachable(settings, target)]
    if problems:
        raise DeployError("; ".join(problems))
    return names


def _patterns(target: Target) -> list[str]:
    return [*SHIPPED, *(DOCKER_TOO if target == "docker" else [])]


def _problems(space: Space, target: Target, folder: Path) -> list[str]:
    """What would keep the folder from becoming a running Space, one line each."""
    front = space.front_matter(target)
    absent = [name for name in _patterns(target) if "*" not in name and not (folder / name).is_file()]
    if absent:
        return [f"these files are missing here: {', '.join(absent)}"]
    problems = []
    if SpaceCard.load(folder / "README.md").data.to_dict() != front:
        problems.append("README.md: its front matter does not say what space.card says; is there a second block?")
    if target == "docker":
        exposed = re.findall(r"^EXPOSE (\d+)$", (folder / "Dockerfile").read_text(), re.MULTILINE)
        if exposed != [str(front["app_port"])]:
            problems.append(f"Dockerfile: EXPOSE {front['app_port']}, as space.targets.docker.app_port says")
        return problems
    pins = (folder / "requirements.txt").read_text().splitlines()
    if f"gradio=={space.sdk_version}" not in pins:
        problems.append(f"requirements.txt: pin gradio=={space.sdk_version}, as space.sdk_version says")
    if not (folder / space.app_file).is_file():
        problems.append(f"space.app_file: there is no {space.app_file} among the files of the Space")
    return problems


def _unreachable(settings: Settings, target: Target) -> list[str]:
    """Why the Space could not fetch a pair that it serves, one line each."""
    space, problems = settings.space, []
    if settings.own_models:
        problems.append("own_models: a Space serves the listed pairs only; set it to false")
    pairs = [PAIRS[name] for name in settings.pairs if name in PAIRS]
    gated = sorted({model for pair in pairs for model in pair.gated})
    if gated and "HF_TOKEN" not in space.secrets:
        licences = f"a token of an account that has accepted the licence of {', '.join(gated)}"
        problems.append(f"space.secrets: add HF_TOKEN, {licences}")
    fetched = [pair.name for pair in pairs if pair.target != "embedded"]
    if fetched and target == "docker" and space.targets.docker.variables.get("HF_HUB_OFFLINE") != "0":
        problems.append(
            f'space.targets.docker.variables: set HF_HUB_OFFLINE: "0"; {", ".join(fetched)} must be fetched, and the '
            "image asks nothing of the Hub otherwise"
        )
    unknown = [name for name in settings.pairs if name not in PAIRS]
    return problems + [f"pairs: there is no {name!r}" for name in unknown]
