"""Two processes under torchrun train the network of one: same effective batch, same learning rate, accuracy within noise."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from deploycnn.errors import TrainingError
from deploycnn.train import Group, started_by_torchrun

SETTINGS = (
    "data.name=synthetic10",
    "data.fallback=null",
    "data.train=1500",
    "data.test=100",
    "data.validation=500",
    "data.calibration=100",
    "model.framework=torch",
    "model.mean=null",
    "model.std=null",
    "train.epochs=3",
    "train.device=cpu",
    "train.threads=1",
)


@pytest.mark.parametrize("n", [2, 7, 128, 129])
@pytest.mark.parametrize("size", [1, 2, 3])
def test_shares_of_a_batch_are_disjoint_whole_and_alike(n: int, size: int) -> None:
    shares = [Group(rank=rank, size=size).share(n) for rank in range(size)]
    assert [i for share in shares for i in range(n)[share]] == list(range(n))
    lengths = [len(range(n)[share]) for share in shares]
    assert max(lengths) - min(lengths) <= 1


def test_a_batch_that_leaves_a_process_without_images_is_refused() -> None:
    Group(size=2).check_batch(2)
    with pytest.raises(TrainingError, match=r"raise train\.batch"):
        Group(size=3).check_batch(2)


def test_torchrun_is_known_by_all_that_it_sets() -> None:
    variables = dict.fromkeys(("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT"), "1")
    assert started_by_torchrun(variables)
    assert not started_by_torchrun({name: value for name, value in variables.items() if name != "RANK"})


def trained(folder: Path, launcher: list[str]) -> tuple[dict[str, object], str]:
    """(what the checkpoint says of its training, what was printed)."""
    from deploycnn.models import checkpoint

    out = folder / "net.safetensors"
    command = [*launcher, "-m", "deploycnn.pipeline", "train", "mnist-keras", "--out", str(out)]
    command += [part for setting in SETTINGS for part in ("--set", setting)]
    environment = {**os.environ, "DEPLOYCNN_CACHE": str(folder / "cache"), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300, env=environment, cwd=folder)
    assert done.returncode == 0, done.stderr[-3000:]
    return dict(checkpoint.load_checkpoint(out)[1].training), done.stdout + done.stderr


@pytest.mark.slow
def test_two_gloo_processes_reach_the_accuracy_of_one(tmp_path: Path) -> None:
    (tmp_path / "one").mkdir()
    (tmp_path / "two").mkdir()
    one, _ = trained(tmp_path / "one", [sys.executable])
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    two, said = trained(tmp_path / "two", launcher)
    assert two["processes"] == 2
    assert two["effective_batch"] == 128
    assert "effective batch 128, learning rate 0.001 as for one process" in " ".join(said.split())
    n = 500  # validation images of synthetic10: two standard errors of a difference are 2 * sqrt(2 * p * (1 - p) / n)
    p = float(one["validation_top1"])  # type: ignore[arg-type]
    assert p > 0.15  # ten classes: it has learnt something
    assert abs(float(two["validation_top1"]) - p) <= 2 * (2 * p * (1 - p) / n) ** 0.5 + 1 / n  # type: ignore[arg-type]
