"""What a backend is. It never sees a clock, a data set or a report."""

from __future__ import annotations

import abc
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, ClassVar, Self

from pydantic import BaseModel, ConfigDict, Field

from deploycnn.environment import environment, has_vnni
from deploycnn.errors import Unsupported
from deploycnn.types import (
    Artifact,
    Compiled,
    CompileRequest,
    Evidence,
    Int8Form,
    ProgressCallback,
    Readiness,
    Skipped,
    Target,
)

if TYPE_CHECKING:
    import numpy as np


class Options(BaseModel):
    """Base of every backend's options class. Recipes set them under `backends.<name>`."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    # Instead of the recipe's. It decides which cells there are, not what is made for one: left out of cache keys.
    precisions: tuple[str, ...] | None = Field(None, min_length=1, exclude=True)


_Options = Options  # inside Backend, `Options` is its class variable


class Session(abc.ABC):
    """A loaded artifact. A context manager; one session has one input bound at a time, of any size that it can run.

    The timing boundary is host to host: `bind` puts pixels in host memory that the artifact reads from, one
    `run` + `synchronise` leaves logits in host memory that `fetch` reads. `bind` and `fetch` are outside the
    clock. `run` is what gets timed: everything that can be prepared is prepared in `bind`.
    """

    @abc.abstractmethod
    def bind(self, x_NCHW: np.ndarray) -> None:
        """Copies the batch in, allocating outputs where the batch size changed.

        Args:
            x_NCHW: C-contiguous, of the artifact's dtype and shape and a size that it can run: `check_input` has seen it.
        """

    @abc.abstractmethod
    def run(self) -> None:
        """One inference over the bound batch. May return before it is finished; `synchronise` waits."""

    def synchronise(self) -> None:
        """Returns when every `run` so far is finished and its logits are in host memory. Nothing to do on a CPU."""
        return

    @abc.abstractmethod
    def fetch(self) -> np.ndarray:
        """Logits of the last run: float32, shape (N, K), a copy that later runs do not change."""

    @abc.abstractmethod
    def evidence(self) -> Evidence:
        """What runs, by the backend's own word. May run the bound batch again with profiling on."""

    def close(self) -> None:
        """Frees what the session holds. Harmless twice; nothing else is called afterwards."""
        return

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()


class Backend(abc.ABC):
    """A compiler or runtime.

    Vendor errors are translated here: `raise BackendError(...) from error`. Methods other than `probe` are called
    in a worker process of their own, so a crash or a hang is that cell's failure and no more.
    """

    name: ClassVar[str]
    Options: ClassVar[type[Options]] = Options
    packages: ClassVar[tuple[str, ...]] = ()  # distributions whose versions are part of the cache key

    def __init__(self, options: _Options | None = None) -> None:
        self.options = options if options is not None else self.Options()

    @abc.abstractmethod
    def probe(self, target: Target) -> Readiness:
        """Ready, build-only or unavailable on this machine. Cheap, quiet, never raises."""

    def refuses(self, precision: str, target: Target) -> Skipped | None:
        """A combination known not to work before anything is built, with the reason; None where it may work."""
        return None

    def int8_form(self, target: Target) -> Int8Form:
        """The quantised form that this backend needs on this target. TensorRT's readers override it."""
        return Int8Form.CPU_U8S8 if has_vnni() else Int8Form.CPU_U8S8_REDUCED

    @abc.abstractmethod
    def compile(self, request: CompileRequest, progress: ProgressCallback) -> Compiled:
        """Makes the artifact's files in `request.folder`.

        Raises:
            Unavailable: something it needs is not here.
            Unsupported: it cannot hold this graph, precision or target; names node or tensor.
            BackendError: anything else the vendor said.
        """

    @abc.abstractmethod
    def load(self, artifact: Artifact, folder: Path, threads: int) -> Session:
        """A session over the artifact's files in `folder`, on `threads` CPU threads.

        Raises:
            Unavailable: the device or a library is missing.
            EvidenceError: it loaded, but elsewhere than asked for (silent fallback).
            BackendError: the files are damaged or of another version or device; says which differs.
        """


def missing_gpu(target: Target) -> str:
    """Why there is no such GPU in this machine, "" where there is one: for backends whose artifacts fit any GPU."""
    gpus = environment().gpus
    if not gpus:
        return environment().gpu_reason or "no GPU"
    if target.capability in (None, *(gpu.capability for gpu in gpus)):
        return ""
    return f"no sm{target.capability} GPU is here, but {', '.join(f'{gpu.name} (sm{gpu.capability})' for gpu in gpus)}"


def check_input(artifact: Artifact, x_NCHW: np.ndarray) -> None:
    """Raises Unsupported where the artifact cannot take this batch: its size, shape or dtype. Workers call it before `bind`."""
    asked = f"{artifact.backend} is to run {x_NCHW.dtype} images of shape {'x'.join(map(str, x_NCHW.shape))}"
    spec = artifact.input
    if x_NCHW.shape[1:] != spec.shape_CHW or x_NCHW.dtype != spec.dtype or len(x_NCHW) == 0:
        wanted = "x".join(map(str, spec.shape_CHW))
        raise Unsupported(
            asked, found=f"the artifact takes {spec.dtype} batches of {wanted}", remedy="give it images of that shape and dtype"
        )
    if artifact.batches is not None and len(x_NCHW) not in artifact.batches:
        sizes = ", ".join(map(str, artifact.batches))
        raise Unsupported(asked, found=f"it was built for batches of {sizes} only", remedy="run one of those, or compile for this size")
