"""`gpu-check` where no GPU is, and what it says where one is. A machine with a GPU is a stand-in; backends and tests are real."""

from __future__ import annotations

import io
from pathlib import Path

import pytest
from rich.console import Console

from deploycnn.assets import recipe_path
from deploycnn.environment import Gpu, environment
from deploycnn.errors import EXIT_NO_GPU, EXIT_NOTHING_TO_SHIP, EXIT_OK
from deploycnn.pipeline import gpu_check as module
from deploycnn.pipeline.console import Talk
from deploycnn.pipeline.gpu_check import gpu_check, readiness_lines, run_tests
from deploycnn.pipeline.run import RunOptions
from deploycnn.recipe import load_recipe


@pytest.fixture
def said() -> io.StringIO:
    return io.StringIO()


@pytest.fixture
def talk(said: io.StringIO) -> Talk:
    return Talk(console=Console(file=said, width=400))


def test_without_a_gpu_it_is_one_line_and_its_own_code(talk: Talk, said: io.StringIO) -> None:
    machine = environment().model_copy(update={"gpus": (), "gpu_reason": "no NVIDIA driver answers"})
    assert gpu_check((), RunOptions(), talk, machine) == EXIT_NO_GPU == 7
    assert said.getvalue().strip() == "warning: no GPU to check: no NVIDIA driver answers"


@pytest.mark.parametrize(
    ("tests_passed", "ran", "code"), [(True, EXIT_OK, 0), (False, EXIT_OK, 1), (True, EXIT_NOTHING_TO_SHIP, 1), (False, 1, 1)]
)
def test_a_failed_test_fails_the_check(
    talk: Talk, monkeypatch: pytest.MonkeyPatch, tests_passed: bool, ran: int, code: int, tmp_path: Path
) -> None:
    """With a GPU: the recipe is run in the folder asked for, and either failure counts."""
    asked = []
    monkeypatch.setattr(module, "run_tests", lambda talk, tests: tests_passed)
    monkeypatch.setattr(module, "run_recipe", lambda recipe, options, talk: asked.append((recipe.name, options.out)) or ran)
    gpu = Gpu(name="a GPU", capability=89, memory_bytes=1)
    machine = environment().model_copy(update={"gpus": (gpu,)})
    assert gpu_check(["train.epochs=1"], RunOptions(out=tmp_path), talk, machine) == code
    assert asked == [("cifar10-gpu", tmp_path)]


def test_every_gpu_backend_says_its_version_or_what_is_missing() -> None:
    lines = readiness_lines(load_recipe(recipe_path("cifar10-gpu")))
    assert {line.partition(" ")[0] for line in lines} == {"torch", "onnxruntime", "tensorrt", "tvm"}
    assert all(": " in line for line in lines)


@pytest.mark.parametrize(("text", "passed"), [("assert True", True), ("assert False", False)])
def test_the_result_of_the_tests_is_pytests(talk: Talk, tmp_path: Path, text: str, passed: bool) -> None:
    tests = tmp_path / "tests"
    tests.mkdir()
    (tests / "conftest.py").write_text("def pytest_addoption(parser):\n    parser.addoption('--require')\n")
    (tests / "test_it.py").write_text(
        f"import pytest\n\n@pytest.mark.gpu\ndef test_it():\n    {text}\n\ndef test_other():\n    assert False\n"
    )
    (tmp_path / "pyproject.toml").write_text("[tool.pytest.ini_options]\nmarkers = ['gpu: needs one']\n")
    assert run_tests(talk, tests) is passed


def test_without_a_clone_the_tests_are_left_out_loudly(talk: Talk, said: io.StringIO, tmp_path: Path) -> None:
    assert run_tests(talk, tmp_path / "nowhere")
    assert "left out" in said.getvalue()
