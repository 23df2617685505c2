"""Where the figures come from: images, model, machine, doubts, and how to get them again."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from deploycnn import units
from deploycnn.environment import Environment
from deploycnn.record import Record
from deploycnn.report import remarks
from deploycnn.report.remarks import Remark, cell_name


@dataclass(frozen=True, kw_only=True)
class Digest:
    """One file's or artifact's SHA-256."""

    what: str
    where: str
    sha256: str


@dataclass(frozen=True, kw_only=True)
class Facts:
    """See the module."""

    images: tuple[tuple[str, str], ...]
    model: tuple[tuple[str, str], ...]
    machines: tuple[tuple[tuple[str, str], ...], ...]
    doubts: tuple[Remark, ...]
    notes: tuple[str, ...]
    noise_floor: tuple[tuple[str, str], ...]  # batch size, interval
    commands: tuple[tuple[str, str], ...]  # what for, command
    digests: tuple[Digest, ...]
    recipe: str  # YAML
    stages: tuple[tuple[str, str, float], ...]  # name, time, share of the longest


def facts(record: Record, folder: Path | None) -> Facts:
    """Everything that a reader needs to trust the figures or to make them again."""
    longest_s = max(record.stage_s.values(), default=1.0) or 1.0
    return Facts(
        images=tuple(_images(record)),
        model=tuple(_model(record)),
        machines=tuple(tuple(_machine(key, machine)) for key, machine in record.environments.items()),
        doubts=tuple(remarks.doubts(record)),
        notes=(*record.data.notes, *record.model.notes, *record.notes),
        noise_floor=tuple(
            (batch, f"{floor.value:.3f} ({floor.low:.3f} to {floor.high:.3f})") for batch, floor in record.noise_floor.items()
        ),
        commands=tuple(_commands(record, folder)),
        digests=tuple(_digests(record)),
        recipe=yaml.safe_dump(dict(record.recipe), sort_keys=False, allow_unicode=True, width=100),
        stages=tuple((name, units.seconds(time_s), time_s / longest_s) for name, time_s in record.stage_s.items()),
    )


def _images(record: Record) -> list[tuple[str, str]]:
    data = record.data
    shape = "x".join(map(str, data.shape_CHW))
    official = {True: "matches the publisher's digests", False: "not the publisher's files", None: "no publisher's digest exists"}
    return [
        ("data set", data.name if data.name == data.asked else f"{data.name} instead of {data.asked}"),
        ("source", data.source),
        ("authenticity", official[data.official]),
        ("shape", f"{shape} (channels x height x width), {len(data.classes)} classes"),
        ("training", f"{data.n_train:,} images, {data.n_validation:,} more for validation, {data.n_calibration:,} more for calibration"),
        ("test", f"{data.n_test:,} images, none of them in training or calibration"),
    ]


def _model(record: Record) -> list[tuple[str, str]]:
    model = record.model
    found = [("network", model.name + (f", {model.parameters:,} parameters" if model.parameters else ""))]
    found.append(("weights", {"trained": "trained in this run", "weights": "given", "onnx": "given as an ONNX graph"}[model.source]))
    found += [(words, text) for key, words, text in _training(model.training) if key in model.training]
    return found


def _training(training: Any) -> list[tuple[str, str, str]]:
    def of(key: str, text: str) -> str:
        return text.format(training[key]) if isinstance(training.get(key), int | float) else str(training.get(key, ""))

    return [
        ("epochs", "epochs", of("epochs", "{}")),
        ("validation_top1", "validation top-1", of("validation_top1", "{:.2%}").replace("%", " %")),
        ("images_per_s", "training speed", of("images_per_s", "{:,.0f} images/s")),
        ("seconds", "training time", units.seconds(training["seconds"]) if isinstance(training.get("seconds"), int | float) else ""),
        ("machine", "trained on", of("machine", "{}")),
    ]


def _machine(key: str, machine: Environment) -> list[tuple[str, str]]:
    cpu, memory = machine.cpu, machine.memory
    gpus = [f"{gpu.name}, {units.size(gpu.memory_bytes)}, compute capability {gpu.capability / 10}" for gpu in machine.gpus]
    limit = f" (this process may use {units.size(memory.limit_bytes)})" if memory.limit_bytes else ""
    return [
        ("machine id", key),
        ("CPU", f"{cpu.model}, {cpu.revision}"),
        ("instructions", " ".join(cpu.instruction_sets) or "not known"),
        ("cores", f"{cpu.usable_cores} usable of {cpu.logical_cores}"),
        ("frequency", f"governor {cpu.governor or 'not known'}, turbo {_on(cpu.turbo)}"),
        ("memory", units.size(memory.total_bytes) + limit),
        ("GPU", "; ".join(gpus) or f"none: {machine.gpu_reason}"),
        (
            "system",
            f"{machine.os.distribution or machine.os.name}, kernel {machine.os.release}, container {machine.os.container or 'none'}",
        ),
        ("Python", machine.python),
        ("packages", ", ".join(f"{name} {version}" for name, version in machine.packages.items())),
    ]


def _on(state: bool | None) -> str:
    return {True: "on", False: "off", None: "not known"}[state]


def _commands(record: Record, folder: Path | None) -> list[tuple[str, str]]:
    where = folder.as_posix() if folder else "RUN"
    return [
        ("the whole run", record.command),
        ("latencies again, nothing else", f"{record.command} --remeasure"),
        ("another decision from the same figures", f"deploycnn recommend {where} --p99-ms 2 --max-drop-pp 0.5"),
        ("this page and the tables again", f"deploycnn report {where}"),
        ("against a later run", f"deploycnn compare {where} NEW_RUN"),
    ]


def _digests(record: Record) -> list[Digest]:
    found = [Digest(what="images", where=record.data.name, sha256=record.data.sha256)]
    if record.model.checkpoint_sha256:
        found.append(Digest(what="checkpoint", where=record.model.name, sha256=record.model.checkpoint_sha256))
    found.append(Digest(what="fp32 graph", where=record.model.name, sha256=record.model.graph_sha256))
    found += [
        Digest(what=cell_name(cell), where=cell.folder or "", sha256=cell.artifact.sha256)
        for cell in record.cells
        if cell.artifact is not None
    ]
    return found
