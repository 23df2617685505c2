"""Accuracy of every artifact of the checkpoints that ship, on all test images: prints the tables, or writes them into the cards.

    python benchmarks/cards.py --root DIR [--write] [--backends torch,onnxruntime,openvino] [--precisions fp32,fp16,int8]

DIR holds cifar-10-batches-py. Latency is measured with the smallest budget there is and not printed: this is about accuracy.
A card has a table for each kind of CPU that it was written on: int8 has another form where there is no VNNI.
Promised: int8 is within 0.5 pp of fp32 for both networks; the last column says so with its 95 % interval.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import tempfile
from pathlib import Path

from deploycnn import units
from deploycnn.disk import write_atomic
from deploycnn.environment import has_vnni
from deploycnn.record import Cell, Record
from deploycnn.recordfile import read_record

MODELS = Path(__file__).parents[1] / "models"
CARDS = {"lenet-cifar10": "lenet", "resnet8-cifar10": "resnet8"}
BEGIN, END = "<!-- accuracy, {cpu}: written by benchmarks/cards.py -->", "<!-- end of accuracy -->"
PROMISED_PP = 0.5


def run(weights: str, model: str, arguments: argparse.Namespace, out: Path) -> Record:
    """One run of the pipeline with a shipped checkpoint, nothing trained."""
    settings = [
        "data.name=cifar10",
        f"data.root={arguments.root}",
        "data.download=false",
        f"model.name={model}",
        f"model.weights={weights}",
        f"precisions=[{arguments.precisions}]",
        f"backends=[{arguments.backends}]",
        "targets=[cpu]",
        f"validate.max_drop_pp={PROMISED_PP}",
        "measure.batches=[1]",
        "measure.budget_s=1",
        "measure.min_rounds=2",
        "measure.processes=1",
    ]
    flags = [part for setting in settings for part in ("--set", setting)]
    command = [sys.executable, "-m", "deploycnn.pipeline", "run", "cifar10", *flags, "--out", str(out)]
    finished = subprocess.run(command, stdout=subprocess.DEVNULL)
    if finished.returncode not in (0, 1):  # 1: nothing to ship, still a whole run
        sys.exit(finished.returncode)
    return read_record(out)


def table(record: Record) -> list[str]:
    """A card's table: one row for each cell that was validated."""
    lines = [
        "| artifact | top-1 | loses, 95 % one-sided interval | agreement | relative logit error | ran in |",
        "|---|--:|--:|--:|--:|---|",
    ]
    return lines + [row(cell, record.reference) for cell in record.cells if cell.accuracy]


def row(cell: Cell, reference: str | None) -> str:
    accuracy = cell.accuracy
    assert accuracy is not None
    drop = accuracy.drop
    kinds = sorted({layer.precision for layer in cell.ran.layers}) if cell.ran else []
    form = f" ({cell.int8_form})" if cell.int8_form else ""
    texts = [
        f"{cell.backend} {cell.precision}{form}",
        units.percent(accuracy.top1.value),
        "reference" if cell.name == reference else f"{units.points(drop.value)} ({units.points(drop.low)} to {units.points(drop.high)})",
        units.percent(accuracy.agreement),
        f"{accuracy.relative_logit_error:.2g}",
        " and ".join(kinds),
    ]
    return f"| {' | '.join(texts)} |"


def cpu_kind(record: Record) -> str:
    """What decides the form of int8, and with it the numbers: this CPU, and whether it multiplies bytes without saturating."""
    cpu = next(iter(record.environments.values())).cpu
    return f"{cpu.model}, {'with' if has_vnni() else 'without'} VNNI"


def section(record: Record) -> str:
    """What stands between the marks of a card."""
    data, cpu = record.data, cpu_kind(record)
    where = "the copy described below" if not data.official else "the official files"
    about = (
        f"{data.n_test:,} test images of {where}, through each compiled artifact itself, against PyTorch fp32 on the same images; "
        f"plain PTQ on {data.n_calibration} calibration images:"
    )
    return "\n".join([BEGIN.format(cpu=cpu), f"## Accuracy of the artifacts: {cpu}", "", about, "", *table(record), END])


def with_section(card: str, text: str) -> str:
    """The card with its section for this kind of CPU replaced, or with a new one in front of the data's."""
    begin = text.partition("\n")[0]
    if begin in card:
        return re.sub(f"{re.escape(begin)}.*?{re.escape(END)}", lambda _: text, card, flags=re.DOTALL)
    front, mark, rest = card.partition("## Data:")
    return f"{front}{text}\n\n{mark}{rest}"


def verdicts(record: Record) -> list[str]:
    """Whether every int8 row keeps what is promised."""
    found = []
    for cell in record.cells:
        if cell.precision.startswith("int8") and cell.accuracy:
            drop = cell.accuracy.drop
            kept = "kept" if drop.value <= PROMISED_PP / 100 else "NOT kept"
            sure = (
                "also at the end of its interval" if drop.high <= PROMISED_PP / 100 else f"its interval reaches {units.points(drop.high)}"
            )
            found.append(f"{cell.name}: loses {units.points(drop.value)}, within {PROMISED_PP} pp: {kept}, {sure}")
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--root", type=Path, required=True)
    parser.add_argument("--backends", default="torch,onnxruntime,openvino")
    parser.add_argument("--precisions", default="fp32,fp16,int8")
    parser.add_argument("--cards", default=",".join(CARDS))
    parser.add_argument("--write", action="store_true", help="write the tables into models/*.md")
    arguments = parser.parse_args()
    for weights in arguments.cards.split(","):
        with tempfile.TemporaryDirectory() as folder:
            record = run(weights, CARDS[weights], arguments, Path(folder) / "run")
        text = section(record)
        print(f"# {weights}\n{text}\n" + "\n".join(verdicts(record)) + "\n", flush=True)
        if arguments.write:
            card = MODELS / f"{weights}.md"
            write_atomic(card, with_section(card.read_text(encoding="utf-8"), text))


if __name__ == "__main__":
    main()
