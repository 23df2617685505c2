"""A user's own ONNX file becomes a graph with our boundary, proved against the file as it was."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import deploycnn
from deploycnn.errors import ModelError
from deploycnn.export._clean import cleaned
from deploycnn.export._fold import folded
from deploycnn.export._interface import Interface, check_versions, interface_of, opset_of
from deploycnn.export._original import Original
from deploycnn.export._proof import PROOF_BATCHES, TOLERANCE, check_sample, prove
from deploycnn.export._rewire import INPUT, OUTPUT, cut_softmax, free_batch, free_names, put_logits_last, put_pixels_first
from deploycnn.export._sources import load_whole
from deploycnn.graph import GraphMetadata, describe_quantisation, form_of, read_metadata, save_graph, write_metadata
from deploycnn.types import Preprocessing, TensorSpec, Variant

if TYPE_CHECKING:
    import numpy as np
    import onnx

GRAPH = "graph.onnx"
LOWEST_OPSET = 13  # Q/DQ per channel needs it; lower ones are upgraded
UPGRADED_OPSET = 17
QUANTISED_TOLERANCE = 0.05  # a value on the edge between two steps may round to the other side


def adopt_graph(
    onnx_path: Path,
    preprocessing: Preprocessing | None,
    classes: tuple[str, ...],
    shape_CHW: tuple[int, int, int],
    sample_x_NCHW: np.ndarray,
    folder: Path,
) -> Variant:
    """Writes graph.onnx: the user's graph with pixels in, logits out and a dynamic batch, in one file.

    A float input gets the normalisation in front of it; a uint8 input is taken to normalise itself. NHWC becomes NCHW.
    A final Softmax is cut off, since logits are what is compared (and what quantises well). A fixed batch is made
    dynamic if the result computes the same at every size, else the variant says which batch it is fixed at.

    Args:
        onnx_path: the file; external data is looked for beside it.
        preprocessing: what was done to pixels / 255 in training. Needed for a float input.
        classes: names, in the order of the logits.
        shape_CHW: shape of one image of the data set.
        sample_x_NCHW: uint8 real images of several classes, 65 or more at best.
        folder: where the file goes.

    Raises:
        ModelError: missing or unreadable files, versions, inputs, outputs or sizes that do not fit; says which.
    """
    check_sample(sample_x_NCHW, shape_CHW)
    model, notes = load_whole(onnx_path)
    check_versions(model, onnx_path)
    before = interface = interface_of(model, onnx_path, shape_CHW)
    used, said = _preprocessing(model, interface, preprocessing, onnx_path, shape_CHW)
    quantised = form_of(describe_quantisation(model))
    logits_name = cut_softmax(model, interface.output_name)
    interface = interface.model_copy(update={"output_name": logits_name})
    original = Original(model, interface, used, onnx_path.name, sample_x_NCHW)
    interface = interface.model_copy(update={"fixed_batch": original.fixed_batch})
    _check_classes(original.output_shape, classes)
    ours = _rewired(model, interface, used, len(original.output_shape), len(classes), shape_CHW)
    ours, fixed_batch, changes = _proved(ours, original, sample_x_NCHW, QUANTISED_TOLERANCE if quantised else TOLERANCE)
    precision = "int8" if quantised else _float_precision(ours)
    facts = GraphMetadata(version=deploycnn.__version__, classes=classes, preprocessing=used, precision=precision)
    write_metadata(ours, facts)
    return Variant(
        precision=precision,
        int8_form=quantised,
        onnx_path=folder / GRAPH,
        sha256=save_graph(ours, folder / GRAPH),
        input=TensorSpec(name=INPUT, dtype="uint8", shape_CHW=shape_CHW),
        output_name=OUTPUT,
        classes=classes,
        fixed_batch=fixed_batch,
        notes=(*notes, *said, *_differences(model, interface, before), *changes),
    )


def _preprocessing(
    model: onnx.ModelProto, interface: Interface, given: Preprocessing | None, path: Path, shape_CHW: tuple[int, int, int]
) -> tuple[Preprocessing | None, tuple[str, ...]]:
    """What happens to pixels in this graph, and notes where the user said something else."""
    inside = read_metadata(model).preprocessing
    if interface.dtype == "uint8":
        if given is None or given == inside:
            return inside, ()
        known = f"mean {inside.mean}, std {inside.std}" if inside else "not said in the file"
        return inside, (
            f"{path.name} takes uint8 pixels and normalises them itself ({known}); "
            f"the mean {given.mean} and std {given.std} asked for are not applied",
        )
    if given is None:
        found = "its input is float32, and a file does not say how pixels become floats"
        remedy = "set model.mean and model.std to what the model was trained with (per channel, of pixels / 255)"
        raise ModelError(f"the preprocessing of {path.name} is not known", found=found, remedy=remedy)
    if {len(given.mean), len(given.std)} != {shape_CHW[0]} or min(given.std) <= 0:
        found = f"mean {given.mean}, std {given.std} for {shape_CHW[0]} channels"
        raise ModelError("the preprocessing does not fit the images", found=found, remedy="give one mean and one positive std per channel")
    return given, ()


def _check_classes(shape: tuple[int, ...], classes: tuple[str, ...]) -> None:
    if len(shape) < 2 or any(size != 1 for size in shape[2:]):
        raise ModelError("the graph's output is not one logit per class", found=f"shape {shape}", remedy="give a classifier's graph")
    if shape[1] != len(classes):
        found = f"{len(classes)} classes: {', '.join(classes[:20])}{', ...' if len(classes) > 20 else ''}"
        raise ModelError(f"the graph gives {shape[1]} logits", found=found, remedy="give a model and a data set with the same classes")


def _differences(model: onnx.ModelProto, interface: Interface, before: Interface) -> tuple[str, ...]:
    """What was changed, for the user."""
    notes = []
    opset = opset_of(model)
    if opset < LOWEST_OPSET:
        notes.append(f"opset {opset} upgraded to {UPGRADED_OPSET}")
    if interface.output_name != before.output_name:
        notes.append("the final Softmax was cut off: artifacts answer logits, whose softmax are the probabilities")
    if interface.layout == "NHWC":
        notes.append("the graph takes NHWC; images stay NCHW and are transposed inside")
    return tuple(notes)


def _rewired(
    model: onnx.ModelProto,
    interface: Interface,
    preprocessing: Preprocessing | None,
    rank: int,
    n_classes: int,
    shape_CHW: tuple[int, int, int],
) -> onnx.ModelProto:
    """The graph with our boundary, still at its own batch."""
    ours = _upgraded(model)
    interface = free_names(ours, interface)
    put_pixels_first(ours, interface, preprocessing, shape_CHW)
    put_logits_last(ours, interface.output_name, rank, n_classes, interface.fixed_batch)
    return ours


def _upgraded(model: onnx.ModelProto) -> onnx.ModelProto:
    """A copy in which every variant can be expressed: opset 13 or later, constants that are no inputs."""
    import onnx

    ours = onnx.ModelProto()
    ours.CopyFrom(model)
    constants = {tensor.name for tensor in ours.graph.initializer}
    inputs = [value for value in ours.graph.input if value.name not in constants]
    del ours.graph.input[:]
    ours.graph.input.extend(inputs)
    ours.ir_version = max(ours.ir_version, onnx.IR_VERSION_2020_5_8)
    opset = opset_of(ours)
    if opset >= LOWEST_OPSET:
        return ours
    try:
        return onnx.version_converter.convert_version(ours, UPGRADED_OPSET)
    except (onnx.version_converter.ConvertError, RuntimeError) as error:
        found = " ".join(str(error).split())[:300]
        remedy = f"export it again with opset {UPGRADED_OPSET}"
        raise ModelError(f"opset {opset} cannot be upgraded to {UPGRADED_OPSET}", found=found, remedy=remedy) from error


def _proved(
    ours: onnx.ModelProto, original: Original, x_NCHW: np.ndarray, tolerance: float
) -> tuple[onnx.ModelProto, int | None, tuple[str, ...]]:
    """The graph in the best form that computes what the original does: dynamic, or at its own batch.

    Returns:
        The graph, its batch (None: dynamic), and what was done about the batch.
    """
    import onnx

    what, batch = "the graph with pixels as input", original.fixed_batch
    if batch is None:
        dynamic = cleaned(folded(ours))
        prove(dynamic, original.logits, x_NCHW, PROOF_BATCHES, what, ModelError, tolerance)
        return dynamic, None, ()
    freed = onnx.ModelProto()
    freed.CopyFrom(ours)
    free_batch(freed, batch)
    try:
        dynamic = cleaned(folded(freed))
        prove(dynamic, original.logits, x_NCHW, PROOF_BATCHES, what, ModelError, tolerance)
    except ModelError as error:
        fixed = cleaned(folded(ours))
        prove(fixed, original.logits, x_NCHW, (batch,), what, ModelError, tolerance)
        return fixed, batch, (f"fixed batch {batch}: it could not be made dynamic ({error.one_line[:200]})",)
    return dynamic, None, (f"the batch was fixed at {batch}; it was made dynamic, and computes the same at every size tried",)


def _float_precision(model: onnx.ModelProto) -> str:
    """The type that most weights are stored in."""
    from onnx import TensorProto

    names = {TensorProto.FLOAT16: "fp16", TensorProto.BFLOAT16: "bf16"}
    sizes: dict[str, int] = {}
    for tensor in model.graph.initializer:
        name = names.get(tensor.data_type, "fp32")
        sizes[name] = sizes.get(name, 0) + len(tensor.raw_data)
    return max(sizes, key=lambda name: sizes[name], default="fp32")
