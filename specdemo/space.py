"""What spaces_config.yaml says about the Space itself: its card, its hardware, its variables, the names of its secrets.

A Space reads its settings from the YAML block at the top of its README.md; `front_matter` is that block.
"""

from typing import Annotated, Any, Literal, get_args

from huggingface_hub import SpaceHardware
from pydantic import BaseModel, ConfigDict, Field

Target = Literal["gradio", "docker", "zerogpu"]
TARGETS: tuple[Target, ...] = get_args(Target)

Colour = Literal["red", "yellow", "green", "blue", "indigo", "purple", "pink", "gray"]
Name = Annotated[str, Field(pattern=r"^[A-Z][A-Z0-9_]*$")]  # of a secret or a variable
Version = Annotated[str, Field(pattern=r"^[0-9]+\.[0-9]+\.[0-9]+$")]


class Section(BaseModel):
    # A value that was written where a secret's name belongs must not come back in a message.
    model_config = ConfigDict(extra="forbid", frozen=True, hide_input_in_errors=True)


class Card(Section):
    """Front matter that every target shares, named as the Hub names it."""

    title: str = Field(min_length=1)
    emoji: str = Field(min_length=1, max_length=8)
    colorFrom: Colour
    colorTo: Colour
    short_description: str = Field(max_length=60)
    license: str
    tags: list[str]
    models: list[str]
    fullWidth: bool
    header: Literal["mini", "default"]
    startup_duration_timeout: str = Field(pattern=r"^[0-9]+[smh]$")


class Place(Section):
    """Where a target runs. variables: public settings of the Space, such as SPECDEMO_LIMITS__MAX_NEW_TOKENS."""

    hardware: SpaceHardware
    variables: dict[Name, str] = {}


class GradioPlace(Place):
    """A Space that the Hub builds from requirements.txt."""

    python_version: Annotated[str, Field(pattern=r"^3\.[0-9]+(\.[0-9]+)?$")]


class DockerPlace(Place):
    """A Space that the Hub builds from the Dockerfile."""

    app_port: int = Field(ge=1024, le=65535)


class ZeroGPUPlace(Place):
    """A Gradio Space that is lent a GPU for one race at a time.

    duration_s: seconds of GPU that a race asks for; what a visitor has left for the day must hold as many.
    """

    hardware: Literal[SpaceHardware.ZERO_A10G]
    python_version: Literal["3.12.12", "3.10.13"]  # the two that ZeroGPU has
    duration_s: int = Field(ge=1, le=120)


class Targets(Section):
    gradio: GradioPlace
    docker: DockerPlace
    zerogpu: ZeroGPUPlace


class Space(Section):
    """secrets: names only; `deploy` takes the values from the environment."""

    card: Card
    sdk_version: Version
    app_file: str
    secrets: list[Name]
    targets: Targets

    def place(self, target: Target) -> Place:
        """Where a target runs."""
        place: Place = getattr(self.targets, target)
        return place

    def front_matter(self, target: Target) -> dict[str, Any]:
        """The YAML block of a target's README.md, in the order in which it is written."""
        place = self.place(target)
        sdk: dict[str, Any] = {"sdk": "gradio", "sdk_version": self.sdk_version, "app_file": self.app_file}
        if target == "docker":
            sdk = {"sdk": "docker"}
        own = place.model_dump(include={"python_version", "app_port"})
        return self.card.model_dump() | sdk | own | {"suggested_hardware": place.hardware.value}
