"""Faster float32 matrix products on a CPU, for every path alike.

Verification multiplies a few rows with every weight of the model. The ordinary kernel for 2 to 16 rows costs 1.5 to 2
times that for one row; with weights laid out in blocks beforehand it costs 1.1 to 1.4, and one row gets faster too.
Projections of one and the same input are one product: fewer, larger ones use the memory better.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import nn

ROWS = 8  # rows a product is laid out for: about those of a verification; others work as well
# Names under which models of the Llama family keep layers that read the same input.
TOGETHER = (("q_proj", "k_proj", "v_proj"), ("gate_proj", "up_proj"))


class PackedLinear(nn.Module):
    """Several `nn.Linear` layers over one input as one layer, without gradients, in oneDNN's blocked layout.

    float32, CPU. Returns [..., out], the outputs of all layers side by side.
    """

    def __init__(self, linears: Sequence[nn.Linear]) -> None:
        super().__init__()
        self.in_features = linears[0].in_features
        self.out_features = sum(linear.out_features for linear in linears)
        biases: list[torch.Tensor] = [linear.bias for linear in linears if linear.bias is not None]
        self.bias = nn.Parameter(torch.cat(biases).detach(), requires_grad=False) if biases else None
        self.packed = torch.ops.mkldnn._reorder_linear_weight(torch.cat([x.weight.detach() for x in linears]), ROWS)

    @property
    def packed_bytes(self) -> int:
        """Bytes of the blocked copy; such a tensor cannot say it itself. Padding to whole blocks is not counted."""
        return self.packed.numel() * self.packed.element_size()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.ops.mkldnn._linear_pointwise(x, self.packed, self.bias, "none", [], "")


class Part(nn.Module):
    """Stands where one of the joined layers stood: the first that is asked computes for all, the others take a share.

    The computed product is kept until the last of them has taken its share of that very input.
    """

    def __init__(self, whole: PackedLinear, start: int, length: int, first: Part | None) -> None:
        super().__init__()
        self.start, self.length, self.out_features = start, length, length
        if first is None:
            self.whole = whole
            self.computed: tuple[torch.Tensor, torch.Tensor] | None = None
        self._first = [first or self]  # in a list: not a submodule, its weights are counted once
        self.last = False

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        first = self._first[0]
        if first.computed is None or first.computed[0] is not x:
            first.computed = x, first.whole(x)
        share = first.computed[1][..., self.start : self.start + self.length]
        if self.last:
            first.computed = None
        return share


def pack(model: nn.Module) -> None:
    """Replace every float32 `nn.Linear` on the CPU by its packed twin, in place. Does nothing elsewhere.

    An output head that shares its weight with the embedding gets a copy of its own.
    """
    if not torch.backends.mkldnn.is_available():
        return
    for parent in list(model.modules()):
        for names in TOGETHER:
            linears = [x for name in names if isinstance(x := getattr(parent, name, None), nn.Linear) and _packable(x)]
            if len(linears) == len(names) and len({x.bias is None for x in linears}) == 1:
                _join(parent, names, linears)
        for name, child in list(parent.named_children()):
            if isinstance(child, nn.Linear) and _packable(child):
                setattr(parent, name, PackedLinear([child]))


def _packable(layer: nn.Linear) -> bool:
    return type(layer) is nn.Linear and layer.weight.device.type == "cpu" and layer.weight.dtype == torch.float32


def _join(parent: nn.Module, names: Sequence[str], linears: Sequence[nn.Linear]) -> None:
    whole, first, start = PackedLinear(linears), None, 0
    for name, linear in zip(names, linears, strict=True):
        part = Part(whole, start, linear.out_features, first)
        first, start = first or part, start + linear.out_features
        setattr(parent, name, part)
    part.last = True
