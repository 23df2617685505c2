"""What training keeps on disk: `last.pt` to go on from, `best.safetensors` to look at. Each is replaced whole."""

from __future__ import annotations

import io
import pickle
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from deploycnn import units
from deploycnn.disk import write_atomic
from deploycnn.errors import ModelError, TrainingError
from deploycnn.types import Value

if TYPE_CHECKING:
    import torch

LAST = "last.pt"
BEST = "best.safetensors"


class Epoch(Value):
    """What one pass over the training images came to."""

    epoch: int  # counted from 1
    lr: float  # of its last step
    loss: float  # mean over its steps
    validation_loss: float
    validation_top1: float  # share, 0 to 1
    train_s: float  # without validation
    validation_s: float
    images_per_s: float  # of training


@dataclass(frozen=True, kw_only=True, eq=False)
class State:
    """A training between two epochs.

    Attributes:
        weights: the module's state dict.
        optimizer: the optimiser's state dict: momentum, learning rate.
        best: state dict of the epoch with the best validation top-1.
        best_epoch: counted from 1.
        history: one entry per epoch so far, so its length is the epoch.
    """

    weights: Mapping[str, torch.Tensor]
    optimizer: Mapping[str, Any]
    best: Mapping[str, torch.Tensor]
    best_epoch: int
    history: Sequence[Epoch]


def save_state(folder: Path, state: State, identity: Mapping[str, Any]) -> None:
    """Writes `last.pt`, and `best.safetensors` where the latest epoch is the best.

    Args:
        identity: JSON values that must be the same for a resume to make sense.

    Raises:
        StoreError: disk full, not writable; the files of the epoch before are then still whole.
    """
    import safetensors.torch
    import torch

    buffer = io.BytesIO()
    document = {
        "identity": dict(identity),
        "weights": dict(state.weights),
        "optimizer": dict(state.optimizer),
        "best": dict(state.best),
        "best_epoch": state.best_epoch,
        "history": [epoch.model_dump(mode="json") for epoch in state.history],
    }
    torch.save(document, buffer)
    write_atomic(folder / LAST, buffer.getvalue())
    if state.best_epoch == len(state.history):
        best = {name: tensor.cpu().clone(memory_format=torch.contiguous_format) for name, tensor in state.best.items()}
        write_atomic(folder / BEST, safetensors.torch.save(best, {"epoch": str(state.best_epoch)}))


def load_state(path: Path, device: torch.device, identity: Mapping[str, Any]) -> State:
    """What `save_state` wrote.

    Raises:
        ModelError: damaged.
        TrainingError: of another training: says what differs.
    """
    import torch

    remedy = f"delete {path} and train from the start"
    try:
        document = torch.load(path, map_location=device, weights_only=True)
        saved_identity = dict(document["identity"])
        state = State(
            weights=document["weights"],
            optimizer=document["optimizer"],
            best=document["best"],
            best_epoch=document["best_epoch"],
            history=[Epoch.model_validate(epoch) for epoch in document["history"]],
        )
    except (RuntimeError, pickle.UnpicklingError, EOFError, LookupError, TypeError, ValueError, OSError) as error:
        found = f"{units.size(path.stat().st_size)} that are no whole training state"
        raise ModelError(f"{path} cannot be resumed from", found=found, remedy=remedy) from error
    differing = [key for key in identity if identity[key] != saved_identity.get(key)]
    if differing:
        found = "; ".join(f"{key} is {_short(identity[key])}, was {_short(saved_identity.get(key))}" for key in differing)
        raise TrainingError(f"{path} belongs to another training", found=found, remedy=f"set the recipe back, or {remedy}")
    return state


def _short(value: object) -> str:
    text = str(value)
    return text if len(text) <= 40 else f"{text[:37]}..."
