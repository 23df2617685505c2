"""Where two computations of the same graph part: one tensor against another, and what its number format does to it."""

from __future__ import annotations

import numpy as np

from deploycnn.types import Value

# Largest finite and smallest normal value of the types that variants compute in.
_LIMITS = {"fp16": (65504.0, 2.0**-14), "bf16": (3.39e38, 2.0**-126), "fp32": (3.4e38, 2.0**-126)}
# Relative error that a node of a sound variant stays below; of int8 it is what 8 bits leave after a few layers.
TOLERANCES = {"fp32": 1e-3, "fp16": 1e-2, "bf16": 5e-2, "int8": 1e-1}


class Difference(Value):
    """One tensor against the reference's, over all images. Finite values only; `nonfinite` is the share of the others."""

    cosine: float
    relative_error: float  # |found - reference|_2 / |reference|_2
    nonfinite: float


class NodeFigures(Value):
    """One node. Shares are 0 to 1 of the tensor's values."""

    node: str
    op: str
    tensor: str
    low: float  # of the reference
    high: float
    file: Difference | None  # the variant's file, computed operator by operator; None: nothing here can
    ran: Difference | None  # the artifact; None: it cannot show this tensor
    saturated: float  # reference values that lie beyond the int8 range of the file
    subnormal: float  # reference values that are too small to keep all digits in the variant's type
    overflow: float  # reference values that would be inf in the variant's type

    @property
    def error(self) -> float:
        """The larger relative error; inf where a value is not finite."""
        known = [difference for difference in (self.file, self.ran) if difference]
        if any(difference.nonfinite for difference in known) or self.overflow:
            return float("inf")
        return max((difference.relative_error for difference in known), default=0.0)


def tolerance_of(precision: str, fp32: float) -> float:
    """The relative error allowed a node of a variant. `fp32` is the recipe's own for exact artifacts."""
    if precision == "fp32":
        return fp32
    return TOLERANCES.get(precision, TOLERANCES["int8"])


def difference(found: np.ndarray, reference: np.ndarray, *, scaled: bool = False) -> Difference:
    """One tensor against the reference's, both (N, ...).

    Args:
        scaled: the channels (dimension 1) may have been scaled against each other: the best factor of each is taken out first.
    """
    found, reference = found.astype(np.float64), reference.astype(np.float64)
    if scaled:
        reference = reference * channel_factors(found, reference)
    finite = np.isfinite(found) & np.isfinite(reference)
    a, b = np.where(finite, found, 0.0), np.where(finite, reference, 0.0)
    norm_a, norm_b = float(np.linalg.norm(a)), float(np.linalg.norm(b))
    apart = float(np.linalg.norm(a - b))
    same = apart == 0
    return Difference(
        cosine=1.0 if same else float((a * b).sum()) / (norm_a * norm_b) if norm_a and norm_b else 0.0,
        relative_error=0.0 if same else apart / max(norm_b, 1e-30),
        nonfinite=float(1 - finite.mean()),
    )


def channel_factors(found: np.ndarray, reference: np.ndarray) -> np.ndarray:
    """For each channel the factor that brings the reference nearest to what was found, shaped to multiply with."""
    axes = (0, *range(2, reference.ndim))
    squares_C = (reference**2).sum(axis=axes, keepdims=True)
    factor_C: np.ndarray = np.where(squares_C > 0, (found * reference).sum(axis=axes, keepdims=True) / np.maximum(squares_C, 1e-300), 1.0)
    return factor_C


def figures(
    node: tuple[str, str, str],
    reference: np.ndarray,
    file: np.ndarray | None,
    ran: np.ndarray | None,
    precision: str,
    limits: tuple[float, float] | None,
    *,
    scaled: bool = False,
) -> NodeFigures:
    """All figures of one node.

    Args:
        node: name, operator, tensor.
        reference, file, ran: the tensor, (N, ...); None where it is not known.
        precision: of the variant.
        limits: the int8 range that the file gives the tensor, if it gives one.
        scaled: see `difference`.
    """
    name, op, tensor = node
    sizes = np.abs(reference.astype(np.float64))
    largest, smallest = _LIMITS.get("fp16" if precision.endswith("fp16") else precision, _LIMITS["fp32"])
    saturated = 0.0
    if limits is not None:
        of = file if file is not None else ran
        seen = reference * channel_factors(of, reference) if scaled and of is not None else reference
        air = (limits[1] - limits[0]) / 510  # half a step: what rounds to the last code is not cut off
        saturated = float(((seen < limits[0] - air) | (seen > limits[1] + air)).mean())
    return NodeFigures(
        node=name,
        op=op,
        tensor=tensor,
        low=float(reference.min()),
        high=float(reference.max()),
        file=None if file is None else difference(file, reference, scaled=scaled),
        ran=None if ran is None else difference(ran, reference, scaled=scaled),
        saturated=saturated,
        subnormal=float(((sizes > 0) & (sizes < smallest)).mean()),
        overflow=float((~(sizes <= largest)).mean()),
    )
