"""Running a graph with ONNX Runtime on the CPU, to prove it or to look at its tensors. Never for timing."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from deploycnn.errors import DeployError, ModelError

if TYPE_CHECKING:
    import numpy as np
    import onnx


def vendor_errors() -> tuple[type[Exception], ...]:
    """What ONNX Runtime raises."""
    from onnxruntime.capi import onnxruntime_pybind11_state as state

    names = ("EPFail", "EngineError", "Fail", "InvalidArgument", "InvalidGraph", "InvalidProtobuf", "NoModel", "NoSuchFile")
    more = ("NotFound", "NotImplemented", "RuntimeException")
    return (*(getattr(state, name) for name in (*names, *more)), RuntimeError, ValueError)


class Runner:
    """A graph loaded in ONNX Runtime, one thread, so that results do not depend on the machine's load.

    Args:
        graph: a file, or a model in memory.
        what: names the graph in messages.
        error: kind of DeployError to raise.
        outputs: tensors to fetch; None: the graph's outputs.
        optimised: False keeps every tensor of the graph as it is, for looking at intermediate ones.

    Raises:
        DeployError: of kind `error`, where it does not load.
    """

    def __init__(
        self,
        graph: Path | onnx.ModelProto,
        what: str,
        *,
        error: type[DeployError] = ModelError,
        outputs: Sequence[str] | None = None,
        optimised: bool = True,
    ) -> None:
        import onnxruntime as ort

        options = ort.SessionOptions()
        options.intra_op_num_threads = 1
        options.inter_op_num_threads = 1
        options.log_severity_level = 4  # what goes wrong is raised
        level = ort.GraphOptimizationLevel
        options.graph_optimization_level = level.ORT_ENABLE_ALL if optimised else level.ORT_DISABLE_ALL
        source = str(graph) if isinstance(graph, Path) else graph.SerializeToString()
        self._what = what
        self._error = error
        try:
            self._session = ort.InferenceSession(source, options, providers=["CPUExecutionProvider"])
        except vendor_errors() as fault:
            raise error(f"ONNX Runtime cannot load {what}", found=_short(fault), remedy="see what it names") from fault
        self.input_name: str = self._session.get_inputs()[0].name
        self.output_names = list(outputs) if outputs is not None else [output.name for output in self._session.get_outputs()]

    def run(self, x_NCHW: np.ndarray) -> list[np.ndarray]:
        """The outputs for one batch. Raises DeployError of the kind given."""
        try:
            found: list[Any] = self._session.run(self.output_names, {self.input_name: x_NCHW})
        except vendor_errors() as fault:
            asked = f"ONNX Runtime cannot run {self._what} with a batch of {len(x_NCHW)}"
            raise self._error(asked, found=_short(fault), remedy="see what it names") from fault
        return found

    def logits(self, x_NCHW: np.ndarray, batch: int) -> np.ndarray:
        """First output for all images, run `batch` images at a time, the last batch filled up: float32 (N, K)."""
        import numpy as np

        return np.concatenate([self.run(part)[0][:real] for part, real in padded_batches(x_NCHW, batch)])

    def close(self) -> None:
        """Frees the session."""
        del self._session

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()


def padded_batches(x_NCHW: np.ndarray, batch: int) -> Iterator[tuple[np.ndarray, int]]:
    """Batches of exactly `batch` images and how many of them are real; the last one repeats its last image.

    One size for all batches makes results independent of how many images there are: kernels differ with the size.
    """
    import numpy as np

    for start in range(0, len(x_NCHW), batch):
        part = x_NCHW[start : start + batch]
        real = len(part)
        if real < batch:
            part = np.concatenate([part, np.repeat(part[-1:], batch - real, axis=0)])
        yield np.ascontiguousarray(part), real


@cache
def runtime_limits() -> tuple[int, int]:
    """The newest IR version and the newest opset that this ONNX Runtime loads, found by trying."""
    import onnx

    newest_ir = next(ir for ir in range(onnx.IR_VERSION, 0, -1) if _loads(ir, 13))
    newest_opset = next(opset for opset in range(onnx.defs.onnx_opset_version(), 0, -1) if _loads(newest_ir, opset))
    return newest_ir, newest_opset


def _loads(ir_version: int, opset: int) -> bool:
    from onnx import TensorProto, helper

    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, [1]) for name in "xy")
    graph = helper.make_graph([helper.make_node("Relu", ["x"], ["y"])], "probe", [x], [y])
    model = helper.make_model(graph, ir_version=ir_version, opset_imports=[helper.make_opsetid("", opset)])
    try:
        Runner(model, "a probe").close()
    except ModelError:
        return False
    return True


def _short(fault: Exception) -> str:
    """ONNX Runtime's message without its source paths and function signatures."""
    text = " ".join(str(fault).split())
    marks = ("Status Message: ", "const onnxruntime::ModelOptions&) ", "FAIL : ", "INVALID_ARGUMENT : ", "NOT_IMPLEMENTED : ")
    for mark in marks:
        text = text.rpartition(mark)[2] or text
    return text[:400]
