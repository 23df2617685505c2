"""A PyTorch module becomes an ONNX file and a torch.export archive, both with the normalisation inside."""

from __future__ import annotations

import copy
import io
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import deploycnn
from deploycnn.disk import write_atomic
from deploycnn.errors import ExportError
from deploycnn.export._clean import cleaned
from deploycnn.export._frozen import check_batches, frozen
from deploycnn.export._proof import EXAMPLE_BATCH, PROOF_BATCHES, TOLERANCE, check_sample, difference, prove, repeated
from deploycnn.graph import GraphMetadata, save_graph, write_metadata
from deploycnn.types import Preprocessing, TensorSpec, Variant

if TYPE_CHECKING:
    import numpy as np
    import onnx
    import torch
    from torch import nn

GRAPH, PROGRAM = "graph.onnx", "program.pt2"
INPUT, OUTPUT = "pixels", "logits"
LARGEST_BATCH = 4096  # of the .pt2; a bound lets compilers index with 32 bits


def export_graph(
    module: nn.Module,
    preprocessing: Preprocessing,
    shape_CHW: tuple[int, int, int],
    classes: tuple[str, ...],
    sample_x_NCHW: np.ndarray,
    folder: Path,
    metadata: Mapping[str, str],
    fixed_batch: int | None = None,
) -> Variant:
    """Writes graph.onnx and program.pt2 and proves both against the module on the sample images.

    The module itself is not touched: a copy on the CPU in eval mode is exported. Same weights, same ONNX bytes.

    Args:
        module: normalised float32 images (N, C, H, W) to logits (N, K).
        preprocessing: what the graph is to do to pixels / 255, per channel.
        shape_CHW: shape of one image.
        classes: names, in the order of the logits.
        sample_x_NCHW: uint8 real images of several classes, 65 or more at best.
        folder: where the files go.
        metadata: more to write into the ONNX file: data set, checkpoint digest.
        fixed_batch: export for this batch size only, for a module that cannot take another.

    Raises:
        ExportError: the module cannot be exported, freezes its batch size, is not deterministic in eval mode, or the
            graph computes something else. The message names node or size.
        StoreError: the disk said no.
    """
    check_sample(sample_x_NCHW, shape_CHW)
    _check_preprocessing(preprocessing, shape_CHW)
    program_module = _pixels_module(module, preprocessing)
    reference = _reference(program_module)
    check_batches(reference, sample_x_NCHW, len(classes), fixed_batch)
    _check_deterministic(reference, repeated(sample_x_NCHW, fixed_batch or min(len(sample_x_NCHW), 64)))
    program = _traced(program_module, reference, sample_x_NCHW, fixed_batch)
    model = cleaned(_translated(program, fixed_batch))
    facts = GraphMetadata(
        version=deploycnn.__version__, classes=classes, preprocessing=preprocessing, precision="fp32", others=dict(metadata)
    )
    write_metadata(model, facts)
    batches = (fixed_batch,) if fixed_batch else PROOF_BATCHES
    prove(model, reference, sample_x_NCHW, batches, "the exported graph")
    digest = save_graph(model, folder / GRAPH, ExportError)
    _save_program(program, folder / PROGRAM, reference, repeated(sample_x_NCHW, batches[-1]))
    return Variant(
        precision="fp32",
        onnx_path=folder / GRAPH,
        program_path=folder / PROGRAM,
        sha256=digest,
        input=TensorSpec(name=INPUT, dtype="uint8", shape_CHW=shape_CHW),
        output_name=OUTPUT,
        classes=classes,
        fixed_batch=fixed_batch,
        notes=(f"fixed batch {fixed_batch}: other sizes cannot be run",) if fixed_batch else (),
    )


def _check_preprocessing(preprocessing: Preprocessing, shape_CHW: tuple[int, int, int]) -> None:
    sizes = {len(preprocessing.mean), len(preprocessing.std)}
    if sizes != {shape_CHW[0]}:
        found = f"{len(preprocessing.mean)} means and {len(preprocessing.std)} standard deviations for {shape_CHW[0]} channels"
        raise ExportError("the preprocessing does not fit the images", found=found, remedy="give one mean and one std per channel")
    if min(preprocessing.std) <= 0:
        raise ExportError("the preprocessing divides by nothing", found=f"std {preprocessing.std}", remedy="give positive values")


def _pixels_module(module: nn.Module, preprocessing: Preprocessing) -> nn.Module:
    """A frozen copy on the CPU, in eval mode and plain memory layout, behind the normalisation.

    A channels_last module would be traced with copies between layouts that mean nothing to another compiler.
    """
    import torch

    from deploycnn.export._pixels import PixelsModule

    try:
        own = copy.deepcopy(module)
    except RuntimeError as error:
        remedy = "remove what computes weights on the fly, for example with torch.nn.utils.remove_weight_norm"
        raise ExportError("the module cannot be copied", found=str(error).splitlines()[0], remedy=remedy) from error
    own = own.to("cpu", torch.float32).to(memory_format=torch.contiguous_format)
    return PixelsModule(own, preprocessing).eval().requires_grad_(False)


def _reference(module: nn.Module) -> Callable[[np.ndarray], np.ndarray]:
    import torch

    def logits(x_NCHW: np.ndarray) -> np.ndarray:
        with torch.no_grad():
            found: np.ndarray = module(torch.from_numpy(x_NCHW)).numpy()
        return found

    return logits


def _check_deterministic(reference: Callable[[np.ndarray], np.ndarray], x_NCHW: np.ndarray) -> None:
    apart = difference(reference(x_NCHW), reference(x_NCHW))
    if apart:
        raise ExportError(
            "the module answers differently each time although it is in eval mode",
            found=f"two runs on the same images differ by {apart:.2g}",
            remedy="use nn.Dropout instead of F.dropout(x), or pass training=self.training",
        )


def _foreign_errors() -> tuple[type[Exception], ...]:
    """What tracing a user's forward method, and translating it, can raise."""
    import torch

    kinds = (RuntimeError, ValueError, TypeError, AttributeError, KeyError, IndexError, AssertionError, ZeroDivisionError)
    return (*kinds, torch._dynamo.exc.TorchDynamoException, torch.onnx.OnnxExporterError)


def _traced(
    module: nn.Module, reference: Callable[[np.ndarray], np.ndarray], x_NCHW: np.ndarray, fixed_batch: int | None
) -> torch.export.ExportedProgram:
    """The program with a symbolic batch. The example is black: no user's image travels in the archive."""
    import torch

    example = torch.zeros((fixed_batch or EXAMPLE_BATCH, *x_NCHW.shape[1:]), dtype=torch.uint8)
    shapes = None if fixed_batch else {INPUT: {0: torch.export.Dim("batch", min=1, max=LARGEST_BATCH)}}
    try:
        with torch.no_grad():
            program = torch.export.export(module, (example,), dynamic_shapes=shapes)
    except _foreign_errors() as error:
        text = str(error)
        if not fixed_batch and "batch" in text and ("onstraint" in text or "specializ" in text):
            raise frozen(reference, x_NCHW, EXAMPLE_BATCH, "forward() makes the exporter take the batch size as a constant") from error
        first = " ".join(text.split())[:400]
        raise ExportError(
            "torch.export cannot trace the module", found=first, remedy="write forward() without branches on tensor values"
        ) from error
    for node in program.graph.nodes:
        node.meta.pop("stack_trace", None)  # local paths
    return program


def _translated(program: torch.export.ExportedProgram, fixed_batch: int | None) -> onnx.ModelProto:
    import torch

    try:
        exported = torch.onnx.export(
            program, (), dynamo=True, input_names=[INPUT], output_names=[OUTPUT], external_data=False, verbose=False
        )
    except _foreign_errors() as error:
        found = " ".join(str(error).split())[:400]
        raise ExportError("the module has an operator without an ONNX form", found=found, remedy="replace what it names") from error
    assert exported is not None, "torch.onnx.export(dynamo=True) gives a program"
    model: Any = exported.model_proto
    if not fixed_batch:
        for value in (*model.graph.input, *model.graph.output):
            value.type.tensor_type.shape.dim[0].dim_param = "batch"
    return model


def _save_program(
    program: torch.export.ExportedProgram, path: Path, reference: Callable[[np.ndarray], np.ndarray], x_NCHW: np.ndarray
) -> None:
    """Writes the archive, loads it back and compares it with the module.

    It is made in memory: PyTorch's own writer ends the process where a disk is full.

    Raises:
        StoreError: the disk said no.
    """
    import torch

    archive = io.BytesIO()
    torch.export.save(program, archive)
    write_atomic(path, archive.getvalue())
    loaded = torch.export.load(path).module()
    with torch.no_grad():
        apart = difference(loaded(torch.from_numpy(x_NCHW)).numpy(), reference(x_NCHW))
    if not apart <= TOLERANCE:
        found = f"largest logit difference {apart:.2g}"
        raise ExportError("the torch.export archive does not compute what the module computes", found=found, remedy="report the model")
