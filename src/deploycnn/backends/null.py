"""A backend without a compiler: a tiny fixed network in numpy, so that the whole pipeline can be tested anywhere.

Its logits are a linear map of the mean colour of 4x4 cells, with weights from the variant's digest: wrong as a
classifier, right as a device that computes, takes time on demand, and breaks on demand.

It runs on the CPU, and on a made-up GPU where the environment variable DEPLOYCNN_NULL_DEVICE says that one is here: `sm89`, or
`sm89 2` for a runtime of version 2. Everywhere else its artifacts for `cuda` are built and wait. What is built for one
capability and version does not load with another, as with a real compiler.
"""

from __future__ import annotations

import ctypes
import hashlib
import json
import os
import re
import time
from pathlib import Path
from typing import ClassVar, Literal

import numpy as np

from deploycnn.backends._contract import Backend, Options, Session
from deploycnn.errors import BackendError, EvidenceError
from deploycnn.types import Artifact, Compiled, CompileRequest, Evidence, LayerEvidence, ProgressCallback, Readiness, Target

DEVICE_VARIABLE = "DEPLOYCNN_NULL_DEVICE"


class NullOptions(Options):
    """What to pretend."""

    spin_s: float = 0.0  # busy time added to every run
    fault: Literal["", "unavailable", "error", "untranslated", "segfault", "hang", "garbage", "eat-memory", "fallback"] = ""
    fault_at: Literal["compile", "load", "run"] = "compile"  # where the fault strikes; "fallback" is noticed when it is loaded


class NullSession(Session):
    def __init__(self, weights_DK: np.ndarray, options: NullOptions, artifact: Artifact) -> None:
        self._weights_DK = weights_DK
        self._options = options
        self._artifact = artifact

    def bind(self, x_NCHW: np.ndarray) -> None:
        h, w = x_NCHW.shape[2:]
        self._x_NCHW = np.pad(x_NCHW, ((0, 0), (0, 0), (0, -h % 4), (0, -w % 4)), mode="edge")

    def run(self) -> None:
        if self._options.fault and self._options.fault_at == "run":
            strike(self._options.fault)
        n, c, h, w = self._x_NCHW.shape
        cells = self._x_NCHW.reshape(n, c, 4, h // 4, 4, w // 4).mean(axis=(3, 5), dtype=np.float32)
        self._logits_NK: np.ndarray = np.matmul(cells.reshape(n, -1) / 255, self._weights_DK)
        if self._options.spin_s:
            until_s = time.perf_counter() + self._options.spin_s
            while time.perf_counter() < until_s:
                pass

    def fetch(self) -> np.ndarray:
        return self._logits_NK.copy()

    def evidence(self) -> Evidence:
        precision = self._artifact.precision
        kind = {"fp32": "float32", "fp16": "float16", "bf16": "bfloat16"}.get(precision, precision)
        return Evidence(source="null", provider=self._provider(), layers=(LayerEvidence(name="linear", op="MatMul", precision=kind),))

    def _provider(self) -> str:
        return "numpy"


class NullDeviceSession(NullSession):
    """On the made-up GPU, which tells how long it was busy (see measure.clock.DeviceTimed)."""

    def mark_device(self) -> None:
        self._marked_s = time.perf_counter()

    def run_on_device(self) -> None:
        self.run()

    def device_elapsed_s(self) -> float:
        return time.perf_counter() - self._marked_s

    def _provider(self) -> str:
        return f"cuda, made up, sm{self._artifact.details['capability']}"


class NullBackend(Backend):
    """See the module."""

    name = "null"
    Options: ClassVar[type[Options]] = NullOptions
    options: NullOptions

    def probe(self, target: Target) -> Readiness:
        if self.options.fault == "unavailable":
            return Readiness(state="unavailable", reason="it was asked to be unavailable", remedy="set backends.null.fault to ''")
        capability, version = device_here()
        if target.device == "cpu" or (capability is not None and target.capability in (None, capability)):
            return Readiness(state="ready", version=version)
        wanted = "GPU" if target.capability is None else f"sm{target.capability} GPU"
        return Readiness(state="build-only", reason=f"no made-up {wanted} is here", remedy=f"set {DEVICE_VARIABLE}", version=version)

    def compile(self, request: CompileRequest, progress: ProgressCallback) -> Compiled:
        if self.options.fault and self.options.fault_at == "compile":
            strike(self.options.fault)
        c, _, _ = request.variant.input.shape_CHW
        seed = int.from_bytes(hashlib.sha256(request.variant.sha256.encode()).digest()[:4])
        document = {"seed": seed, "cells": c * 16, "classes": len(request.variant.classes)}
        (request.folder / "null.json").write_text(json.dumps(document))
        if request.target.device == "cpu":
            return Compiled(files=("null.json",))
        capability, version = device_here()
        return Compiled(files=("null.json",), details={"capability": request.target.capability or capability, "version": version})

    def load(self, artifact: Artifact, folder: Path, threads: int) -> Session:
        if self.options.fault and self.options.fault_at == "load":
            strike(self.options.fault)
        if self.options.fault == "fallback":
            raise EvidenceError(f"null was asked to run on {artifact.target}", found="it loaded somewhere else", remedy="set fault to ''")
        path = folder / artifact.files[0].name
        try:
            document = json.loads(path.read_text())
            size_DK, seed = (document["cells"], document["classes"]), document["seed"]
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise BackendError(f"{path} is not an artifact of the null backend", found=str(error), remedy="compile it again") from error
        weights_DK = np.random.default_rng(seed).normal(size=size_DK).astype(np.float32)
        if artifact.target.device == "cpu":
            return NullSession(weights_DK, self.options, artifact)
        _check_device(artifact)
        return NullDeviceSession(weights_DK, self.options, artifact)


def device_here() -> tuple[int | None, str]:
    """Capability of the made-up GPU, None where there is none, and the version of the made-up runtime."""
    found = re.fullmatch(r"\s*(?:sm(\d+))?\s*(\d*)\s*", os.environ.get(DEVICE_VARIABLE, ""))
    return (int(found[1]) if found and found[1] else None), (found[2] if found and found[2] else "1")


def _check_device(artifact: Artifact) -> None:
    here, built = device_here(), (artifact.details["capability"], artifact.details["version"])
    if here != built and (built[0] is not None or here[1] != built[1]):  # built for plain cuda without a GPU, it runs on any
        raise BackendError(
            f"the artifact was built for sm{built[0]} by version {built[1]}",
            found=f"sm{here[0]}, version {here[1]}",
            remedy="compile it again for this GPU and version",
        )


def strike(fault: str) -> None:
    """Breaks this process in the way asked for; "fallback" and "unavailable" break nothing."""
    print(f"the null backend was asked for the fault {fault}", flush=True)
    if fault == "error":
        raise BackendError("the null backend was asked to fail", remedy="set backends.null.fault to ''")
    if fault == "untranslated":
        raise ArithmeticError("the null backend was asked for an error that nobody translates")
    if fault == "segfault":
        ctypes.string_at(0)
    if fault == "hang":
        time.sleep(1e6)
    if fault == "garbage":
        os.write(1, bytes(range(256)) * 40 + b"\nthe last line\n")
        os._exit(3)
    if fault == "eat-memory":
        hoard = [np.ones(2**23) for _ in range(10_000)]
        raise AssertionError(f"{len(hoard)} blocks of 64 MiB fit into this machine")
