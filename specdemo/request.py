"""What a visitor asks for, checked in one place before anything is loaded or computed."""

from collections.abc import Collection
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from specdemo.config import LENGTHS, Dtype, Limits, Mode, Precision, Quantized


class RequestError(ValueError):
    """The request cannot be served; the message is for the person who made it and says what to change."""


class RaceRequest(BaseModel):
    """One race. target, draft: directories or model ids that replace the pair's; visitors of a page may name them only
    where they own the machine.

    quantization: of the weights of what `quantize` names; double_quantization: of NF4's scales too.
    stop: texts that end an answer, the first of them to appear. exact: decide near-ties again, as plain decoding does.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False, hide_input_in_errors=True)

    prompt: str
    pair: str = "embedded"
    target: str | None = None
    draft: str | None = None
    mode: Mode = "tree"
    dtype: Dtype = "auto"
    quantization: Precision = "none"
    quantize: Quantized = "target"
    double_quantization: bool = False
    max_new_tokens: int = Field(128, ge=1)
    draft_length: int = Field(8, ge=1)  # None or nothing: what suits the mode
    temperature: float = Field(0.0, ge=0, le=10)
    top_k: int = Field(0, ge=0)
    top_p: float = Field(1.0, gt=0, le=1)
    repetition_penalty: float = Field(1.0, ge=0.5, le=2)
    stop: tuple[Annotated[str, Field(min_length=1, max_length=100)], ...] = Field((), max_length=8)
    exact: bool = False
    seed: int = Field(42, ge=0, lt=2**63)
    chat_template: bool = True

    @model_validator(mode="before")
    @classmethod
    def _length_by_mode(cls, values: Any) -> Any:
        """A draft length that nobody gave is the mode's own."""
        if not isinstance(values, dict) or values.get("draft_length") is not None:
            return values
        mode = values.get("mode", "tree")
        known = isinstance(mode, str) and mode in LENGTHS
        return values | {"draft_length": LENGTHS[mode] if known else 1}  # an unknown mode is refused for itself

    @field_validator("stop", mode="before")
    @classmethod
    def _by_line(cls, stop: object) -> object:
        """A text is one stop string a line; nothing is none."""
        return [part for part in stop.splitlines() if part] if isinstance(stop, str) else stop or ()

    @field_validator("target", "draft", mode="before")
    @classmethod
    def _empty_is_none(cls, name: object) -> object:
        """An empty field names no model."""
        return (name.strip() or None) if isinstance(name, str) else name

    @field_validator("prompt")
    @classmethod
    def _has_text(cls, prompt: str) -> str:
        if not prompt.strip():
            raise ValueError("is empty; write something first")
        return prompt


def checked(limits: Limits, pairs: Collection[str], **values: Any) -> RaceRequest:
    """A request within `limits` for one of `pairs`. Raises RequestError with one line that says what to change."""
    prompt = values.get("prompt")
    if isinstance(prompt, str) and len(prompt) > limits.max_prompt_characters:
        raise RequestError(
            f"prompt: has {len(prompt):,} characters, at most {limits.max_prompt_characters:,} are read; shorten it"
        )
    given = values.get("draft_length") is not None
    try:
        request = RaceRequest(**values)
    except ValidationError as error:
        raise RequestError("; ".join(map(_plain_words, error.errors()))) from None
    if request.double_quantization and request.quantization != "nf4":
        raise RequestError("double_quantization: only nf4 has scales to quantize once more; switch it off")
    if not given and request.draft_length > limits.max_draft_length:
        request = request.model_copy(update={"draft_length": limits.max_draft_length})
    if request.pair not in pairs:
        raise RequestError(f"pair: there is no {request.pair[:80]!r}; choose one of {', '.join(pairs)}")
    for name, most in (
        ("max_new_tokens", limits.max_new_tokens),
        ("draft_length", limits.max_draft_length),
    ):
        if getattr(request, name) > most:
            raise RequestError(f"{name}: {getattr(request, name)} is more than the {most} allowed here; lower it")
    return request


def _plain_words(error: Any) -> str:
    where = ".".join(map(str, error["loc"]))
    return f"{where}: {error['msg'].removeprefix('Value error, ')}"
