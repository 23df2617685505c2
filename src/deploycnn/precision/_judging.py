"""How a quantised graph does against the fp32 graph, and what was found out already, kept on disk.

With a jury (see _contract.py), images of the validation part and their labels judge. Without one, images judge without
labels: where int8 picks another class, the fp32 network's own probabilities say what that costs. For a network whose
confidence is right the sum is the drop in accuracy; for an overconfident one it is larger, which errs on the safe side.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from pydantic import ValidationError

from deploycnn.disk import write_atomic
from deploycnn.errors import PrecisionError
from deploycnn.graph import Runner, graph_facts
from deploycnn.precision._tensors import BATCH
from deploycnn.record import Accuracy
from deploycnn.types import Value

if TYPE_CHECKING:
    import onnx

MEMORY = "judgements.json"


class Judgement(Value):
    """One quantised graph against the fp32 graph on the same images. Shares are 0 to 1."""

    drop: float  # share of images lost, less those won; without labels what that is expected to be
    flips: float  # images that fp32 answers right and this one wrong; without labels: differently
    agreement: float  # same top-1 class
    relative_logit_error: float
    int8_share: float  # of the multiply-adds

    def within(self, max_drop: float, max_flips: float) -> bool:
        """Whether it is good enough."""
        return self.drop <= max_drop and self.flips <= max_flips


class Memory:
    """Judgements by the digest of the graph they are about, written as they are made, so that a search can be gone on with.

    Args:
        folder: where they are kept; None: nowhere.
    """

    def __init__(self, folder: Path | None) -> None:
        self._path = None if folder is None else folder / MEMORY
        self._known: dict[str, Judgement] = {}
        if self._path is None or not self._path.is_file():
            return
        try:
            document = json.loads(self._path.read_text(encoding="utf-8"))
            self._known = {digest: Judgement.model_validate(value) for digest, value in document.items()}
        except (ValueError, AttributeError, ValidationError):
            self._known = {}  # of another version, or damaged: asked again

    def __len__(self) -> int:
        return len(self._known)

    def ask(self, model: onnx.ModelProto, judge: Callable[[onnx.ModelProto], Judgement]) -> Judgement:
        """What is known of this graph, or what `judge` says now."""
        digest = hashlib.sha256(model.SerializeToString(deterministic=True)).hexdigest()
        if digest not in self._known:
            self._known[digest] = judge(model)
            if self._path is not None:
                document = {name: judgement.model_dump() for name, judgement in self._known.items()}
                write_atomic(self._path, json.dumps(document, indent=1))
        return self._known[digest]


class Judge:
    """Compares quantised graphs with the fp32 graph.

    Args:
        graph: float32.
        images_NCHW: uint8; not those that ranges were taken from.
        fixed_batch: the graph's batch where it is not dynamic.
        assess: logits and reference logits of these images to accuracy, by their labels; None: judged without labels.
        memory: what is known already.
    """

    def __init__(
        self,
        graph: onnx.ModelProto,
        images_NCHW: np.ndarray,
        fixed_batch: int | None,
        assess: Callable[[np.ndarray, np.ndarray], Accuracy] | None = None,
        memory: Memory | None = None,
    ) -> None:
        self._images_NCHW = images_NCHW
        self._batch = fixed_batch or BATCH
        self._assess = assess
        self._memory = memory or Memory(None)
        with Runner(graph, "the fp32 graph", error=PrecisionError) as runner:
            self._reference_NK = runner.logits(images_NCHW, self._batch)

    def __call__(self, model: onnx.ModelProto) -> Judgement:
        """How a quantised graph does."""
        return self._memory.ask(model, self._judged)

    def _judged(self, model: onnx.ModelProto) -> Judgement:
        with Runner(model, "a quantised graph", error=PrecisionError) as runner:
            logits_NK = runner.logits(self._images_NCHW, self._batch)
        reference_NK = self._reference_NK
        agreement = float((logits_NK.argmax(axis=1) == reference_NK.argmax(axis=1)).mean())
        drop, flips = _expected_drop(logits_NK, reference_NK), 1 - agreement
        if self._assess is not None:
            accuracy = self._assess(logits_NK, reference_NK)
            drop, flips = accuracy.drop.value, len(accuracy.right_to_wrong) / max(accuracy.n_images, 1)
        return Judgement(
            drop=drop,
            flips=flips,
            agreement=agreement,
            relative_logit_error=float(np.linalg.norm(logits_NK - reference_NK) / np.linalg.norm(reference_NK)),
            int8_share=graph_facts(model).quantised_macs_share,
        )


def _expected_drop(logits_NK: np.ndarray, reference_NK: np.ndarray) -> float:
    exponent_NK = np.exp(reference_NK - reference_NK.max(axis=1, keepdims=True))
    probability_NK = exponent_NK / exponent_NK.sum(axis=1, keepdims=True)
    rows = np.arange(len(logits_NK))
    ours, theirs = logits_NK.argmax(axis=1), reference_NK.argmax(axis=1)
    return float((probability_NK[rows, theirs] - probability_NK[rows, ours]).mean())
