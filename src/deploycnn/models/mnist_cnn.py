"""The small CNN of the Keras MNIST tutorials: 93,322 parameters for 1x28x28 and 10 classes.

Weights begin as Keras has them: uniform after Glorot and Bengio 2010, biases zero.
"""

from __future__ import annotations

import torch
from torch import nn

from deploycnn.errors import ModelError
from deploycnn.models._sizes import mnist_cnn_sizes


class MnistCNN(nn.Module):
    """conv 32 (3x3), ReLU, pool, conv 64, ReLU, pool, conv 64, ReLU, dense 64, ReLU, dense classes; no padding.

    Args:
        shape_CHW: shape of one image.
        n_classes: number of logits.
        width: scales the channels and the hidden dense layer.

    Raises:
        ModelError: the image is smaller than 18x18, so that nothing is left for the last convolution.
    """

    def __init__(self, shape_CHW: tuple[int, int, int], n_classes: int, width: float = 1.0) -> None:
        super().__init__()
        channels, height, breadth = shape_CHW
        if min(height, breadth) < 18:
            raise ModelError(
                "mnist_cnn cannot take these images",
                found=f"{height}x{breadth} pixels; three 3x3 convolutions with two poolings need at least 18x18",
                remedy="set data.size to 28, or use resnet8",
            )
        c1, c2, c3, d1 = mnist_cnn_sizes(width)
        height, breadth = (((side - 2) // 2 - 2) // 2 - 2 for side in (height, breadth))
        self.features = nn.Sequential(
            nn.Conv2d(channels, c1, 3),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(c1, c2, 3),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(c2, c3, 3),
            nn.ReLU(),
        )
        self.classifier = nn.Sequential(nn.Linear(c3 * height * breadth, d1), nn.ReLU(), nn.Linear(d1, n_classes))
        for parameter in self.parameters():
            if parameter.ndim > 1:
                nn.init.xavier_uniform_(parameter)
            else:
                nn.init.zeros_(parameter)

    def forward(self, x_NCHW: torch.Tensor) -> torch.Tensor:
        """Normalised float images to logits (N, K)."""
        logits_NK: torch.Tensor = self.classifier(self.features(x_NCHW).flatten(1))
        return logits_NK
