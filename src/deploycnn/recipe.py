"""YAML to a checked recipe. An unknown key is an error that names the nearest right one."""

from __future__ import annotations

import difflib
import typing
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Literal

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from deploycnn.errors import RecipeError
from deploycnn.types import Target


class Section(BaseModel):
    """Base of a recipe's sections."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class DataOptions(Section):
    """Which images."""

    name: str = "cifar10"  # a file of deploycnn/data: cifar10, mnist, fashion-mnist, folder, synthetic10
    root: Path = Path("data")
    # Taken, loudly, when `name` is neither on disk nor to be fetched; several are tried in order.
    fallback: str | tuple[str, ...] | None = None
    download: bool = True
    train: int | None = Field(None, ge=1)  # at most so many training images (stratified, by seed); None: all
    test: int | None = Field(None, ge=1)  # likewise; None: all
    validation: int = Field(5000, ge=1)  # taken out of training
    calibration: int = Field(512, ge=1)  # taken out of training
    seed: int = 0
    size: int | None = Field(None, ge=1)  # `folder` only: side of the square that images are resized to; None: their own
    channels: Literal[1, 3] | None = None  # `folder` only: 1 reads grayscale; None: 3
    skip_unreadable: bool = False  # `folder` only: go on without images that cannot be read, and say how many


class ModelOptions(Section):
    """Which network, and where its weights come from. At most one of `weights`, `onnx` decides what is not trained."""

    name: str = "lenet"  # lenet, resnet8, mnist_cnn, or package.module:ClassOrFunction
    framework: str = "torch"  # what trains it: torch, tensorflow or keras (Keras 3 on PyTorch)
    arguments: dict[str, Any] = Field(default_factory=dict)  # keyword arguments of one's own class
    width: float = Field(1.0, gt=0)
    depth: int = Field(1, ge=1)
    weights: str | None = None  # a checkpoint file, or the name of a shipped one; then nothing is trained
    onnx: Path | None = None  # one's own graph; then nothing is trained or exported
    # Per channel of pixels / 255, or one value for all; None: the checkpoint's or the data set's.
    mean: tuple[float, ...] | None = None
    std: tuple[float, ...] | None = None
    trust_pickle: bool = False  # load a pickled nn.Module although that can run code


class TrainOptions(Section):
    """How the network is trained. Defaults fit LeNet on CIFAR-10."""

    epochs: int = Field(20, ge=1)
    batch: int = Field(256, ge=1)
    optimizer: Literal["sgd", "adam"] = "sgd"
    lr: float = Field(0.1, gt=0)  # peak, for one-cycle; constant where schedule says so
    momentum: float = Field(0.9, ge=0, lt=1)  # of SGD, as nesterov is
    weight_decay: float = Field(5e-4, ge=0)
    nesterov: bool = True
    schedule: Literal["one-cycle", "constant"] = "one-cycle"
    label_smoothing: float = Field(0.0, ge=0, lt=1)
    augment: bool = True  # flip (not for digits) and shifted crop
    flip: bool = True
    crop: int = Field(2, ge=0)  # pixels of padding for the shifted crop
    seed: int = 0
    device: Literal["auto", "cpu", "cuda"] = "auto"
    threads: int | None = Field(None, ge=1)  # None: every core this process may use


class CalibrateOptions(Section):
    """How int8 activation ranges are taken from the calibration images."""

    method: Literal["minmax", "percentile", "entropy"] = "minmax"
    percentile: float = Field(99.99, gt=90, le=100)  # of a tensor's values that stay inside its range
    max_drop_pp: float = Field(0.5, ge=0)  # int8-auto only: loss of top-1, on the validation part, above which it is repaired
    max_flips_pp: float = Field(3.0, ge=0)  # int8-auto only: likewise, images that fp32 answers right and int8 wrong


class QatOptions(Section):
    """int8-qat: how the trained weights are fine-tuned while they are rounded."""

    epochs: int = Field(2, ge=1)
    batch: int = Field(128, ge=1)
    lr: float = Field(0.005, gt=0)  # peak of a cosine that falls to 0
    seed: int = 0


class ValidateOptions(Section):
    """When an artifact's accuracy is good enough."""

    max_drop_pp: float = Field(1.0, ge=0)  # percentage points of top-1 that may be lost against the fp32 reference
    confidence: float = Field(0.95, gt=0.5, lt=1)
    batch: int = Field(100, ge=1)  # batch size of validation runs
    logit_tolerance: float = Field(1e-3, gt=0)  # relative logit error allowed for fp32 artifacts
    calibration_seeds: int = Field(5, ge=0, le=20)  # int8 is made again from so many other draws of calibration images; 0: not


class MeasureOptions(Section):
    """How latency is measured."""

    batches: tuple[int, ...] = (1, 32)
    threads: int = Field(1, ge=1)
    processes: int = Field(2, ge=1)  # restarts of each artifact
    block_s: float = Field(0.02, gt=0)  # shortest block of back-to-back runs
    interval: float = Field(0.02, gt=0)  # half width of the median's interval, as a share, at which to stop
    min_rounds: int = Field(10, ge=2)
    budget_s: float = Field(60.0, gt=0)  # for all artifacts together
    confidence: float = Field(0.95, gt=0.5, lt=1)
    seed: int = 0

    @field_validator("batches")
    @classmethod
    def _some_batches(cls, batches: tuple[int, ...]) -> tuple[int, ...]:
        if not batches or min(batches) < 1:
            raise ValueError("needs at least one batch size, each 1 or more")
        return tuple(sorted(set(batches)))


class LimitOptions(Section):
    """What a worker process may use before it is killed."""

    compile_s: float = Field(600.0, gt=0)
    load_s: float = Field(120.0, gt=0)
    run_s: float = Field(300.0, gt=0)  # validating one artifact, or one block
    memory_mb: float | None = Field(None, gt=0)  # resident memory of one worker; None: three quarters of the machine's
    bundle_mb: float = Field(200.0, ge=0)  # test images above this size stay out of a bundle; `resume` then needs the data set


class RecommendOptions(Section):
    """What decides which artifact to ship."""

    objective: Literal["latency", "throughput", "size"] = "latency"
    batch: int | None = Field(None, ge=1)  # batch size judged; None: the smallest for latency, the largest for throughput
    p99_ms: float | None = Field(None, gt=0)
    memory_mb: float | None = Field(None, gt=0)
    size_mb: float | None = Field(None, gt=0)


def _default_backends() -> dict[str, dict[str, Any]]:
    return {"torch": {}, "onnxruntime": {}}


class Recipe(Section):
    """One run, whole."""

    name: str = "custom"
    data: DataOptions = DataOptions()
    model: ModelOptions = ModelOptions()
    train: TrainOptions = TrainOptions()
    precisions: tuple[str, ...] = ("fp32", "fp16", "int8")
    calibrate: CalibrateOptions = CalibrateOptions()
    qat: QatOptions = QatOptions()
    backends: dict[str, dict[str, Any]] = Field(default_factory=_default_backends)
    targets: tuple[Target, ...] = (Target(device="cpu"),)
    validate_: ValidateOptions = Field(ValidateOptions(), alias="validate")
    measure: MeasureOptions = MeasureOptions()
    limits: LimitOptions = LimitOptions()
    recommend: RecommendOptions = RecommendOptions()

    @field_validator("backends", mode="before")
    @classmethod
    def _list_or_mapping(cls, value: Any) -> Any:
        """`[torch, onnxruntime]` is `{torch: {}, onnxruntime: {}}`."""
        if _are_names(value):
            return {name: {} for name in value}
        if isinstance(value, Mapping):
            return {name: {} if options is None else options for name, options in value.items()}
        return value

    @field_validator("precisions", "targets", "backends")
    @classmethod
    def _not_empty(cls, value: Any) -> Any:
        if not value:
            raise ValueError("needs at least one entry")
        return value


class _Loader(yaml.SafeLoader):
    """Says so where a key stands twice, instead of quietly taking the last one."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen: set[str] = set()
        for key in (key for key, _ in node.value if isinstance(key, yaml.ScalarNode)):
            if key.value in seen:
                raise yaml.constructor.ConstructorError(None, None, f"the key '{key.value}' stands there twice", key.start_mark)
            seen.add(key.value)
        return super().construct_mapping(node, deep)


def load_recipe(path: Path, settings: Iterable[str] = ()) -> Recipe:
    """Reads a recipe and lays `settings` (`train.epochs=5`, YAML values) over it.

    Raises:
        RecipeError: unreadable file, unknown key, wrong value.
    """
    try:
        document = yaml.load(path.read_text(encoding="utf-8"), _Loader)
    except OSError as error:
        raise RecipeError(f"the recipe {path} cannot be read", found=str(error.strerror), remedy="give the path of a YAML file") from error
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise RecipeError(f"the recipe {path} is not YAML", found=" ".join(str(error).split()), remedy="mend the file there") from error
    if not isinstance(document, dict):
        raise RecipeError(f"the recipe {path} holds no keys", found=type(document).__name__, remedy="write it as key: value")
    for setting in settings:
        document = _with_setting(document, setting)
    document.setdefault("name", path.stem)
    return parse_recipe(document, source=str(path))


def parse_recipe(document: Mapping[str, Any], source: str) -> Recipe:
    """A checked recipe of plain values. `source` names where they came from in messages."""
    try:
        return Recipe.model_validate(document)
    except ValidationError as error:
        raise _translated(error, source) from error


def _with_setting(document: dict[str, Any], setting: str) -> dict[str, Any]:
    key, equals, text = setting.partition("=")
    if not equals or not key.strip():
        raise RecipeError(f"'{setting}' sets nothing", remedy="write --set key=value, for example --set train.epochs=5")
    try:
        value = yaml.load(text, _Loader)
    except yaml.YAMLError as error:
        raise RecipeError(f"the value of --set {setting} is not YAML", found=" ".join(str(error).split()), remedy="quote it") from error
    return _placed(document, key.strip().split("."), value)


def _are_names(value: Any) -> bool:
    return isinstance(value, list | tuple) and all(isinstance(name, str) for name in value)


def _placed(node: Any, path: list[str], value: Any) -> dict[str, Any]:
    """A copy of `node` with `value` at `path`; a list of names on the way (backends) becomes a mapping."""
    if _are_names(node):
        node = {name: {} for name in node}
    branch = dict(node) if isinstance(node, Mapping) else {}
    branch[path[0]] = value if len(path) == 1 else _placed(branch.get(path[0]), path[1:], value)
    return branch


def _translated(error: ValidationError, source: str) -> RecipeError:
    first = error.errors()[0]
    location = [str(part) for part in first["loc"]]
    key = ".".join(location)
    more = f" (and {error.error_count() - 1} more)" if error.error_count() > 1 else ""
    if first["type"] == "extra_forbidden":
        near = _nearest(location)
        hint = f"did you mean {' or '.join(near)}?" if near else f"known there: {', '.join(_siblings(location[:-1]))}"
        return RecipeError(f"{source}: there is no key '{key}'{more}", remedy=hint)
    message = first["msg"].removeprefix("Value error, ")
    cause = first.get("ctx", {}).get("error")
    if isinstance(cause, RecipeError):
        return cause
    return RecipeError(f"{source}: {key} has a wrong value{more}", found=f"{first['input']!r}: {message}", remedy=f"correct {key}")


def _nearest(location: list[str]) -> list[str]:
    """The keys that an unknown one was probably meant to be: one like it in its section, or all of its name in others."""
    *section, name = location
    if near := difflib.get_close_matches(name, _siblings(section), n=1):
        return [".".join([*section, near[0]])]
    keys = known_keys()
    namesakes = [key for key in keys if key.rsplit(".")[-1] == name]
    return namesakes or difflib.get_close_matches(".".join(location), keys, n=1, cutoff=0.8)


def known_keys() -> list[str]:
    """Every key of a recipe, dotted."""
    return sorted(_keys(Recipe, ""))


def _keys(section: type[BaseModel], prefix: str) -> Iterable[str]:
    for name, field in section.model_fields.items():
        key = f"{prefix}{field.alias or name}"
        yield key
        kind = field.annotation
        if isinstance(kind, type) and not typing.get_origin(kind) and issubclass(kind, Section):
            yield from _keys(kind, f"{key}.")


def _siblings(location: list[str]) -> list[str]:
    prefix = "".join(f"{part}." for part in location)
    return [k.removeprefix(prefix) for k in known_keys() if k.startswith(prefix) and "." not in k.removeprefix(prefix)]
