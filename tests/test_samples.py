"""samples.npz: what goes in comes out, only what is asked for is read, and damage is said."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from deploycnn.errors import RecordError, StoreError
from deploycnn.samples import Samples, read_samples, sample_name, split_name, write_samples


def some(seed: int = 0, n_blocks: int = 6) -> Samples:
    rng = np.random.default_rng(seed)
    runs_B = rng.integers(1, 9, n_blocks)
    return Samples(
        time_ns=rng.integers(1, 10**9, int(runs_B.sum())),
        runs_B=runs_B,
        round_B=np.arange(n_blocks),
        process_B=np.arange(n_blocks) // 3,
        start_s_B=np.sort(rng.uniform(0, 60, n_blocks)),
    )


ROWS = {"onnxruntime/int8/cpu@b32": some(1), "torch/fp32/cuda:sm89@b1": some(2), "torch/fp32/cpu#again@b1": some(3)}


def test_rows_come_back_as_they_went(tmp_path: Path) -> None:
    digest = write_samples(tmp_path / "samples.npz", ROWS)
    for path in (tmp_path, tmp_path / "samples.npz", tmp_path / "record.json"):
        found = read_samples(path, digest)
        assert set(found) == set(ROWS)
        for name, row in ROWS.items():
            for field in ("time_ns", "runs_B", "round_B", "process_B", "start_s_B"):
                np.testing.assert_array_equal(getattr(found[name], field), getattr(row, field))


def test_a_plain_numpy_reader_finds_the_runs(tmp_path: Path) -> None:
    write_samples(tmp_path / "samples.npz", ROWS)
    with np.load(tmp_path / "samples.npz") as archive:
        times_ns = archive["onnxruntime/int8/cpu@b32.time_ns"]
    assert times_ns.dtype == np.int64
    np.testing.assert_array_equal(times_ns, ROWS["onnxruntime/int8/cpu@b32"].time_ns)


def test_the_same_rows_make_the_same_file(tmp_path: Path) -> None:
    assert write_samples(tmp_path / "a.npz", ROWS) == write_samples(tmp_path / "b.npz", ROWS)


def test_indices_of_runs() -> None:
    row = some()
    assert row.block_N.size == row.round_N.size == row.process_N.size == row.time_ns.size
    assert [block.size for block in row.blocks()] == row.runs_B.tolist()
    np.testing.assert_array_equal(np.concatenate(row.blocks()), row.time_ns)
    assert (row.process_N == row.process_B[row.block_N]).all()


def test_names() -> None:
    assert split_name(sample_name("torch/fp32/cpu", 32)) == ("torch/fp32/cpu", 32)
    for wrong in ("torch/fp32/cpu", "torch@b", "torch@bx", ""):
        with pytest.raises(RecordError, match="not the name"):
            split_name(wrong)


def test_a_row_that_is_not_there_is_a_key_error(tmp_path: Path) -> None:
    write_samples(tmp_path / "samples.npz", ROWS)
    with pytest.raises(KeyError):
        read_samples(tmp_path)["tvm/fp32/cpu@b1"]


def test_a_missing_file_says_so(tmp_path: Path) -> None:
    with pytest.raises(RecordError, match="missing"):
        read_samples(tmp_path)


def _flip(data: bytes) -> bytes:
    middle = len(data) // 2
    return data[:middle] + bytes(b ^ 0xFF for b in data[middle : middle + 40]) + data[middle + 40 :]


@pytest.mark.parametrize(
    "damage",
    [
        pytest.param(lambda data: data[: len(data) // 2], id="cut in half"),
        pytest.param(lambda data: b"", id="empty"),
        pytest.param(lambda data: b"<html>not found</html>" * 50, id="another kind of file"),
        pytest.param(_flip, id="flipped bytes"),
    ],
)
def test_damage_is_a_record_error_with_and_without_the_digest(tmp_path: Path, damage) -> None:
    path = tmp_path / "samples.npz"
    digest = write_samples(path, ROWS)
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(RecordError, match="not the ones of this record"):
        read_samples(path, digest)
    with pytest.raises(RecordError, match=r"damaged|do not add up|hold"):
        dict(read_samples(path))


def test_samples_that_do_not_add_up_are_refused() -> None:
    row = some()
    for change in (
        {"runs_B": row.runs_B + 1},
        {"round_B": row.round_B[:-1]},
        {"time_ns": row.time_ns[:-1]},
        {"time_ns": -row.time_ns},
    ):
        fields = {name: getattr(row, name) for name in ("time_ns", "runs_B", "round_B", "process_B", "start_s_B")}
        with pytest.raises(RecordError):
            Samples(**{**fields, **change})


def test_a_place_that_cannot_be_written_to_says_so(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreError, match="cannot be written"):
        write_samples(tmp_path / "file" / "samples.npz", ROWS)
