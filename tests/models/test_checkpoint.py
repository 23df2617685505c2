"""Checkpoints: what is saved comes back to the bit, what is damaged is named, what would run code is refused."""

from __future__ import annotations

import errno
import json
import struct
from collections.abc import Callable
from pathlib import Path

import pytest
import safetensors.torch
import torch
from torch import nn

from deploycnn import assets, disk
from deploycnn.errors import DeployError, ModelError, StoreError
from deploycnn.models import build_model, checkpoint, network_classes
from deploycnn.models.checkpoint import CheckpointFacts, facts_of, is_checkpoint, load_checkpoint, save_checkpoint
from deploycnn.recipe import ModelOptions
from deploycnn.types import Preprocessing

CLASSES = ("ape", "bee", "cow", "dog")
PIXELS = Preprocessing(mean=(0.1, 0.2, 0.3), std=(0.5, 0.25, 0.125))


def saved(path: Path, options: ModelOptions | None = None, **facts: object) -> tuple[nn.Module, CheckpointFacts]:
    options = options or ModelOptions(name="lenet")
    module = build_model(options, (3, 32, 32), len(CLASSES))
    said = facts_of(options, CLASSES, (3, 32, 32), PIXELS, {"epochs": 3, "data": "zoo", **facts})
    save_checkpoint(path, module, said)
    return module, said


@pytest.mark.parametrize("name", list(network_classes()))
@pytest.mark.parametrize("memory_format", [torch.contiguous_format, torch.channels_last])
def test_weights_and_facts_come_back_to_the_bit(tmp_path: Path, name: str, memory_format: torch.memory_format) -> None:
    options = ModelOptions(name=name, width=0.5)
    module = build_model(options, (3, 32, 32), len(CLASSES)).train()
    module(torch.rand(4, 3, 32, 32))  # moves BatchNorm's statistics
    module.to(memory_format=memory_format)  # type: ignore[call-overload]
    facts = facts_of(options, CLASSES, (3, 32, 32), PIXELS, {"history": [1.5, None], "note": "ä"})
    save_checkpoint(tmp_path / "a.safetensors", module, facts)
    again, said = load_checkpoint(tmp_path / "a.safetensors")
    state = again.state_dict()
    assert said == facts
    assert all(torch.equal(tensor, state[key]) and tensor.dtype == state[key].dtype for key, tensor in module.state_dict().items())
    assert not again.training
    x_NCHW = torch.rand(5, 3, 32, 32)
    assert torch.equal(again(x_NCHW), module.eval().to(memory_format=torch.contiguous_format)(x_NCHW))  # type: ignore[call-overload]


def test_saving_twice_gives_the_same_bytes_and_leaves_the_module_as_it_was(tmp_path: Path) -> None:
    module, facts = saved(tmp_path / "a.safetensors")
    module.train()
    save_checkpoint(tmp_path / "b.safetensors", module, facts)
    assert (tmp_path / "a.safetensors").read_bytes() == (tmp_path / "b.safetensors").read_bytes()
    assert module.training


# --- damage ---------------------------------------------------------------------------------


def _halved(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def _header_cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:40])


def _one_bit(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[-1000] ^= 1
    path.write_bytes(content)


def _no_facts(path: Path) -> None:
    path.write_bytes(safetensors.torch.save(safetensors.torch.load_file(path)))


def _with_facts(path: Path, change: Callable[[dict], None]) -> None:
    content = path.read_bytes()
    (length,) = struct.unpack("<Q", content[:8])
    header = json.loads(content[8 : 8 + length])
    document = json.loads(header["__metadata__"]["deploycnn"])
    change(document["facts"])
    header["__metadata__"]["deploycnn"] = json.dumps(document)
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + content[8 + length :])


def _folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


@pytest.mark.parametrize(
    "damage",
    [
        _halved,
        _header_cut,
        _one_bit,
        _no_facts,
        _folder,
        lambda path: path.write_bytes(b""),
        lambda path: path.write_bytes(b"\x00" * 100),
        lambda path: path.write_text("<!DOCTYPE html><html>404</html>"),
        lambda path: path.unlink(),
        lambda path: torch.save({"a": torch.zeros(3)}, path),
        lambda path: _with_facts(path, lambda facts: facts.pop("classes")),
        lambda path: _with_facts(path, lambda facts: facts.update(shape_CHW="wide")),
        lambda path: _with_facts(path, lambda facts: facts.update(format=99)),
        lambda path: _with_facts(path, lambda facts: facts.update(classes=["one", "two"])),
        lambda path: _with_facts(path, lambda facts: facts["model"].update(width=2.0)),
        lambda path: _with_facts(path, lambda facts: facts["model"].update(name="alexnet")),
    ],
    ids=[
        "halved",
        "header cut",
        "one bit",
        "no facts",
        "folder",
        "0 bytes",
        "zeros",
        "web page",
        "gone",
        "a pickle",
        "no classes",
        "wrong shape",
        "later format",
        "other classes",
        "other width",
        "unknown network",
    ],
)
def test_a_file_that_is_no_whole_checkpoint_is_one_readable_message(tmp_path: Path, damage: Callable[[Path], object]) -> None:
    path = tmp_path / "cut.safetensors"
    saved(path)
    damage(path)
    with pytest.raises(ModelError) as caught:
        load_checkpoint(path)
    assert "cut.safetensors" in str(caught.value) or "alexnet" in str(caught.value)
    assert caught.value.remedy


@pytest.mark.parametrize("damage", [_halved, _header_cut, _no_facts, lambda path: path.unlink(), _folder])
def test_what_is_not_ours_is_not_taken_for_ours(tmp_path: Path, damage: Callable[[Path], object]) -> None:
    path = tmp_path / "a.safetensors"
    saved(path)
    assert is_checkpoint(path)
    damage(path)
    assert not is_checkpoint(path)


def test_a_full_disk_leaves_the_old_checkpoint_and_no_half_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    module, facts = saved(tmp_path / "a.safetensors")
    before = (tmp_path / "a.safetensors").read_bytes()

    def full(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(disk.os, "fsync", full)
    with pytest.raises(StoreError, match="the disk is full"):
        save_checkpoint(tmp_path / "a.safetensors", module, facts)
    assert [path.name for path in tmp_path.iterdir()] == ["a.safetensors"]
    assert (tmp_path / "a.safetensors").read_bytes() == before


# --- what would run code --------------------------------------------------------------------


def test_a_checkpoint_cannot_choose_a_class_by_itself(tmp_path: Path) -> None:
    path = tmp_path / "a.safetensors"
    saved(path)
    marker = tmp_path / "it ran"
    _with_facts(path, lambda facts: facts["model"].update(name="os:mkdir", arguments={"path": str(marker)}))
    for expected in (None, "own:Net"):
        with pytest.raises(ModelError, match="asks for the class os:mkdir"):
            load_checkpoint(path, own_name=expected)
    assert not marker.exists()


def test_a_checkpoint_of_ones_own_class_loads_where_the_recipe_names_it(tmp_path: Path) -> None:
    options = ModelOptions(name="torch.nn:Sequential")
    save_checkpoint(tmp_path / "a.safetensors", nn.Sequential(), facts_of(options, CLASSES, (3, 32, 32), PIXELS))
    for allowed in ({"own_name": "torch.nn:Sequential"}, {"trust_pickle": True}):
        module, facts = load_checkpoint(tmp_path / "a.safetensors", **allowed)
        assert isinstance(module, nn.Sequential)
        assert facts.model.name == "torch.nn:Sequential"


# --- facts ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("mean", "std", "named"),
    [
        ((0.5,), (0.5, 0.5, 0.5), "model.mean"),
        ((0.5, 0.5, 0.5), (0.5,), "model.std"),
        ((0.5, 0.5, 0.5), (0.5, 0.0, 0.5), "model.std"),
        ((0.5, 0.5, 0.5), (0.5, 0.5, -1.0), "model.std"),
    ],
)
def test_preprocessing_that_does_not_fit_the_channels_is_told(mean: tuple[float, ...], std: tuple[float, ...], named: str) -> None:
    with pytest.raises(DeployError, match=named):
        facts_of(ModelOptions(), CLASSES, (3, 32, 32), Preprocessing(mean=mean, std=std))


def test_a_state_that_is_no_tensor_is_told(tmp_path: Path) -> None:
    class Odd(nn.Linear):
        def get_extra_state(self) -> dict[str, int]:
            return {"a": 1}

    with pytest.raises(ModelError, match="not a tensor"):
        save_checkpoint(tmp_path / "a.safetensors", Odd(2, 2), facts_of(ModelOptions(), CLASSES, (3, 32, 32), PIXELS))
    assert not list(tmp_path.iterdir())


def test_tied_weights_can_be_saved(tmp_path: Path) -> None:
    module = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    module[1].weight = module[0].weight
    save_checkpoint(tmp_path / "a.safetensors", module, facts_of(ModelOptions(), CLASSES, (3, 32, 32), PIXELS))
    assert is_checkpoint(tmp_path / "a.safetensors")


# --- those that ship ------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "network"), [("lenet-cifar10", "lenet"), ("resnet8-cifar10", "resnet8")])
def test_a_checkpoint_that_ships_loads_and_says_what_it_is(name: str, network: str) -> None:
    path = checkpoint.find_weights(name)
    module, facts = load_checkpoint(path)
    assert facts.model.name == network
    assert facts.shape_CHW == (3, 32, 32)
    assert len(facts.classes) == 10
    assert facts.training["data"] == "cifar10"
    assert facts.training["data_official"] is False
    assert module(torch.zeros(2, 3, 32, 32)).shape == (2, 10)
    card = path.with_suffix(".md").read_text(encoding="utf-8")
    assert f"{100 * facts.training['test_top1']:.2f} %" in card
    assert "JPEG" in card


def test_every_checkpoint_that_ships_has_a_card() -> None:
    shipped = assets.checkpoints()
    assert {"lenet-cifar10", "resnet8-cifar10"} <= set(shipped)
    assert [name for name, path in shipped.items() if not path.with_suffix(".md").is_file()] == []


@pytest.mark.data
@pytest.mark.parametrize("name", ["lenet-cifar10", "resnet8-cifar10"])
def test_a_checkpoint_that_ships_has_the_accuracy_it_claims(name: str, cifar10_batches: Path) -> None:
    import pickle

    batch = pickle.loads((cifar10_batches / "test_batch").read_bytes(), encoding="latin1")
    x_NCHW = torch.from_numpy(batch["data"].reshape(-1, 3, 32, 32)[:2000]).float() / 255
    labels_N = torch.tensor(batch["labels"][:2000])
    module, facts = load_checkpoint(checkpoint.find_weights(name))
    mean, std = (torch.tensor(v).view(1, 3, 1, 1) for v in (facts.preprocessing.mean, facts.preprocessing.std))
    with torch.inference_mode():
        top1 = (module((x_NCHW - mean) / std).argmax(1) == labels_N).float().mean().item()
    assert top1 == pytest.approx(facts.training["test_top1"], abs=0.03)  # 3 standard errors of 2,000 images
