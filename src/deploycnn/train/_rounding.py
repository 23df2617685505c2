"""Layers that round as int8 will, with PyTorch's own fake-quantise operators; gradients pass as if nothing was rounded.

Imported only by the function that needs it: it needs PyTorch.
"""

from __future__ import annotations

import torch
from torch import nn
from torch.nn.utils import parametrize

from deploycnn.types import Int8Form

LAYERS = (nn.Conv1d, nn.Conv2d, nn.Conv3d, nn.Linear)
_MOMENTUM = 0.05  # of the running ranges, after the first batch
_SMALLEST = 1e-12


class RoundedWeight(nn.Module):
    """Weights on the grid that int8 will put them on: symmetric, one scale per output channel, from the largest weight."""

    def __init__(self, largest: int) -> None:
        super().__init__()
        self.largest = largest

    def forward(self, weight: torch.Tensor) -> torch.Tensor:
        """Any weight whose first dimension is the output channel."""
        scale_M = (weight.detach().abs().flatten(1).amax(dim=1) / self.largest).clamp(min=_SMALLEST)
        zero_M = torch.zeros_like(scale_M, dtype=torch.int32)
        return torch.fake_quantize_per_channel_affine(weight, scale_M, zero_M, 0, -self.largest, self.largest)


class RoundedInput(nn.Module):
    """An activation on the grid that int8 will put it on: one scale, ranges that follow the training batches."""

    def __init__(self, *, symmetric: bool) -> None:
        super().__init__()
        self.symmetric = symmetric
        self.register_buffer("low", torch.zeros(()))
        self.register_buffer("high", torch.zeros(()))
        self.low: torch.Tensor
        self.high: torch.Tensor

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.training:
            low, high = x.detach().amin().clamp(max=0), x.detach().amax().clamp(min=0)
            share = _MOMENTUM if self.high > self.low else 1.0
            self.low.lerp_(low, share)
            self.high.lerp_(high, share)
        if self.symmetric:
            scale = float(torch.maximum(-self.low, self.high)) / 127
            return torch.fake_quantize_per_tensor_affine(x, max(scale, _SMALLEST), 0, -127, 127)
        scale = max(float(self.high - self.low) / 255, _SMALLEST)
        return torch.fake_quantize_per_tensor_affine(x, scale, round(float(-self.low) / scale), 0, 255)


class Rounding:
    """Makes a module's convolutions and dense layers round while it is entered; afterwards the weights are floats again."""

    def __init__(self, module: nn.Module, form: Int8Form) -> None:
        self.module = module
        self._largest = 64 if form == Int8Form.CPU_U8S8_REDUCED else 127
        self._symmetric = form == Int8Form.SYMMETRIC_S8
        self._layers = [layer for layer in module.modules() if isinstance(layer, LAYERS)]
        self._hooks: list[torch.utils.hooks.RemovableHandle] = []
        self._inputs: list[RoundedInput] = []

    def __enter__(self) -> Rounding:
        device = next(self.module.parameters()).device
        for layer in self._layers:
            parametrize.register_parametrization(layer, "weight", RoundedWeight(self._largest))
            rounded = RoundedInput(symmetric=self._symmetric).to(device)
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
            rounded.train()

    def eval(self) -> None:
        """Evaluation mode, ranges as they are."""
        self.module.eval()
        for rounded in self._inputs:
            rounded.eval()

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
