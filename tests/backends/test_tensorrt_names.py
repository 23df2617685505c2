"""Every name of TensorRT and of the CUDA runtime that the backend uses exists, with the arguments it gives.

Three bindings: TensorRT for RTX as installed; full TensorRT from its small bindings wheel, imported over empty libraries
(listing names calls nothing); cuda-bindings. A real part, except for the empty libraries: the real ones need a GPU machine.
"""

from __future__ import annotations

import ast
import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import deploycnn.backends.tensorrt as backend

FOLDER = Path(backend.__file__).parent

# Class or enum -> {name: number of arguments that the backend gives, None for properties and enum members}.
COMMON: dict[str, dict[str, int | None]] = {
    "Builder": {
        "create_network": 1,
        "create_builder_config": 0,
        "create_optimization_profile": 0,
        "build_serialized_network": 2,
    },
    "INetworkDefinition": {"get_input": 1, "num_inputs": None},
    "OnnxParser": {"supports_operator": 1, "parse": 1, "num_errors": None, "get_error": 1},
    "ParserError": {"desc": 0, "node_name": 0, "node_operator": 0},
    "IBuilderConfig": {
        "profiling_verbosity": None,
        "builder_optimization_level": None,
        "set_memory_pool_limit": 2,
        "set_flag": 1,
        "clear_flag": 1,
        "add_optimization_profile": 1,
        "set_timing_cache": 2,
        "get_timing_cache": 0,
        "create_timing_cache": 1,
    },
    "IOptimizationProfile": {"set_shape": 4},
    "ITimingCache": {"serialize": 0},
    "ITensor": {"name": None},
    "Runtime": {"deserialize_cuda_engine": 1},
    "ICudaEngine": {
        "create_execution_context": 0,
        "create_engine_inspector": 0,
        "get_tensor_shape": 1,
        "get_tensor_profile_shape": 2,
        "get_tensor_name": 1,
        "get_tensor_mode": 1,
        "get_tensor_dtype": 1,
        "num_io_tensors": None,
    },
    "IExecutionContext": {"set_input_shape": 2, "set_tensor_address": 2, "execute_async_v3": 1},
    "EngineInspector": {"execution_context": None, "get_engine_information": 1},
    "ILogger": {"log": 2},
    "ProfilingVerbosity": {"DETAILED": None},
    "MemoryPoolType": {"WORKSPACE": None},
    "BuilderFlag": {"TF32": None},
    "LayerInformationFormat": {"JSON": None},
    "TensorIOMode": {"INPUT": None, "OUTPUT": None},
    "NetworkDefinitionCreationFlag": {"STRONGLY_TYPED": None},
    "DataType": {"UINT8": None, "FLOAT": None},
}
RTX_ONLY: dict[str, dict[str, int | None]] = {
    "IBuilderConfig": {"num_compute_capabilities": None, "set_compute_capability": 2},
    "ICudaEngine": {"create_runtime_config": 0, "create_execution_context": 1},
    "IRuntimeConfig": {"dynamic_shapes_kernel_specialization_strategy": None, "cuda_graph_strategy": None},
    "DynamicShapesKernelSpecializationStrategy": {"EAGER": None},
    "CudaGraphStrategy": {"WHOLE_GRAPH_CAPTURE": None, "DISABLED": None},
    "ComputeCapability": {f"SM{capability}": None for capability in (75, 80, 86, 89, 120, 121)},
}
MODULE_NAMES = ("uint8", "float32", "__version__")  # aliases of data types, used as trt.uint8

CUDA_CALLS = {
    "cudaGetDeviceCount": 0,
    "cudaDeviceGetAttribute": 2,
    "cudaGetDeviceProperties": 1,
    "cudaSetDevice": 1,
    "cudaHostAlloc": 2,
    "cudaFreeHost": 1,
    "cudaMalloc": 1,
    "cudaFree": 1,
    "cudaMemcpyAsync": 5,
    "cudaStreamCreateWithFlags": 1,
    "cudaStreamSynchronize": 1,
    "cudaStreamDestroy": 1,
    "cudaStreamBeginCapture": 2,
    "cudaStreamEndCapture": 1,
    "cudaGraphInstantiate": 2,
    "cudaGraphLaunch": 2,
    "cudaGraphDestroy": 1,
    "cudaGraphExecDestroy": 1,
    "cudaEventCreateWithFlags": 1,
    "cudaEventRecord": 2,
    "cudaEventSynchronize": 1,
    "cudaEventElapsedTime": 2,
    "cudaEventDestroy": 1,
    "cudaGetErrorName": 1,
    "cudaGetErrorString": 1,
}
CUDA_CONSTANTS = (
    "cudaDeviceAttr.cudaDevAttrComputeCapabilityMajor",
    "cudaDeviceAttr.cudaDevAttrComputeCapabilityMinor",
    "cudaEventDefault",
    "cudaHostAllocDefault",
    "cudaMemcpyKind.cudaMemcpyDeviceToHost",
    "cudaMemcpyKind.cudaMemcpyHostToDevice",
    "cudaStreamCaptureMode.cudaStreamCaptureModeThreadLocal",
    "cudaStreamNonBlocking",
    "cudaError_t",
)

# Prints, for each public class of a binding, its members with their documentation (pybind11 puts signatures there).
LIST_NAMES = """
import importlib, json, sys
module = importlib.import_module(sys.argv[1])
names = {"": [name for name in dir(module)]}
docs = {}
for name in dir(module):
    kind = getattr(module, name)
    if isinstance(kind, type) and not name.startswith("_"):
        docs[name] = {member: getattr(kind, member).__doc__ or "" for member in dir(kind) if not member.startswith("__")}
print(json.dumps({"module": dir(module), "classes": docs}))
"""

EMPTY_LIBRARIES = ("nvinfer", "nvinfer_plugin", "nvonnxparser")
EMPTY_FUNCTIONS = (
    "createInferBuilder_INTERNAL",
    "createInferRefitter_INTERNAL",
    "createInferRuntime_INTERNAL",
    "createNvOnnxParserRefitter_INTERNAL",
    "createNvOnnxParser_INTERNAL",
    "getBuilderPluginRegistry",
    "getNvOnnxParserVersion",
    "getPluginRegistry",
    "initLibNvInferPlugins",
)


def listed(module: str, library_path: str = "") -> dict:
    environment = {**os.environ, "LD_LIBRARY_PATH": library_path}
    answer = subprocess.run([sys.executable, "-c", LIST_NAMES, module], capture_output=True, text=True, env=environment, check=False)
    assert answer.returncode == 0, answer.stderr
    return json.loads(answer.stdout)


@pytest.fixture(scope="module")
def rtx() -> dict:
    pytest.importorskip("tensorrt_rtx")
    return listed("tensorrt_rtx")


@pytest.fixture(scope="module")
def full(tmp_path_factory: pytest.TempPathFactory) -> dict:
    compiler = shutil.which("cc") or shutil.which("gcc")
    if importlib.util.find_spec("tensorrt_bindings") is None:
        pytest.skip("tensorrt-cu13-bindings is not installed (pip install --no-deps tensorrt-cu13-bindings)")
    if compiler is None:
        pytest.skip("there is no C compiler for the empty libraries")
    folder = tmp_path_factory.mktemp("libraries")
    source = "".join(f"void {name}(void) {{}}\n" for name in EMPTY_FUNCTIONS)
    for library in EMPTY_LIBRARIES:
        for major in (10, 11):
            name = f"lib{library}.so.{major}"
            command = [compiler, "-shared", "-fPIC", "-x", "c", f"-Wl,-soname,{name}", "-o", str(folder / name), "-"]
            subprocess.run(command, input=source, text=True, check=True)
    return listed("tensorrt_bindings", str(folder))


def faults(binding: dict, wanted: dict[str, dict[str, int | None]]) -> list[str]:
    """What is missing in the binding, or takes other arguments."""
    found = []
    for kind, members in wanted.items():
        if kind not in binding["classes"]:
            found.append(f"no {kind}")
            continue
        for member, n_arguments in members.items():
            doc = binding["classes"][kind].get(member)
            if doc is None:
                found.append(f"no {kind}.{member}")
            elif n_arguments is not None and not takes(doc, member, n_arguments):
                found.append(f"{kind}.{member} does not take {n_arguments} arguments: {doc.splitlines()[0]}")
    return found


def takes(doc: str, name: str, n_arguments: int) -> bool:
    """Whether one of the signatures in a pybind11 docstring takes that many arguments besides self."""
    for signature in re.findall(rf"{name}\((self: [^\n]*)\) ->", doc):
        given = re.sub(r"\[[^\]]*\]|<[^>]*>", "", signature).split(", ")[1:]
        if len([argument for argument in given if "=" not in argument]) <= n_arguments <= len(given):
            return True
    return False


def test_names_in_tensorrt_for_rtx(rtx: dict) -> None:
    assert faults(rtx, COMMON) + faults(rtx, RTX_ONLY) == []
    assert set(MODULE_NAMES) <= set(rtx["module"])


def test_names_in_full_tensorrt(full: dict) -> None:
    assert faults(full, COMMON) == []
    assert set(MODULE_NAMES) <= set(full["module"])


def test_names_that_only_rtx_has_are_missing_in_full_tensorrt(full: dict) -> None:
    """Where this fails, full TensorRT has learned something, and the branches for RTX can be looked at again."""
    assert "no ComputeCapability" in faults(full, RTX_ONLY)
    assert "no CudaGraphStrategy" in faults(full, RTX_ONLY)


def test_the_lists_hold_every_name_that_the_backend_uses(rtx: dict) -> None:
    """Each attribute in the sources that is a member of some class of the binding is in the lists above, or is Python's."""
    members = {member for kind in rtx["classes"].values() for member in kind}
    known = {member for table in (COMMON, RTX_ONLY) for kind in table.values() for member in kind}
    ours = {"append", "clear", "device", "dtype", "enqueue", "flags", "itemsize", "node", "op", "pop", "shape", "size"}  # of other objects
    used = {
        node.attr
        for path in FOLDER.glob("*.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Attribute)
    }
    assert used & members - known - ours == set()


def test_a_missing_name_and_a_wrong_number_of_arguments_are_found(rtx: dict) -> None:
    assert faults(rtx, {"Builder": {"create_netwrk": 1}}) == ["no Builder.create_netwrk"]
    assert "does not take 3 arguments" in faults(rtx, {"IExecutionContext": {"set_input_shape": 3}})[0]
    assert faults(rtx, {"Bilder": {}}) == ["no Bilder"]


def test_names_in_the_cuda_runtime() -> None:
    runtime = pytest.importorskip("cuda.bindings.runtime")
    for name, n_arguments in CUDA_CALLS.items():
        signature = re.match(rf"{name}\((.*)\)", (getattr(runtime, name).__doc__ or "").strip())
        assert signature, name
        assert len([argument for argument in signature[1].split(", ") if argument]) == n_arguments, name
    for name in CUDA_CONSTANTS:
        value = runtime
        for part in name.split("."):
            value = getattr(value, part)
    text = "\n".join(path.read_text(encoding="utf-8") for path in (FOLDER / "cuda.py", FOLDER / "session.py", FOLDER / "__init__.py"))
    listed_names = {*CUDA_CALLS, *(part for name in CUDA_CONSTANTS for part in name.split("."))}
    used = {name for name in re.findall(r"\bcuda[A-Z]\w+", text) if not name.startswith("cudaError")} | {"cudaError_t"}
    assert used <= listed_names
