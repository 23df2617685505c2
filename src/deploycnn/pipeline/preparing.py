"""From recipe to graph: the images, the network's weights, the fp32 ONNX file."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from deploycnn import data
from deploycnn.disk import file_sha256
from deploycnn.errors import ModelError, PrecisionError, RecipeError
from deploycnn.pipeline.context import Context, key
from deploycnn.pipeline.saved import read_variant, save_variant
from deploycnn.pipeline.training import train_network, training_packages
from deploycnn.precision import audit_calibration
from deploycnn.record import CalibrationFacts, DataFacts, ModelFacts
from deploycnn.types import Preprocessing, Variant

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from deploycnn.models.checkpoint import CheckpointFacts

SAMPLE_IMAGES = 65  # proves batch 1, 3, 64 and one more than that
CHECKPOINT = "checkpoint.safetensors"
GIVEN_INT8 = "given.json"


@dataclass(frozen=True, kw_only=True, eq=False)
class HeldOut:
    """The test images: all that validating and measuring need of a data set."""

    images_NCHW: NDArray[np.uint8]
    labels_N: NDArray[np.int64]
    sha256: str  # over shape, pixels and labels
    classes: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class Images:
    """The data set of a run and its parts."""

    dataset: data.DataSet
    splits: data.Splits
    facts: DataFacts

    @property
    def calibration_NCHW(self) -> NDArray[np.uint8]:
        chosen: NDArray[np.uint8] = self.dataset.train.images_NCHW[self.splits.calibration_N]
        return chosen

    @property
    def held_out(self) -> HeldOut:
        test = self.dataset.test
        return HeldOut(images_NCHW=test.images_NCHW, labels_N=test.labels_N, sha256=test.sha256, classes=self.dataset.classes)

    @property
    def calibration_sha256(self) -> str:
        return self.part_sha256(self.splits.calibration_N)

    def part_sha256(self, index_N: NDArray[np.int64]) -> str:
        """Digest of training images by what they are: the data set's digest and their indices."""
        return hashlib.sha256(self.dataset.sha256.encode() + index_N.tobytes()).hexdigest()


@dataclass(frozen=True, kw_only=True)
class Graph:
    """The fp32 graph of a run and where it comes from."""

    variant: Variant
    facts: ModelFacts
    reused: tuple[str, ...]  # stages that came from the cache
    checkpoint: Path | None = None  # the weights; None for a user's ONNX file
    given_int8: Variant | None = None  # the user's own quantised file, which `variant` was derived from


def prepare_images(context: Context) -> Images:
    """Finds, fetches or makes the recipe's images, and parts them."""
    options = context.recipe.data
    with context.talk.stage(f"data {options.name}") as progress:
        dataset = data.load_dataset(options, context.store, progress, context.talk.warn)
    splits = data.split(dataset, options)
    _check_enough(context, len(dataset.test.labels_N))
    facts = DataFacts(
        name=dataset.name,
        asked=options.name,
        source=dataset.source,
        official=dataset.official,
        sha256=dataset.sha256,
        classes=dataset.classes,
        shape_CHW=tuple(dataset.train.images_NCHW.shape[1:]),
        n_train=len(splits.train_N),
        n_validation=len(splits.validation_N),
        n_calibration=len(splits.calibration_N),
        n_test=len(dataset.test.labels_N),
        calibration=_calibration_facts(dataset, splits),
        notes=(*dataset.notes, *splits.notes),
    )
    context.talk.say(
        f"data: {facts.name} from {facts.source}; {facts.n_train:,} training, {facts.n_validation:,} validation, "
        f"{facts.n_calibration:,} calibration, {facts.n_test:,} test images"
    )
    return Images(dataset=dataset, splits=splits, facts=facts)


def _calibration_facts(dataset: data.DataSet, splits: data.Splits) -> CalibrationFacts | None:
    """What the calibration images are; None where they can calibrate nothing, which every int8 cell then says.

    That no other part shares an image with them, data.split has made sure of.
    """
    chosen_N = splits.calibration_N
    try:
        audit = audit_calibration(dataset.train.images_NCHW[chosen_N], dataset.train.labels_N[chosen_N], dataset.classes)
    except PrecisionError:
        return None
    return CalibrationFacts(n_images=audit.n_images, per_class=audit.per_class, missing=audit.missing, sha256=audit.sha256)


def _check_enough(context: Context, n_test: int) -> None:
    largest = max(context.recipe.measure.batches)
    if n_test < largest:
        raise RecipeError(
            f"batch {largest} is to be measured on real images",
            found=f"{n_test} test images",
            remedy="lower measure.batches or raise data.test",
        )


def prepare_graph(context: Context, images: Images) -> Graph:
    """The user's own graph, or the export of given or newly trained weights."""
    if context.recipe.model.onnx is not None:
        return _adopted(context, images, context.recipe.model.onnx)
    checkpoint, source, reused = _checkpoint(context, images)
    return _exported(context, images, checkpoint, source, reused)


# --- weights ------------------------------------------------------------------------------


def _checkpoint(context: Context, images: Images) -> tuple[Path, str, tuple[str, ...]]:
    """(file, "weights" or "trained", reused stages)."""
    if context.recipe.model.weights is not None:
        return _given_weights(context, images), "weights", ()
    train_key = key(
        "train",
        code=("train", "models"),
        packages=training_packages(context.recipe),
        data=images.dataset.sha256,
        split=context.recipe.data.model_dump(mode="json", include={"validation", "calibration", "seed", "train", "test"}),
        model=context.recipe.model.model_dump(mode="json"),
        train=context.recipe.train.model_dump(mode="json"),
    )
    built = context.store.build(train_key, lambda folder: _train(context, images, folder, train_key.digest))
    if built.reused:
        context.talk.say("train: reused")
    return built.path / CHECKPOINT, "trained", ("train",) if built.reused else ()


def _given_weights(context: Context, images: Images) -> Path:
    """A checkpoint of ours as it is; a user's state_dict becomes one."""
    from deploycnn.models import checkpoint
    from deploycnn.models.fit import check_fit

    options = context.recipe.model
    weights = options.weights or ""
    path = checkpoint.find_weights(weights)
    if checkpoint.is_checkpoint(path):
        return path
    weights_key = key("weights", code=("models",), file=file_sha256(path), model=options.model_dump(mode="json"), data=images.facts.sha256)

    def convert(folder: Path) -> None:
        shape_CHW, classes = images.facts.shape_CHW, images.facts.classes
        module = checkpoint.load_weights(options, path, shape_CHW, len(classes))
        check_fit(module, shape_CHW, classes)
        facts = checkpoint.facts_of(options, classes, shape_CHW, preprocessing_of(context, images))
        checkpoint.save_checkpoint(folder / CHECKPOINT, module, facts)

    return context.store.build(weights_key, convert).path / CHECKPOINT


def _train(context: Context, images: Images, folder: Path, digest: str) -> None:
    train_network(context, images, preprocessing_of(context, images), folder / CHECKPOINT, digest)


def preprocessing_of(context: Context, images: Images) -> Preprocessing:
    """What is done to pixels before the network: as the recipe says, else the data set's usual constants."""
    options, dataset = context.recipe.model, images.dataset
    channels = dataset.shape_CHW[0]
    return Preprocessing(mean=_each(options.mean, channels) or dataset.mean, std=_each(options.std, channels) or dataset.std)


def _each(values: tuple[float, ...] | None, channels: int) -> tuple[float, ...] | None:
    """One value stands for every channel."""
    return values * channels if values is not None and len(values) == 1 else values


# --- graph --------------------------------------------------------------------------------


def _exported(context: Context, images: Images, path: Path, source: str, reused: tuple[str, ...]) -> Graph:
    sample_NCHW = images.calibration_NCHW[:SAMPLE_IMAGES]
    override = context.recipe.model.model_dump(mode="json", include={"mean", "std", "trust_pickle"})
    graph_key = key(
        "graph",
        code=("export", "graph", "models"),
        packages=("torch", "onnx", "onnxscript", "onnxruntime-gpu", "onnxruntime"),
        checkpoint=file_sha256(path),
        data=images.facts.sha256,
        override=override,
    )

    def make(folder: Path) -> None:
        from deploycnn.export import export_graph
        from deploycnn.models import checkpoint

        with context.talk.stage("export to ONNX"):
            module, facts = checkpoint.load_checkpoint(
                path, own_name=context.recipe.model.name, trust_pickle=context.recipe.model.trust_pickle
            )
            _check_fits(facts, images)
            preprocessing = _override_checked(context, facts)
            variant = export_graph(
                module,
                preprocessing,
                facts.shape_CHW,
                facts.classes,
                sample_NCHW,
                folder,
                {"data": images.facts.name, "checkpoint": file_sha256(path)},
            )
        save_variant(folder, variant)
        about = {"name": facts.model.name, "parameters": sum(p.numel() for p in module.parameters()), "training": dict(facts.training)}
        (folder / "model.json").write_text(json.dumps(about))

    built = context.store.build(graph_key, make)
    variant = read_variant(built.path)
    about: dict[str, Any] = json.loads((built.path / "model.json").read_text())
    facts = ModelFacts(
        name=about["name"],
        parameters=about["parameters"],
        source="weights" if source == "weights" else "trained",
        checkpoint_sha256=file_sha256(path),
        graph_sha256=variant.sha256,
        training=about["training"],
        notes=variant.notes,
    )
    context.talk.say("export: " + ("reused" if built.reused else "fp32 graph, batches 1, 3, 64 and 65 agree with PyTorch"))
    return Graph(variant=variant, facts=facts, reused=(*reused, "graph") if built.reused else reused, checkpoint=path)


def _check_fits(facts: CheckpointFacts, images: Images) -> None:
    if tuple(facts.shape_CHW) != tuple(images.facts.shape_CHW):
        raise ModelError(
            f"the checkpoint was made for images of {'x'.join(map(str, facts.shape_CHW))}",
            found=f"{images.facts.name} gives {'x'.join(map(str, images.facts.shape_CHW))}",
            remedy="choose the data set it was trained on, or set data.size and data.channels",
        )
    if tuple(facts.classes) != tuple(images.facts.classes):
        raise ModelError(
            f"the checkpoint knows {len(facts.classes)} classes: {', '.join(facts.classes)}",
            found=f"{images.facts.name} has {len(images.facts.classes)}: {', '.join(images.facts.classes)}",
            remedy="choose the data set it was trained on, or train on this one (leave out model.weights)",
        )


def _override_checked(context: Context, facts: CheckpointFacts) -> Preprocessing:
    own = facts.preprocessing
    options, channels = context.recipe.model, len(own.mean)
    asked = Preprocessing(mean=_each(options.mean, channels) or own.mean, std=_each(options.std, channels) or own.std)
    if asked != own:
        context.talk.warn(
            f"the recipe's preprocessing (mean {asked.mean}, std {asked.std}) differs from the checkpoint's "
            f"(mean {own.mean}, std {own.std}); the recipe's is used"
        )
    return asked


def _adopted(context: Context, images: Images, path: Path) -> Graph:
    from deploycnn.export import source_sha256

    options = context.recipe.model
    graph_key = key(
        "graph",
        code=("export", "graph"),
        packages=("onnx", "onnxruntime-gpu", "onnxruntime"),
        file=source_sha256(path),
        data=images.facts.sha256,
        override=options.model_dump(mode="json", include={"mean", "std"}),
    )

    def make(folder: Path) -> None:
        from deploycnn.export import adopt_graph, float_graph

        given = Preprocessing(mean=options.mean, std=options.std) if options.mean and options.std else None
        with context.talk.stage(f"take over {path.name}"):
            sample_NCHW = images.calibration_NCHW[:SAMPLE_IMAGES]
            variant = adopt_graph(path, given, images.facts.classes, images.facts.shape_CHW, sample_NCHW, folder)
            if variant.int8_form is not None:
                save_variant(folder, variant, GIVEN_INT8)
                variant = float_graph(variant, sample_NCHW, folder)
        _check_float32(variant, path)
        save_variant(folder, variant)

    built = context.store.build(graph_key, make)
    variant = read_variant(built.path)
    given_int8 = read_variant(built.path, GIVEN_INT8) if (built.path / GIVEN_INT8).exists() else None
    facts = ModelFacts(
        name=path.stem, parameters=None, source="onnx", checkpoint_sha256=None, graph_sha256=variant.sha256, notes=variant.notes
    )
    context.talk.say(f"graph: {path}" + (" (reused)" if built.reused else ""))
    return Graph(variant=variant, facts=facts, reused=("graph",) if built.reused else (), given_int8=given_int8)


def _check_float32(variant: Variant, path: Path) -> None:
    if variant.precision != "fp32":
        raise ModelError(
            f"{path.name} is to be compared with its fp32 reference",
            found=f"its weights are {variant.precision} already, and what was rounded off is not in the file",
            remedy="give the fp32 model: every other precision is made from it",
        )
