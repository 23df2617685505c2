"""record.json: round trip, schema, and every kind of file that is no record."""

from __future__ import annotations

import json
import math
from pathlib import Path

import jsonschema
import pytest

from deploycnn.environment import environment
from deploycnn.errors import RecordError, StoreError
from deploycnn.record import Cell, DataFacts, ModelFacts, Record
from deploycnn.recordfile import read_record, record_schema, write_record
from deploycnn.types import Deferred, Doubt, Failed, Interval, Target


def a_record() -> Record:
    machine = environment()
    return Record(
        deploycnn_version="0.1.0",
        created="2026-01-01T00:00:00+00:00",
        command="deploycnn run",
        recipe={"name": "quickstart", "measure": {"batches": [1, 32]}},
        data=DataFacts(
            name="synthetic10",
            asked="cifar10",
            source="built in",
            official=None,
            sha256="0" * 64,
            classes=("a", "b"),
            shape_CHW=(3, 32, 32),
            n_train=10,
            n_validation=2,
            n_calibration=2,
            n_test=5,
        ),
        model=ModelFacts(name="lenet", parameters=62006, source="trained", checkpoint_sha256="1" * 64, graph_sha256="2" * 64),
        environments={machine.id: machine},
        reference="torch/fp32/cpu",
        cells=(
            Cell(
                backend="tensorrt",
                precision="fp16",
                target=Target(device="cuda", capability=89),
                outcome=Deferred(waits_for="a GPU of compute capability 8.9"),
            ),
            Cell(
                backend="tvm", precision="int8", target=Target(device="cpu"), outcome=Failed(stage="compile", reason="not supported: Erf")
            ),
        ),
        noise_floor={"1": Interval(value=1.0, low=0.99, high=math.inf)},
        doubts=(Doubt(kind="turbo", what="turbo is on", remedy="switch it off"),),
    )


def test_a_record_comes_back_as_it_went(tmp_path: Path) -> None:
    record = a_record()
    path = write_record(tmp_path, record)
    assert read_record(tmp_path) == read_record(path) == record
    renamed = path.rename(tmp_path / "monday.json")
    assert read_record(renamed) == record


def test_a_record_is_valid_under_its_schema(tmp_path: Path) -> None:
    finite = a_record().model_copy(update={"noise_floor": {}})
    document = json.loads(write_record(tmp_path, finite).read_text())
    jsonschema.Draft202012Validator.check_schema(record_schema())
    jsonschema.validate(document, record_schema(), cls=jsonschema.Draft202012Validator)
    document["cells"][0]["outcome"]["state"] = "perhaps"
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(document, record_schema(), cls=jsonschema.Draft202012Validator)


def test_what_is_not_there_is_said(tmp_path: Path) -> None:
    with pytest.raises(RecordError, match=r"holds no record\.json"):
        read_record(tmp_path)
    with pytest.raises(RecordError, match="there is no run"):
        read_record(tmp_path / "nowhere")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        pytest.param(lambda text: text[: len(text) // 2], "damaged", id="cut in half"),
        pytest.param(lambda text: "", "damaged", id="empty"),
        pytest.param(lambda text: "[]", "not a record of deploycnn", id="a list"),
        pytest.param(lambda text: '{"a": 1}', "not a record of deploycnn", id="another document"),
        pytest.param(lambda text: text.replace('"schema_version": 1', '"schema_version": true'), "not a record", id="version is no number"),
        pytest.param(lambda text: text.replace('"schema_version": 1', '"schema_version": 99'), "schema version 99", id="newer"),
        pytest.param(lambda text: text.replace('"schema_version": 1', '"schema_version": 0'), "schema version 0", id="older"),
        pytest.param(lambda text: text.replace('"n_test": 5', '"n_test": "many"'), r"data\.n_test", id="wrong value"),
        pytest.param(lambda text: text.replace('"n_test"', '"n_tests"'), r"data\.n_test", id="unknown field"),
    ],
)
def test_every_kind_of_wrong_file_is_named(tmp_path: Path, change, message: str) -> None:
    path = write_record(tmp_path, a_record())
    path.write_text(change(path.read_text()))
    with pytest.raises(RecordError) as error:
        read_record(tmp_path)
    import re

    assert re.search(message, str(error.value))
    assert str(path) in str(error.value)


def test_bytes_that_are_no_text_are_named(tmp_path: Path) -> None:
    (tmp_path / "record.json").write_bytes(b"\xff\xfe\x00garbage")
    with pytest.raises(RecordError, match="cannot be read"):
        read_record(tmp_path)


def test_a_folder_that_cannot_be_written_to_is_said(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreError):
        write_record(tmp_path / "file", a_record())
