"""Training by the recipe's framework, to one checkpoint file; and the command `train`, which does nothing else.

PyTorch trains in this process, alone or as one of a group that `torchrun` started; another framework in a process of its own.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from deploycnn import units
from deploycnn.disk import make_folder, write_atomic
from deploycnn.environment import environment, usable_cores
from deploycnn.errors import EXIT_OK, RecipeError, TrainingError, Unavailable
from deploycnn.pipeline.console import Talk
from deploycnn.pipeline.context import Context, memory_limit
from deploycnn.recipe import Recipe
from deploycnn.store import Store, cache_root
from deploycnn.train.frameworks import Framework, Task, check_options, framework_class
from deploycnn.types import Preprocessing, Progress, ProgressCallback
from deploycnn.workers.training import TrainWorker

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from torch import nn

    from deploycnn.pipeline.preparing import Images

OWN = "torch"  # trained in this process
TWIN_IMAGES = 1000  # real ones, on which the PyTorch twin must answer as the framework does
TWIN_TOLERANCE = 1e-4  # of the largest logit


def check_framework(recipe: Recipe) -> None:
    """Raises RecipeError where the recipe's framework is not known or cannot train what the recipe says.

    Raises:
        Unavailable: its packages are not installed; names the extra.
    """
    framework = framework_class(recipe.model.framework)()
    if recipe.model.weights is not None or recipe.model.onnx is not None or framework.name == OWN:
        return
    check_options(framework.name, recipe.model.name, recipe.train.model_dump(mode="json"))
    readiness = framework.probe()
    if readiness.state != "ready":
        raise Unavailable(f"model.framework is {framework.name}", found=readiness.reason, remedy=readiness.remedy)


def training_packages(recipe: Recipe) -> tuple[str, ...]:
    """Distributions whose versions take part in the trained weights."""
    modules = framework_class(recipe.model.framework).modules.values()
    return tuple({"torch", *modules, *(("tensorflow-cpu",) if "tensorflow" in modules else ())})


def train_network(context: Context, images: Images, preprocessing: Preprocessing, path: Path, digest: str) -> None:
    """Trains the recipe's network and writes the checkpoint.

    Args:
        digest: names the folder where a stopped training is gone on from.
    """
    from deploycnn.models import checkpoint

    options = context.recipe.model
    shape_CHW, classes = images.facts.shape_CHW, images.facts.classes
    work = context.store.shared(f"training/{digest[:16]}")
    framework = framework_class(options.framework)()
    how = f" with {framework.title}" if framework.name != OWN else ""
    with context.talk.stage(f"train {options.name}{how}") as progress:
        if framework.name == OWN:
            module, training = _own(context, images, preprocessing, work, progress)
        else:
            module, training = _elsewhere(framework, context, images, preprocessing, work, progress)
    facts = checkpoint.facts_of(options, classes, shape_CHW, preprocessing, training=training)
    checkpoint.save_checkpoint(path, module, facts)
    context.talk.say(_said(training, how))


def _said(training: dict[str, Any], how: str) -> str:
    rate = units.rate(training["images_per_s"], "images")
    text = f"train: {training['epochs']} epochs{how} at {rate}, validation top-1 {units.percent(training['validation_top1'])}"
    if training.get("processes", 1) > 1:
        batch, lr = training["effective_batch"], training["options"]["lr"]
        text += f"; {training['processes']} processes share each batch: effective batch {batch}, learning rate {lr:g} as for one process"
    if "twin_difference" in training:
        text += (
            f"; its PyTorch twin differs by {training['twin_difference']:.1e} of the largest logit on {training['twin_images']:,} images"
        )
    return text


def _own(
    context: Context, images: Images, preprocessing: Preprocessing, work: Path, progress: ProgressCallback
) -> tuple[nn.Module, dict[str, Any]]:
    import deploycnn.train as training
    from deploycnn.models import build_model

    recipe = context.recipe
    module = build_model(recipe.model, images.facts.shape_CHW, len(images.facts.classes), seed=recipe.train.seed)
    result = training.train(module, images.dataset, images.splits, recipe.train, preprocessing, work, context.resume, progress)
    return result.module, dict(result.facts)


# --- another framework ----------------------------------------------------------------------


def _elsewhere(
    framework: Framework, context: Context, images: Images, preprocessing: Preprocessing, work: Path, progress: ProgressCallback
) -> tuple[nn.Module, dict[str, Any]]:
    """The PyTorch twin with the weights of the epoch that is best on the validation part, as `train.train` keeps it."""
    from deploycnn.train import batch_sizes, epoch_order

    options, splits, dataset = context.recipe.train, images.splits, images.dataset
    threads = options.threads or usable_cores()
    log = context.log(framework.name, "train")
    sizes = batch_sizes(len(splits.train_N), options.batch)
    with TrainWorker(framework.name, log_path=log, threads=threads, memory_bytes=context.memory_bytes) as worker:
        seen = worker.facts(framework.name)
        device = "cuda" if options.device != "cpu" and (options.device == "cuda" or seen.count("cuda")) else "cpu"
        task = Task(
            width=context.recipe.model.width,
            shape_CHW=images.facts.shape_CHW,
            n_classes=len(images.facts.classes),
            preprocessing=preprocessing,
            lr=options.lr,
            seed=options.seed,
            threads=threads,
            device="cuda" if device == "cuda" else "cpu",
        )
        worker.begin(framework.name, task, dataset.train.images_NCHW[splits.train_N], dataset.train.labels_N[splits.train_N])
        kept = _Kept(work, framework.name, resume=context.resume)
        if kept.state is not None:
            worker.restore(kept.state)
        labels_N = np.asarray(dataset.train.labels_N[splits.validation_N])
        while len(kept.history) < options.epochs:
            number = len(kept.history) + 1
            tell = _in_epoch(progress, number, options.epochs, len(splits.train_N))
            done = worker.epoch(epoch_order(options.seed, number, len(splits.train_N)), sizes, tell)
            if not np.isfinite(done.loss):
                found = f"the loss of epoch {number} is not a number, at learning rate {options.lr:g}"
                remedy = f"lower train.lr, for example to {options.lr / 4:g}, and train from the start"
                raise TrainingError("training has diverged", found=found, remedy=remedy)
            logits_NK = worker.logits(dataset.train.images_NCHW[splits.validation_N])
            top1 = float((logits_NK.argmax(axis=1) == labels_N).mean())
            kept.add({"epoch": number, "loss": done.loss, "train_s": done.train_s, "validation_top1": top1}, worker.state())
        worker.restore(kept.best)
        module, difference, n_images = _twin(worker, context, images, preprocessing)
    best = kept.history[kept.best_epoch - 1]
    return module, {
        "framework": framework.name,
        "versions": seen.version,
        "epochs": len(kept.history),
        "best_epoch": kept.best_epoch,
        "validation_top1": best["validation_top1"],
        "images_per_s": float(np.median([len(splits.train_N) / epoch["train_s"] for epoch in kept.history])),
        "seconds": sum(epoch["train_s"] for epoch in kept.history),
        "n_train": len(splits.train_N),
        "n_validation": len(splits.validation_N),
        "data": dataset.name,
        "data_official": dataset.official,
        "data_sha256": dataset.sha256,
        "options": options.model_dump(mode="json"),
        "device": next(d.name for d in seen.devices if d.kind == "cuda") if device == "cuda" else "cpu",
        "threads": threads,
        "machine": environment().summary,
        "twin_difference": difference,
        "twin_images": n_images,
    }


class _Kept:
    """What a stopped training is gone on from: one file, replaced whole after each epoch."""

    def __init__(self, folder: Path, framework: str, *, resume: bool) -> None:
        self._path = folder / f"last-{framework}.npz"
        self.history: list[dict[str, Any]] = []
        self.best_epoch = 0
        self.state: bytes | None = None
        self.best = b""
        if resume and self._path.exists():
            self._read()

    def add(self, epoch: dict[str, Any], state: bytes) -> None:
        """One more epoch; the later of equals is the best."""
        self.history.append(epoch)
        self.state = state
        if self.best_epoch == 0 or epoch["validation_top1"] >= self.history[self.best_epoch - 1]["validation_top1"]:
            self.best_epoch, self.best = len(self.history), state
        self._write()

    def _write(self) -> None:
        import io
        import json

        buffer = io.BytesIO()
        parts = {"state": self.state or b"", "best": self.best}
        about = json.dumps({"history": self.history, "best_epoch": self.best_epoch}).encode()
        np.savez(buffer, allow_pickle=False, **{name: np.frombuffer(part, np.uint8) for name, part in {**parts, "about": about}.items()})
        write_atomic(self._path, buffer.getvalue())

    def _read(self) -> None:
        import json
        import zipfile

        try:
            with np.load(self._path, allow_pickle=False) as saved:
                about = json.loads(saved["about"].tobytes())
                self.history, self.best_epoch = list(about["history"]), int(about["best_epoch"])
                self.state, self.best = saved["state"].tobytes(), saved["best"].tobytes()
        except (ValueError, KeyError, OSError, EOFError, zipfile.BadZipFile) as error:
            found = " ".join(str(error).split())[:200]
            remedy = f"delete {self._path} and train from the start"
            raise TrainingError(f"{self._path} cannot be gone on from", found=found, remedy=remedy) from error


def _in_epoch(progress: ProgressCallback, number: int, epochs: int, n: int) -> ProgressCallback:
    def tell(step: Progress) -> None:
        progress(Progress(done=(number - 1) * n + step.done, total=epochs * n, unit="images", note=f"epoch {number}/{epochs}"))

    return tell


def _twin(worker: TrainWorker, context: Context, images: Images, preprocessing: Preprocessing) -> tuple[nn.Module, float, int]:
    """(the twin with the worker's weights, largest difference over the largest logit, images that were compared).

    Raises:
        TrainingError: the twin answers otherwise than the framework itself.
    """
    import torch

    from deploycnn.models import build_model

    module = build_model(context.recipe.model, images.facts.shape_CHW, len(images.facts.classes)).eval()
    module.load_state_dict({name: torch.from_numpy(array) for name, array in worker.weights().items()})
    chosen_N = images.splits.validation_N[:TWIN_IMAGES]
    images_NCHW: NDArray[np.uint8] = np.array(images.dataset.train.images_NCHW[chosen_N])
    theirs_NK = worker.logits(images_NCHW)
    mean_C11, std_C11 = (torch.tensor(values)[:, None, None] for values in (preprocessing.mean, preprocessing.std))
    with torch.inference_mode():
        ours_NK = module((torch.from_numpy(images_NCHW).float() / 255 - mean_C11) / std_C11).numpy()
    difference = float(np.abs(ours_NK - theirs_NK).max() / max(np.abs(theirs_NK).max(), 1e-30))
    if not difference <= TWIN_TOLERANCE:
        raise TrainingError(
            f"the PyTorch twin of the network that {context.recipe.model.framework} trained is to be exported",
            found=f"its logits differ by {difference:.1e} of the largest one on {len(chosen_N):,} images",
            remedy="report it, with the versions of both frameworks",
        )
    return module, difference, len(chosen_N)


# --- the command ----------------------------------------------------------------------------


def train_command(recipe: Recipe, out: Path, *, resume: bool, talk: Talk) -> int:
    """Trains by a recipe and writes the checkpoint `out`, for `model.weights` of another run.

    Under torchrun every process takes its share of each batch; the first one writes and talks.
    """
    import deploycnn.train as training
    from deploycnn.pipeline.preparing import prepare_images, preprocessing_of

    check_framework(recipe)
    if recipe.model.weights is not None or recipe.model.onnx is not None:
        raise RecipeError("this recipe trains nothing", found="model.weights or model.onnx", remedy="leave it out")
    if training.started_by_torchrun() and recipe.model.framework != OWN:
        raise RecipeError("torchrun starts PyTorch", found=f"model.framework {recipe.model.framework}", remedy="set model.framework=torch")
    with training.joined(recipe.train.device) as group:
        said = talk if group.leads else Talk(quiet=True)
        context = Context(
            recipe=recipe,
            store=Store(cache_root(), warn=said.warn),
            talk=said,
            environment=environment(),
            out=out.parent,
            memory_bytes=memory_limit(recipe, environment()),
            resume=resume,
        )
        make_folder(out.parent)
        images = prepare_images(context)
        preprocessing = preprocessing_of(context, images)
        digest = _name(recipe, images)
        if group.leads:
            train_network(context, images, preprocessing, out, digest)
            said.say(f"checkpoint: {out}; use it with --set model.weights={out}")
        else:
            _own(context, images, preprocessing, context.store.shared(f"training/{digest[:16]}"), lambda progress: None)
    return EXIT_OK


def _name(recipe: Recipe, images: Images) -> str:
    import hashlib

    text = recipe.model_dump_json(include={"model", "train", "data"}) + images.facts.sha256
    return hashlib.sha256(text.encode()).hexdigest()
