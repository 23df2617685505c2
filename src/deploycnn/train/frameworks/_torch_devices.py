"""What PyTorch sees, and how it is set up for training: for PyTorch itself, and for Keras on it."""

from __future__ import annotations

from deploycnn.environment import environment
from deploycnn.errors import Unavailable, Unsupported
from deploycnn.train.frameworks._contract import Device, FrameworkFacts, Task


def seen_by_torch(name: str, version: str) -> FrameworkFacts:
    """The devices that PyTorch sees, and why no GPU is among them."""
    import torch

    gpus = [Device(kind="cuda", name=torch.cuda.get_device_name(i)) for i in range(torch.cuda.device_count())]
    reason = ""
    if not gpus and torch.version.cuda is None:
        reason = "this PyTorch is built without CUDA"
    elif not gpus:
        reason = environment().gpu_reason or "PyTorch cannot initialise CUDA"
    cpu = Device(kind="cpu", name=environment().cpu.model)
    return FrameworkFacts(name=name, version=version, devices=(cpu, *gpus), gpu_reason=reason)


def prepare_torch(task: Task) -> None:
    """Threads, TF32 (TensorFlow's default, so here too) and what the task needs of a GPU.

    Raises:
        Unavailable: there is no GPU.
        Unsupported: mixed precision on a GPU without bf16.
    """
    import torch

    torch.set_num_threads(task.threads)
    if task.device == "cpu":
        return
    if not torch.cuda.is_available():
        found = environment().gpu_reason or "PyTorch sees none"
        raise Unavailable("PyTorch is to train on a GPU", found=found, remedy="train on the CPU")
    if task.mode == "mixed" and not torch.cuda.is_bf16_supported():
        raise Unsupported("mixed precision is bf16", found="a GPU without bf16", remedy="use a GPU of compute capability 8.0 or more")
    torch.set_float32_matmul_precision("high")
    torch.backends.cudnn.allow_tf32 = True
