"""Weights from elsewhere: state dicts in .pt, .pth and .safetensors files, and why some of them are not loaded.

A .pt file is a pickle, and a pickle can run code. `torch.load(weights_only=True)` admits tensors and plain containers
only; a pickled network is more than that and is refused unless `model.trust_pickle` says otherwise.
"""

from __future__ import annotations

import difflib
import pickle
import re
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from deploycnn import units
from deploycnn.errors import ModelError
from deploycnn.models import build_model
from deploycnn.recipe import ModelOptions

if TYPE_CHECKING:
    import torch
    from torch import nn

_WRAPPERS = ("state_dict", "model_state_dict", "model", "module", "net", "weights")  # where training scripts put the state dict
_PREFIXES = ("module.", "_orig_mod.", "model.", "net.")  # DataParallel, torch.compile, Lightning and the like
_GET_ANOTHER = "get the file again, or train again"


def load_weights(options: ModelOptions, path: Path, shape_CHW: tuple[int, int, int], n_classes: int) -> nn.Module:
    """The network of `options` with the weights of a user's file, in eval mode on the CPU.

    Args:
        path: a state dict (.pt, .pth or .safetensors), bare or inside a training script's dictionary, with or without
            the prefixes of DataParallel and torch.compile. With `options.trust_pickle` also a pickled network, of which
            the state dict is taken: what the network is, `options` says.

    Raises:
        ModelError: missing or damaged file; a pickled object; names or shapes that are not the network's.
    """
    from torch import nn

    content: Any = read_safetensors(path)[0] if path.suffix == ".safetensors" else _unpickled(path, trusted=options.trust_pickle)
    if isinstance(content, nn.Module):
        content = content.state_dict()  # its class may be unknown to the next process; the recipe's is not
    module = build_model(options, shape_CHW, n_classes)
    own = module.state_dict()
    state = _without_prefix(_state_dict(path, content), own)
    if problems := _differences(state, own):
        raise ModelError(
            f"{path} does not fit the network {options.name}",
            found="; ".join(problems),
            remedy="set model.name and model.arguments (or width and depth) to the network that these weights were saved from, "
            "and choose data with as many classes",
        )
    module.load_state_dict(state, strict=False)  # strict in all but BatchNorm's counters: see _differences
    return module.eval()


def read_safetensors(path: Path) -> tuple[dict[str, torch.Tensor], dict[str, str]]:
    """(tensors, metadata) of a safetensors file. Raises ModelError naming the file where it is missing or damaged."""
    import safetensors
    import safetensors.torch

    _check_file(path)
    try:
        with safetensors.safe_open(path, framework="pt") as file:
            metadata = dict(file.metadata() or {})
        return safetensors.torch.load_file(path), metadata
    except (safetensors.SafetensorError, OSError, ValueError) as error:
        found = f"{units.size(path.stat().st_size)} that are no whole safetensors file ({' '.join(str(error).split())[:120]})"
        raise ModelError(f"{path} is damaged", found=found, remedy=_GET_ANOTHER) from error


def _check_file(path: Path) -> None:
    if path.is_dir():
        raise ModelError(f"{path} holds no weights", found="a folder", remedy="give the file inside it")
    if not path.exists():
        raise ModelError(f"{path} cannot be read", found="no such file", remedy="correct the path in model.weights")
    if path.stat().st_size == 0:
        raise ModelError(f"{path} is damaged", found="0 bytes", remedy=_GET_ANOTHER)


def _unpickled(path: Path, *, trusted: bool) -> Any:
    import torch

    _check_file(path)
    try:
        return torch.load(path, map_location="cpu", weights_only=not trusted)
    except pickle.UnpicklingError as error:
        if not trusted and (name := re.search(r"(?:GLOBAL|class) ([\w.]+)", str(error))):
            raise ModelError(
                f"{path} is a pickled object, not a state dict",
                found=f"it needs the class {name[1]}, and unpickling it could run any code",
                remedy="save model.state_dict() instead and give the class as model.name; "
                "or, if you trust whoever made the file, set model.trust_pickle=true beside model.name",
            ) from error
        raise _damaged(path, error) from error
    except (ImportError, AttributeError) as error:
        found = f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"
        raise ModelError(f"{path} needs a class that cannot be imported", found=found, remedy="save its state_dict() instead") from error
    except (RuntimeError, EOFError, OSError, ValueError, LookupError, TypeError) as error:
        if "TorchScript" in str(error):
            found = "a TorchScript archive, which holds its own program"
            raise ModelError(f"{path} is not a state dict", found=found, remedy="export it to ONNX and give that as model.onnx") from error
        raise _damaged(path, error) from error


def _damaged(path: Path, error: Exception) -> ModelError:
    reason = re.split(r"[\n.]", str(error).strip())[0][:120]
    found = f"{units.size(path.stat().st_size)} that PyTorch cannot read ({type(error).__name__}: {reason})"
    return ModelError(f"{path} is damaged or no file of weights", found=found, remedy=_GET_ANOTHER)


def _state_dict(path: Path, content: Any) -> dict[str, torch.Tensor]:
    import torch

    for key in _WRAPPERS:
        if isinstance(content, Mapping) and isinstance(content.get(key), Mapping):
            content = content[key]
            break
    if isinstance(content, Mapping) and content and all(isinstance(value, torch.Tensor) for value in content.values()):
        return {str(name): tensor for name, tensor in content.items()}
    keys = ", ".join(str(key) for key in list(content)[:8]) if isinstance(content, Mapping) else ""
    raise ModelError(
        f"{path} holds no state dict",
        found=f"a {type(content).__name__}" + (f" with the keys {keys}" if keys else ""),
        remedy="save model.state_dict(), a mapping of names to tensors",
    )


def _without_prefix(state: dict[str, torch.Tensor], own: Mapping[str, Any]) -> dict[str, torch.Tensor]:
    """Takes off what all names begin with, as long as the network's own names do not begin so."""
    for _ in range(len(_PREFIXES)):
        common = next((p for p in _PREFIXES if all(name.startswith(p) for name in state) and not all(n.startswith(p) for n in own)), None)
        if common is None:
            break
        state = {name.removeprefix(common): tensor for name, tensor in state.items()}
    return state


def _differences(state: Mapping[str, torch.Tensor], own: Mapping[str, torch.Tensor]) -> list[str]:
    """What keeps `state` from being the network's, for people; empty where nothing does.

    BatchNorm's `num_batches_tracked` may be missing: old files do not have it, and inference does not use it.
    """
    missing = [name for name in own if name not in state and not name.endswith("num_batches_tracked")]
    unexpected = [name for name in state if name not in own]
    shapes = [
        f"{name} is {tuple(state[name].shape)}, the network has {tuple(tensor.shape)}"
        for name, tensor in own.items()
        if name in state and state[name].shape != tensor.shape
    ]
    problems = []
    if missing:
        problems.append(f"missing: {_some([_with_near(name, unexpected) for name in missing])}")
    if unexpected:
        problems.append(f"unexpected: {_some(unexpected)}")
    if shapes:
        problems.append(f"other shapes: {_some(shapes)}")
    return problems


def _with_near(name: str, candidates: list[str]) -> str:
    near = difflib.get_close_matches(name, candidates, n=1)
    return f"{name} (nearest in the file: {near[0]})" if near else name


def _some(items: list[str]) -> str:
    more = f" and {len(items) - 4} more" if len(items) > 4 else ""
    return ", ".join(items[:4]) + more
