"""Networks: the ones of the folder have their known sizes, and a user's own class is taken or its fault is told."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import nn

from deploycnn.errors import ModelError
from deploycnn.models import build_model, network_classes
from deploycnn.recipe import ModelOptions


def parameters(module: nn.Module) -> int:
    return sum(parameter.numel() for parameter in module.parameters())


def test_every_file_with_a_network_is_found_and_no_other() -> None:
    assert list(network_classes()) == ["lenet", "mnist_cnn", "resnet8"]


@pytest.mark.parametrize(
    ("name", "shape_CHW", "count"),
    [("lenet", (3, 32, 32), 62_006), ("mnist_cnn", (1, 28, 28), 93_322), ("resnet8", (3, 32, 32), 78_186)],
)
def test_parameter_counts_are_those_of_the_originals(name: str, shape_CHW: tuple[int, int, int], count: int) -> None:
    assert parameters(build_model(ModelOptions(name=name), shape_CHW, 10)) == count


def test_lenet_has_the_layers_of_the_tutorial() -> None:
    shapes = [tuple(p.shape) for p in build_model(ModelOptions(name="lenet"), (3, 32, 32), 10).parameters() if p.ndim > 1]
    assert shapes == [(6, 3, 5, 5), (16, 6, 5, 5), (120, 400), (84, 120), (10, 84)]


@pytest.mark.parametrize("name", list(network_classes()))
@pytest.mark.parametrize("shape_CHW", [(3, 32, 32), (1, 28, 28), (3, 24, 40), (4, 64, 64)])
@pytest.mark.parametrize("n_classes", [2, 100])
def test_every_network_takes_images_of_many_shapes(name: str, shape_CHW: tuple[int, int, int], n_classes: int) -> None:
    module = build_model(ModelOptions(name=name), shape_CHW, n_classes).eval()
    with torch.no_grad():
        for batch in (1, 3):
            logits_NK = module(torch.rand(batch, *shape_CHW))
            assert logits_NK.shape == (batch, n_classes)
            assert torch.isfinite(logits_NK).all()


@pytest.mark.parametrize(("name", "small"), [("lenet", (3, 15, 32)), ("mnist_cnn", (1, 28, 17))])
def test_images_that_are_too_small_are_told(name: str, small: tuple[int, int, int]) -> None:
    with pytest.raises(ModelError, match="cannot take these images") as caught:
        build_model(ModelOptions(name=name), small, 10)
    assert f"{small[1]}x{small[2]}" in caught.value.found


@pytest.mark.parametrize("name", list(network_classes()))
def test_width_makes_a_network_smaller_and_it_still_runs(name: str) -> None:
    sizes = [parameters(build_model(ModelOptions(name=name, width=width), (3, 32, 32), 10)) for width in (0.01, 0.5, 1.0, 2.0)]
    assert sizes == sorted(set(sizes))
    assert build_model(ModelOptions(name=name, width=0.01), (3, 32, 32), 10).eval()(torch.rand(1, 3, 32, 32)).shape == (1, 10)


def test_depth_three_has_the_convolutions_of_resnet20() -> None:
    module = build_model(ModelOptions(name="resnet8", depth=3), (3, 32, 32), 10)
    assert sum(isinstance(layer, nn.Conv2d) and layer.kernel_size == (3, 3) for layer in module.modules()) == 19


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"name": "lenett"}, "did you mean lenet"),
        ({"name": "resnet8", "arguments": {"a": 1}}, r"model\.arguments are for your own classes"),
        ({"name": "lenet", "depth": 2}, r"model\.depth means nothing for lenet"),
        ({"name": "mnist_cnn", "depth": 3}, r"model\.depth means nothing for mnist_cnn"),
    ],
)
def test_options_that_mean_nothing_are_told(options: dict, said: str) -> None:
    with pytest.raises(ModelError, match=said):
        build_model(ModelOptions(**options), (3, 32, 32), 10)


def test_the_same_seed_gives_the_same_weights_whatever_was_drawn_before() -> None:
    def weights(seed: int) -> torch.Tensor:
        torch.rand(3)
        return torch.cat([p.flatten() for p in build_model(ModelOptions(), (3, 32, 32), 10, seed=seed).parameters()])

    torch.manual_seed(1)
    state = torch.get_rng_state()
    first = weights(0)
    torch.manual_seed(1)
    assert torch.equal(torch.get_rng_state(), state)
    torch.manual_seed(2)
    assert torch.equal(first, weights(0))
    assert not torch.equal(first, weights(1))
    torch.manual_seed(1)
    build_model(ModelOptions(), (3, 32, 32), 10)
    assert torch.equal(torch.get_rng_state(), state)


# --- the user's own -------------------------------------------------------------------------

OWN = """
import torch
from torch import nn

class Net(nn.Module):
    def __init__(self, hidden=8, classes=10):
        super().__init__()
        self.layers = nn.Sequential(nn.Flatten(), nn.Linear(3072, hidden), nn.Linear(hidden, classes))
    def forward(self, x):
        return self.layers(x)

def make(hidden):
    return Net(hidden)

def nothing():
    return "no network"

def broken():
    raise KeyError("weights")

VALUE = 3
"""


@pytest.fixture
def own_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A module of the user in the folder that the program was started in, which is not on the path."""
    (tmp_path / "own_networks_of_a_test.py").write_text(OWN)
    (tmp_path / "broken_module_of_a_test.py").write_text("import no_such_package_at_all")
    (tmp_path / "no_python_of_a_test.py").write_text("def (:")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [entry for entry in sys.path if entry])
    yield "own_networks_of_a_test"
    sys.modules.pop("own_networks_of_a_test", None)


def test_ones_own_class_or_function_is_called_with_its_arguments(own_module: str) -> None:
    module = build_model(ModelOptions(name=f"{own_module}:Net", arguments={"hidden": 5, "classes": 3}), (3, 32, 32), 3)
    assert module(torch.rand(2, 3, 32, 32)).shape == (2, 3)
    made = build_model(ModelOptions(name=f"{own_module}:make", arguments={"hidden": 4}), (3, 32, 32), 10)
    assert parameters(made) == 3072 * 4 + 4 + 50


@pytest.mark.parametrize(
    ("name", "more", "said"),
    [
        ("no_such_module_at_all:Net", {}, "No module named 'no_such_module_at_all'"),
        ("broken_module_of_a_test:Net", {}, "No module named 'no_such_package_at_all'"),
        ("no_python_of_a_test:Net", {}, "SyntaxError"),
        ("own_networks_of_a_test:Nets", {}, "nearest name is Net"),
        ("own_networks_of_a_test:VALUE", {}, "no class or function 'VALUE'"),
        ("own_networks_of_a_test:", {}, "no class or function"),
        (":Net", {}, "cannot be imported"),
        ("own_networks_of_a_test:Net", {"arguments": {"sizes": 3}}, "unexpected keyword argument 'sizes'"),
        ("own_networks_of_a_test:make", {}, "missing 1 required positional argument"),
        ("own_networks_of_a_test:broken", {}, "KeyError"),
        ("own_networks_of_a_test:nothing", {}, "made no network"),
        ("own_networks_of_a_test:Net", {"width": 0.5}, r"width and model\.depth mean nothing"),
    ],
)
def test_a_fault_of_ones_own_class_is_one_message(own_module: str, name: str, more: dict, said: str) -> None:
    with pytest.raises(ModelError, match=said) as caught:
        build_model(ModelOptions(name=name, **more), (3, 32, 32), 10)
    assert "Traceback" not in str(caught.value)
