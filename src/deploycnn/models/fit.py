"""Does this network take these images, and answer with these classes? Asked with one batch, before any work."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import TYPE_CHECKING

from deploycnn.errors import ModelError

if TYPE_CHECKING:
    from torch import nn

# What a user's own forward() is known to raise for images that it was not made for.
_USER_CODE = (RuntimeError, ValueError, TypeError, LookupError, AttributeError, ArithmeticError, AssertionError)
_USUAL_SIDES = (32, 28, 224, 64, 96, 128, 256, 299, 48, 16, 8)


def check_fit(module: nn.Module, shape_CHW: tuple[int, int, int], classes: Sequence[str], training_batch: int | None = None) -> None:
    """Runs two images of zeros through a copy of `module`, in eval mode.

    Args:
        training_batch: where given, also a batch of this size in train mode: BatchNorm1d cannot train on one image.

    Raises:
        ModelError: it does not take them: names the CxHxW that it takes (by trying), what the data gives, the options;
            or its answer is not one logit per class: both numbers and the class names.
    """
    module = copy.deepcopy(module).eval()  # a forward may change buffers
    found = _attempt(module, 2, shape_CHW)
    if isinstance(found, Exception):
        raise _refused(module, shape_CHW, found) from found
    if len(found) != 2 or found[0] != 2:
        raise ModelError(
            "the network's answer is not one row of logits per image",
            found=f"shape {list(found)} for 2 images" if found else "no tensor",
            remedy="return logits of shape (N, classes)",
        )
    if found[1] != len(classes):
        raise ModelError(
            f"the network answers with {found[1]} logits",
            found=f"the data has {len(classes)} classes: {_listed(classes)}",
            remedy="give the network as many outputs as there are classes (model.arguments), or choose other data",
        )
    if training_batch is not None and isinstance(failed := _attempt(module.train(), training_batch, shape_CHW), Exception):
        raise ModelError(
            f"the network cannot train on batches of {training_batch}",
            found=_said(failed),
            remedy="raise train.batch, or use more images" if training_batch == 1 else "mend its forward() for train mode",
        ) from failed


def _attempt(module: nn.Module, batch: int, shape_CHW: tuple[int, int, int]) -> tuple[int, ...] | Exception:
    """The answer's shape for a batch of zeros, or what the network raised."""
    import torch

    parameter = next(module.parameters(), None)
    device = parameter.device if parameter is not None else torch.device("cpu")
    try:
        with torch.no_grad():
            answer = module(torch.zeros((batch, *shape_CHW), device=device))
    except _USER_CODE as error:
        return error
    return tuple(answer.shape) if isinstance(answer, torch.Tensor) else ()


def _refused(module: nn.Module, shape_CHW: tuple[int, int, int], error: Exception) -> ModelError:
    import torch

    c, h, w = shape_CHW
    first = next((layer for layer in module.modules() if isinstance(layer, torch.nn.Conv2d)), None)
    channels = first.in_channels if first is not None else c
    shapes = [(channels, h, w), *((channels, side, side) for side in _USUAL_SIDES)]
    taken = next((shape for shape in shapes if not isinstance(_attempt(module, 2, shape), Exception)), None)
    hints = []
    if channels != c:
        hints.append(f"set data.channels to {channels} (image folders)" if channels in (1, 3) else f"give its first layer {c} channels")
    if taken is None or taken[1:] != (h, w):
        side = f"{taken[1]}" if taken else "the side that it was made for"
        hints.append(f"set data.size to {side} (image folders)")
    hints.append("or change model.name or model.arguments")
    return ModelError(
        f"the network takes images of {_times(taken) if taken else f'{channels} channels'}",
        found=f"the data gives {_times(shape_CHW)} ({_said(error)})",
        remedy=", ".join(hints),
    )


def _times(shape: tuple[int, int, int]) -> str:
    return "x".join(str(side) for side in shape)


def _said(error: Exception) -> str:
    return " ".join(str(error).split())[:200] or type(error).__name__


def _listed(classes: Sequence[str]) -> str:
    shown = ", ".join(classes[:20])
    return shown if len(classes) <= 20 else f"{shown}, ..."
