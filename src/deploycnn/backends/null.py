"""A backend without a compiler: a tiny fixed network in numpy, so that the whole pipeline can be tested anywhere.

Its logits are a linear map of the mean colour of 4x4 cells, with weights from the variant's digest: wrong as a
classifier, right as a device that computes, takes time on demand, and breaks on demand.
"""

from __future__ import annotations

import hashlib
import json
import os
import time
from pathlib import Path
from typing import ClassVar, Literal

import numpy as np

from deploycnn.backends._contract import Backend, Options, Session
from deploycnn.errors import BackendError
from deploycnn.types import Artifact, Compiled, CompileRequest, Evidence, LayerEvidence, ProgressCallback, Readiness, Target


class NullOptions(Options):
    """What to pretend."""

    spin_s: float = 0.0  # busy time added to every run
    fault: Literal["", "unavailable", "compile-error", "segfault", "hang", "garbage", "eat-memory", "fallback"] = ""


class NullSession(Session):
    def __init__(self, weights_DK: np.ndarray, options: NullOptions, precision: str) -> None:
        self._weights_DK = weights_DK
        self._options = options
        self._precision = precision

    def bind(self, x_NCHW: np.ndarray) -> None:
        self._x_NCHW = x_NCHW.copy()

    def run(self) -> None:
        n, c, h, w = self._x_NCHW.shape
        cells = self._x_NCHW.reshape(n, c, 4, h // 4, 4, w // 4).mean(axis=(3, 5), dtype=np.float32)
        self._logits_NK = cells.reshape(n, -1) / 255 @ self._weights_DK
        if self._options.spin_s:
            until_s = time.perf_counter() + self._options.spin_s
            while time.perf_counter() < until_s:
                pass

    def fetch(self) -> np.ndarray:
        return self._logits_NK.copy()

    def evidence(self) -> Evidence:
        provider = "somewhere else" if self._options.fault == "fallback" else "numpy"
        kind = {"fp32": "float32", "fp16": "float16", "bf16": "bfloat16"}.get(self._precision, self._precision)
        return Evidence(source="null", provider=provider, layers=(LayerEvidence(name="linear", op="MatMul", precision=kind),))


class NullBackend(Backend):
    """See the module."""

    name = "null"
    Options: ClassVar[type[Options]] = NullOptions
    options: NullOptions

    def probe(self, target: Target) -> Readiness:
        if self.options.fault == "unavailable":
            return Readiness(state="unavailable", reason="it was asked to be unavailable", remedy="set backends.null.fault to ''")
        if target.device != "cpu":
            return Readiness(state="build-only", reason="the null backend has no device code", remedy="use target cpu", version="1")
        return Readiness(state="ready", version="1")

    def compile(self, request: CompileRequest, progress: ProgressCallback) -> Compiled:
        if self.options.fault == "compile-error":
            raise BackendError("the null backend was asked to fail", remedy="set backends.null.fault to ''")
        if self.options.fault == "segfault":
            os.abort()
        if self.options.fault == "hang":
            time.sleep(1e6)
        if self.options.fault == "eat-memory":
            hoard = [np.ones(2**24) for _ in range(10_000)]
            raise AssertionError(f"{len(hoard)} blocks fit")
        c, h, w = request.variant.input.shape_CHW
        seed = int.from_bytes(hashlib.sha256(request.variant.sha256.encode()).digest()[:4])
        document = {"seed": seed, "cells": c * 16, "classes": len(request.variant.classes), "precision": request.variant.precision}
        (request.folder / "null.json").write_text(json.dumps(document))
        return Compiled(files=("null.json",))

    def load(self, artifact: Artifact, folder: Path, threads: int) -> Session:
        if self.options.fault == "garbage":
            print("\x00garbage\xff" * 100, flush=True)
            os._exit(3)
        document = json.loads((folder / artifact.files[0].name).read_text())
        weights_DK = np.random.default_rng(document["seed"]).normal(size=(document["cells"], document["classes"])).astype(np.float32)
        return NullSession(weights_DK, self.options, document["precision"])
