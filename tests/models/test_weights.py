"""Weights from elsewhere: state dicts load whatever wraps them; everything else is told apart and told."""

from __future__ import annotations

import warnings
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
from torch import nn

from deploycnn.errors import ModelError
from deploycnn.models import build_model
from deploycnn.models.weights import load_weights
from deploycnn.recipe import ModelOptions

LENET = ModelOptions(name="lenet")
SHAPE = (3, 32, 32)
State = dict[str, torch.Tensor]


def trained(name: str = "lenet", n_classes: int = 10) -> nn.Module:
    return build_model(ModelOptions(name=name), SHAPE, n_classes, seed=7)


def load(path: Path, options: ModelOptions = LENET, n_classes: int = 10) -> nn.Module:
    return load_weights(options, path, SHAPE, n_classes)


def prefixed(prefix: str) -> Callable[[State], Any]:
    return lambda state: {prefix + name: tensor for name, tensor in state.items()}


@pytest.mark.parametrize("suffix", [".pt", ".pth", ".safetensors"])
@pytest.mark.parametrize(
    "wrap",
    [
        dict,
        OrderedDict,
        prefixed("module."),
        prefixed("_orig_mod."),
        prefixed("module._orig_mod."),
        prefixed("model."),
        lambda state: {"state_dict": state, "epoch": 3, "best": 0.5},
        lambda state: {"model_state_dict": state, "optimizer_state_dict": {"state": {}, "param_groups": []}},
        lambda state: {"state_dict": {f"model.{name}": tensor for name, tensor in state.items()}},
        lambda state: {name: tensor.double() for name, tensor in state.items()},
    ],
    ids=["dict", "ordered", "DataParallel", "compiled", "both", "Lightning", "state_dict", "tutorial", "Lightning file", "double"],
)
def test_a_state_dict_loads_whatever_wraps_it(tmp_path: Path, suffix: str, wrap: Callable[[State], Any]) -> None:
    module = trained()
    content, path = wrap(module.state_dict()), tmp_path / f"weights{suffix}"
    if suffix == ".safetensors":
        flat = next((value for key, value in content.items() if "state_dict" in key and "optim" not in key), content)
        safetensors.torch.save_file(dict(flat), path)
    else:
        torch.save(content, path)
    again = load(path)
    state = again.state_dict()
    assert all(torch.equal(tensor, state[name]) for name, tensor in module.state_dict().items())
    assert not again.training


def test_old_batchnorm_files_without_counters_load(tmp_path: Path) -> None:
    state = {name: tensor for name, tensor in trained("resnet8").state_dict().items() if not name.endswith("num_batches_tracked")}
    torch.save(state, tmp_path / "a.pt")
    assert torch.equal(load(tmp_path / "a.pt", ModelOptions(name="resnet8")).state_dict()["stem.0.weight"], state["stem.0.weight"])


def renamed(state: State) -> State:
    return {name.replace("features.0", "conv1").replace("features.3", "conv2"): tensor for name, tensor in state.items()}


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (renamed, ["missing: features.0.weight", "unexpected: conv1.weight", "and 0 more"][:2]),
        (lambda state: {k: v for k, v in state.items() if k != "classifier.2.bias"}, ["missing: classifier.2.bias"]),
        (lambda state: {**state, "classifier.5.weight": torch.zeros(1)}, ["unexpected: classifier.5.weight"]),
        (lambda state: {**state, "classifier.4.weight": torch.zeros(1000, 84)}, ["(1000, 84)", "the network has (10, 84)"]),
        (lambda state: {k.replace("classifier", "clasifier"): v for k, v in state.items()}, ["nearest in the file: clasifier.0.weight"]),
        (lambda state: {f"x{i}": torch.zeros(1) for i in range(50)}, ["and 46 more"]),
    ],
    ids=["renamed", "missing", "unexpected", "shape", "near", "many"],
)
def test_names_and_shapes_that_differ_are_one_message(tmp_path: Path, change: Callable[[State], State], said: list[str]) -> None:
    torch.save(change(trained().state_dict()), tmp_path / "a.pt")
    with pytest.raises(ModelError) as caught:
        load(tmp_path / "a.pt")
    for text in said:
        assert text in caught.value.found
    assert len(str(caught.value)) < 1200
    assert "lenet" in caught.value.asked


def test_weights_for_other_classes_name_both_shapes(tmp_path: Path) -> None:
    torch.save(trained(n_classes=1000).state_dict(), tmp_path / "a.pt")
    with pytest.raises(ModelError, match=r"classifier\.4\.weight is \(1000, 84\), the network has \(4, 84\)"):
        load(tmp_path / "a.pt", n_classes=4)


# --- pickled objects ------------------------------------------------------------------------


class RunsCode:
    """What a hostile file does when it is unpickled."""

    def __init__(self, marker: Path) -> None:
        self.marker = marker

    def __reduce__(self) -> tuple[Any, ...]:
        return (Path.mkdir, (self.marker,))


@pytest.mark.parametrize("wrap", [lambda module: module, lambda module: {"model": module, "epoch": 1}], ids=["bare", "in a dict"])
def test_a_pickled_network_is_refused_with_what_to_do(tmp_path: Path, wrap: Callable[[nn.Module], Any]) -> None:
    torch.save(wrap(trained()), tmp_path / "net.pt")
    with pytest.raises(ModelError, match="pickled object, not a state dict") as caught:
        load(tmp_path / "net.pt")
    assert "deploycnn.models.lenet.LeNet" in caught.value.found
    for text in ("state_dict()", "model.name", "model.trust_pickle=true"):
        assert text in caught.value.remedy


def test_a_hostile_file_runs_nothing(tmp_path: Path) -> None:
    torch.save({"a": RunsCode(tmp_path / "it ran")}, tmp_path / "a.pt")
    with pytest.raises(ModelError, match="pickled object"):
        load(tmp_path / "a.pt")
    assert not (tmp_path / "it ran").exists()


def test_a_pickled_network_that_is_trusted_gives_its_weights_to_the_recipes_network(tmp_path: Path) -> None:
    module = trained()
    torch.save(module, tmp_path / "net.pt")
    again = load(tmp_path / "net.pt", ModelOptions(name="lenet", trust_pickle=True))
    state = again.state_dict()
    assert all(torch.equal(tensor, state[name]) for name, tensor in module.state_dict().items())
    with pytest.raises(ModelError, match="does not fit the network resnet8"):
        load(tmp_path / "net.pt", ModelOptions(name="resnet8", trust_pickle=True))


# --- damage ---------------------------------------------------------------------------------


def _halved(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


@pytest.mark.parametrize("suffix", [".pt", ".pth", ".safetensors"])
@pytest.mark.parametrize("trusted", [False, True])
@pytest.mark.parametrize(
    "damage",
    [
        _halved,
        lambda path: path.write_bytes(path.read_bytes()[:20]),
        lambda path: path.write_bytes(b""),
        lambda path: path.write_text("<html>not found</html>"),
        lambda path: path.write_bytes(bytes(range(256)) * 8),
        lambda path: path.unlink(),
        lambda path: (path.unlink(), path.mkdir()),
    ],
    ids=["halved", "20 bytes", "0 bytes", "web page", "random", "gone", "folder"],
)
def test_a_damaged_file_is_named(tmp_path: Path, suffix: str, trusted: bool, damage: Callable[[Path], Any]) -> None:
    path = tmp_path / f"weights{suffix}"
    save = safetensors.torch.save_file if suffix == ".safetensors" else torch.save
    save(trained().state_dict(), path)
    damage(path)
    with pytest.raises(ModelError) as caught:
        load(path, ModelOptions(name="lenet", trust_pickle=trusted))
    assert str(path) in caught.value.asked
    assert "pickled object" not in caught.value.asked


@pytest.mark.parametrize("content", [torch.zeros(3), [1, 2], {}, {"a": 1, "b": torch.zeros(2)}, {"state_dict": {"a": "text"}}, 5, None])
def test_a_file_without_a_state_dict_is_told(tmp_path: Path, content: Any) -> None:
    torch.save(content, tmp_path / "a.pt")
    with pytest.raises(ModelError, match="holds no state dict"):
        load(tmp_path / "a.pt")


def test_a_torchscript_archive_is_told_apart(tmp_path: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # TorchScript is deprecated; users still have such files
        torch.jit.save(torch.jit.script(nn.Linear(2, 2)), tmp_path / "a.pt")
        with pytest.raises(ModelError, match="not a state dict") as caught:
            load(tmp_path / "a.pt")
    assert "model.onnx" in caught.value.remedy
