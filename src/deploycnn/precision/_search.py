"""Which layers to leave in float so that int8 answers like fp32, with as many multiply-adds in int8 as possible."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from deploycnn.graph import WeightedOp, graph_facts
from deploycnn.precision._judging import Judge, Judgement
from deploycnn.types import Progress, ProgressCallback, Value

if TYPE_CHECKING:
    import onnx

# Names of layers left in float -> the quantised graph.
Quantise = Callable[[frozenset[str]], "onnx.ModelProto"]


class Layer(Value):
    """One layer, quantised alone."""

    name: str
    op: str
    macs: int
    alone: float  # relative logit error


class Step(Value):
    """One set of layers in float, and how good that is."""

    left_float: tuple[str, ...]
    judgement: Judgement


class Search(Value):
    """What was tried and what came out."""

    layers: tuple[Layer, ...]  # most sensitive first; empty where plain int8 is good enough
    steps: tuple[Step, ...]  # in order
    passing: tuple[Step, ...]  # sets of which no layer can be given back, most multiply-adds in int8 first; empty: none was found

    @property
    def reached(self) -> bool:
        return bool(self.passing)


def search(
    graph: onnx.ModelProto, quantise: Quantise, judge: Judge, rank: Judge, limits: tuple[float, float], progress: ProgressCallback
) -> Search:
    """Layers go back to float one by one, most sensitive first, until the judge is content.

    Layers that turn out not to be needed in float are then given back to int8: once the largest first, once the least
    sensitive first. What is left of both are the sets among which speed may decide.

    Args:
        graph: float32.
        quantise: makes the quantised graph.
        judge: decides.
        rank: asked for the logit error of each layer alone; may look at fewer images than `judge`.
        limits: largest drop and flips, as shares of the images.
        progress: told about layers and steps.
    """
    plain = Step(left_float=(), judgement=judge(quantise(frozenset())))
    if plain.judgement.within(*limits):
        return Search(layers=(), steps=(plain,), passing=(plain,))
    layers = _ranked([operator for operator in graph_facts(graph).weighted_ops if operator.parameters], quantise, rank, progress)
    steps = [plain]
    while not steps[-1].judgement.within(*limits) and len(steps[-1].left_float) < len(layers) - 1:
        chosen = (*steps[-1].left_float, layers[len(steps[-1].left_float)].name)
        steps.append(Step(left_float=chosen, judgement=judge(quantise(frozenset(chosen)))))
        progress(Progress(done=len(chosen), total=len(layers), unit="layers", note="returning layers to float"))
    if not steps[-1].judgement.within(*limits):
        return Search(layers=tuple(layers), steps=tuple(steps), passing=())
    found = steps[-1]
    passing: dict[frozenset[str], Step] = {}
    for order in (sorted(layers, key=lambda layer: -layer.macs), list(reversed(layers))):
        least = _pruned(found, [layer.name for layer in order], quantise, judge, limits, steps, progress)
        passing.setdefault(frozenset(least.left_float), least)
    ordered = sorted(passing.values(), key=lambda step: -step.judgement.int8_share)
    return Search(layers=tuple(layers), steps=tuple(steps), passing=tuple(ordered))


def _ranked(operators: list[WeightedOp], quantise: Quantise, rank: Judge, progress: ProgressCallback) -> list[Layer]:
    """Every layer quantised alone, the one that changes the logits most first."""
    names = frozenset(operator.name for operator in operators)
    layers = []
    for index, operator in enumerate(operators):
        alone = rank(quantise(names - {operator.name})).relative_logit_error
        layers.append(Layer(name=operator.name, op=operator.op, macs=operator.macs, alone=alone))
        progress(Progress(done=index + 1, total=len(operators), unit="layers", note="ranking layers"))
    return sorted(layers, key=lambda layer: -layer.alone)


def _pruned(
    found: Step,
    order: list[str],
    quantise: Quantise,
    judge: Judge,
    limits: tuple[float, float],
    steps: list[Step],
    progress: ProgressCallback,
) -> Step:
    """Without the layers that the limits are kept without, tried in this order."""
    tried = [name for name in order if name in found.left_float]
    for index, name in enumerate(tried):
        fewer = tuple(other for other in found.left_float if other != name)
        if fewer:
            step = Step(left_float=fewer, judgement=judge(quantise(frozenset(fewer))))
            if step.judgement.within(*limits):
                found = step
                steps.append(step)
        progress(Progress(done=index + 1, total=len(tried), unit="layers", note="giving layers back to int8"))
    return found
