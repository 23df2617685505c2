"""From a torch.export archive back to an eager module, as fast as the network's own code would run.

The module that `ExportedProgram.module()` gives checks its input in Python hooks and calls every operator through its
overload object: LeNet at batch 1 on one core took 1.6 times as long as the nn.Module that it came from. As a reference
that would flatter everything compared with it, so both are taken off here; `bind` has checked the input already.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from deploycnn.errors import BackendError
from deploycnn.types import LayerEvidence

if TYPE_CHECKING:
    import torch

# Operators whose Python binding has the very signature of the ATen overload that an export names.
_DIRECT = (
    *("conv1d", "conv2d", "linear", "batch_norm", "relu", "relu_", "max_pool2d", "avg_pool2d", "adaptive_avg_pool2d"),
    *("flatten", "reshape", "permute", "transpose", "add", "sub", "mul", "div", "matmul", "mean", "cat", "sigmoid", "tanh"),
)
_PRODUCTS = ("conv1d", "conv2d", "conv3d", "convolution", "linear", "addmm", "mm", "bmm", "matmul", "baddbmm")
_NAMES = {"float": "float32", "c10::Half": "float16", "c10::BFloat16": "bfloat16", "double": "float64"}


def eager(path: Path) -> torch.fx.GraphModule:
    """The network in an archive: takes a uint8 batch, gives a tuple of float32 logits (N, K).

    Raises:
        BackendError: the file is damaged, or was written by a version that cannot be read.
    """
    import pickle
    import zipfile

    import torch

    try:
        exported = torch.export.load(path)
        module = exported.module(check_guards=False)
    except (RuntimeError, OSError, ValueError, KeyError, TypeError, AttributeError, zipfile.BadZipFile, pickle.UnpicklingError) as error:
        first = next(iter(str(error).splitlines()), type(error).__name__)
        raise BackendError(
            f"PyTorch {torch.__version__} is to load the program {path}",
            found=f"it is damaged, or of another version: {first[:300]}",
            remedy="run again: the artifact is then rebuilt",
        ) from error
    graph = module.graph
    for node in list(graph.nodes):
        if node.op == "call_function" and "_assert" in str(node.target):
            graph.erase_node(node)
        elif node.op == "call_function":
            node.target = _direct(node.target)
    graph.set_codegen(torch.fx.graph.CodeGen())  # plain arguments instead of pytrees
    return torch.fx.GraphModule(module, graph)  # without the old one's hooks


def _direct(overload: Any) -> Any:
    import torch
    from torch.nn import functional

    schema = getattr(overload, "_schema", None)
    name = schema.name.removeprefix("aten::") if schema else ""
    if name in _DIRECT:
        return getattr(torch, name, None) or getattr(functional, name, overload)
    return overload


def cast(module: torch.fx.GraphModule, dtype: torch.dtype) -> torch.fx.GraphModule:
    """The same network with weights and arithmetic in `dtype`; logits stay float32.

    Weights and buffers are cast, and so is every place where the graph itself names float32 (the cast of the pixels).
    """
    import torch

    module.to(dtype)
    for node in module.graph.nodes:
        node.args = tuple(dtype if argument is torch.float32 else argument for argument in node.args)
        node.kwargs = {key: dtype if value is torch.float32 else value for key, value in node.kwargs.items()}
        if node.op == "output":
            (logits,) = node.args[0]
            with module.graph.inserting_before(node):
                node.args = ((module.graph.call_method("float", (logits,)),),)
    module.recompile()
    return module


def layers(events: Any, float32_name: str) -> tuple[LayerEvidence, ...]:
    """Convolutions and matrix products among a profiler's events, in order; inner calls of an outer one left out.

    Args:
        events: of torch.profiler, recorded with shapes.
        float32_name: what float32 products are computed in: float32, or tfloat32.
    """
    return tuple(_layers(events, float32_name))


def _layers(events: Any, float32_name: str) -> Iterator[LayerEvidence]:
    for event in events:
        if not _is_product(event) or _has_product_above(event):
            continue
        kinds = [kind for kind in event.input_dtypes if kind not in ("", "Scalar", "ScalarList")]
        precision = _NAMES.get(kinds[0], kinds[0]) if kinds else "unknown"
        op = event.name.removeprefix("aten::")
        shapes = " x ".join("x".join(map(str, shape)) for shape in event.input_shapes[:2])
        yield LayerEvidence(name=f"{op} {shapes}", op=op, precision=float32_name if precision == "float32" else precision)


def _is_product(event: Any) -> bool:
    return event.name.removeprefix("aten::") in _PRODUCTS


def _has_product_above(event: Any) -> bool:
    parent = event.cpu_parent
    while parent is not None:
        if _is_product(parent):
            return True
        parent = parent.cpu_parent
    return False
