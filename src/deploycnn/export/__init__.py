"""Models become graphs: one ONNX file that takes uint8 pixels, proved by running it.

Why pixels and not normalised floats: images are uint8 on every camera and disk, so nobody can feed a graph with the
wrong scale, mean or std; a quarter of the bytes crosses the PCIe bus; and it is the same for every backend. The
subtraction stays in front of the first convolution, so zero padding means what it meant in training; the scale is
folded into that convolution's weights, which is exact up to rounding (see docs/precision.md for what it costs).
"""

from __future__ import annotations

from deploycnn.export._adopt import adopt_graph
from deploycnn.export._dequantise import float_graph
from deploycnn.export._sources import source_sha256
from deploycnn.export._torch import export_graph

__all__ = ["adopt_graph", "export_graph", "float_graph", "source_sha256"]
