"""Looking at every tensor of a graph while images go through it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from deploycnn.errors import PrecisionError
from deploycnn.graph import Runner, padded_batches
from deploycnn.types import Progress, ProgressCallback

if TYPE_CHECKING:
    import numpy as np
    import onnx

BATCH = 32  # for every pass over calibration images, whatever their number: results must not depend on it


def float_tensors(model: onnx.ModelProto) -> list[str]:
    """Names of all float32 tensors that nodes write, in graph order.

    Args:
        model: with value_info for all tensors.
    """
    from onnx import TensorProto

    values = (*model.graph.value_info, *model.graph.output)
    floats = {value.name for value in values if value.type.tensor_type.elem_type == TensorProto.FLOAT}
    return [name for node in model.graph.node for name in node.output if name in floats]


def observed(
    model: onnx.ModelProto, names: list[str], images_NCHW: np.ndarray, batch: int | None, progress: ProgressCallback, note: str
) -> Iterator[list[np.ndarray]]:
    """The named tensors, batch by batch; rows of the last batch that only fill it up are cut off.

    Args:
        model: the graph; it is not optimised, so that each tensor is what the graph says.
        names: tensors to look at; their first dimension must be the batch.
        images_NCHW: uint8 images.
        batch: the graph's fixed batch, None for BATCH.
        progress: told how many images are through.
        note: what this pass is for.

    Raises:
        PrecisionError: the graph does not run.
    """
    import onnx

    watched = onnx.ModelProto()
    watched.CopyFrom(model)
    outputs = {value.name for value in watched.graph.output}
    kinds = {value.name: value for value in watched.graph.value_info}
    watched.graph.output.extend(kinds[name] for name in names if name not in outputs)
    done = 0
    with Runner(watched, "the graph with all its tensors", error=PrecisionError, outputs=names, optimised=False) as runner:
        for part_NCHW, real in padded_batches(images_NCHW, batch or BATCH):
            yield [tensor[:real] for tensor in runner.run(part_NCHW)]
            done += real
            progress(Progress(done=done, total=len(images_NCHW), unit="images", note=note))
