"""Sizes of networks that more than one framework builds; nothing here needs any of them."""

from __future__ import annotations


def mnist_cnn_sizes(width: float) -> tuple[int, int, int, int]:
    """Channels of the three convolutions and units of the hidden dense layer of `mnist_cnn`."""
    c1, c2, c3, d1 = (max(1, round(width * size)) for size in (32, 64, 64, 64))
    return c1, c2, c3, d1
