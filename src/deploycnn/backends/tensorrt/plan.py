"""What a plan file says about itself: its header, and the fused graph that TensorRT for RTX keeps in it as plain text.

Undocumented, found by looking: read only for the versions in SEEN, where tests hold it on real plans. Header, little endian:
bytes 0-3 `vtrt`, u64 at 16 the file's length, bytes 24-27 the version (1 7 1 116), u32 at 32 a mask of compute capabilities.
The text is one graph per `descriptors { ... } main { ... }`; products that are compiled on the device sit in graphs of
their own behind it. `corrltn` is a convolution, `fully_connected` a matrix product; their first two inputs are what is multiplied.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator
from dataclasses import dataclass

SEEN = ("1.7.1.116",)  # versions of TensorRT for RTX whose plans were read and compared

MAGIC = b"vtrt"
_HEADER_BYTES = 64
_MASK = (75, 80, 86, 89, 120, 121)  # bit 0 upwards

KINDS = {"corrltn": "Conv", "deconvolution": "ConvTranspose", "fully_connected": "Gemm"}

_GRAPH = re.compile(rb"\ndescriptors \{\n(.*?)\n\}\n((?:\w+ \{\n.*?\n\}\n)+)", re.DOTALL)
_TENSOR = re.compile(rb'^  (?:sub_)?tensor=\{[^\n]*? name="([^"]+)"[^\n]* type=(\w+) \}', re.MULTILINE)
_QUOTED = rb'((?:"[^"]*" ?)*)'
_PRODUCT = re.compile(rb'\n  (\w+)=\{ name="([^"]*)" output=\{' + _QUOTED + rb"\} input=\{" + _QUOTED + rb"\}([^\n]*)")
_ONNX_LAYER = re.compile(rb"\[ONNX Layer: ([^\]]+)\]")


@dataclass(frozen=True, kw_only=True)
class Header:
    """The first bytes of a plan of TensorRT for RTX."""

    size_bytes: int
    version: str
    capabilities: tuple[int, ...]  # times ten


@dataclass(frozen=True, kw_only=True)
class Product:
    """One convolution or matrix product of a plan."""

    name: str  # as the plan names it
    op: str
    operands: tuple[str, str]  # what is multiplied, in the plan's words (float, half, bf16, int8); "" where it does not say
    onnx_layers: tuple[str, ...]  # nodes of the ONNX file that it does


def read_header(plan: bytes) -> Header | None:
    """None where the bytes do not begin as a plan of TensorRT for RTX."""
    if len(plan) < _HEADER_BYTES or not plan.startswith(MAGIC):
        return None
    (size_bytes,) = struct.unpack_from("<Q", plan, 16)
    (mask,) = struct.unpack_from("<I", plan, 32)
    # The mask of a plan for every capability has a bit above those that are known here.
    capabilities = tuple(capability for bit, capability in enumerate(_MASK) if mask >> bit & 1)
    return Header(size_bytes=size_bytes, version=".".join(str(byte) for byte in plan[24:28]), capabilities=capabilities)


def products(plan: bytes) -> tuple[Product, ...]:
    """Every convolution and matrix product that the plan's text names, in its order, each once."""
    found: dict[tuple[str, tuple[str, str]], Product] = {}
    for types, body in _graphs(plan):
        for kind, name, _, inputs, rest in _PRODUCT.findall(body):
            if kind.decode() not in KINDS:
                continue
            operands = [types.get(operand, "") for operand in re.findall(rb'"([^"]*)"', inputs)[:2]]
            left, right = [*operands, "", ""][:2]
            layers = tuple(layer.decode(errors="replace") for layer in _ONNX_LAYER.findall(rest))
            product = Product(name=name.decode(errors="replace"), op=KINDS[kind.decode()], operands=(left, right), onnx_layers=layers)
            found.setdefault((product.name, product.operands), product)
    return tuple(found.values())


def facts(plan: bytes) -> dict[str, bool]:
    """Switches that the plan's main graph records: `tf32`, `stream_capturable`. Empty where it has none."""
    start = plan.find(b"\ndescriptors {\n")
    head = plan[max(0, start - 20_000) : max(start, 0)]
    found = {name: re.findall(rb"\n  " + name.encode() + rb"=([01])\n", head) for name in ("tf32", "stream_capturable")}
    return {name: values[-1] == b"1" for name, values in found.items() if values}


def _graphs(plan: bytes) -> Iterator[tuple[dict[bytes, str], bytes]]:
    """Tensor types and body of each graph in the plan's text. Names are per graph."""
    for match in _GRAPH.finditer(plan):
        yield {name: kind.decode() for name, kind in _TENSOR.findall(match[1])}, match[2]
