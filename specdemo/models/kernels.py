"""Faster float32 matrix products on a CPU, for every path alike.

Verification multiplies a few rows with every weight of the model. The ordinary kernel for 2 to 16 rows costs 1.5 to 2
times that for one row; with weights laid out in blocks beforehand it costs 1.1 to 1.3, and one row gets faster too.
"""

import torch
from torch import nn

ROWS = 8  # rows a product is laid out for: about those of a verification; others work as well


class PackedLinear(nn.Module):
    """`nn.Linear` without gradients whose weight [out, in] lies in oneDNN's blocked layout; float32, CPU."""

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__()
        self.in_features, self.out_features = linear.in_features, linear.out_features
        self.bias = linear.bias
        self.packed = torch.ops.mkldnn._reorder_linear_weight(linear.weight.detach(), ROWS)

    @property
    def packed_bytes(self) -> int:
        """Bytes of the blocked copy; such a tensor cannot say it itself. Padding to whole blocks is not counted."""
        return self.packed.numel() * self.packed.element_size()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[..., in] -> [..., out]."""
        return torch.ops.mkldnn._linear_pointwise(x, self.packed, self.bias, "none", [], "")


def pack(model: nn.Module) -> None:
    """Replace every float32 `nn.Linear` on the CPU by its packed twin, in place. Does nothing elsewhere.

    An output head that shares its weight with the embedding gets a copy of its own.
    """
    if not torch.backends.mkldnn.is_available():
        return
    for parent in list(model.modules()):
        for name, child in list(parent.named_children()):
            if type(child) is nn.Linear and child.weight.device.type == "cpu" and child.weight.dtype == torch.float32:
                setattr(parent, name, PackedLinear(child))
