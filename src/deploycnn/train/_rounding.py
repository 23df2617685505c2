"""Layers that round as int8 will, by torchao's fake-quantise modules; gradients pass as if nothing was rounded.

Imported only by the function that needs it: it needs PyTorch and torchao.
"""

from __future__ import annotations

import logging

import torch
from torch import nn
from torch.nn.utils import parametrize

from deploycnn.types import Int8Form

# torchao registers an enumeration in a way that PyTorch has just deprecated, and PyTorch logs that at the import.
logging.getLogger("torch.utils._pytree").setLevel(logging.ERROR)

from torchao.quantization.pt2e import (  # noqa: E402
    FakeQuantize,
    MovingAverageMinMaxObserver,
    MovingAveragePerChannelMinMaxObserver,
)

LAYERS = (nn.Conv1d, nn.Conv2d, nn.Conv3d, nn.Linear)
_MOMENTUM = 0.05  # of the running ranges, after the first batch


def _of_weights(largest: int) -> FakeQuantize:
    """The grid that int8 will put weights on: symmetric, one scale per output channel, from the largest weight as it is now."""
    return FakeQuantize(
        observer=MovingAveragePerChannelMinMaxObserver,
        averaging_constant=1.0,
        quant_min=-largest,
        quant_max=largest,
        dtype=torch.int8,
        qscheme=torch.per_channel_symmetric,
        ch_axis=0,
    )


def _of_inputs(form: Int8Form) -> FakeQuantize:
    """The grid that int8 will put an activation on: one scale, ranges that follow the training batches."""
    symmetric = form == Int8Form.SYMMETRIC_S8
    return FakeQuantize(
        observer=MovingAverageMinMaxObserver,
        averaging_constant=_MOMENTUM,
        quant_min=-127 if symmetric else 0,
        quant_max=127 if symmetric else 255,
        dtype=torch.int8 if symmetric else torch.uint8,
        qscheme=torch.per_tensor_symmetric if symmetric else torch.per_tensor_affine,
    )


class Rounding:
    """Makes a module's convolutions and dense layers round while it is entered; afterwards the weights are floats again."""

    def __init__(self, module: nn.Module, form: Int8Form) -> None:
        self.module = module
        self._form = form
        self._layers = [layer for layer in module.modules() if isinstance(layer, LAYERS)]
        self._hooks: list[torch.utils.hooks.RemovableHandle] = []
        self._inputs: list[FakeQuantize] = []

    def __enter__(self) -> Rounding:
        device = next(self.module.parameters()).device
        largest = 64 if self._form == Int8Form.CPU_U8S8_REDUCED else 127
        for layer in self._layers:
            parametrize.register_parametrization(layer, "weight", _of_weights(largest).to(device))
            rounded = _of_inputs(self._form).to(device)
            self._inputs.append(rounded)
            self._hooks.append(layer.register_forward_pre_hook(lambda _, inputs, rounded=rounded: (rounded(inputs[0]), *inputs[1:])))
        return self

    def train(self) -> None:
        """Training mode; BatchNorm keeps the statistics that int8 will have folded into the weights."""
        self.module.train()
        for layer in self.module.modules():
            if isinstance(layer, nn.modules.batchnorm._BatchNorm):
                layer.eval()
        for rounded in self._inputs:
            rounded.enable_observer()

    def eval(self) -> None:
        """Evaluation mode, ranges as they are."""
        self.module.eval()
        for rounded in self._inputs:
            rounded.disable_observer()

    def state(self) -> dict[str, torch.Tensor]:
        """A copy of the float parameters, by the names that they have inside."""
        return {name: value.detach().clone() for name, value in self.module.named_parameters()}

    def restore(self, state: dict[str, torch.Tensor]) -> None:
        """Takes back what `state` gave."""
        with torch.no_grad():
            for name, value in self.module.named_parameters():
                value.copy_(state[name])

    def __exit__(self, *_: object) -> None:
        for hook in self._hooks:
            hook.remove()
        for layer in self._layers:
            parametrize.remove_parametrizations(layer, "weight", leave_parametrized=False)
