"""The vocabulary that stages hand to one another: frozen, keyword-only, JSON in and out.

Nothing here imports a tensor library. Arrays travel as numpy arrays or as files.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, field_serializer, model_serializer, model_validator

from deploycnn.errors import RecipeError


class Value(BaseModel):
    """Base of everything here: immutable, and an unknown field is an error."""

    # JSON has no infinity: "Infinity" and "NaN" are written, and read back as floats.
    model_config = ConfigDict(frozen=True, extra="forbid", arbitrary_types_allowed=True, ser_json_inf_nan="strings")


# --- where things run ---------------------------------------------------------------------


class Target(Value):
    """Where an artifact runs: `cpu`, `cuda` (the GPU that is present), or `cuda:sm89` (one that may not be).

    `capability` is the CUDA compute capability times ten (89 for 8.9), None for `cpu` and plain `cuda`.
    """

    device: Literal["cpu", "cuda"]
    capability: int | None = None

    @classmethod
    def parse(cls, text: str) -> Target:
        """Raises RecipeError where the text names no target."""
        match = re.fullmatch(r"(cpu|cuda)(?::sm(\d{2,3}))?", text.strip().lower())
        if not match or (match[1] == "cpu" and match[2]):
            raise RecipeError(f"'{text}' is not a target", remedy="use cpu, cuda, or a compute capability such as cuda:sm89")
        return cls(device="cuda" if match[1] == "cuda" else "cpu", capability=int(match[2]) if match[2] else None)

    def __str__(self) -> str:
        return self.device if self.capability is None else f"{self.device}:sm{self.capability}"

    @model_validator(mode="before")
    @classmethod
    def _from_text(cls, value: Any) -> Any:
        if isinstance(value, str):
            parsed = cls.parse(value)
            return {"device": parsed.device, "capability": parsed.capability}
        return value

    @model_serializer
    def _to_text(self) -> str:
        return str(self)


class Readiness(Value):
    """What a backend can do for a target on this machine, and why not more."""

    state: Literal["ready", "build-only", "unavailable"]
    reason: str = ""  # required unless ready: a reason that a person can act on
    remedy: str = ""  # what to install or where to go
    version: str = ""  # of the compiler or runtime, "" where unknown

    @model_validator(mode="after")
    def _says_why(self) -> Readiness:
        if self.state != "ready" and not self.reason:
            raise ValueError("a backend that is not ready must say why")
        return self


# --- what is compiled ---------------------------------------------------------------------


class Int8Form(StrEnum):
    """The quantised forms; a backend states the one that its target needs."""

    SYMMETRIC_S8 = "s8s8-symmetric"  # explicit Q/DQ, every zero point 0, no bias Q/DQ: TensorRT
    CPU_S8S8 = "s8s8"  # int8 activations with zero points: ARM CPUs; on x86 ONNX Runtime it is 5-7 times slower than u8s8
    CPU_U8S8 = "u8s8"  # x86 CPUs with VNNI: uint8 activations, full 8-bit weights
    CPU_U8S8_REDUCED = "u8s8-reduced"  # 7-bit weights: CPUs whose 16-bit sums would saturate


class Preprocessing(Value):
    """What the graph does to uint8 pixels before the network: (x / 255 - mean) / std per channel."""

    mean: tuple[float, ...]
    std: tuple[float, ...]


class TensorSpec(Value):
    """Input of a graph: NCHW, batch left out. Our own graphs take uint8 pixels (see export.py for why)."""

    name: str
    dtype: Literal["uint8", "float32"]
    shape_CHW: tuple[int, int, int]


class FileEntry(Value):
    """One file of an artifact or variant, relative to its folder."""

    name: str
    size_bytes: int
    sha256: str


class LayerChoice(Value):
    """What one layer of a variant was left in, where that was chosen layer by layer."""

    node: str  # name of the ONNX node
    op: str
    macs_share: float  # of the graph's multiply-adds, 0 to 1
    alone: float  # relative logit error of the graph with this layer alone in int8: its sensitivity
    precision: Literal["int8", "float32"]


class Variant(Value):
    """A graph at one precision. Precision is in the ONNX file, never in a compiler flag.

    `onnx_path` is one self-contained file. `program_path` is the same network as a torch.export archive (.pt2,
    uint8 pixels in, fp32 logits out) where the model came from PyTorch: as it is for fp32, to be cast for fp16 and bf16.
    """

    precision: str  # fp32, fp16, bf16, int8, int8+fp16, ...
    int8_form: Int8Form | None = None
    onnx_path: Path
    program_path: Path | None = None
    sha256: str  # of the ONNX file
    parent_sha256: str | None = None  # of the fp32 graph, None for that graph itself
    input: TensorSpec
    output_name: str
    classes: tuple[str, ...]
    fixed_batch: int | None = None  # None: dynamic, proved by running it
    notes: tuple[str, ...] = ()
    layers: tuple[LayerChoice, ...] = ()  # int8-auto: most sensitive first; empty where nothing had to be chosen

    @field_serializer("onnx_path", "program_path")
    def _path(self, path: Path | None) -> str | None:
        return None if path is None else path.as_posix()


class Progress(Value):
    """One step of something long. `total` 0 means the end is not known."""

    done: int
    total: int
    unit: str
    note: str = ""


ProgressCallback = Callable[[Progress], None]


class CompileRequest(Value):
    """Everything a backend may know when it compiles. Its own options are in the backend object."""

    variant: Variant
    target: Target
    batches: tuple[int, ...]  # the batch sizes that will be run, ascending
    threads: int = 1  # CPU threads the artifact will be run with
    folder: Path  # empty, on the same file system as the cache; only here may files be written
    cache_folder: Path  # for what outlives one artifact (tuning database, timing cache); key it yourself


# --- what a backend says ------------------------------------------------------------------


class LayerEvidence(Value):
    """What one layer really ran in, by the backend's own word."""

    name: str  # as the backend names it
    op: str  # Conv, Gemm, MatMul, or the backend's own kind
    precision: str  # float32, float16, bfloat16, int8, ...


class Evidence(Value):
    """What the backend itself says runs.

    `layers` holds every convolution and matrix product. Empty layers prove nothing: precision is then "unproven".
    `simulated` marks low precision that is computed in float arithmetic: it may be accurate, it is never fast.
    """

    source: str  # who says so: "profiler", "engine inspector", "runtimePrecision", ...
    provider: str  # execution provider or device that ran, in the backend's own words
    layers: tuple[LayerEvidence, ...] = ()
    simulated: bool = False
    notes: tuple[str, ...] = ()


class Compiled(Value):
    """What `Backend.compile` gives back; the worker adds digests and time and makes an Artifact of it."""

    files: tuple[str, ...]  # relative to the request's folder; the first one is the entry point
    evidence: Evidence | None = None  # None: only a loaded session can say
    batches: tuple[int, ...] | None = None  # batch sizes it can run; None: any
    notes: tuple[str, ...] = ()
    details: Mapping[str, Any] = Field(default_factory=dict)  # JSON values: trials, build options, ...


class Artifact(Value):
    """What a backend made of a variant for a target. `artifact.json` in its folder holds it."""

    backend: str
    backend_version: str
    target: Target
    precision: str
    int8_form: Int8Form | None = None
    files: tuple[FileEntry, ...]
    sha256: str  # over the files' digests, in order
    parent_sha256: str  # the variant's digest
    input: TensorSpec
    output_name: str
    n_classes: int
    batches: tuple[int, ...] | None
    evidence: Evidence | None
    build_s: float
    options: Mapping[str, Any] = Field(default_factory=dict)
    details: Mapping[str, Any] = Field(default_factory=dict)
    notes: tuple[str, ...] = ()

    @property
    def size_bytes(self) -> int:
        return sum(entry.size_bytes for entry in self.files)


# --- what came of it ----------------------------------------------------------------------


class Done(Value):
    state: Literal["done"] = "done"


class Deferred(Value):
    """Built, cannot run here."""

    state: Literal["deferred"] = "deferred"
    waits_for: str


class Skipped(Value):
    state: Literal["skipped"] = "skipped"
    reason: str
    remedy: str = ""


class Failed(Value):
    state: Literal["failed"] = "failed"
    stage: str
    reason: str
    remedy: str = ""
    log_tail: str = ""  # last lines of the worker's output


Outcome = Annotated[Done | Deferred | Skipped | Failed, Field(discriminator="state")]


class Interval(Value):
    """A point estimate with the interval around it, in the unit that the field's name carries."""

    value: float
    low: float
    high: float
    confidence: float = 0.95


class Doubt(Value):
    """A reason not to trust a measurement fully, and what would remove it."""

    kind: str  # "noisy", "frequency-scaling", "other-load", ...
    what: str
    remedy: str


class Verdict(Value):
    """The answer of a check. "unproven" is not a pass."""

    state: Literal["pass", "fail", "unproven", "not enough images"]
    reason: str
    remedy: str = ""
