"""Tuning records survive whatever ends the process that writes them."""

from __future__ import annotations

from pathlib import Path

import pytest

from deploycnn.backends.tvm._records import History, Measured, Records, read_shipped, write_shipped

TRACE = [[["GetSBlock", [], ["conv", "main"], ["b0"]]], [[3, [4, 2]]]]
FOUND = (Measured(seconds=2e-5, trace=TRACE), Measured(seconds=None), Measured(seconds=1e-5, trace=[["x"], []]))


def test_what_was_written_is_read_with_its_failures_and_its_price(tmp_path: Path) -> None:
    records = Records(tmp_path / "new")
    assert records.read("abc") == History()
    records.append("abc", FOUND[:2], spent_s=1.5)
    records.append("abc", FOUND[2:], spent_s=2.0)
    history = Records(tmp_path / "new").read("abc")
    assert history == History(measured=FOUND, spent_s=3.5)
    assert history.best == FOUND[2]
    assert records.read("other") == History()


@pytest.mark.parametrize("kept", [1, 2, 5, 20, 60, -1])
def test_a_line_cut_short_costs_that_line_and_the_next_run_goes_on(tmp_path: Path, kept: int) -> None:
    records = Records(tmp_path)
    records.append("abc", FOUND[:1], spent_s=1.0)
    path = tmp_path / "abc.jsonl"
    whole = path.read_bytes()
    path.write_bytes(whole + b'{"s":1e-06,"t":[["a long trace that was being written when the process was killed"]]}'[:kept])
    assert records.read("abc").measured == FOUND[:1]
    assert path.read_bytes() == whole
    records.append("abc", FOUND[2:], spent_s=1.0)
    assert records.read("abc") == History(measured=(FOUND[0], FOUND[2]), spent_s=2.0)


@pytest.mark.parametrize("damage", [b"\n", b"\x00" * 30 + b"\n", b"[1, 2]\n", b'{"unknown": 1}\n', b"\xff\xfe{\n"])
def test_a_damaged_line_in_the_middle_costs_that_line(tmp_path: Path, damage: bytes) -> None:
    records = Records(tmp_path)
    records.append("abc", FOUND[:1], spent_s=1.0)
    with (tmp_path / "abc.jsonl").open("ab") as file:
        file.write(damage)
    records.append("abc", FOUND[2:], spent_s=1.0)
    assert records.read("abc") == History(measured=(FOUND[0], FOUND[2]), spent_s=2.0)


def test_schedules_that_ship_are_packed_alike_and_read_back(tmp_path: Path) -> None:
    best = {"b": [FOUND[2], FOUND[0]], "a": [FOUND[0]]}
    write_shipped(tmp_path / "one.jsonl.gz", best)
    write_shipped(tmp_path / "two.jsonl.gz", dict(reversed(best.items())))
    assert (tmp_path / "one.jsonl.gz").read_bytes() == (tmp_path / "two.jsonl.gz").read_bytes()
    shipped = read_shipped([tmp_path / "one.jsonl.gz", tmp_path / "two.jsonl.gz"])
    assert shipped == {"a": [TRACE, TRACE], "b": [FOUND[2].trace, TRACE, FOUND[2].trace, TRACE]}
