"""The work that a worker does, in its own process: every method is a call of `Worker`."""

from __future__ import annotations

import contextlib
import hashlib
import math
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import psutil

from deploycnn.backends import Session, check_input, create
from deploycnn.disk import disk_errors, file_sha256, write_atomic
from deploycnn.errors import BackendError, DeployError, WorkerError
from deploycnn.measure import clock
from deploycnn.measure.mlperf import LoadOptions, LoadResult, run_load
from deploycnn.types import Artifact, CompileRequest, Evidence, FileEntry, Progress, ProgressCallback
from deploycnn.workers.memory import peak_bytes
from deploycnn.workers.protocol import LoadFacts, MemoryFacts

ARTIFACT_FILE = "artifact.json"


class Bench:
    """Holds at most one loaded artifact."""

    def __init__(self, progress: ProgressCallback) -> None:
        self._progress = progress
        self._session: Session | None = None
        self._artifact: Artifact | None = None
        self._run_s = 1e-3  # of one run of the bound batch, as far as is known
        self._device_peak_bytes: int | None = None

    def compile(self, backend: str, options: Mapping[str, Any], request: CompileRequest) -> Artifact:
        maker = create(backend, options)
        with disk_errors(request.folder):
            compiled, build_s = clock.timed_call(lambda: maker.compile(request, self._progress))
        if not compiled.files:
            raise BackendError(f"{backend} made no files", remedy="report it: this is a fault of the backend")
        variant = request.variant
        files = tuple(_entry(request.folder, name) for name in compiled.files)
        artifact = Artifact(
            backend=backend,
            backend_version=maker.probe(request.target).version,
            target=request.target,
            precision=variant.precision,
            int8_form=variant.int8_form,
            files=files,
            sha256=hashlib.sha256("".join(entry.sha256 for entry in files).encode()).hexdigest(),
            parent_sha256=variant.sha256,
            input=variant.input,
            output_name=variant.output_name,
            n_classes=len(variant.classes),
            batches=compiled.batches,
            evidence=compiled.evidence,
            build_s=build_s,
            options=maker.options.model_dump(mode="json"),
            details=compiled.details,
            notes=compiled.notes,
        )
        write_atomic(request.folder / ARTIFACT_FILE, artifact.model_dump_json(indent=1))
        return artifact

    def load(self, backend: str, options: Mapping[str, Any], artifact: Artifact, folder: Path, threads: int) -> LoadFacts:
        if self._session is not None:
            raise WorkerError("this worker has loaded an artifact already", remedy="start one worker for each artifact")
        for entry in artifact.files:
            _check_file(entry, folder)
        runner = create(backend, options)
        session, load_s = clock.timed_call(lambda: runner.load(artifact, folder, threads))
        first = 1 if artifact.batches is None else min(artifact.batches)
        try:
            session.bind(np.zeros((first, *artifact.input.shape_CHW), dtype=artifact.input.dtype))
            first_run_s = float(clock.timed_block(session, 1)[0]) / 1e9
        except DeployError:  # some runtimes read their files only now
            session.close()
            raise
        self._session, self._artifact = session, artifact
        return LoadFacts(load_s=load_s, first_run_s=first_run_s, first_batch=first, memory=self.memory())

    def predict(self, images_NCHW: np.ndarray | Path, indices_N: np.ndarray | None, batch: int) -> np.ndarray:
        session, artifact = self._loaded()
        images = np.load(images_NCHW, mmap_mode="r") if isinstance(images_NCHW, Path) else images_NCHW
        n_images = len(images) if indices_N is None else len(indices_N)
        logits_NK = np.empty((n_images, artifact.n_classes), dtype=np.float32)
        for places in _batches(n_images, batch, artifact.batches):
            sources = places if indices_N is None else indices_N[places]
            self._bind(np.ascontiguousarray(images[sources], dtype=artifact.input.dtype))
            session.run()
            session.synchronise()
            answer_NK = session.fetch()
            if answer_NK.shape != (len(places), artifact.n_classes) or answer_NK.dtype != np.float32:
                raise BackendError(
                    f"{artifact.backend} should answer {len(places)} images with float32 logits of {artifact.n_classes} classes",
                    found=f"{answer_NK.dtype} of shape {answer_NK.shape}",
                    remedy="check the graph's output",
                )
            logits_NK[places] = answer_NK  # a place that stands twice gets the same logits twice
            self._progress(Progress(done=int(places[-1]) + 1, total=n_images, unit="images"))
        return logits_NK

    def evidence(self, x_NCHW: np.ndarray) -> Evidence:
        return self._bind(x_NCHW).evidence()

    def set_batch(self, x_NCHW: np.ndarray) -> None:
        self._run_s = float(clock.timed_block(self._bind(x_NCHW), 1)[0]) / 1e9

    def warm_up(self, limit_s: float) -> clock.WarmUp:
        session, _ = self._loaded()
        warm = clock.warm_up(session, limit_s=limit_s)
        self._run_s = warm.run_s
        return warm

    def block(self, min_s: float) -> np.ndarray:
        session, _ = self._loaded()
        samples_ns = clock.timed_for(session, min_s, self._run_s)
        self._run_s = float(np.median(samples_ns)) / 1e9
        return samples_ns

    def device_block(self, min_s: float) -> np.ndarray | None:
        session, _ = self._loaded()
        if not isinstance(session, clock.DeviceTimed):
            return None
        return clock.timed_on_device(session, max(1, math.ceil(min_s / self._run_s)))

    def offer_load(self, images_NCHW: np.ndarray, load: LoadOptions, folder: Path) -> LoadResult:
        session, artifact = self._loaded()
        check_input(artifact, images_NCHW)
        return run_load(session, images_NCHW, load, folder)

    def memory(self) -> MemoryFacts:
        device_bytes = _device_bytes() if self._artifact is not None and self._artifact.target.device == "cuda" else None
        if device_bytes is not None:
            self._device_peak_bytes = max(device_bytes, self._device_peak_bytes or 0)
        resident_bytes = psutil.Process().memory_info().rss
        return MemoryFacts(
            resident_bytes=resident_bytes,
            peak_bytes=max(resident_bytes, peak_bytes()),  # the kernel updates it late
            device_bytes=device_bytes,
            device_peak_bytes=self._device_peak_bytes,
        )

    def close(self) -> None:
        session, self._session = self._session, None
        if session is not None:
            session.close()

    def _bind(self, x_NCHW: np.ndarray) -> Session:
        session, artifact = self._loaded()
        check_input(artifact, x_NCHW)
        session.bind(x_NCHW)
        return session

    def _loaded(self) -> tuple[Session, Artifact]:
        if self._session is None or self._artifact is None:
            raise WorkerError("this worker has loaded nothing", remedy="call load first")
        return self._session, self._artifact


def _batches(n_images: int, batch: int, allowed: tuple[int, ...] | None) -> Iterator[np.ndarray]:
    """Places of the images of each batch. Where only certain sizes run, the last place is repeated to fill one up."""
    if allowed is not None:
        batch = max((size for size in allowed if size <= batch), default=min(allowed))
    for start in range(0, n_images, batch):
        places = np.arange(start, min(start + batch, n_images))
        if allowed is not None and len(places) not in allowed:
            filled = min(size for size in allowed if size >= len(places))
            places = np.pad(places, (0, filled - len(places)), mode="edge")
        yield places


def _entry(folder: Path, name: str) -> FileEntry:
    path = folder / name
    if not path.is_file():
        raise BackendError(
            f"the backend says that it wrote {name}", found="there is no such file", remedy="report it: a fault of the backend"
        )
    return FileEntry(name=name, size_bytes=path.stat().st_size, sha256=file_sha256(path))


def _check_file(entry: FileEntry, folder: Path) -> None:
    path = folder / entry.name
    if not path.is_file():
        raise BackendError(f"the artifact's file {path} is to be loaded", found="it is not there", remedy="run again: it is then rebuilt")
    if path.stat().st_size != entry.size_bytes or file_sha256(path) != entry.sha256:
        raise BackendError(
            f"the artifact's file {path} is to be loaded",
            found=f"it is damaged: {path.stat().st_size} bytes, its digest is not that of the {entry.size_bytes} bytes that were built",
            remedy="run again: it is then rebuilt",
        )


def _device_bytes() -> int | None:
    """Device memory of this process by NVML, None where the driver does not say (containers hide processes)."""
    try:
        import pynvml
    except ImportError:
        return None
    with contextlib.suppress(pynvml.NVMLError):
        pynvml.nvmlInit()
        used = 0
        for index in range(pynvml.nvmlDeviceGetCount()):
            for process in pynvml.nvmlDeviceGetComputeRunningProcesses(pynvml.nvmlDeviceGetHandleByIndex(index)):
                if process.pid == os.getpid():
                    used += process.usedGpuMemory or 0
        pynvml.nvmlShutdown()
        return used or None
    return None
