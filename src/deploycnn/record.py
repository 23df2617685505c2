"""The record of a run: one versioned JSON file, the only input of reports and comparisons.

`record.json` holds everything but the raw latency samples, which lie beside it in `samples.npz` (see `Samples`).
Whatever is derived from samples here can be recomputed from them; a test does.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from pydantic import Field

from deploycnn.environment import Environment, GpuFacts
from deploycnn.types import Artifact, Doubt, Evidence, Int8Form, Interval, LayerChoice, Outcome, Target, Value, Verdict

SCHEMA_VERSION = 1

Boundary = Literal["host-to-host", "device"]


class ClassAccuracy(Value):
    """One class of the test set."""

    name: str
    n_images: int
    top1: float  # share, 0 to 1
    reference_top1: float


class Accuracy(Value):
    """All test images through one artifact, against the fp32 reference on the same images. Shares are 0 to 1."""

    n_images: int
    top1: Interval  # Wilson interval
    reference_top1: float
    drop: Interval  # reference minus this, paired; positive is a loss
    agreement: float  # same top-1 answer as the reference
    right_to_wrong: tuple[int, ...]  # indices of test images
    wrong_to_right: tuple[int, ...]
    per_class: tuple[ClassAccuracy, ...]
    relative_logit_error: float  # |logits - reference|_2 / |reference|_2 over all images, finite ones only
    max_logit_error: float  # largest absolute difference of one logit
    nonfinite_images: int  # images with a NaN or inf among their logits
    mean_confidence: float
    reference_mean_confidence: float
    ece: float  # expected calibration error, 15 equal-width bins
    reference_ece: float
    verdict: Verdict


class Latency(Value):
    """One artifact at one batch size, threads and boundary. Times in seconds per run of the whole batch."""

    batch: int
    threads: int
    streams: int = 1
    boundary: Boundary = "host-to-host"
    samples: str  # name of the arrays in samples.npz
    n_samples: int
    n_blocks: int
    n_rounds: int
    n_processes: int
    p50_s: Interval
    p90_s: Interval | None  # None: the sample cannot carry it
    p95_s: Interval | None
    p99_s: Interval | None
    p999_s: Interval | None
    mean_s: float
    min_s: float
    max_s: float
    images_per_s: Interval
    ratio: Interval | None = None  # time over the reference's time at this batch size, paired by round; None for the reference
    outliers: int  # counted, never dropped: beyond 3 interquartile ranges above the third quartile
    noisy: bool  # the interval asked for was not reached within the budget
    doubts: tuple[Doubt, ...] = ()


class Peak(Value):
    """What a machine was measured to reach on so many threads; the best of several tries (see measure.roofline)."""

    threads: int
    flops_per_s: float  # fp32 matrix product
    cache_bytes_per_s: float  # 256 kB to 256 kB: bytes read plus bytes written
    memory_bytes_per_s: float  # 64 MB to 64 MB


class RooflinePoint(Value):
    """One artifact at one batch size against its machine's peaks."""

    batch: int
    flops: float  # of one run, whole batch: two for a multiply-add
    bytes: float  # that one run must move at least
    floor_s: float  # no run can be shorter at these peaks
    share: float  # floor over the measured median; a diagnosis and no grade, it may pass 1
    bound: Literal["launch", "compute", "memory"]
    sentence: str
    dispatch_s: float | None = None  # median of the same backend's call of a graph of next to nothing; None: not known


class Loading(Value):
    """What it costs before the first answer."""

    load_s: float
    first_run_s: float
    resident_bytes: int  # of the worker after validating
    peak_bytes: int
    device_peak_bytes: int | None = None


class Energy(Value):
    """What some work drew, net of idle."""

    source: str  # "RAPL package-0", "NVML"
    batch: int
    seconds: float
    idle_w: float
    busy_w: float
    joules_per_image: float  # net; may come out at or below 0 where the work drew no more than idle


class Cell(Value):
    """One backend at one precision on one target."""

    backend: str
    precision: str
    target: Target
    int8_form: Int8Form | None = None
    outcome: Outcome
    artifact: Artifact | None = None
    folder: str | None = None  # of the artifact, relative to the run
    evidence: Verdict | None = None
    ran: Evidence | None = None  # what that verdict stands on: the session's word, or for a deferred cell the compiler's
    accuracy: Accuracy | None = None
    loading: Loading | None = None
    energy: Energy | None = None  # None: nothing here counts it; the record's notes say why
    latencies: tuple[Latency, ...] = ()  # host to host
    device_latencies: tuple[Latency, ...] = ()  # device boundary, where the backend tells it; a sample is the mean run of a block
    rooflines: tuple[RooflinePoint, ...] = ()  # of the latencies, where the machine's peaks are known
    machine: str | None = None  # key into the record's environments: where it was validated and measured
    reused: tuple[str, ...] = ()  # stages whose results came from the cache
    notes: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """`onnxruntime/int8/cpu`: unique in a record."""
        return f"{self.backend}/{self.precision}/{self.target}"

    def latency(self, batch: int, boundary: Boundary = "host-to-host") -> Latency | None:
        """The single-stream latency at that batch size, None where it was not measured."""
        known = (*self.latencies, *self.device_latencies)
        found = (x for x in known if x.batch == batch and x.boundary == boundary and x.streams == 1)
        return next(found, None)


class CalibrationFacts(Value):
    """Which images int8 ranges were taken from. They share no image with training, validation or test: see data.split."""

    n_images: int
    per_class: Mapping[str, int]
    missing: tuple[str, ...]  # classes without an image
    sha256: str  # over the pixels


class CalibrationSpread(Value):
    """How much an int8 variant's accuracy depends on which images calibrated it; judged on the validation part."""

    precision: str
    int8_form: Int8Form
    n_calibration: int  # images of each draw
    n_images: int  # of the validation part
    reference_top1: float  # fp32, on the same images
    top1: tuple[float, ...]  # one for each seed
    seeds: tuple[int, ...]


class VariantFacts(Value):
    """One ONNX file that artifacts were compiled from."""

    precision: str
    int8_form: Int8Form | None
    sha256: str
    size_bytes: int
    notes: tuple[str, ...] = ()
    layers: tuple[LayerChoice, ...] = ()  # int8-auto: most sensitive first


class DataFacts(Value):
    """Which images every figure of the run stands on."""

    name: str  # of the data set really used
    asked: str  # of the data set the recipe named
    source: str  # where it was found
    official: bool | None  # matches the publisher's digests; None: there are none
    sha256: str
    classes: tuple[str, ...]
    shape_CHW: tuple[int, int, int]
    n_train: int
    n_validation: int
    n_calibration: int
    n_test: int
    calibration: CalibrationFacts | None = None
    notes: tuple[str, ...] = ()


class ModelFacts(Value):
    """Which network, and where its weights come from."""

    name: str
    parameters: int | None
    source: Literal["trained", "weights", "onnx"]
    checkpoint_sha256: str | None
    graph_sha256: str
    training: Mapping[str, Any] = Field(default_factory=dict)  # epochs, images_per_s, validation_top1, seed, device, ...
    notes: tuple[str, ...] = ()


class Session(Value):
    """What `resume` finished, and on which machine: its latencies are comparable with each other, and with no others."""

    machine: str  # key into the record's environments
    folder: str  # of its samples.npz, of what was rebuilt and of its logs, relative to the run
    deploycnn_version: str
    created: str  # ISO 8601, UTC
    command: str
    finished: Mapping[str, str]  # names of the record's cells that were finished: the name each had while it waited
    reference: Cell | None  # the reference as it was there; None: it could not be run there, so there are no ratios
    noise_floor: Mapping[str, Interval] = Field(default_factory=dict)
    stage_s: Mapping[str, float] = Field(default_factory=dict)
    gpus: tuple[GpuFacts, ...] = ()
    doubts: tuple[Doubt, ...] = ()
    notes: tuple[str, ...] = ()


class Record(Value):
    """One run. Where `sessions` is empty, one machine measured everything."""

    schema_version: int = SCHEMA_VERSION
    deploycnn_version: str
    created: str  # ISO 8601, UTC
    command: str
    recipe: Mapping[str, Any]
    data: DataFacts
    model: ModelFacts
    environments: Mapping[str, Environment]  # by machine id
    reference: str | None  # name of the cell that accuracy and ratios refer to
    cells: tuple[Cell, ...]
    variants: tuple[VariantFacts, ...] = ()
    calibration_spreads: tuple[CalibrationSpread, ...] = ()  # where the recipe asks for them
    noise_floor: Mapping[str, Interval] = Field(default_factory=dict)  # A/A ratio by batch size
    peaks: Mapping[str, Peak] = Field(default_factory=dict)  # by machine id
    stage_s: Mapping[str, float] = Field(default_factory=dict)  # wall time of each stage of this run
    gpus: tuple[GpuFacts, ...] = ()  # while the run itself measured; empty where no artifact ran on one
    doubts: tuple[Doubt, ...] = ()
    notes: tuple[str, ...] = ()
    sessions: tuple[Session, ...] = ()  # what `resume` added, in order

    def cell(self, name: str) -> Cell | None:
        """The cell of that name, None where the record has none."""
        return next((cell for cell in self.cells if cell.name == name), None)
