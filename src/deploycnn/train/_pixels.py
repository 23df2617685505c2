"""Images on the device as bytes, and batches of them with their augmentation.

Nothing is decoded, copied or normalised image by image. All images lie on the device as one uint8 array, padded for the
shifted crop, in NHWC order; one row of one crop is then a run of W*C bytes that begins anywhere, and a batch is one
gather of such runs, which is also the memory order that channels_last convolutions read.
Augmenting whole batches on the device is airbench's idea (Jordan, 2024, arXiv 2404.00498).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from deploycnn.data import ImageSet
from deploycnn.types import Preprocessing

if TYPE_CHECKING:
    import torch


class DevicePixels:
    """One part of the images on a device: uint8, NHWC, with `pad` mirrored pixels around each image."""

    def __init__(self, images: ImageSet, index_N: np.ndarray, pad: int, preprocessing: Preprocessing, device: torch.device) -> None:
        import torch

        _, c, h, w = images.images_NCHW.shape
        x_NCHW = torch.from_numpy(np.asarray(images.images_NCHW[index_N])).to(device)
        self.labels_N = torch.from_numpy(np.asarray(images.labels_N[index_N])).to(device)
        self.pad = min(pad, h - 1, w - 1)  # a mirror has no more to show
        flat = _mirrored(x_NCHW.permute(0, 2, 3, 1), self.pad).view(-1)
        self._shape_HWC = (h, w, c)
        self._row_stride = (w + 2 * self.pad) * c
        self._image_stride = (h + 2 * self.pad) * self._row_stride
        # Overlapping rows: one begins at every byte.
        self._rows = torch.as_strided(flat, (flat.numel() - w * c + 1, w * c), (1, 1))
        self._row_offsets_H = torch.arange(h, device=device) * self._row_stride
        # One value per byte of a row, so that normalising runs along contiguous memory.
        self._mean_R = (torch.tensor(preprocessing.mean) * 255).repeat(w).to(device)
        self._scale_R = (1 / (torch.tensor(preprocessing.std) * 255)).repeat(w).to(device)

    def __len__(self) -> int:
        return len(self.labels_N)

    def offsets(self, index_N: torch.Tensor, dy_N: torch.Tensor, dx_N: torch.Tensor) -> torch.Tensor:
        """Where the crops of those images begin, in bytes; dy and dx from 0 to 2*pad, where `pad` is the image itself."""
        offsets_N: torch.Tensor = index_N * self._image_stride + dy_N * self._row_stride + dx_N * self._shape_HWC[2]
        return offsets_N

    def centred(self, index_N: torch.Tensor) -> torch.Tensor:
        """Offsets of those images, not shifted."""
        offsets_N: torch.Tensor = index_N * self._image_stride + self.pad * (self._row_stride + self._shape_HWC[2])
        return offsets_N

    def batch(self, offsets_N: torch.Tensor, n_mirrored: int) -> torch.Tensor:
        """Normalised float images (N, C, H, W) in channels_last memory, the first `n_mirrored` of them mirrored."""
        h, w, c = self._shape_HWC
        n = len(offsets_N)
        rows = self._rows.index_select(0, (offsets_N[:, None] + self._row_offsets_H).view(-1))
        if n_mirrored:
            mirrored = rows[: n_mirrored * h].view(-1, w, c)
            mirrored.copy_(mirrored.flip(1))
        normalised = rows.float().sub_(self._mean_R).mul_(self._scale_R)
        return normalised.view(n, h, w, c).permute(0, 3, 1, 2)


def _mirrored(x_NHWC: torch.Tensor, pad: int) -> torch.Tensor:
    """The images with `pad` more pixels on each side, mirrored without repeating the edge; contiguous."""
    n, h, w, c = x_NHWC.shape
    padded = x_NHWC.new_empty((n, h + 2 * pad, w + 2 * pad, c))
    padded[:, pad : pad + h, pad : pad + w] = x_NHWC
    for k in range(1, pad + 1):
        padded[:, :, pad - k] = padded[:, :, pad + k]
        padded[:, :, pad + w - 1 + k] = padded[:, :, pad + w - 1 - k]
    for k in range(1, pad + 1):
        padded[:, pad - k] = padded[:, pad + k]
        padded[:, pad + h - 1 + k] = padded[:, pad + h - 1 - k]
    return padded
