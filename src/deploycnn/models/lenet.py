"""LeNet-5 for colour images, with the sizes of PyTorch's CIFAR-10 tutorial.

After LeCun et al., "Gradient-based learning applied to document recognition", 1998; ReLU and max pooling instead of
tanh and subsampling, as the tutorial has it. 62,006 parameters and 0.65 M multiply-adds for 3x32x32 and 10 classes.
"""

from __future__ import annotations

import torch
from torch import nn

from deploycnn.errors import ModelError


class LeNet(nn.Module):
    """conv 6 (5x5), ReLU, 2x2 max pool, conv 16 (5x5), ReLU, pool, dense 120, ReLU, dense 84, ReLU, dense classes.

    Args:
        shape_CHW: shape of one image.
        n_classes: number of logits.
        width: scales the channels and the hidden dense layers; 1.0 is the tutorial's network.

    Raises:
        ModelError: the image is smaller than 16x16, so that nothing is left after two poolings.
    """

    def __init__(self, shape_CHW: tuple[int, int, int], n_classes: int, width: float = 1.0) -> None:
        super().__init__()
        channels, height, breadth = shape_CHW
        if min(height, breadth) < 16:
            raise ModelError(
                "lenet cannot take these images",
                found=f"{height}x{breadth} pixels; two 5x5 convolutions with poolings need at least 16x16",
                remedy="set data.size to 32, or use resnet8",
            )
        c1, c2, d1, d2 = (max(1, round(width * size)) for size in (6, 16, 120, 84))
        height, breadth = (((side - 4) // 2 - 4) // 2 for side in (height, breadth))
        self.features = nn.Sequential(
            nn.Conv2d(channels, c1, 5),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(c1, c2, 5),
            nn.ReLU(),
            nn.MaxPool2d(2),
        )
        self.classifier = nn.Sequential(
            nn.Linear(c2 * height * breadth, d1),
            nn.ReLU(),
            nn.Linear(d1, d2),
            nn.ReLU(),
            nn.Linear(d2, n_classes),
        )

    def forward(self, x_NCHW: torch.Tensor) -> torch.Tensor:
        """Normalised float images to logits (N, K)."""
        logits_NK: torch.Tensor = self.classifier(self.features(x_NCHW).flatten(1))
        return logits_NK
