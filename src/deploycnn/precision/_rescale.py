"""Moving a power of two from the first convolution's weights back to the pixels.

The fp32 graph has the scale of the normalisation (about 1/64) folded into those weights. Their quantisation scales
would then lie where fp16 has few digits left; the power of two costs nothing in accuracy and nothing on a GPU, where
it is fused with the subtraction.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from deploycnn.precision._retype import normalisation_nodes

if TYPE_CHECKING:
    import onnx

NAME = "pixels_rescaled"


def with_larger_first_weights(model: onnx.ModelProto) -> onnx.ModelProto:
    """A copy in which the largest weight of the first convolution is between 0.5 and 1, and the same logits.

    The model comes back as it is where the pixels are not read by one convolution with constant weights alone.

    Args:
        model: with value_info for all tensors.
    """
    import numpy as np
    import onnx
    from onnx import helper, numpy_helper

    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    graph = copy.graph
    normalising = normalisation_nodes(copy)
    pixels = {name for node in graph.node if node.name in normalising for name in node.output}
    readers = [node for node in graph.node if node.name not in normalising and pixels.intersection(node.input)]
    constants = {tensor.name: tensor for tensor in graph.initializer}
    if len(readers) != 1 or readers[0].op_type != "Conv" or readers[0].input[1] not in constants:
        return copy
    convolution = readers[0]
    weight = constants[convolution.input[1]]
    values = numpy_helper.to_array(weight)
    largest = float(np.abs(values).max())
    exponent = -math.frexp(largest)[1] if 0 < largest < 0.5 else 0
    if not exponent:
        return copy
    weight.CopyFrom(numpy_helper.from_array((values * 2.0**exponent).astype(np.float32), weight.name))
    graph.initializer.append(numpy_helper.from_array(np.array(2.0**-exponent, np.float32), f"{NAME}_by"))
    rescale = helper.make_node("Mul", [convolution.input[0], f"{NAME}_by"], [NAME], name=NAME)
    convolution.input[0] = NAME
    graph.node.insert(next(index for index, node in enumerate(graph.node) if node.name == convolution.name), rescale)
    return onnx.shape_inference.infer_shapes(copy, data_prop=True)
