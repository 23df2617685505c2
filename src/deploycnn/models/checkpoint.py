"""Trained weights with everything that is needed to rebuild and feed the network, in one safetensors file.

The file's metadata has one entry, `deploycnn`: JSON with the facts and a digest of the tensors (one, because safetensors
writes several in any order, and the same checkpoint shall be the same bytes). Such a file holds no code.
Yet it names what rebuilds the network, and naming a class of one's own means importing and calling it: a file from
elsewhere must not be able to choose that. So a checkpoint of a class of one's own loads only where the caller names it.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import Field, ValidationError

from deploycnn import units
from deploycnn.assets import checkpoint_path
from deploycnn.disk import write_atomic
from deploycnn.errors import ModelError
from deploycnn.models import build_model, is_own
from deploycnn.models.weights import load_weights, read_safetensors
from deploycnn.recipe import ModelOptions
from deploycnn.types import Preprocessing, Value

if TYPE_CHECKING:
    import torch
    from torch import nn

__all__ = [
    "CheckpointFacts",
    "NetworkFacts",
    "facts_of",
    "find_weights",
    "is_checkpoint",
    "load_checkpoint",
    "load_weights",
    "save_checkpoint",
]

FORMAT = 1
_ENTRY = "deploycnn"


class NetworkFacts(Value):
    """What rebuilds the network, as `ModelOptions` has it."""

    name: str
    arguments: Mapping[str, Any] = Field(default_factory=dict)
    width: float = 1.0
    depth: int = 1


class CheckpointFacts(Value):
    """What a checkpoint says about itself. `training` holds JSON values: see `train.TrainResult.facts`."""

    format: int = FORMAT
    model: NetworkFacts
    classes: tuple[str, ...]
    shape_CHW: tuple[int, int, int]
    preprocessing: Preprocessing
    training: Mapping[str, Any] = Field(default_factory=dict)


def facts_of(
    options: ModelOptions,
    classes: Sequence[str],
    shape_CHW: tuple[int, int, int],
    preprocessing: Preprocessing,
    training: Mapping[str, Any] | None = None,
) -> CheckpointFacts:
    """The facts of a network built by `options`. Raises ModelError where mean or std do not fit the channels."""
    for key, values in (("mean", preprocessing.mean), ("std", preprocessing.std)):
        if len(values) != shape_CHW[0] or (key == "std" and min(values) <= 0):
            raise ModelError(
                f"model.{key} does not fit images of {shape_CHW[0]} channels",
                found=f"{key} {values}",
                remedy=f"give one {'positive ' if key == 'std' else ''}number per channel, of pixels / 255",
            )
    network = NetworkFacts(name=options.name, arguments=options.arguments, width=options.width, depth=options.depth)
    return CheckpointFacts(
        model=network, classes=tuple(classes), shape_CHW=shape_CHW, preprocessing=preprocessing, training=dict(training or {})
    )


def find_weights(name_or_path: str) -> Path:
    """The file of weights given by path, or by the name of a checkpoint that ships. Raises ModelError."""
    return checkpoint_path(name_or_path)


def save_checkpoint(path: Path, module: nn.Module, facts: CheckpointFacts) -> None:
    """Writes weights and facts as one file, or leaves the old one.

    Raises:
        ModelError: the module's state holds something that is no tensor.
        StoreError: disk full, not writable; nothing half is left.
    """
    import safetensors.torch
    import torch

    state: dict[str, torch.Tensor] = {}
    for name, tensor in module.state_dict().items():
        if not isinstance(tensor, torch.Tensor):
            raise ModelError(
                "the network's state cannot be saved",
                found=f"{name} is a {type(tensor).__name__}, not a tensor",
                remedy="keep only parameters and buffers in the module's state",
            )
        state[name] = tensor.detach().cpu().clone(memory_format=torch.contiguous_format)
    entry = {"facts": facts.model_dump(mode="json"), "weights_sha256": _sha256(state)}
    write_atomic(path, safetensors.torch.save(state, {_ENTRY: json.dumps(entry, sort_keys=True)}))


def is_checkpoint(path: Path) -> bool:
    """Whether the file is one of ours, whole enough to say so."""
    try:
        return _ENTRY in read_safetensors(path)[1]
    except ModelError:
        return False


def load_checkpoint(path: Path, *, own_name: str | None = None, trust_pickle: bool = False) -> tuple[nn.Module, CheckpointFacts]:
    """Rebuilds the network, in eval mode on the CPU, with the very weights that were saved.

    Args:
        own_name: the class of one's own that the caller expects (`ModelOptions.name`).
        trust_pickle: the user trusts files to run code, so also to choose a class.

    Raises:
        ModelError: missing, damaged, not one of ours, of a later format; or it names a class that the caller does not.
    """
    state, metadata = read_safetensors(path)
    facts, sha256 = _entry(path, metadata)
    if sha256 != _sha256(state):
        raise ModelError(
            f"{path} is damaged", found="its weights do not match the digest inside", remedy="train again, or get the file again"
        )
    if is_own(facts.model.name) and own_name != facts.model.name and not trust_pickle:
        raise ModelError(
            f"{path} asks for the class {facts.model.name}",
            found="importing it runs its code, and the recipe does not name it",
            remedy=f"if you know the class, set model.name to {facts.model.name}",
        )
    options = ModelOptions.model_validate(facts.model.model_dump(mode="json"))
    module = build_model(options, facts.shape_CHW, len(facts.classes))
    try:
        module.load_state_dict(state)
    except RuntimeError as error:
        found = " ".join(str(error).split())[:400]
        raise ModelError(
            f"{path} does not fit its own network {facts.model.name}", found=found, remedy="the class has changed: train again"
        ) from error
    return module.eval(), facts


def _entry(path: Path, metadata: Mapping[str, str]) -> tuple[CheckpointFacts, str]:
    """(facts, digest of the weights) as the file has them."""
    if _ENTRY not in metadata:
        raise ModelError(
            f"{path} is not a checkpoint of deploycnn",
            found=f"a safetensors file of {units.size(path.stat().st_size)} without our facts",
            remedy="give it as model.weights together with model.name; classes and preprocessing then come from the data set",
        )
    try:
        entry = json.loads(metadata[_ENTRY])
        written = entry["facts"]["format"]
        if written > FORMAT:
            found = f"format {written}; this version reads up to {FORMAT}"
            raise ModelError(f"{path} was written by a later deploycnn", found=found, remedy="update deploycnn")
        return CheckpointFacts.model_validate(entry["facts"]), entry["weights_sha256"]
    except (ValidationError, ValueError, TypeError, LookupError) as error:
        raise ModelError(f"{path} is damaged", found="its facts cannot be read", remedy="train again, or get the file again") from error


def _sha256(state: Mapping[str, torch.Tensor]) -> str:
    digest = hashlib.sha256()
    for name in sorted(state):
        tensor = state[name]
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)} ".encode())
        digest.update(tensor.reshape(-1).numpy().tobytes() if tensor.numel() else b"")
    return digest.hexdigest()
