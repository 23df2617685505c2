"""ResNet-8: the image classification network of MLPerf Tiny (closed division).

After `resnet_v1_eembc` of the MLPerf Tiny benchmark (Banbury et al., 2021, arXiv 2106.07597): conv 16, then three
stacks of one basic block with 16, 32 and 64 channels, 1x1 stride-2 convolutions as shortcuts where the shape changes,
and no BatchNorm on them. Convolutions have biases, as there: 78,186 parameters and 12.5 M multiply-adds for 3x32x32.
Two differences: stride-2 convolutions pad one pixel on every side (Keras' "same" pads right and bottom only), and the
average pool takes whatever is left of the image instead of a fixed 8x8.
"""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as F


class _Block(nn.Module):
    """Two 3x3 convolutions with BatchNorm around a shortcut."""

    def __init__(self, c_in: int, c_out: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(c_in, c_out, 3, stride, padding=1)
        self.norm1 = nn.BatchNorm2d(c_out)
        self.conv2 = nn.Conv2d(c_out, c_out, 3, padding=1)
        self.norm2 = nn.BatchNorm2d(c_out)
        changes = stride != 1 or c_in != c_out
        self.shortcut = nn.Conv2d(c_in, c_out, 1, stride) if changes else nn.Identity()

    def forward(self, x_NCHW: torch.Tensor) -> torch.Tensor:
        y_NCHW = F.relu(self.norm1(self.conv1(x_NCHW)))
        y_NCHW = self.norm2(self.conv2(y_NCHW))
        return F.relu(y_NCHW + self.shortcut(x_NCHW))


class ResNet8(nn.Module):
    """See the module.

    Args:
        shape_CHW: shape of one image, any size from 4x4.
        n_classes: number of logits.
        width: scales the channels 16, 32, 64.
        depth: blocks per stack; 1 is ResNet-8, 3 has the depth of ResNet-20.
    """

    def __init__(self, shape_CHW: tuple[int, int, int], n_classes: int, width: float = 1.0, depth: int = 1) -> None:
        super().__init__()
        sizes = [max(1, round(width * size)) for size in (16, 32, 64)]
        self.stem = nn.Sequential(nn.Conv2d(shape_CHW[0], sizes[0], 3, padding=1), nn.BatchNorm2d(sizes[0]), nn.ReLU())
        blocks: list[nn.Module] = []
        c_in = sizes[0]
        for stack, c_out in enumerate(sizes):
            for block in range(depth):
                blocks.append(_Block(c_in, c_out, stride=2 if stack > 0 and block == 0 else 1))
                c_in = c_out
        self.blocks = nn.Sequential(*blocks)
        self.pool = nn.AdaptiveAvgPool2d(1)
        self.classifier = nn.Linear(c_in, n_classes)

    def forward(self, x_NCHW: torch.Tensor) -> torch.Tensor:
        """Normalised float images to logits (N, K)."""
        logits_NK: torch.Tensor = self.classifier(self.pool(self.blocks(self.stem(x_NCHW))).flatten(1))
        return logits_NK
