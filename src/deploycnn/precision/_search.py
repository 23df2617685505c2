"""Which layers to leave in float so that int8 answers like fp32, with as many multiply-adds in int8 as possible.

Judged without labels: where int8 picks another class, the fp32 network's own probabilities say what that costs. For a
network whose confidence is right the sum is the drop in accuracy; for an overconfident one it is larger, which errs on
the safe side.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from deploycnn.errors import PrecisionError
from deploycnn.graph import Runner, WeightedOp, graph_facts
from deploycnn.precision._tensors import BATCH
from deploycnn.types import Progress, ProgressCallback, Value

if TYPE_CHECKING:
    import numpy as np
    import onnx

# Names of layers left in float -> the quantised graph.
Quantise = Callable[[frozenset[str]], "onnx.ModelProto"]


class Judgement(Value):
    """One quantised graph against the fp32 graph on the same images."""

    expected_drop: float  # share of images, 0 to 1; see the module
    agreement: float  # same top-1 class
    relative_logit_error: float
    int8_share: float  # of the multiply-adds


class Layer(Value):
    """One layer, quantised alone."""

    name: str
    macs: int
    alone: Judgement


class Search(Value):
    """What was tried, in order, and what came out."""

    layers: tuple[Layer, ...]  # most sensitive first
    steps: tuple[tuple[tuple[str, ...], Judgement], ...]  # layers in float, and how good that is
    left_float: tuple[str, ...]
    reached: bool  # the limit


class Judge:
    """Compares quantised graphs with the fp32 graph.

    Args:
        graph: float32.
        images_NCHW: uint8; not those that ranges were taken from.
        fixed_batch: the graph's batch where it is not dynamic.
    """

    def __init__(self, graph: onnx.ModelProto, images_NCHW: np.ndarray, fixed_batch: int | None) -> None:
        self._images_NCHW = images_NCHW
        self._batch = fixed_batch or BATCH
        with Runner(graph, "the fp32 graph", error=PrecisionError) as runner:
            self._reference_NK = runner.logits(images_NCHW, self._batch)

    def __call__(self, model: onnx.ModelProto) -> Judgement:
        """How a quantised graph does."""
        import numpy as np

        with Runner(model, "a quantised graph", error=PrecisionError) as runner:
            logits_NK = runner.logits(self._images_NCHW, self._batch)
        reference_NK = self._reference_NK
        exponent_NK = np.exp(reference_NK - reference_NK.max(axis=1, keepdims=True))
        probability_NK = exponent_NK / exponent_NK.sum(axis=1, keepdims=True)
        rows = np.arange(len(logits_NK))
        ours, theirs = logits_NK.argmax(axis=1), reference_NK.argmax(axis=1)
        return Judgement(
            expected_drop=float((probability_NK[rows, theirs] - probability_NK[rows, ours]).mean()),
            agreement=float((ours == theirs).mean()),
            relative_logit_error=float(np.linalg.norm(logits_NK - reference_NK) / np.linalg.norm(reference_NK)),
            int8_share=graph_facts(model).quantised_macs_share,
        )


def search(graph: onnx.ModelProto, quantise: Quantise, judge: Judge, max_drop: float, progress: ProgressCallback) -> Search:
    """Layers go back to float one by one, most sensitive first, until the expected drop is within `max_drop`.

    Layers that turn out not to be needed in float are then given back to int8, largest first.

    Args:
        graph: float32.
        quantise: makes the quantised graph.
        judge: compares.
        max_drop: share of images, 0.005 for half a percentage point.
        progress: told about layers and steps.
    """
    plain = judge(quantise(frozenset()))
    if plain.expected_drop <= max_drop:
        return Search(layers=(), steps=(((), plain),), left_float=(), reached=True)
    operators = [operator for operator in graph_facts(graph).weighted_ops if operator.parameters]
    layers = _ranked(operators, quantise, judge, progress)
    steps: list[tuple[tuple[str, ...], Judgement]] = [((), plain)]
    chosen: list[str] = []
    while steps[-1][1].expected_drop > max_drop and len(chosen) < len(layers) - 1:
        chosen.append(layers[len(chosen)].name)
        steps.append((tuple(chosen), judge(quantise(frozenset(chosen)))))
        progress(Progress(done=len(chosen), total=len(layers), unit="layers", note="returning layers to float"))
    reached = steps[-1][1].expected_drop <= max_drop
    if reached:
        chosen = _pruned(chosen, {operator.name: operator.macs for operator in operators}, quantise, judge, max_drop, steps)
    return Search(layers=tuple(layers), steps=tuple(steps), left_float=tuple(chosen), reached=reached)


def _ranked(operators: list[WeightedOp], quantise: Quantise, judge: Judge, progress: ProgressCallback) -> list[Layer]:
    """Every layer quantised alone, the one that changes the logits most first."""
    names = frozenset(operator.name for operator in operators)
    layers = []
    for index, operator in enumerate(operators):
        alone = judge(quantise(names - {operator.name}))
        layers.append(Layer(name=operator.name, macs=operator.macs, alone=alone))
        progress(Progress(done=index + 1, total=len(operators), unit="layers", note="ranking layers"))
    return sorted(layers, key=lambda layer: -layer.alone.relative_logit_error)


def _pruned(
    chosen: list[str],
    macs: dict[str, int],
    quantise: Quantise,
    judge: Judge,
    max_drop: float,
    steps: list[tuple[tuple[str, ...], Judgement]],
) -> list[str]:
    """Without the layers that the limit is kept without."""
    for name in sorted(chosen, key=lambda name: -macs[name]):
        fewer = [other for other in chosen if other != name]
        judgement = judge(quantise(frozenset(fewer)))
        if fewer and judgement.expected_drop <= max_drop:
            chosen = fewer
            steps.append((tuple(fewer), judgement))
    return chosen
