"""A float32 graph in fp16 or bf16: constants rounded, casts only where types meet.

Our own instead of onnxconverter_common, which clips constants to 10,000, moves small ones to 1e-7, and writes files
that do not load where a node casts to float (CASES P2). The normalisation of pixels stays in float32: pixels and
means are exact there, and a compiler fuses it anyway.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from deploycnn.errors import PrecisionError

if TYPE_CHECKING:
    import numpy as np
    import onnx

# Inputs that stay float32 whatever the type of the data is, by ONNX' definition of the operator.
_FLOAT_INPUTS: Mapping[str, tuple[int, ...]] = {"Resize": (1, 2), "Upsample": (1,)}
# Operators whose results have no type but float32, or that describe it with an attribute.
_FLOAT_ONLY = ("NonMaxSuppression", "RandomNormal", "RandomUniform", "Multinomial", "Bernoulli", "TfIdfVectorizer", "EyeLike")


def retype(model: onnx.ModelProto, data_type: int, kept: frozenset[str]) -> onnx.ModelProto:
    """A copy with `data_type` in place of float32; inputs and outputs of the graph keep their types.

    Args:
        model: with value_info for all tensors.
        data_type: TensorProto.FLOAT16 or BFLOAT16.
        kept: names of nodes that stay in float32.

    Raises:
        PrecisionError: a node cannot be converted; names it.
    """
    import onnx

    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    return _Retyping(copy, data_type, kept).done()


def normalisation_nodes(model: onnx.ModelProto) -> frozenset[str]:
    """Names of the nodes between the pixels and the first real operator: Cast, Sub, Mul and transposes."""
    readers: dict[str, list[onnx.NodeProto]] = {}
    for node in model.graph.node:
        for name in node.input:
            readers.setdefault(name, []).append(node)
    found: set[str] = set()
    waiting = [model.graph.input[0].name]
    while waiting:
        for node in readers.get(waiting.pop(), []):
            if node.op_type in ("Cast", "Sub", "Mul", "Div", "Transpose") and node.name not in found and len(found) < 6:
                found.add(node.name)
                waiting.extend(node.output)
    return frozenset(found)


class _Retyping:
    """One conversion: nodes are visited in order, casts are put where float32 and the new type meet."""

    def __init__(self, model: onnx.ModelProto, data_type: int, kept: frozenset[str]) -> None:
        from onnx import TensorProto

        self._model = model
        self._type = data_type
        self._suffix = {TensorProto.FLOAT16: "fp16", TensorProto.BFLOAT16: "bf16"}[data_type]
        self._kept = kept
        self._types = _types(model)
        self._constants = {tensor.name: tensor for tensor in model.graph.initializer}
        self._low: set[str] = set()  # tensors that are in the new type under their own name
        self._casts: dict[tuple[str, int], str] = {}  # what a tensor is called in a type
        self._nodes: list[onnx.NodeProto] = []

    def done(self) -> onnx.ModelProto:
        from onnx import AttributeProto

        for node in self._model.graph.node:
            if any(attribute.type in (AttributeProto.GRAPH, AttributeProto.GRAPHS) for attribute in node.attribute):
                raise _unsupported(node, "it holds a graph of its own")
            self._visit(node)
        self._cast_outputs()
        graph = self._model.graph
        del graph.node[:]
        graph.node.extend(self._nodes)
        _drop_unused(self._model)
        return _checked(self._model)

    def _visit(self, node: onnx.NodeProto) -> None:
        stays = node.name in self._kept or node.op_type in _FLOAT_ONLY
        wide_inputs = _FLOAT_INPUTS.get(node.op_type, ())
        for index, name in enumerate(node.input):
            if self._is_float(name):
                node.input[index] = self._as_float(name) if stays or index in wide_inputs else self._as_low(name)
        self._nodes.append(node)
        if stays:
            return
        _retype_attributes(node, self._type)
        self._low.update(name for name in node.output if self._is_float(name))

    def _is_float(self, name: str) -> bool:
        from onnx import TensorProto

        return self._types.get(name) == int(TensorProto.FLOAT)

    def _as_low(self, name: str) -> str:
        if name in self._low:
            return name
        if name in self._constants:
            return self._constant(name)
        return self._cast(name, self._type, f"{name}_{self._suffix}")

    def _as_float(self, name: str) -> str:
        from onnx import TensorProto

        return self._cast(name, TensorProto.FLOAT, f"{name}_fp32") if name in self._low else name

    def _constant(self, name: str) -> str:
        key = (name, self._type)
        if key not in self._casts:
            self._casts[key] = f"{name}_{self._suffix}"
            self._model.graph.initializer.append(rounded(self._constants[name], self._type, self._casts[key]))
        return self._casts[key]

    def _cast(self, name: str, data_type: int, new: str) -> str:
        from onnx import helper

        key = (name, data_type)
        if key not in self._casts:
            self._nodes.append(helper.make_node("Cast", [name], [new], name=f"cast_{new}", to=data_type))
            self._casts[key] = new
        return self._casts[key]

    def _cast_outputs(self) -> None:
        from onnx import TensorProto, helper

        for value in self._model.graph.output:
            if value.name not in self._low:
                continue
            inner = f"{value.name}_{self._suffix}"
            for node in self._nodes:
                for names in (node.input, node.output):
                    for index, name in enumerate(names):
                        if name == value.name:
                            names[index] = inner
            self._nodes.append(helper.make_node("Cast", [inner], [value.name], name=f"cast_{value.name}", to=TensorProto.FLOAT))


def rounded(tensor: onnx.TensorProto, data_type: int, name: str) -> onnx.TensorProto:
    """The constant in the new type, rounded to nearest even. Values beyond its range become inf: check the range first."""
    from onnx import TensorProto, helper, numpy_helper

    values = numpy_helper.to_array(tensor)
    low = values.astype(helper.tensor_dtype_to_np_dtype(data_type)) if data_type != TensorProto.FLOAT16 else _to_fp16(values)
    return helper.make_tensor(name, data_type, tensor.dims, low.tobytes(), raw=True)


def _to_fp16(values: np.ndarray) -> np.ndarray:
    import numpy as np

    with np.errstate(over="ignore"):  # the range check has its own words for it
        low: np.ndarray = values.astype(np.float16)
    return low


def _retype_attributes(node: onnx.NodeProto, data_type: int) -> None:
    """Constants and target types that a node carries in attributes."""
    from onnx import AttributeProto, TensorProto, helper

    for attribute in node.attribute:
        if attribute.type == AttributeProto.TENSOR and attribute.t.data_type == TensorProto.FLOAT:
            attribute.t.CopyFrom(rounded(attribute.t, data_type, attribute.t.name))
        elif attribute.name in ("to", "dtype") and attribute.i == TensorProto.FLOAT:
            attribute.i = data_type
    if node.op_type == "Constant" and node.attribute[0].name in ("value_float", "value_floats"):
        values = helper.get_attribute_value(node.attribute[0])
        dims = [len(values)] if isinstance(values, list | tuple) else []
        tensor = helper.make_tensor("value", TensorProto.FLOAT, dims, values if dims else [values])
        del node.attribute[:]
        node.attribute.append(helper.make_attribute("value", rounded(tensor, data_type, "value")))
    if node.op_type == "ConstantOfShape" and not node.attribute:
        zero = helper.make_tensor("value", TensorProto.FLOAT, [1], [0.0])
        node.attribute.append(helper.make_attribute("value", rounded(zero, data_type, "value")))


def _types(model: onnx.ModelProto) -> dict[str, int]:
    values: Any = (*model.graph.input, *model.graph.output, *model.graph.value_info)
    types = {value.name: value.type.tensor_type.elem_type for value in values}
    types.update({tensor.name: tensor.data_type for tensor in model.graph.initializer})
    return types


def _drop_unused(model: onnx.ModelProto) -> None:
    used = {name for node in model.graph.node for name in node.input}
    kept = [tensor for tensor in model.graph.initializer if tensor.name in used]
    del model.graph.initializer[:]
    model.graph.initializer.extend(kept)


def _checked(model: onnx.ModelProto) -> onnx.ModelProto:
    """With the new types of all tensors; a node whose operator does not take them is named."""
    import onnx

    del model.graph.value_info[:]
    try:
        return onnx.shape_inference.infer_shapes(model, strict_mode=True, check_type=True, data_prop=True)
    except onnx.shape_inference.InferenceError as error:
        text = " ".join(str(error).split())
        node = next((node for node in model.graph.node if node.name and node.name in text), None)
        raise PrecisionError(
            f"conversion unsupported: node {node.name} ({node.op_type})" if node else "conversion unsupported",
            found=text[:300],
            remedy="leave this precision out, or replace the node in the model",
        ) from error


def _unsupported(node: onnx.NodeProto, why: str) -> PrecisionError:
    return PrecisionError(
        f"conversion unsupported: node {node.name} ({node.op_type})", found=why, remedy="leave this precision out, or replace the node"
    )
