"""Finding a batch size that a module has frozen, and the reshape that does it."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from deploycnn.errors import ExportError
from deploycnn.export._proof import repeated

if TYPE_CHECKING:
    import numpy as np

TRIED = 64  # batch sizes tried to find the one that a module was written for


def check_batches(reference: Callable[[np.ndarray], np.ndarray], x_NCHW: np.ndarray, n_classes: int, fixed_batch: int | None) -> None:
    """Runs the module itself at the batch sizes that it must take, before anything is traced.

    Raises:
        ExportError: it takes none, or only one; or gives another number of logits than there are classes.
    """
    wanted = (fixed_batch,) if fixed_batch else (2, 3, 1)
    faults = {batch: fault for batch in wanted if (fault := _fault(reference, x_NCHW, batch))}
    if not faults:
        n_logits = reference(repeated(x_NCHW, wanted[0])).shape[1]
        if n_logits != n_classes:
            raise ExportError(
                f"the model gives {n_logits} logits",
                found=f"{n_classes} classes",
                remedy="give a model and a data set with the same classes",
            )
        return
    shape_CHW = x_NCHW.shape[1:]
    runs = next((batch for batch in range(1, TRIED + 1) if not _fault(reference, x_NCHW, batch)), None)
    if runs is None:
        found = next(iter(faults.values()))
        remedy = "check data.size and data.channels against the model"
        raise ExportError(f"the model cannot take images of {'x'.join(map(str, shape_CHW))}", found=found, remedy=remedy)
    raise frozen(reference, x_NCHW, runs, next(iter(faults.values())))


def _fault(reference: Callable[[np.ndarray], np.ndarray], x_NCHW: np.ndarray, batch: int) -> str:
    """Why the module does not take this batch size, "" where it does."""
    try:
        logits = reference(repeated(x_NCHW, batch))
    except (RuntimeError, ValueError, IndexError, TypeError, AssertionError, AttributeError) as error:
        return (str(error).splitlines() or [type(error).__name__])[0]
    if logits.ndim != 2 or len(logits) != batch:
        return f"a batch of {batch} gives an output of shape {logits.shape}"
    return ""


def frozen(reference: Callable[[np.ndarray], np.ndarray], x_NCHW: np.ndarray, batch: int, found: str) -> ExportError:
    """The error for a module that works at one batch size only; names the reshape where it can be found."""
    where = _frozen_reshape(reference, x_NCHW, batch)
    return ExportError(
        f"the model freezes its batch size at {batch}" + (f" in {where}" if where else ""),
        found=found,
        remedy="keep the batch dimension: x.flatten(1) instead of x.view(n, -1)",
    )


def _frozen_reshape(reference: Callable[[np.ndarray], np.ndarray], x_NCHW: np.ndarray, batch: int) -> str:
    """The last reshape to `batch` rows while another number of images goes through, "" where there is none."""
    from deploycnn.export._reshapes import Reshapes

    with Reshapes() as seen:
        _fault(reference, x_NCHW, batch + 1)
    frozen_calls = [call for call in seen.calls if call.sizes[:1] == (batch,)]
    return frozen_calls[-1].where if frozen_calls else ""
