"""Errors that people read, and that cross process borders whole."""

from __future__ import annotations

import copy
import os
import pickle
import subprocess
import sys
from pathlib import Path

import pytest

from deploycnn import errors
from deploycnn.errors import DeployError

KINDS = [kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, DeployError)]


def test_there_are_as_many_kinds_as_the_module_says() -> None:
    documented = errors.__doc__ or ""
    assert {kind.__name__ for kind in KINDS} == {
        name for name in documented.replace("`-", " ").replace("|-", " ").split() if hasattr(errors, name)
    }


@pytest.mark.parametrize("kind", KINDS)
def test_three_parts_are_read_on_three_lines(kind: type[DeployError]) -> None:
    error = kind("the recipe x cannot be read", found="no such file", remedy="give its path")
    assert str(error) == "the recipe x cannot be read\n  found: no such file\n  do: give its path"
    assert error.one_line == "the recipe x cannot be read; no such file; give its path"
    assert "\n" not in error.one_line


@pytest.mark.parametrize("kind", KINDS)
def test_without_what_was_found_it_is_two_lines(kind: type[DeployError]) -> None:
    assert str(kind("asked", remedy="do this")) == "asked\n  do: do this"
    assert kind("asked", remedy="do this").one_line == "asked; do this"


@pytest.mark.parametrize("kind", KINDS)
def test_a_remedy_cannot_be_left_out(kind: type[DeployError]) -> None:
    with pytest.raises(TypeError):
        kind("asked")  # type: ignore[call-arg]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("protocol", range(2, pickle.HIGHEST_PROTOCOL + 1))
def test_pickled_and_copied_they_are_the_same(kind: type[DeployError], protocol: int) -> None:
    error = kind("asked: ü\n", found="found", remedy="do this")
    for again in (pickle.loads(pickle.dumps(error, protocol)), copy.copy(error), copy.deepcopy(error)):
        assert type(again) is kind
        assert (again.asked, again.found, again.remedy) == ("asked: ü\n", "found", "do this")
        assert str(again) == str(error)
        assert again.exit_code == kind.exit_code


def test_they_cross_a_process_border() -> None:
    code = (
        "import pickle, sys; from deploycnn.errors import Unsupported; "
        "sys.stdout.buffer.write(pickle.dumps(Unsupported('asked', found='found', remedy='do this')))"
    )
    source = str(Path(__file__).parents[1] / "src")
    answer = subprocess.run([sys.executable, "-c", code], env={**os.environ, "PYTHONPATH": source}, capture_output=True, check=True)
    with pytest.raises(errors.Unsupported, match="do this"):
        raise pickle.loads(answer.stdout)


@pytest.mark.parametrize(
    ("kind", "code"),
    [
        (errors.DeployError, 5),
        (errors.RecipeError, 2),
        (errors.DataError, 5),
        (errors.ModelError, 5),
        (errors.ExportError, 5),
        (errors.TrainingError, 5),
        (errors.PrecisionError, 5),
        (errors.BackendError, 5),
        (errors.Unavailable, 6),
        (errors.Unsupported, 5),
        (errors.EvidenceError, 5),
        (errors.WorkerError, 5),
        (errors.StoreError, 6),
        (errors.RecordError, 5),
    ],
)
def test_exit_codes_are_the_documented_ones(kind: type[DeployError], code: int) -> None:
    assert kind.exit_code == code


def test_exit_codes_do_not_collide() -> None:
    codes = [value for name, value in vars(errors).items() if name.startswith("EXIT_")]
    assert len(codes) == len(set(codes))
    assert errors.EXIT_INTERRUPTED == 130
    assert all(0 <= code < 256 for code in codes)


@pytest.mark.parametrize(
    ("kind", "parent"),
    [
        (errors.ExportError, errors.ModelError),
        (errors.Unavailable, errors.BackendError),
        (errors.Unsupported, errors.BackendError),
        (errors.EvidenceError, errors.BackendError),
    ],
)
def test_families(kind: type[DeployError], parent: type[DeployError]) -> None:
    assert issubclass(kind, parent)
