"""Weights in 4 or 8 bits by bitsandbytes: which models of a pair, how, and what it cannot do.

Embedding and output head stay as they are: transformers never converts the head, and most models tie both.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING, get_args

from specdemo.config import Precision

if TYPE_CHECKING:
    import torch
    from transformers import BitsAndBytesConfig

BLOCK, NESTED_BLOCK = 64, 256  # weights that share a scale, and scales that share one when they are quantized too


@dataclass(frozen=True, slots=True)
class Quantization:
    """kind: "none", "nf4" or "int8". both: the draft as well, not the target alone. double: NF4's scales too.

    Raises ValueError for what does not exist. Source of NF4 and double quantization: Dettmers et al. 2023 (QLoRA),
    section 3; of int8: Dettmers et al. 2022 (LLM.int8()), section 3.
    """

    kind: Precision = "none"
    both: bool = False
    double: bool = False

    def __post_init__(self) -> None:
        if self.kind not in get_args(Precision):
            raise ValueError(f"quantization: there is no {self.kind!r}; choose {', '.join(get_args(Precision))}")
        if self.double and self.kind != "nf4":
            raise ValueError("quantization: only nf4 has scales to quantize once more; leave double off")

    def applies(self, target: bool) -> bool:
        """Whether the target's weights are quantized, or else the draft's."""
        return self.kind != "none" and (target or self.both)

    @property
    def bytes_per_weight(self) -> float:
        """Bytes of a quantized weight with its share of the scales (int8: one scale a row, not counted)."""
        if self.kind == "int8":
            return 1.0
        return 0.5 + ((1 + 4 / NESTED_BLOCK) if self.double else 4) / BLOCK

    def config(self, compute: torch.dtype) -> BitsAndBytesConfig:
        """What transformers loads a model with. compute: what products are computed in, bf16 or fp32."""
        from transformers import BitsAndBytesConfig

        if self.kind == "int8":
            # It says at every product that activations become float16 on the way.
            logging.getLogger("bitsandbytes.autograd._functions").setLevel(logging.ERROR)
            return BitsAndBytesConfig(load_in_8bit=True)
        return BitsAndBytesConfig(
            load_in_4bit=True,
            bnb_4bit_quant_type="nf4",
            bnb_4bit_compute_dtype=compute,
            bnb_4bit_use_double_quant=self.double,
        )

    def __str__(self) -> str:
        if self.kind == "none":
            return "none"
        return f"{self.kind}{' (double)' if self.double else ''} on {'both' if self.both else 'the target'}"
