"""`gpu-check`: on a machine with a GPU, the tests that need one and the GPU recipe; elsewhere one line and its own exit code."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

from deploycnn.assets import recipe_path
from deploycnn.environment import Environment, environment
from deploycnn.errors import EXIT_NO_GPU, EXIT_NOTHING_TO_SHIP, EXIT_OK
from deploycnn.pipeline.console import Talk
from deploycnn.pipeline.planning import make_backends
from deploycnn.pipeline.run import RunOptions, run_recipe
from deploycnn.recipe import Recipe, load_recipe

RECIPE = "cifar10-gpu"
TESTS = Path(__file__).parents[3] / "tests"  # there in a clone, not in an installed package


def gpu_check(settings: Iterable[str], options: RunOptions, talk: Talk, machine: Environment | None = None) -> int:
    """Runs the GPU-marked tests, then the recipe `cifar10-gpu` over every GPU backend, whatever versions of them are here.

    A backend that cannot run is said beforehand, and is a skipped row of the record with its reason.

    Args:
        settings: laid over the recipe, as `run --set` does.
        options: of the run; its folder is `gpu-check` where none is given.
        talk: says what is going on.
        machine: None: this one.

    Returns:
        7 where there is no GPU; 1 where a test failed or nothing is fit to ship; else 0.
    """
    machine = machine or environment()
    if not machine.gpus:
        talk.warn(f"no GPU to check: {machine.gpu_reason or 'none is listed'}")
        return EXIT_NO_GPU
    recipe = load_recipe(recipe_path(RECIPE), settings)
    for line in readiness_lines(recipe):
        talk.say(line)
    tests_passed = run_tests(talk, TESTS)
    ran = run_recipe(recipe, replace(options, out=options.out or Path("gpu-check")), talk)
    return ran if tests_passed else EXIT_NOTHING_TO_SHIP


def readiness_lines(recipe: Recipe) -> list[str]:
    """One line per backend and GPU target of the recipe: its version, or what is missing and what to do about it."""
    lines = []
    for name, backend in make_backends(recipe).items():
        for target in recipe.targets:
            said = backend.probe(target)
            text = f"{said.version or 'ready'}" if said.state == "ready" else f"{said.state}: {said.reason}; {said.remedy}"
            lines.append(f"{name} on {target}: {text}")
    return lines


def run_tests(talk: Talk, tests: Path) -> bool:
    """Runs the tests marked gpu, with their output as it comes. True where all passed, or where there are none to run."""
    if not tests.is_dir() or importlib.util.find_spec("pytest") is None:
        talk.warn("the GPU tests are left out: they need a clone of the project and pytest (pip install -e '.[dev]')")
        return True
    talk.say("tests marked gpu ...")
    command = [sys.executable, "-m", "pytest", "-m", "gpu", "--require", "cuda", str(tests)]
    return subprocess.run(command, cwd=tests.parent, check=False).returncode == EXIT_OK
