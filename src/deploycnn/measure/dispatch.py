"""A graph of next to nothing: what a run of it takes is what the call itself costs, per backend.

It keeps the boundary of every graph here (uint8 pixels in, float32 logits out) and does one cast and one flattening over ten
values.
"""

from __future__ import annotations

import hashlib
from pathlib import Path

from deploycnn.types import TensorSpec, Variant

SHAPE_CHW = (10, 1, 1)
_CLASSES = tuple(f"class {i}" for i in range(SHAPE_CHW[0]))


def dispatch_variant(folder: Path, *, program: bool = False) -> Variant:
    """Writes dispatch.onnx into `folder`, with a dynamic batch.

    Args:
        program: also writes dispatch.pt2, for backends that take the PyTorch program; imports torch.
    """
    import onnx
    from onnx import TensorProto, helper

    nodes = [
        helper.make_node("Cast", ["pixels"], ["values"], to=TensorProto.FLOAT),
        helper.make_node("Flatten", ["values"], ["logits"], axis=1),
    ]
    pixels = helper.make_tensor_value_info("pixels", TensorProto.UINT8, ["batch", *SHAPE_CHW])
    logits = helper.make_tensor_value_info("logits", TensorProto.FLOAT, ["batch", SHAPE_CHW[0]])
    graph = helper.make_graph(nodes, "dispatch", [pixels], [logits])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)
    onnx.checker.check_model(model)
    path = folder / "dispatch.onnx"
    path.write_bytes(model.SerializeToString())
    return Variant(
        precision="fp32",
        onnx_path=path,
        program_path=_program(folder / "dispatch.pt2") if program else None,
        sha256=hashlib.sha256(path.read_bytes()).hexdigest(),
        input=TensorSpec(name="pixels", dtype="uint8", shape_CHW=SHAPE_CHW),
        output_name="logits",
        classes=_CLASSES,
    )


def _program(path: Path) -> Path:
    import torch

    class Flattened(torch.nn.Module):
        def forward(self, pixels: torch.Tensor) -> torch.Tensor:
            return pixels.float().flatten(1)

    example = torch.zeros(2, *SHAPE_CHW, dtype=torch.uint8)
    batch = torch.export.Dim("batch", min=1, max=1024)
    torch.export.save(torch.export.export(Flattened(), (example,), dynamic_shapes=({0: batch},)), path)
    return path
