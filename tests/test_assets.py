"""Recipes and checkpoints that ship: found in a clone, in an installed package, and by path."""

from __future__ import annotations

from pathlib import Path

import pytest

from deploycnn import assets
from deploycnn.assets import checkpoint_path, checkpoints, recipe_path, recipes
from deploycnn.errors import DeployError, ModelError, RecipeError


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A package as a wheel lays it out, beside somebody else's `models` folder."""
    package = tmp_path / "site-packages" / "deploycnn"
    for name in (
        "_recipes/quickstart.yaml",
        "_recipes/cifar10.yaml",
        "_checkpoints/lenet-cifar10.safetensors",
        "_checkpoints/lenet-cifar10.md",
    ):
        (package / name).parent.mkdir(parents=True, exist_ok=True)
        (package / name).write_text("name: x")
    (tmp_path / "models").mkdir()
    (tmp_path / "models" / "stranger.safetensors").write_text("")
    monkeypatch.setattr(assets, "_PACKAGE", package)
    monkeypatch.setattr(assets, "_CLONE", tmp_path)
    return package


def test_in_this_clone_the_default_recipe_is_found() -> None:
    assert "quickstart" in recipes()
    assert recipe_path("quickstart").is_file()
    assert recipe_path("quickstart.yaml") == recipe_path("quickstart")


def test_in_an_installed_package(installed: Path) -> None:
    assert list(recipes()) == ["cifar10", "quickstart"]
    assert recipe_path("quickstart") == installed / "_recipes" / "quickstart.yaml"
    assert checkpoints() == {"lenet-cifar10": installed / "_checkpoints" / "lenet-cifar10.safetensors"}
    assert checkpoint_path("lenet-cifar10") == checkpoint_path("lenet-cifar10.safetensors")


def test_a_folder_beside_an_installed_package_is_not_ours(installed: Path) -> None:
    for file in (installed / "_checkpoints").iterdir():
        file.unlink()
    (installed / "_checkpoints").rmdir()
    assert checkpoints() == {}
    with pytest.raises(ModelError, match="no checkpoint ships"):
        checkpoint_path("stranger")


@pytest.mark.parametrize("given_as", [str, Path])
def test_a_file_is_taken_as_it_is(tmp_path: Path, installed: Path, given_as: type, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "quickstart").write_text("mine")
    assert recipe_path(given_as(tmp_path / "quickstart")) == tmp_path / "quickstart"
    monkeypatch.chdir(tmp_path)
    assert recipe_path("quickstart") == Path("quickstart"), "one's own file comes first"


@pytest.mark.parametrize(
    ("find", "name", "error", "said"),
    [
        (recipe_path, "quikstart", RecipeError, "did you mean quickstart?"),
        (recipe_path, "entirely-else", RecipeError, "cifar10, quickstart"),
        (recipe_path, "", RecipeError, "cifar10, quickstart"),
        (recipe_path, "no/such/file.yaml", RecipeError, "no such file"),
        (recipe_path, "/", RecipeError, "a folder"),
        (checkpoint_path, "lenet-cifar", ModelError, "did you mean lenet-cifar10?"),
        (checkpoint_path, "weights.pt", ModelError, "lenet-cifar10"),
    ],
)
def test_what_is_not_there_is_said_with_what_is(installed: Path, find: object, name: str, error: type[DeployError], said: str) -> None:
    with pytest.raises(error) as caught:
        find(name)  # type: ignore[operator]
    assert said in str(caught.value)
    assert repr(name) in caught.value.asked
