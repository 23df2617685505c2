"""PyTorch: the twin in `models/`, and the loop of this package without augmentation."""

from __future__ import annotations

import io
import pickle
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from deploycnn.errors import TrainingError
from deploycnn.models import build_model
from deploycnn.recipe import ModelOptions
from deploycnn.train.frameworks._contract import ADAM_EPSILON, Framework, FrameworkFacts, Task, Training, versions
from deploycnn.train.frameworks._torch_devices import prepare_torch, seen_by_torch
from deploycnn.types import Progress, ProgressCallback

if TYPE_CHECKING:
    import torch

PREDICT_BATCH = 500
_TELL_EVERY = 10  # batches


class Torch(Framework):
    """On a GPU: TF32 as in the others; `mixed` is bf16 autocast, `compiled` is torch.compile."""

    name: ClassVar[str] = "torch"
    title: ClassVar[str] = "PyTorch"
    modules: ClassVar[Mapping[str, str]] = {"torch": "torch"}
    extra: ClassVar[str | None] = None

    def version(self) -> str:
        return versions({"PyTorch": "torch"})

    def facts(self) -> FrameworkFacts:
        return seen_by_torch(self.name, self.version())

    def begin(self, task: Task, images_NCHW: NDArray[np.uint8], labels_N: NDArray[np.int64]) -> Training:
        prepare_torch(task)
        return TorchTraining(task, images_NCHW, labels_N)


class TorchTraining(Training):
    """All images on the device as bytes; a batch is gathered and normalised there."""

    def __init__(self, task: Task, images_NCHW: NDArray[np.uint8], labels_N: NDArray[np.int64]) -> None:
        import torch

        self._device = torch.device(task.device)
        self._autocast = task.mode == "mixed"
        self._module = build_model(ModelOptions(name=task.network, width=task.width), task.shape_CHW, task.n_classes, seed=task.seed)
        self._module.to(self._device).to(memory_format=torch.channels_last)
        self._step: Any = torch.compile(self._module) if task.mode == "compiled" else self._module
        self._optimizer = torch.optim.Adam(self._module.parameters(), lr=task.lr, eps=ADAM_EPSILON, fused=True)
        self._images_NHWC = torch.from_numpy(np.ascontiguousarray(images_NCHW.transpose(0, 2, 3, 1))).to(self._device)
        self._labels_N = torch.from_numpy(np.asarray(labels_N, dtype=np.int64)).to(self._device)
        self._mean_C = torch.tensor(task.preprocessing.mean, device=self._device) * 255
        self._scale_C = 1 / (torch.tensor(task.preprocessing.std, device=self._device) * 255)

    def epoch(self, order_N: NDArray[np.int64], sizes: Sequence[int], progress: ProgressCallback) -> float:
        import torch
        from torch.nn import functional as F

        total = torch.zeros((), device=self._device)
        done = 0
        self._module.train()
        for step, index_B in enumerate(torch.split(torch.from_numpy(order_N).to(self._device), list(sizes))):
            x_NCHW = self._normalised(self._images_NHWC[index_B])
            with torch.autocast(self._device.type, torch.bfloat16, enabled=self._autocast):
                logits_NK = self._step(x_NCHW)
            loss = F.cross_entropy(logits_NK.float(), self._labels_N[index_B])
            self._optimizer.zero_grad(set_to_none=True)
            torch.autograd.backward(loss)
            self._optimizer.step()
            total += loss.detach() * len(index_B)
            done += len(index_B)
            if step % _TELL_EVERY == 0:
                progress(Progress(done=done, total=len(order_N), unit="images"))
        return total.item() / len(order_N)

    def logits(self, images_NCHW: NDArray[np.uint8]) -> NDArray[np.float32]:
        import torch

        self._module.eval()
        answers = []
        with torch.inference_mode(), torch.autocast(self._device.type, torch.bfloat16, enabled=self._autocast):
            for first in range(0, len(images_NCHW), PREDICT_BATCH):
                images = np.ascontiguousarray(images_NCHW[first : first + PREDICT_BATCH].transpose(0, 2, 3, 1))
                x_NCHW = self._normalised(torch.from_numpy(images).to(self._device))
                answers.append(self._module(x_NCHW).float().cpu().numpy())
        logits_NK: NDArray[np.float32] = np.concatenate(answers)
        return logits_NK

    def weights(self) -> dict[str, NDArray[np.float32]]:
        return {name: np.ascontiguousarray(tensor.cpu().numpy()) for name, tensor in self._module.state_dict().items()}

    def state(self) -> bytes:
        import torch

        buffer = io.BytesIO()
        torch.save({"weights": self._module.state_dict(), "optimizer": self._optimizer.state_dict()}, buffer)
        return buffer.getvalue()

    def restore(self, state: bytes) -> None:
        import torch

        try:
            saved = torch.load(io.BytesIO(state), map_location=self._device, weights_only=True)
            self._module.load_state_dict(saved["weights"])
            self._optimizer.load_state_dict(saved["optimizer"])
        except (RuntimeError, pickle.UnpicklingError, EOFError, LookupError, TypeError, ValueError) as error:
            found = " ".join(str(error).split())[:200]
            raise TrainingError("the saved state is not of this training", found=found, remedy="train from the start") from error

    def device_peak_bytes(self) -> int | None:
        import torch

        return int(torch.cuda.max_memory_allocated(self._device)) if self._device.type == "cuda" else None

    def _normalised(self, x_NHWC: torch.Tensor) -> torch.Tensor:
        """Normalised float images (N, C, H, W) in channels_last memory."""
        return x_NHWC.float().sub_(self._mean_C).mul_(self._scale_C).permute(0, 3, 1, 2)
