"""The module that is really exported: uint8 pixels to logits. Imported only while exporting, since it needs torch."""

from __future__ import annotations

import torch
from torch import nn

from deploycnn.types import Preprocessing


class PixelsModule(nn.Module):
    """`network((pixels - 255 mean) / (255 std))`, per channel.

    Args:
        network: normalised float32 images (N, C, H, W) to logits (N, K).
        preprocessing: mean and std of pixels / 255.
    """

    shift_1C11: torch.Tensor
    scale_1C11: torch.Tensor

    def __init__(self, network: nn.Module, preprocessing: Preprocessing) -> None:
        super().__init__()
        mean, std = (torch.tensor(values, dtype=torch.float64).view(1, -1, 1, 1) for values in (preprocessing.mean, preprocessing.std))
        self.network = network
        self.register_buffer("shift_1C11", (255 * mean).float())
        self.register_buffer("scale_1C11", (1 / (255 * std)).float())

    def forward(self, pixels: torch.Tensor) -> torch.Tensor:
        """Pixels (N, C, H, W), uint8, to logits (N, K), float32."""
        logits_NK: torch.Tensor = self.network((pixels.to(torch.float32) - self.shift_1C11) * self.scale_1C11)
        return logits_NK
