"""spaces_config.yaml as typed settings: what is served, and within which limits.

Environment variables override the file: SPECDEMO_QUEUE__MAX_SIZE=5, HOST, PORT.
"""

import os
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator
from pydantic_settings import (
    BaseSettings,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
    SettingsError,
    YamlConfigSettingsSource,
)

from specdemo.space import Space

FILE = Path(__file__).parent.parent / "spaces_config.yaml"

Mode = Literal["tree", "staged", "ngram", "chain", "auto", "draft-then-score"]
SCORE: Mode = "draft-then-score"  # the one mode in which nothing is verified: it is lossy, and says so
# What a pair must have for a mode: one of these fields; none means that every pair can run it.
NEEDS: dict[Mode, tuple[str, ...]] = {
    "tree": ("head", "draft"),
    "staged": ("draft",),
    "ngram": (),
    "chain": ("head", "draft"),
    "auto": (),
    SCORE: ("draft",),
}
# Tokens (nodes of a tree) drafted a step where nobody says how many: trees keep their least probable nodes back by
# themselves; the tokens of a chain are all drafted and all read.
LENGTHS: dict[str, int] = {"tree": 16, "staged": 4, "ngram": 16, "chain": 4, "auto": 16, SCORE: 16}
Dtype = Literal["auto", "bf16", "fp32"]
Precision = Literal["none", "nf4", "int8"]  # of quantized weights
Quantized = Literal["target", "both"]


class ConfigError(ValueError):
    """spaces_config.yaml, or a variable that overrides it, is wrong; the message names each key and what it must be."""


class Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Limits(Section):
    """Enforced on the server for every request, whatever a slider says."""

    max_prompt_characters: int = Field(20_000, ge=1)
    max_new_tokens: int = Field(512, ge=2)
    max_draft_length: int = Field(16, ge=2)
    max_bench_answers: int = Field(200, ge=2)
    max_bench_tokens: int = Field(30_000, ge=2)  # of all answers together
    max_bench_repeats: int = Field(5, ge=1)
    max_bench_ways: int = Field(12, ge=2)  # measured in turn, plain decoding among them; each has a cache


# Whoever owns the terminal owns the machine: only the model's own context limits them.
UNLIMITED = Limits(max_prompt_characters=10**9, max_new_tokens=10**9, max_draft_length=1000)


class Defaults(Section):
    """What the page shows first."""

    pair: str = "embedded"
    mode: Mode = "tree"
    dtype: Dtype = "auto"
    quantization: Precision = "none"
    max_new_tokens: int = Field(128, ge=1)


class Queue(Section):
    max_size: int = Field(20, ge=1)


class Settings(BaseSettings):
    model_config = SettingsConfigDict(
        env_prefix="SPECDEMO_",
        env_nested_delimiter="__",
        yaml_file=FILE,
        extra="forbid",
        frozen=True,
        hide_input_in_errors=True,
    )

    pairs: list[str] = Field(["embedded"], min_length=1)
    own_models: bool = False  # whether visitors may name any model: only where they own the machine
    defaults: Defaults = Defaults()
    limits: Limits = Limits()
    queue: Queue = Queue()
    space: Space

    @model_validator(mode="after")
    def _a_space_serves_listed_pairs(self) -> "Settings":
        if self.own_models and os.environ.get("SPACE_ID"):
            raise ValueError("own_models is for a machine of one's own; a Space serves the listed pairs only")
        return self

    @model_validator(mode="after")
    def _defaults_keep_the_limits(self) -> "Settings":
        defaults, limits = self.defaults, self.limits
        if defaults.pair not in self.pairs:
            raise ValueError(f"defaults.pair {defaults.pair!r} is not one of pairs")
        if defaults.max_new_tokens > limits.max_new_tokens:
            raise ValueError("defaults.max_new_tokens is more than limits.max_new_tokens")
        return self

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        return init_settings, env_settings, YamlConfigSettingsSource(settings_cls)


def read() -> Settings:
    """The settings of spaces_config.yaml and the environment. Raises ConfigError."""
    import yaml

    try:
        return Settings()
    except ValidationError as error:
        keys = "; ".join(f"{'.'.join(map(str, wrong['loc']))}: {wrong['msg']}" for wrong in error.errors())
        raise ConfigError(f"{FILE.name}: {keys}") from None
    except (SettingsError, yaml.YAMLError, ValueError, OSError) as error:
        raise ConfigError(f"{FILE.name} cannot be read: {' '.join(str(error).split())}") from None
