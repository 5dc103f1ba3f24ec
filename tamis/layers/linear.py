"""Linear layers without bias."""

from __future__ import annotations

from torch import Tensor, nn

from tamis.kernels import linear as linear_kernel
from tamis.kernels.packed_weight import Weight
from tamis.layers.weight import PLAIN, allocate, rebind, weight_of


class Linear(nn.Module):
    """`x @ weight.T`, with the same bits for a row whatever the other rows are (see `kernels/linear`).

    Attributes:
        weight: [out_features, in_features] parameter, when it is plain.
        packings: {"weight": how it is held} (see `layers/weight.py`).
    """

    weight: nn.Parameter

    def __init__(self, in_features: int, out_features: int, packing: str = PLAIN):
        super().__init__()
        self.in_features = in_features
        self.out_features = out_features
        self.packings = {"weight": packing}
        allocate(self, "weight", (out_features, in_features), packing)

    @property
    def matrix(self) -> Weight:
        """The weight, plain or packed."""
        return weight_of(self, "weight", self.packings["weight"])

    def stand_for(self, weight: Weight) -> None:
        """Use other memory with the same values, such as rows of a joined matrix."""
        rebind(self, "weight", self.packings["weight"], weight)

    def forward(self, x: Tensor) -> Tensor:
        """x: [..., in_features] → [..., out_features] in x's dtype."""
        return linear_kernel.linear(x, self.matrix)
