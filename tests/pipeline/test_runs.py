"""`runs` lists what was run; `runs prune` frees space, says how much, and leaves what a kept run needs."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from datetime import UTC, datetime

import pytest

from deploycnn.disk import lock
from deploycnn.environment import environment
from deploycnn.errors import EXIT_USAGE, RecipeError
from deploycnn.pipeline.runs import find_runs, plan_pruning, prune
from deploycnn.record import Cell, DataFacts, ModelFacts, Record
from deploycnn.recordfile import write_record
from deploycnn.store import Key
from deploycnn.types import Failed

DAY_S = 86400.0
NOW_S = time.time()


def made_record(age_days, graph, images="2" * 64):
    sizes = {"n_train": 1, "n_validation": 1, "n_calibration": 1, "n_test": 10}
    facts = {"name": "synthetic10", "asked": "cifar10", "source": "built in", "official": None, "sha256": images}
    return Record(
        deploycnn_version="0.1.0",
        created=datetime.fromtimestamp(NOW_S - age_days * DAY_S, UTC).isoformat(timespec="seconds"),
        command="deploycnn run",
        recipe={"name": "quickstart"},
        data=DataFacts(**facts, classes=("cat",), shape_CHW=(3, 32, 32), **sizes),
        model=ModelFacts(name="lenet", parameters=1, source="trained", checkpoint_sha256=None, graph_sha256=graph),
        environments={environment().id: environment()},
        reference=None,
        cells=(Cell(backend="tvm", precision="fp32", target="cpu", outcome=Failed(stage="compile", reason="no")),),
        stage_s={"train": 600.0},
    )


@pytest.fixture
def root(tmp_path):
    """Three runs, 1, 2 and 40 days old, of the graphs 1..., 2... and 3...; and what is no run."""
    root = tmp_path / "runs"
    for name, age_days, graph in (("new", 1, "1" * 64), ("mid", 2, "2" * 63 + "a"), ("old", 40, "3" * 64)):
        write_record(root / name, made_record(age_days, graph))
        (root / name / "artifact.bin").write_bytes(b"x" * 50_000)
    (root / "notes").mkdir()
    (root / "notes" / "mine.txt").write_text("no run")
    (root / "link").symlink_to(root / "new")
    return root


@pytest.fixture
def used(store):
    """Entries of the cache made from a graph's digest, or holding a file; last used so many days ago."""

    def make(stage, age_days, **parts):
        key = Key(stage=stage, parts=parts)
        store.build(key, lambda folder: (folder / "data.bin").write_bytes(json.dumps(parts).encode() * 100))
        manifest = next(facts.path for facts in store.entries() if facts.digest == key.digest) / "manifest.json"
        os.utime(manifest, (NOW_S - age_days * DAY_S,) * 2)
        return key

    return make


def names(runs):
    return [run.folder.name for run in runs]


def left(store):
    return {facts.digest for facts in store.entries()}


def test_runs_are_found_newest_first_and_nothing_else(root):
    found = find_runs(root)
    assert names(found) == ["new", "mid", "old"]
    assert all(run.size_bytes > 50_000 for run in found)
    assert find_runs(root / "nowhere") == []


@pytest.mark.parametrize(
    ("options", "removed"),
    [
        ({"keep": 2, "older_than_days": None}, ["old"]),
        ({"keep": 0, "older_than_days": None}, ["new", "mid", "old"]),
        ({"keep": 9, "older_than_days": None}, []),
        ({"keep": None, "older_than_days": 30}, ["old"]),
        ({"keep": None, "older_than_days": 1.5}, ["mid", "old"]),
        ({"keep": 2, "older_than_days": 1.5}, ["old"]),
    ],
)
def test_pruning_removes_what_was_asked_for_and_no_more(root, store, options, removed):
    chosen = plan_pruning(find_runs(root), store, now_s=NOW_S, **options)
    assert names(chosen.runs) == removed
    assert chosen.runs_bytes == sum(run.size_bytes for run in chosen.runs)
    prune(chosen, store)
    assert names(find_runs(root)) == [name for name in ("new", "mid", "old") if name not in removed]
    assert (root / "notes" / "mine.txt").is_file()


@pytest.mark.parametrize("options", [{"keep": None, "older_than_days": None}, {"keep": -1, "older_than_days": None}])
def test_pruning_that_says_nothing_is_an_error(root, store, options):
    with pytest.raises(RecipeError, match="--keep"):
        plan_pruning(find_runs(root), store, now_s=NOW_S, **options)


def test_what_a_kept_run_needs_of_the_cache_stays(root, store, used):
    needed = [used("variant", 60, graph="1" * 64), used("predictions", 60, artifact=["2" * 63 + "a"], images="9" * 64)]
    images = used("data-arrays", 60, content="8" * 64)
    same_images_only = used("train", 60, data="2" * 64)
    of_the_old = used("variant", 60, graph="3" * 64)
    of_a_newer_run_elsewhere = used("variant", 0.5, graph="7" * 64)
    chosen = plan_pruning(find_runs(root), store, keep=2, older_than_days=None, now_s=NOW_S)
    prune(chosen, store)
    assert left(store) == {key.digest for key in (*needed, images, of_a_newer_run_elsewhere)}
    assert {entry.digest for entry in chosen.entries} == {same_images_only.digest, of_the_old.digest}


def test_an_entry_is_needed_where_a_kept_record_names_one_of_its_files(root, store, used):
    key = used("train", 60, seed=1)
    manifest = json.loads((next(iter(store.entries())).path / "manifest.json").read_text())
    write_record(root / "new", made_record(1, manifest["files"][0]["sha256"]))
    prune(plan_pruning(find_runs(root), store, keep=1, older_than_days=None, now_s=NOW_S), store)
    assert left(store) == {key.digest}


def test_without_any_run_left_everything_unused_goes_but_what_was_just_used(root, store, used):
    used("data-arrays", 3, content="8" * 64)
    used("variant", 0.1, graph="1" * 64)
    just_now = used("variant", 0.01, graph="4" * 64)
    prune(plan_pruning(find_runs(root), store, keep=0, older_than_days=None, now_s=NOW_S), store)
    assert left(store) == {just_now.digest}


def test_a_run_in_which_somebody_works_stays(root, store):
    with lock(root / "old" / ".lock", "a run", wait_s=0):
        found = find_runs(root)
        assert [run.busy for run in found] == [False, False, True]
        chosen = plan_pruning(found, store, keep=0, older_than_days=None, now_s=NOW_S)
        assert names(chosen.runs) == ["new", "mid"]
    assert not find_runs(root)[2].busy


def test_a_killed_run_is_listed_and_can_be_removed(root, store):
    (root / "killed").mkdir()
    (root / "killed" / ".lock").touch()
    (root / "killed" / ".lock.owner").write_text('{"pid": 1, "since": "once", "purpose": "a run"}')
    (root / "damaged").mkdir()
    (root / "damaged" / "record.json").write_text("{")
    by_name = {run.folder.name: run for run in find_runs(root)}
    assert "end" in by_name["killed"].why
    assert "damaged" in by_name["damaged"].why
    assert not by_name["killed"].busy
    prune(plan_pruning(find_runs(root), store, keep=0, older_than_days=None, now_s=time.time() + 1), store)
    assert find_runs(root) == []


# --- as a user calls it ---------------------------------------------------------------------


@pytest.fixture
def deploycnn(tmp_path):
    def call(*arguments):
        variables = {**os.environ, "DEPLOYCNN_CACHE": str(tmp_path / "cache"), "COLUMNS": "80", "NO_COLOR": "1"}
        command = [sys.executable, "-m", "deploycnn.pipeline", *map(str, arguments)]
        return subprocess.run(command, capture_output=True, text=True, env=variables, cwd=tmp_path, timeout=120)

    return call


def test_the_list_says_when_recipe_data_best_and_machine(deploycnn, root):
    said = deploycnn("runs")
    assert said.returncode == 0, said.stderr
    for words in ("new", "quickstart", "synthetic10 (NOT cifar10)", "ships nothing", environment().summary.split(",")[0], "kB"):
        assert words in " ".join(said.stdout.split())
    assert max(map(len, said.stdout.splitlines())) <= 80
    rows = json.loads(deploycnn("runs", "--json", "--root", root).stdout)
    assert [row["recipe"] for row in rows] == ["quickstart"] * 3
    assert rows[0]["size_bytes"] > 50_000


def test_an_empty_list_says_how_to_begin(deploycnn, tmp_path):
    shutil.rmtree(tmp_path / "runs", ignore_errors=True)
    assert "deploycnn run" in deploycnn("runs").stdout


def test_a_dry_run_removes_nothing_and_says_the_same(deploycnn, root):
    dry = deploycnn("runs", "prune", "--keep", "1", "--dry-run")
    assert dry.returncode == 0, dry.stderr
    assert names(find_runs(root)) == ["new", "mid", "old"]
    real = deploycnn("runs", "prune", "--keep", "1")
    assert names(find_runs(root)) == ["new"]
    assert "would free" in dry.stdout
    freed = real.stdout.splitlines()[-1]
    assert freed.startswith("freed ")
    assert dry.stdout.splitlines()[-1].split(";")[0].split()[-2:] == freed.split(";")[0].split()[-2:]


def test_prune_without_a_choice_is_wrong_usage(deploycnn, root):
    said = deploycnn("runs", "prune")
    assert said.returncode == EXIT_USAGE
    assert "--keep" in said.stderr
    assert names(find_runs(root)) == ["new", "mid", "old"]
