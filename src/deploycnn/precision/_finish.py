"""The last step of every precision: metadata, one file, load it back, run it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import deploycnn
from deploycnn.errors import PrecisionError
from deploycnn.graph import Runner, read_metadata, save_graph, write_metadata
from deploycnn.types import Int8Form, Variant

if TYPE_CHECKING:
    import numpy as np
    import onnx

PROOF_IMAGES = 32
CASTS = ("fp16", "bf16")  # PyTorch gets to these by casting the fp32 program, so they keep it

# File, batch size (None: any), title and uint8 images to logits (N, K); raises PrecisionError.
Evaluate = Callable[["Path", "int | None", str, "np.ndarray"], "np.ndarray"]


def evaluate_with_runtime(path: Path, fixed_batch: int | None, title: str, x_NCHW: np.ndarray) -> np.ndarray:
    """Logits by ONNX Runtime."""
    with Runner(path, f"the {title} variant", error=PrecisionError) as runner:
        return runner.logits(x_NCHW, fixed_batch or len(x_NCHW))


def finish(
    model: onnx.ModelProto,
    graph: Variant,
    precision: str,
    folder: Path,
    images_NCHW: np.ndarray,
    form: Int8Form | None = None,
    notes: tuple[str, ...] = (),
    evaluate: Evaluate = evaluate_with_runtime,
) -> Variant:
    """Writes the model as a variant of `graph` and proves that the file runs.

    Args:
        model: the variant's graph, not yet with metadata.
        graph: the fp32 variant it was made from.
        precision: its name.
        folder: where the file goes, named after precision and form.
        images_NCHW: uint8 images to run; black ones where there are none.
        form: the quantised form.
        notes: for the user.
        evaluate: what runs the file.

    Raises:
        PrecisionError: the file does not load, or gives NaN, inf or another shape.
    """
    parent = read_metadata(graph.onnx_path)
    facts = parent.model_copy(update={"precision": precision, "version": deploycnn.__version__, "parent_sha256": graph.sha256})
    write_metadata(model, facts)
    title = precision if form is None else f"{precision} ({form})"
    path = folder / f"{precision.replace('+', '-')}{'' if form is None else f'-{form}'}.onnx"
    digest = save_graph(model, path, PrecisionError)
    shown_NCHW = images_NCHW[:PROOF_IMAGES]
    error = _relative_error(path, graph, shown_NCHW, title, evaluate)
    said = f"relative logit error {error:.2g} on {len(shown_NCHW)} calibration images" if len(shown_NCHW) else ""
    return graph.model_copy(
        update={
            "precision": precision,
            "int8_form": form,
            "onnx_path": path,
            "program_path": graph.program_path if precision in CASTS else None,
            "sha256": digest,
            "parent_sha256": graph.sha256,
            "notes": (*graph.notes, *notes, *((said,) if said else ())),
        }
    )


def _relative_error(path: Path, graph: Variant, x_NCHW: np.ndarray, title: str, evaluate: Evaluate) -> float:
    """|logits - fp32 logits| / |fp32 logits|, over all images, after checking that they can be used at all."""
    import numpy as np

    if not len(x_NCHW):
        x_NCHW = np.zeros((1, *graph.input.shape_CHW), np.uint8)
    reference_NK = evaluate_with_runtime(graph.onnx_path, graph.fixed_batch, "fp32", x_NCHW)
    logits_NK = evaluate(path, graph.fixed_batch, title, x_NCHW)
    check_logits(logits_NK, reference_NK, title)
    return float(np.linalg.norm(logits_NK - reference_NK) / max(float(np.linalg.norm(reference_NK)), 1e-30))


def check_logits(logits_NK: np.ndarray, reference_NK: np.ndarray, title: str) -> None:
    """Refuses logits of another shape, and NaN or inf. Raises PrecisionError."""
    import numpy as np

    if logits_NK.shape != reference_NK.shape:
        found = f"{logits_NK.shape} instead of {reference_NK.shape}"
        raise PrecisionError(f"the {title} variant gives logits of another shape", found=found, remedy="leave this precision out")
    broken = int((~np.isfinite(logits_NK)).any(axis=1).sum())
    if broken:
        found = f"NaN or inf for {broken} of {len(logits_NK)} images"
        raise PrecisionError(f"the {title} variant gives no numbers", found=found, remedy="leave this precision out, or use bf16")
