"""`load`: arguments that go together, the search for a rate, a real load through a worker, and readable refusals."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path

import numpy as np
import pytest

from deploycnn.errors import EXIT_ENVIRONMENT, EXIT_NOTHING_TO_SHIP, EXIT_OK, EXIT_USAGE, RecipeError, RecordError, Unavailable
from deploycnn.measure.mlperf import LoadOptions, LoadResult
from deploycnn.pipeline import offering_load
from deploycnn.pipeline.console import Talk
from deploycnn.pipeline.offering_load import LoadAsked, LoadReport, load_command, print_load
from deploycnn.recipe import Recipe
from deploycnn.record import Cell, DataFacts, ModelFacts, Record
from deploycnn.types import CompileRequest, Done, Failed, Target, TensorSpec, Variant
from deploycnn.workers import Worker

NAME = "null/fp32/cpu"
needs_loadgen = pytest.mark.skipif(
    importlib.util.find_spec("mlperf_loadgen") is None, reason="mlcommons-loadgen is not installed (extra mlperf)"
)


def result(scenario: str = "single-stream", *, valid: bool = True, p99_s: float = 2e-3, rate: float | None = None) -> LoadResult:
    return LoadResult(
        scenario=scenario, valid=valid, queries=1000, images_per_s=900.0, p50_s=1e-3, p90_s=1.5e-3, p99_s=p99_s, rate=rate
    )  # fmt: skip


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Folder of a run with one artifact of the null backend, without the run."""
    variant = Variant(
        precision="fp32",
        onnx_path=tmp_path / "graph.onnx",
        sha256="0" * 64,
        input=TensorSpec(name="pixels", dtype="uint8", shape_CHW=(3, 8, 8)),
        output_name="logits",
        classes=("a", "b"),
    )
    folder = tmp_path / "artifacts"
    folder.mkdir()
    with Worker(NAME, log_path=tmp_path / "log.txt") as worker:
        request = CompileRequest(variant=variant, target="cpu", batches=(1,), folder=folder, cache_folder=tmp_path)
        artifact = worker.compile("null", {}, request, timeout_s=30)
    cell = Cell(backend="null", precision="fp32", target=Target(device="cpu"), outcome=Done(), artifact=artifact, folder="artifacts")
    broken = Cell(backend="torch", precision="fp32", target=Target(device="cpu"), outcome=Failed(stage="compile", reason="no luck"))
    digest = "2" * 64
    record = Record(
        deploycnn_version="0.1.0",
        created="2026-11-30T12:00:00+00:00",
        command="deploycnn run",
        recipe=Recipe(backends={"null": {}}).model_dump(mode="json", by_alias=True),
        data=DataFacts(
            name="synthetic10", asked="synthetic10", source="built in", official=None, sha256=digest, classes=("a", "b"),
            shape_CHW=(3, 8, 8), n_train=1, n_validation=1, n_calibration=1, n_test=1,
        ),
        model=ModelFacts(name="lenet", parameters=1, source="trained", checkpoint_sha256=None, graph_sha256=digest),
        environments={},
        reference=None,
        cells=(cell, broken),
    )  # fmt: skip
    images_NCHW = np.random.default_rng(0).integers(0, 256, (8, 3, 8, 8), dtype=np.uint8)
    monkeypatch.setattr(offering_load, "read_record", lambda folder: record)
    monkeypatch.setattr(offering_load, "images_of", lambda *_: images_NCHW)
    return tmp_path


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"scenario": "multi-stream"}, "no scenario 'multi-stream'"),
        ({"scenario": "offline", "qps": 5.0}, "do not go with --scenario offline"),
        ({"scenario": "single-stream", "p99_ms": 5.0}, "do not go with --scenario single-stream"),
        ({"qps": 5.0}, "p99 latency that is allowed"),
        ({"find_qps": True}, "p99 latency that is allowed"),
        ({"scenario": "server", "p99_ms": 5.0}, "one of --qps N and --find-qps"),
        ({"qps": 5.0, "find_qps": True, "p99_ms": 5.0}, "one of --qps N and --find-qps"),
    ],
)
def test_arguments_that_do_not_go_together_are_usage(run: Path, arguments: dict[str, object], words: str) -> None:
    with pytest.raises(RecipeError, match=words) as raised:
        load_command(run, LoadAsked(artifact=NAME, **arguments), Talk(quiet=True))  # type: ignore[arg-type]
    assert raised.value.exit_code == EXIT_USAGE
    assert raised.value.remedy


@pytest.mark.parametrize(
    ("name", "words"), [("nul/fp32/cpu", "no artifact 'nul/fp32/cpu'.*did you mean null"), ("torch/fp32/cpu", "never built.*no luck")]
)
def test_a_bad_artifact_is_named(run: Path, name: str, words: str) -> None:
    with pytest.raises(RecordError, match=f"(?s){words}"):
        load_command(run, LoadAsked(artifact=name), Talk(quiet=True))


def test_a_missing_extra_says_what_to_install(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(offering_load.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(Unavailable, match=r"deploycnn\[mlperf\]") as raised:
        load_command(run, LoadAsked(artifact=NAME), Talk(quiet=True))
    assert raised.value.exit_code == EXIT_ENVIRONMENT


def test_the_search_ends_at_the_rate_that_the_system_carries() -> None:
    carried, asked = 3000.0, LoadAsked(artifact=NAME, find_qps=True, p99_ms=5.0)

    def offer(load: LoadOptions) -> LoadResult:
        return result(load.scenario, rate=load.rate, valid=load.rate is None or load.rate <= carried)

    highest, tests = offering_load._tests(asked, "server", 1, offer)
    assert highest is not None
    assert carried / 1.06 <= highest <= carried
    assert tests[0].scenario == "single-stream"
    assert all(test.rate for test in tests[1:])


def test_a_bound_below_a_lone_query_is_not_searched() -> None:
    asked = LoadAsked(artifact=NAME, find_qps=True, p99_ms=1.0)
    highest, tests = offering_load._tests(asked, "server", 1, lambda load: result(load.scenario, rate=load.rate))
    assert highest == 0
    assert len(tests) == 1


def test_the_table_fits_80_columns_and_says_unofficial(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    report = LoadReport(
        artifact=NAME, sha256="0" * 64, label=result().label, machine="a machine", threads=1, scenario="server", batch=1,
        bound_s=5e-3, highest_qps=2900.0, tests=(result(), result("server", rate=123456.0), result("server", valid=False, rate=6e3)),
    )  # fmt: skip
    print_load(report)
    said = capsys.readouterr().out
    assert max(map(len, said.splitlines())) <= 80
    for words in ("unofficial", "single-stream", "2.00 ms", "no", "stays under 5.00 ms"):
        assert words in " ".join(said.split())


@needs_loadgen
@pytest.mark.slow
def test_a_load_is_offered_and_written_beside_the_record(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert load_command(run, LoadAsked(artifact=NAME), Talk(quiet=True)) == EXIT_OK
    written = json.loads((run / "load-null-fp32-cpu-single-stream.json").read_text())
    assert written["tests"][0]["queries"] >= 1000
    assert "unofficial" in written["label"]
    assert "load-null-fp32-cpu-single-stream.json" in capsys.readouterr().out


@needs_loadgen
@pytest.mark.slow
def test_a_rate_over_the_bound_is_exit_code_1(run: Path) -> None:
    assert load_command(run, LoadAsked(artifact=NAME, qps=500.0, p99_ms=1e-4), Talk(quiet=True)) == EXIT_NOTHING_TO_SHIP
