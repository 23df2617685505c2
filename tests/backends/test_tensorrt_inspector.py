"""The engine inspector's JSON, in the shapes that 10.x and 11.x document.

Written from documentation and published examples: an inspector needs an engine, and that needs a GPU. The tests marked gpu in
test_tensorrt_gpu.py read a real one.
"""

from __future__ import annotations

import json
from typing import Any

import pytest

from deploycnn.backends.tensorrt.evidence import from_inspector
from deploycnn.backends.tensorrt.graph_checks import MatrixNode
from deploycnn.types import Target
from deploycnn.validate.evidence import check_evidence

SM90 = Target.parse("cuda:sm90")
NODES = [MatrixNode(name="node_conv2d", op="Conv"), MatrixNode(name="node_conv2d_1", op="Conv"), MatrixNode(name="node_linear", op="Gemm")]
PROVIDER = "NVIDIA H200 (sm90), TensorRT 11.4.0.106"


def ten(name: str, kind: str, data: str, onnx: tuple[str, ...] = (), weights: str = "") -> dict[str, Any]:
    """A layer as TensorRT 10.x prints it."""
    layer: dict[str, Any] = {
        "Name": name,
        "LayerType": kind,
        "Inputs": [{"Name": "x", "Location": "Device", "Dimensions": [1, 3, 32, 32], "Format/Datatype": data}],
        "Outputs": [{"Name": "y", "Location": "Device", "Dimensions": [1, 6, 28, 28], "Format/Datatype": data}],
        "TacticName": "sm80_xmma_fprop_implicit_gemm",
        "StreamId": 0,
        "Metadata": "\x1f".join(f"[ONNX Layer: {node}]" for node in onnx),
    }
    if weights:
        layer["Weights"] = {"Type": weights, "Count": 450}
    return layer


def eleven(name: str, kind: str, data: str, onnx: tuple[str, ...] = ()) -> dict[str, Any]:
    """A layer as TensorRT 11.x prints it: format and type apart."""
    layer = ten(name, kind, "", onnx)
    for tensor in (*layer["Inputs"], *layer["Outputs"]):
        del tensor["Format/Datatype"]
        tensor |= {"Format": "kLINEAR", "DataType": data}
    return layer


def evidence(*layers: dict[str, Any] | str, tf32: bool = False) -> Any:
    return from_inspector(json.dumps({"Layers": list(layers), "Bindings": ["pixels", "logits"]}), NODES, PROVIDER, tf32=tf32)


@pytest.mark.parametrize("shape", [ten, eleven])
@pytest.mark.parametrize(
    ("data", "precision", "recipe"),
    [
        ("Half", "float16", "fp16"),
        ("Row major linear FP16 format", "float16", "fp16"),
        ("Channel major FP16 format where channel % 8 == 0", "float16", "fp16"),
        ("Float", "float32", "fp32"),
        ("Row major linear FP32", "float32", "fp32"),
        ("BFloat16", "bfloat16", "bf16"),
        ("Row major linear BF16 format", "bfloat16", "bf16"),
        ("Int8", "int8", "int8"),
        ("Thirty-two wide channel vectorized row major Int8 format.", "int8", "int8"),
    ],
)
def test_every_product_gets_the_type_of_its_input(shape: Any, data: str, precision: str, recipe: str) -> None:
    found = evidence(
        shape("Reformatting CopyNode for Input Tensor 0 to node_conv2d", "Reformat", "UInt8"),
        shape("node_conv2d + node_relu", "CaskConvolution", data, ("node_conv2d", "node_relu")),
        shape("__myl_Conv", "fusion", data, ("node_conv2d_1",)),
        shape("__mye_k", "kgen", "Float", ("node_relu_1",)),
        shape("node_linear_myl0_3", "gemm", data, ("node_linear",)),
    )
    assert [(layer.name, layer.op, layer.precision) for layer in found.layers] == [(node.name, node.op, precision) for node in NODES]
    assert check_evidence(found, recipe, SM90, 3).state == "pass"


def test_a_float_convolution_in_an_int8_engine_is_named() -> None:
    found = evidence(
        ten("a", "CaskConvolution", "Int8", ("node_conv2d",)),
        ten("b", "CaskConvolution", "Float", ("node_conv2d_1",)),
        ten("c", "gemm", "Int8", ("node_linear",)),
    )
    verdict = check_evidence(found, "int8", SM90, 3)
    assert verdict.state == "fail"
    assert "node_conv2d_1" in verdict.reason


def test_float_weights_under_int8_activations_are_not_int8() -> None:
    found = evidence(
        ten("a", "CaskConvolution", "Int8", ("node_conv2d",), weights="Float"),
        ten("b", "CaskConvolution", "Int8", ("node_conv2d_1",), weights="Int8"),
        ten("c", "gemm", "Int8", ("node_linear",)),
    )
    assert [layer.precision for layer in found.layers] == ["int8 x float32", "int8", "int8"]
    assert check_evidence(found, "int8", SM90, 3).state == "fail"


def test_one_launch_for_two_nodes_proves_both() -> None:
    found = evidence(ten("a + b", "fusion", "Half", ("node_conv2d", "node_conv2d_1")), ten("c", "gemm", "Half", ("node_linear",)))
    assert [layer.name for layer in found.layers] == [node.name for node in NODES]


def test_names_joined_by_fusion_serve_where_there_is_no_metadata() -> None:
    found = evidence(
        ten("node_conv2d + node_relu", "CaskConvolution", "Half"),
        ten("node_conv2d_1 + node_relu_1", "CaskConvolution", "Half"),
        ten("node_linear", "MatrixMultiply", "Half"),
    )
    assert len(found.layers) == 3


@pytest.mark.parametrize(
    "layers",
    [
        (),
        ("node_conv2d + node_relu", "node_conv2d_1", "node_linear"),
        (ten("a", "CaskConvolution", "Half", ("node_conv2d",)), ten("c", "gemm", "Half", ("node_linear",))),
        (
            ten("a", "CaskConvolution", "N/A due to dynamic shapes", ("node_conv2d",)),
            ten("b", "CaskConvolution", "Half", ("node_conv2d_1",)),
            ten("c", "gemm", "Half", ("node_linear",)),
        ),
        (ten("a", "kgen", "Half", ("node_conv2d", "node_conv2d_1", "node_linear")),),
        (ten("a", "CaskConvolution", "Half", ("node_conv2d_2", "my_node_conv2d")),),
    ],
    ids=["nothing", "names only", "one is missing", "no type", "generated code", "other names"],
)
def test_what_is_missing_is_unproven_and_named(layers: tuple[Any, ...]) -> None:
    found = evidence(*layers)
    assert len(found.layers) < 3
    assert any("unproven" in note and "node_conv2d" in note for note in found.notes)
    assert check_evidence(found, "fp16", SM90, 3).state == "unproven"


@pytest.mark.parametrize("text", ["", "{", "[]", "null", '{"Layers": "none"}'])
def test_an_answer_of_another_shape_is_unproven(text: str) -> None:
    found = from_inspector(text, NODES, PROVIDER, tf32=False)
    assert check_evidence(found, "fp16", SM90, 3).state == "unproven"


def test_tf32_is_said_of_fp32_products_only() -> None:
    layers = [ten(node.name, "gemm", "Float", (node.name,)) for node in NODES]
    assert {layer.precision for layer in evidence(*layers, tf32=True).layers} == {"tfloat32"}
    halves = [ten(node.name, "gemm", "Half", (node.name,)) for node in NODES]
    assert {layer.precision for layer in evidence(*halves, tf32=True).layers} == {"float16"}
