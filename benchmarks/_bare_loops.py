"""Bare loops around a runtime's own session, with nothing of deploycnn: what `timer_fidelity.py` compares with.

    _bare_loops.py BACKEND FOLDER BATCH CHANNELS HEIGHT WIDTH CORES

Reads a number of runs from each line of its input, runs so many back to back, and answers with the median in
nanoseconds. One thread; CORES is a comma-separated list to be pinned to, or empty.
"""

from __future__ import annotations

import os
import statistics
import sys
from collections.abc import Callable
from pathlib import Path
from time import perf_counter_ns

import numpy as np


def onnxruntime(folder: Path, x_NCHW: np.ndarray) -> Callable[[], object]:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(str(folder / "model.onnx"), options, providers=["CPUExecutionProvider"])
    binding = session.io_binding()
    logits_NK = np.empty((len(x_NCHW), session.get_outputs()[0].shape[1]), dtype=np.float32)
    binding.bind_cpu_input(session.get_inputs()[0].name, x_NCHW)
    binding.bind_output(session.get_outputs()[0].name, "cpu", 0, np.float32, logits_NK.shape, logits_NK.ctypes.data)
    kept.append((session, binding, logits_NK))
    return lambda: session.run_with_iobinding(binding)


def torch(folder: Path, x_NCHW: np.ndarray) -> Callable[[], object]:
    """LeNet written out as its author would: the exported module itself is slower (see backends/_torch_program.py)."""
    import torch
    from torch import nn

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.features = nn.Sequential(
                *(nn.Conv2d(3, 6, 5), nn.ReLU(), nn.MaxPool2d(2)),
                *(nn.Conv2d(6, 16, 5), nn.ReLU(), nn.MaxPool2d(2)),
            )
            self.classifier = nn.Sequential(nn.Linear(400, 120), nn.ReLU(), nn.Linear(120, 84), nn.ReLU(), nn.Linear(84, 10))
            self.register_buffer("mean", torch.full((1, 3, 1, 1), 120.0))
            self.register_buffer("scale", torch.full((1, 3, 1, 1), 0.02))

        def forward(self, pixels: torch.Tensor) -> torch.Tensor:
            return self.classifier(self.features((pixels.float() - self.mean) * self.scale).flatten(1))

    torch.set_num_threads(1)
    net, x = Net().eval(), torch.from_numpy(x_NCHW)
    torch.inference_mode().__enter__()
    return lambda: net(x)


def openvino(folder: Path, x_NCHW: np.ndarray) -> Callable[[], object]:
    import openvino

    core = openvino.Core()
    model = core.read_model(folder / "model.xml")
    model.reshape(list(x_NCHW.shape))
    settings = {"PERFORMANCE_HINT": "LATENCY", "INFERENCE_PRECISION_HINT": "f32", "INFERENCE_NUM_THREADS": 1, "NUM_STREAMS": 1}
    request = core.compile_model(model, "CPU", {**settings, "ENABLE_CPU_PINNING": False}).create_infer_request()
    request.set_input_tensor(openvino.Tensor(x_NCHW, shared_memory=True))
    return request.infer


def tvm(folder: Path, x_NCHW: np.ndarray) -> Callable[[], object]:
    import json

    import tvm

    libraries = json.loads((folder / "manifest.json").read_text())["libraries"]
    library = libraries.get(str(len(x_NCHW))) or libraries["any"]
    main = tvm.relax.VirtualMachine(tvm.runtime.load_module(str(folder / library)), tvm.cpu())["main"]
    x = tvm.runtime.tensor(x_NCHW, tvm.cpu())
    return lambda: main(x)


def inductor(folder: Path, x_NCHW: np.ndarray) -> Callable[[], object]:
    import torch

    torch.set_num_threads(1)
    path = folder / f"model_b{len(x_NCHW)}.pt2"
    package = torch._inductor.aoti_load_package(str(path if path.exists() else folder / "model_bany.pt2"), run_single_threaded=True)
    x = torch.from_numpy(x_NCHW)
    run = package.loader.boxed_run
    return lambda: run([x])


RUNTIMES = {"onnxruntime": onnxruntime, "torch": torch, "openvino": openvino, "tvm": tvm, "inductor": inductor}
kept: list[object] = []  # what must outlive the function that made it


def main() -> None:
    backend, folder, batch, channels, height, width, cores = sys.argv[1:]
    if cores:
        os.sched_setaffinity(0, [int(core) for core in cores.split(",")])
    shape = (int(batch), int(channels), int(height), int(width))
    run = RUNTIMES[backend](Path(folder), np.random.default_rng(0).integers(0, 256, shape, dtype=np.uint8))
    print("ready", flush=True)
    for line in sys.stdin:
        samples_ns = []
        for _ in range(int(line)):
            start_ns = perf_counter_ns()
            run()
            samples_ns.append(perf_counter_ns() - start_ns)
        print(statistics.median(samples_ns), flush=True)


if __name__ == "__main__":
    main()
