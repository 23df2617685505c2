"""A run's deferred cells are finished elsewhere: another folder, an empty cache, a made-up GPU of the null backend."""

from __future__ import annotations

import io
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import jsonschema
import numpy as np
import pytest
from rich.console import Console

from deploycnn.environment import environment
from deploycnn.errors import EXIT_ENVIRONMENT, DataError, RecipeError, RecordError
from deploycnn.pipeline import resuming
from deploycnn.pipeline.bundle import BUNDLE_NAME, read_bundle
from deploycnn.pipeline.console import Talk
from deploycnn.pipeline.resuming import ResumeOptions, resume_run
from deploycnn.recordfile import read_record, record_schema
from deploycnn.report.compare import compare_runs
from deploycnn.report.machines import parts
from deploycnn.samples import read_samples

NULL, RUNTIME, REFERENCE = "null/fp32/cuda:sm89", "onnxruntime/fp32/cuda:sm89", "onnxruntime/fp32/cpu"
RECIPE = """
data: {name: synthetic10, train: 300, test: 120, validation: 100, calibration: 66}
model: {onnx: net.onnx, mean: [0.5, 0.5, 0.5], std: [0.25, 0.25, 0.25]}
precisions: [fp32]
backends: {onnxruntime: {}, "null": {}}
targets: [cpu, "cuda:sm89"]
measure: {batches: [1, 4], budget_s: 0.5, processes: 1, min_rounds: 2, block_s: 0.01}
"""


def save_net(path: Path) -> None:
    """Conv, ReLU, mean, product: enough to be a graph."""
    import onnx
    from onnx import helper, numpy_helper

    rng = np.random.default_rng(0)
    weights = {"w": rng.normal(size=(8, 3, 3, 3)) * 0.2, "v": rng.normal(size=(8, 10))}
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["a"], pads=[1, 1, 1, 1]),
        helper.make_node("Relu", ["a"], ["b"]),
        helper.make_node("GlobalAveragePool", ["b"], ["c"]),
        helper.make_node("Flatten", ["c"], ["d"]),
        helper.make_node("MatMul", ["d", "v"], ["y"]),
    ]
    tensors = [numpy_helper.from_array(value.astype(np.float32), name) for name, value in weights.items()]
    ends = [helper.make_tensor_value_info("x", 1, ["n", 3, 32, 32]), helper.make_tensor_value_info("y", 1, ["n", 10])]
    graph = helper.make_graph(nodes, "net", ends[:1], ends[1:], tensors)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)


@pytest.fixture(scope="module")
def finished_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of another process, whose cache and working folder are gone."""
    folder = tmp_path_factory.mktemp("first-machine")
    save_net(folder / "net.onnx")
    (folder / "tiny.yaml").write_text(RECIPE)
    command = [sys.executable, "-m", "deploycnn.pipeline", "run", "tiny.yaml", "--out", "run"]
    variables = {**os.environ, "DEPLOYCNN_CACHE": str(folder / "cache"), "DEPLOYCNN_NULL_DEVICE": "", "CUDA_VISIBLE_DEVICES": ""}
    said = subprocess.run(command, cwd=folder, env=variables, capture_output=True, text=True, timeout=300)
    assert said.returncode == 0, said.stderr
    assert "bundle: 2 cells wait for another machine; " in said.stderr
    kept = tmp_path_factory.mktemp("carried") / "run"
    shutil.move(folder / "run", kept)
    shutil.rmtree(folder)
    return kept


@pytest.fixture
def run(finished_run: Path, tmp_path: Path) -> Path:
    """A copy of that run, somewhere else."""
    return Path(shutil.copytree(finished_run, tmp_path / "elsewhere" / "run"))


@pytest.fixture
def said() -> io.StringIO:
    return io.StringIO()


@pytest.fixture
def resume(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, said: io.StringIO, request: pytest.FixtureRequest
) -> Iterator[Callable[..., int]]:
    """Resumes with a cache of this test's own. `gpu`: what is made up to be here; real ones are hidden, but from tests marked gpu."""
    if request.node.get_closest_marker("gpu") is None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
        environment.cache_clear()

    def call(run: Path, gpu: str = "", **options: object) -> int:
        monkeypatch.setenv("DEPLOYCNN_CACHE", str(tmp_path / "cache"))
        monkeypatch.setenv("DEPLOYCNN_NULL_DEVICE", gpu)
        return resume_run(run, ResumeOptions(**options), Talk(console=Console(file=said, width=400)))

    yield call
    environment.cache_clear()


# --- the bundle -------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_bundle_lists_everything_by_relative_paths(finished_run: Path) -> None:
    bundle = read_bundle(finished_run)
    assert [bundled.cell.name for bundled in bundle.cells] == [RUNTIME, NULL]
    assert bundle.reference.cell.name == REFERENCE
    names = {entry.name for entry in bundle.files}
    assert {"bundle/reference.npy", "bundle/test.npz", "bundle/variants/fp32/variant.json"} <= names
    assert not [name for name in names if Path(name).is_absolute() or not (finished_run / name).is_file()]
    assert "first-machine" not in (finished_run / BUNDLE_NAME).read_text()
    logits_NK = np.load(finished_run / "bundle/reference.npy")
    assert logits_NK.shape == (120, 10)


@pytest.mark.slow
@pytest.mark.parametrize("how", ["cut", "changed", "missing"])
@pytest.mark.parametrize("name", ["bundle/reference.npy", "bundle/test.npz", "bundle/variants/fp32/graph.onnx"])
def test_a_damaged_file_is_named_and_nothing_is_touched(run: Path, resume: Callable[..., int], name: str, how: str) -> None:
    data = (run / name).read_bytes()
    if how == "missing":
        (run / name).unlink()
    else:
        (run / name).write_bytes(data[:-9] if how == "cut" else data[:-1] + bytes([data[-1] ^ 1]))
    before = (run / "record.json").read_bytes()
    with pytest.raises(RecordError) as caught:
        resume(run, "sm89")
    assert name in caught.value.found
    assert {"cut": "bytes instead of", "changed": "changed", "missing": "missing"}[how] in caught.value.found
    assert (run / "record.json").read_bytes() == before


@pytest.mark.slow
@pytest.mark.parametrize(
    ("text", "word"),
    [
        ("", "damaged"),
        ("{}", "damaged"),
        ("[1]", "damaged"),
        (None, "holds no bundle.json"),
        ("version", "schema version 9"),
        ("stray", "outside"),
    ],
)
def test_a_bundle_that_is_none_is_one_message(run: Path, resume: Callable[..., int], text: str | None, word: str) -> None:
    path = run / BUNDLE_NAME
    document = json.loads(path.read_text())
    if text is None:
        path.unlink()
    elif text == "version":
        path.write_text(json.dumps({**document, "schema_version": 9}))
    elif text == "stray":
        path.write_text(json.dumps({**document, "logits": "../reference.npy"}))
    else:
        path.write_text(text)
    with pytest.raises(RecordError) as caught:
        resume(run)
    assert word in str(caught.value)


def stopped(*_: object) -> None:
    """Ctrl-C while measuring."""
    raise KeyboardInterrupt


# --- finishing --------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_machine_without_the_device_says_so_and_measures_nothing(run: Path, resume: Callable[..., int], said: io.StringIO) -> None:
    before = read_record(run)
    assert resume(run) == EXIT_ENVIRONMENT
    after = read_record(run)
    assert after.sessions == ()
    for name in (NULL, RUNTIME):
        old, new = before.cell(name), after.cell(name)
        assert old is not None
        assert new is not None
        assert new.outcome.state == "deferred"
        assert new.outcome.waits_for
        assert new.artifact == old.artifact
        assert f"{name} still waits: {new.outcome.waits_for}" in said.getvalue()


@pytest.mark.slow
def test_the_machine_that_was_waited_for_finishes_the_run(run: Path, resume: Callable[..., int], said: io.StringIO, capsys) -> None:
    before, text = read_record(run), (run / "record.json").read_bytes()
    assert resume(run, "sm89") == 0
    assert f"{NULL}: its artifact fits" in said.getvalue()
    record = read_record(run)
    jsonschema.validate(json.loads((run / "record.json").read_text()), record_schema())
    cell = record.cell(NULL)
    assert cell is not None
    assert cell.outcome.state == "done"
    assert cell.machine in record.environments
    assert cell.folder == "artifacts/null-fp32-cuda-sm89"
    assert cell.accuracy is not None
    assert cell.accuracy.n_images == 120
    assert {latency.batch for latency in cell.latencies} == {1, 4}
    assert all(latency.ratio is not None for latency in cell.latencies)
    assert {latency.boundary for latency in cell.device_latencies} == {"device"}
    runtime = record.cell(RUNTIME)
    assert runtime is not None
    assert runtime.outcome.state == "deferred"

    (session,) = record.sessions
    assert session.finished == {NULL: NULL}
    assert session.reference is not None
    assert session.reference.name == REFERENCE
    assert session.reference.accuracy is not None
    assert session.reference.accuracy.agreement == 1.0  # with its own answers where the run began
    assert (run / session.folder / "record-before.json").read_bytes() == text
    unchanged = [name for name in (REFERENCE, "null/fp32/cpu") if before.cell(name) == record.cell(name)]
    assert unchanged == [REFERENCE, "null/fp32/cpu"]

    own = read_samples(run / session.folder)
    assert {latency.samples for latency in (*cell.latencies, *cell.device_latencies)} <= set(own)
    assert not [name for name in read_samples(run) if name.startswith(NULL)]

    first, second = parts(record)
    assert NULL not in [found.name for found in first.cells]
    assert [found.name for found in second.cells] == [REFERENCE, NULL]
    assert capsys.readouterr().out.count("Measured on ") == 2
    report, table = (run / "report.md").read_text(), (run / "latency.csv").read_text().splitlines()
    assert report.count("*Measured on ") == 2
    boundaries = [line.split(",")[9] for line in table if line.startswith("null,fp32,cuda:sm89")]
    assert sorted(boundaries) == ["device", "device", "host-to-host", "host-to-host"]

    comparison = compare_runs([run, run])
    assert not [row for row in comparison.changes if row.verdict in ("worse", "better")]
    assert resume(run, "sm89") == EXIT_ENVIRONMENT  # what is left waits for a real GPU
    assert read_record(run).sessions == record.sessions


@pytest.mark.slow
def test_another_gpu_gets_a_build_of_its_own_and_an_interruption_loses_nothing(
    run: Path, resume: Callable[..., int], said: io.StringIO, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out, text = tmp_path / "finished", (run / "record.json").read_bytes()
    with monkeypatch.context() as patch:
        patch.setattr(resuming, "measure_cells", stopped)
        with pytest.raises(KeyboardInterrupt):
            resume(run, "sm90", out=out)
    assert (out / "record.json").read_bytes() == text
    assert resume(run, "sm90", out=out) == 0
    assert (run / "record.json").read_bytes() == text
    assert not (run / "resumed").exists()
    record = read_record(out)
    assert record.cell(NULL) is None
    cell = record.cell("null/fp32/cuda")
    assert cell is not None
    assert cell.outcome.state == "done"
    assert cell.notes == ("built again: it was built for cuda:sm89, here is another GPU",)
    assert cell.folder == "resumed/1/artifacts/null-fp32-cuda"
    assert f"{NULL} as null/fp32/cuda: built again: it was built for cuda:sm89" in said.getvalue()
    assert record.sessions[0].finished == {"null/fp32/cuda": NULL}
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "file").write_text("mine")
    with pytest.raises(RecipeError, match="copied"):
        resume(run, "sm90", out=tmp_path / "other")


@pytest.mark.slow
def test_another_version_gets_a_build_of_its_own(run: Path, resume: Callable[..., int]) -> None:
    assert resume(run, "sm89 2") == 0
    cell = read_record(run).cell(NULL)
    assert cell is not None
    assert cell.outcome.state == "done"
    assert cell.notes == ("built again: it was built by null 1, here is null 2",)
    assert cell.artifact is not None
    assert cell.artifact.backend_version == "2"


@pytest.mark.slow
def test_a_damaged_artifact_is_built_again_and_images_come_from_the_data_set(run: Path, resume: Callable[..., int]) -> None:
    (run / "artifacts/null-fp32-cuda-sm89/null.json").write_text("{}")
    document = json.loads((run / BUNDLE_NAME).read_text())
    document["files"] = [entry for entry in document["files"] if entry["name"] != document["images"]["file"]]
    document["images"]["file"] = None
    (run / BUNDLE_NAME).write_text(json.dumps(document))
    (run / "bundle/test.npz").unlink()
    assert resume(run, "sm89") == 0
    cell = read_record(run).cell(NULL)
    assert cell is not None
    assert cell.outcome.state == "done"
    assert "artifacts/null-fp32-cuda-sm89/null.json: it has 2 bytes" in cell.notes[0]
    document["images"]["sha256"] = "0" * 64
    (run / BUNDLE_NAME).write_text(json.dumps(document))
    shutil.copyfile(run / "resumed/1/record-before.json", run / "record.json")
    with pytest.raises(DataError, match="was validated on 120 images of synthetic10"):
        resume(run, "sm89")


@pytest.mark.slow
def test_an_artifact_that_does_not_load_after_all_is_built_again(run: Path, resume: Callable[..., int]) -> None:
    """As an engine may not, although version and capability say that it would."""
    document = json.loads((run / BUNDLE_NAME).read_text())
    (waiting,) = [bundled for bundled in document["cells"] if bundled["cell"]["backend"] == "null"]
    waiting["cell"]["artifact"]["details"]["version"] = "another build"
    (run / BUNDLE_NAME).write_text(json.dumps(document))
    assert resume(run, "sm89") == 0
    cell = read_record(run).cell(NULL)
    assert cell is not None
    assert cell.outcome.state == "done"
    assert "as it was it failed here: the artifact was built for sm89 by version another build" in cell.notes[0]
    assert cell.latencies


@pytest.mark.gpu
@pytest.mark.slow
def test_a_real_gpu_finishes_the_runtimes_cell(run: Path, resume: Callable[..., int]) -> None:
    assert resume(run) == 0
    record = read_record(run)
    (session,) = record.sessions
    (name,) = session.finished
    cell = record.cell(name)
    assert cell is not None
    assert cell.backend == "onnxruntime"
    assert cell.outcome.state == "done"
    assert cell.evidence is not None
    assert cell.evidence.state == "pass"
    assert session.gpus
    assert session.gpus[0].before.sm_mhz
