"""The graph that int8-qat is made of: the run's own network, fine-tuned while it is rounded, and exported again."""

from __future__ import annotations

from pathlib import Path

from deploycnn import units
from deploycnn.disk import file_sha256
from deploycnn.errors import PrecisionError
from deploycnn.pipeline.context import Context, key
from deploycnn.pipeline.preparing import SAMPLE_IMAGES, Graph, Images
from deploycnn.pipeline.saved import read_variant, save_variant
from deploycnn.types import Int8Form, Preprocessing, Variant


def fine_tuned(context: Context, graph: Graph, images: Images, form: Int8Form | None) -> Variant:
    """The fp32 graph of the fine-tuned network.

    Raises:
        PrecisionError: the model is an ONNX file, or the precision has no form.
        TrainingError: the fine-tuning cannot go on.
        ExportError: see export.
    """
    if graph.checkpoint is None or form is None:
        raise PrecisionError(
            "int8-qat goes on training the network",
            found="the model is an ONNX file, which cannot be trained" if graph.checkpoint is None else "no int8 form",
            remedy="give the PyTorch model (model.name, model.weights), or use int8 or int8-auto, which need no training",
        )
    checkpoint = graph.checkpoint
    model = context.recipe.model
    tuned_key = key(
        "fine-tuned",
        code=("train", "models", "export", "graph"),
        packages=("torch", "torchao", "onnx", "onnxscript", "onnxruntime-gpu", "onnxruntime"),
        checkpoint=file_sha256(checkpoint),
        override=model.model_dump(mode="json", include={"mean", "std", "trust_pickle"}),
        data=images.facts.sha256,
        split=[images.part_sha256(images.splits.train_N), images.part_sha256(images.splits.validation_N)],
        qat=context.recipe.qat.model_dump(mode="json"),
        form=form,
    )
    built = context.store.build(tuned_key, lambda folder: _make(context, images, checkpoint, form, folder))
    if built.reused:
        context.talk.say(f"fine-tune ({form}): reused")
    return read_variant(built.path)


def _make(context: Context, images: Images, path: Path, form: Int8Form, folder: Path) -> None:
    from deploycnn.export import export_graph
    from deploycnn.models import checkpoint
    from deploycnn.train.fine_tuning import fine_tune

    model = context.recipe.model
    module, facts = checkpoint.load_checkpoint(path, own_name=model.name, trust_pickle=model.trust_pickle)
    own = facts.preprocessing
    preprocessing = Preprocessing(mean=model.mean or own.mean, std=model.std or own.std)
    with context.talk.stage(f"fine-tune ({form})") as progress:
        tuned = fine_tune(module, images.dataset, images.splits, context.recipe.qat, preprocessing, form, progress)
    said = (
        f"fine-tuned while rounded ({form}), {context.recipe.qat.epochs} epochs: validation top-1 of the rounded network "
        f"{units.percent(tuned.before)} before, {units.percent(tuned.after)} after"
        + (f" epoch {tuned.epoch}" if tuned.epoch else "; no epoch was better, so the weights are the given ones")
    )
    sample_NCHW = images.calibration_NCHW[:SAMPLE_IMAGES]
    metadata = {"data": images.facts.name, "checkpoint": file_sha256(path)}
    variant = export_graph(module, preprocessing, facts.shape_CHW, facts.classes, sample_NCHW, folder, metadata)
    save_variant(folder, variant.model_copy(update={"notes": (*variant.notes, said)}))
    context.talk.say(said)
