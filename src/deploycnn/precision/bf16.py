"""bfloat16: the range of float32 with 8 significant bits. GPUs and newer CPUs; ONNX Runtime's CPU cannot run it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from deploycnn.errors import PrecisionError
from deploycnn.graph import load_graph
from deploycnn.precision._contract import Precision, check_parent
from deploycnn.precision._finish import finish
from deploycnn.precision._retype import normalisation_nodes, retype
from deploycnn.types import Int8Form, ProgressCallback, Variant

if TYPE_CHECKING:
    import numpy as np

OPSET = 22  # the first one in which convolutions and pooling take bfloat16
PROOF_IMAGES = 2  # ONNX' reference evaluator is written in Python


class BFloat16(Precision):
    """Proved with ONNX' reference evaluator."""

    name = "bf16"

    def make(
        self, graph: Variant, form: Int8Form | None, calibration_NCHW: np.ndarray, folder: Path, progress: ProgressCallback
    ) -> Variant:
        """See Precision."""
        import onnx
        from onnx import TensorProto

        check_parent(graph, self.name)
        model = load_graph(graph.onnx_path)
        if next(entry.version for entry in model.opset_import if entry.domain in ("", "ai.onnx")) < OPSET:
            try:
                model = onnx.version_converter.convert_version(model, OPSET)
            except (onnx.version_converter.ConvertError, RuntimeError) as error:
                found = " ".join(str(error).split())[:300]
                raise PrecisionError(f"bf16 needs opset {OPSET}", found=found, remedy="leave bf16 out") from error
            del model.graph.value_info[:]
            model = onnx.shape_inference.infer_shapes(model, data_prop=True)
        low = retype(model, TensorProto.BFLOAT16, normalisation_nodes(model))
        return finish(low, graph, self.name, folder, calibration_NCHW[:PROOF_IMAGES], evaluate=_evaluate)


def _evaluate(path: Path, fixed_batch: int | None, title: str, x_NCHW: np.ndarray) -> np.ndarray:
    """Logits by ONNX' reference evaluator, which computes every node in its own type."""
    import numpy as np
    from onnx.reference import ReferenceEvaluator

    from deploycnn.graph import padded_batches

    evaluator = ReferenceEvaluator(str(path))
    try:
        parts = [
            np.asarray(evaluator.run(None, {evaluator.input_names[0]: part})[0])[:real]
            for part, real in padded_batches(x_NCHW, fixed_batch or len(x_NCHW))
        ]
    except (RuntimeError, TypeError, ValueError, KeyError, IndexError) as error:
        found = " ".join(str(error).split())[:300]
        raise PrecisionError(
            f"the {title} variant does not run in ONNX' reference evaluator", found=found, remedy="leave it out"
        ) from error
    return np.concatenate(parts)
