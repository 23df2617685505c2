"""PyTorch modules become graphs that compute the same, at every batch size, whatever state they come in."""

from __future__ import annotations

import copy
import json
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
import pytest
import torch
from onnx import numpy_helper
from torch import nn
from torch.nn import functional as F

import deploycnn
from deploycnn.errors import ExportError
from deploycnn.export import export_graph
from deploycnn.graph import read_metadata
from deploycnn.types import Preprocessing, Variant

SHAPE_CHW = (3, 16, 16)
CLASSES = ("ant", "bee", "cat", "dog", "emu")
PREPROCESSING = Preprocessing(mean=(0.49, 0.48, 0.45), std=(0.25, 0.24, 0.26))


class Net(nn.Module):
    """Padded convolution, BatchNorm with statistics of its own, dropout, global average, dense."""

    def __init__(self, channels: int = 3, groups: int = 1) -> None:
        super().__init__()
        self.conv = nn.Conv2d(channels, 6, 3, padding=1, groups=groups)
        self.norm = nn.BatchNorm2d(6)
        self.pool = nn.AdaptiveAvgPool2d(2)
        self.drop = nn.Dropout(0.5)
        self.dense = nn.Linear(24, 5)
        with torch.no_grad():
            self.norm.running_mean += torch.randn(6)
            self.norm.running_var += torch.rand(6)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.dense(self.drop(self.pool(F.relu(self.norm(self.conv(x)))).flatten(1)))


def net(**arguments: int) -> Net:
    torch.manual_seed(5)
    return Net(**arguments)


def export(module: nn.Module, sample_NCHW: np.ndarray, folder: Path, **more: object) -> Variant:
    folder.mkdir(exist_ok=True)
    arguments = {"metadata": {"data": "pictures"}, "preprocessing": PREPROCESSING, **more}
    return export_graph(module, shape_CHW=sample_NCHW.shape[1:], classes=CLASSES, sample_x_NCHW=sample_NCHW, folder=folder, **arguments)


def onnx_logits(path: Path, x_NCHW: np.ndarray) -> np.ndarray:
    session = ort.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    return session.run(["logits"], {"pixels": x_NCHW})[0]


def torch_logits(module: nn.Module, x_NCHW: np.ndarray, preprocessing: Preprocessing = PREPROCESSING) -> np.ndarray:
    """The module in eval mode on pixels that are normalised here, in double precision."""
    mean, std = (np.array(values).reshape(1, -1, 1, 1) for values in (preprocessing.mean, preprocessing.std))
    with torch.no_grad():
        return copy.deepcopy(module).eval()(torch.from_numpy(((x_NCHW / 255 - mean) / std).astype(np.float32))).numpy()


@pytest.fixture(scope="module")
def exported(sample_NCHW: np.ndarray, tmp_path_factory: pytest.TempPathFactory) -> tuple[Net, Variant]:
    module = net().train()
    return module, export(module, sample_NCHW, tmp_path_factory.mktemp("exported"))


@pytest.mark.parametrize("batch", [1, 2, 3, 7, 65])
def test_the_graph_computes_what_the_module_computes_in_eval_mode(
    exported: tuple[Net, Variant], sample_NCHW: np.ndarray, batch: int
) -> None:
    module, variant = exported
    reference_NK = torch_logits(module, sample_NCHW[:batch])
    assert np.abs(onnx_logits(variant.onnx_path, sample_NCHW[:batch]) - reference_NK).max() <= 1e-4
    program = torch.export.load(variant.program_path).module()
    with torch.no_grad():
        assert np.abs(program(torch.from_numpy(sample_NCHW[:batch])).numpy() - reference_NK).max() <= 1e-4


def test_the_module_is_left_as_it_was(exported: tuple[Net, Variant]) -> None:
    module, _ = exported
    assert all(part.training for part in module.modules())
    assert all(parameter.requires_grad for parameter in module.parameters())
    for name, value in net().state_dict().items():
        assert torch.equal(value, module.state_dict()[name]), name


def test_the_boundary_is_pixels_and_logits(exported: tuple[Net, Variant]) -> None:
    _, variant = exported
    model = onnx.load(str(variant.onnx_path))
    onnx.checker.check_model(model, full_check=True)
    (pixels,), (logits,) = model.graph.input, model.graph.output
    assert pixels.type.tensor_type.elem_type == onnx.TensorProto.UINT8
    assert [dim.dim_param or dim.dim_value for dim in pixels.type.tensor_type.shape.dim] == ["batch", 3, 16, 16]
    assert [dim.dim_param or dim.dim_value for dim in logits.type.tensor_type.shape.dim] == ["batch", 5]
    assert (variant.input.name, variant.input.dtype, variant.output_name, variant.fixed_batch) == ("pixels", "uint8", "logits", None)
    assert sorted(path.name for path in variant.onnx_path.parent.iterdir()) == ["graph.onnx", "program.pt2"]


def test_metadata_travels_in_the_file(exported: tuple[Net, Variant]) -> None:
    _, variant = exported
    facts = read_metadata(variant.onnx_path)
    assert (facts.classes, facts.preprocessing, facts.precision) == (CLASSES, PREPROCESSING, "fp32")
    assert (facts.version, dict(facts.others)) == (deploycnn.__version__, {"data": "pictures"})


@pytest.mark.parametrize("state", ["eval", "channels_last with gradients"])
def test_same_weights_give_the_same_bytes(exported: tuple[Net, Variant], sample_NCHW: np.ndarray, tmp_path: Path, state: str) -> None:
    module = net().eval()
    if state != "eval":
        module = module.to(memory_format=torch.channels_last)
        module(torch.zeros(2, *SHAPE_CHW)).sum().backward()
    assert export(module, sample_NCHW, tmp_path / "again").sha256 == exported[1].sha256


def test_nothing_of_this_machine_is_in_the_files(exported: tuple[Net, Variant], sample_NCHW: np.ndarray) -> None:
    _, variant = exported
    with zipfile.ZipFile(variant.program_path) as archive:
        program = b"".join(archive.read(name) for name in archive.namelist())
    for content in (variant.onnx_path.read_bytes(), program):
        for trace in (str(Path(__file__).parent), str(Path(torch.__file__).parent), str(variant.onnx_path.parent), ".py"):
            assert trace.encode() not in content
        assert sample_NCHW[0].tobytes() not in content


@pytest.mark.parametrize("groups", [1, 3])
def test_the_scale_is_folded_and_zero_padding_means_what_it_did(sample_NCHW: np.ndarray, tmp_path: Path, groups: int) -> None:
    module = net(groups=groups)
    variant = export(module, sample_NCHW, tmp_path)
    ops = [node.op_type for node in onnx.load(str(variant.onnx_path)).graph.node]
    assert ops[:3] == ["Cast", "Sub", "Conv"]
    assert np.abs(onnx_logits(variant.onnx_path, sample_NCHW) - torch_logits(module, sample_NCHW)).max() <= 1e-4


def test_a_network_that_does_not_start_with_a_convolution_keeps_its_scale(sample_NCHW: np.ndarray, tmp_path: Path) -> None:
    module = nn.Sequential(nn.AvgPool2d(2), nn.Flatten(), nn.Linear(192, 5))
    variant = export(module, sample_NCHW, tmp_path)
    assert [node.op_type for node in onnx.load(str(variant.onnx_path)).graph.node][:3] == ["Cast", "Sub", "Mul"]
    assert np.abs(onnx_logits(variant.onnx_path, sample_NCHW) - torch_logits(module, sample_NCHW)).max() <= 1e-4


def test_gray_images(sample_NCHW: np.ndarray, tmp_path: Path) -> None:
    gray, module = Preprocessing(mean=(0.13,), std=(0.31,)), net(channels=1)
    variant = export(module, np.ascontiguousarray(sample_NCHW[:, :1]), tmp_path, preprocessing=gray)
    reference_NK = torch_logits(module, sample_NCHW[:, :1], gray)
    assert np.abs(onnx_logits(variant.onnx_path, sample_NCHW[:, :1]) - reference_NK).max() <= 1e-4


def test_a_mean_over_the_image_becomes_a_global_average_pool(sample_NCHW: np.ndarray, tmp_path: Path) -> None:
    module = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 5))
    model = onnx.load(str(export(module, sample_NCHW, tmp_path).onnx_path))
    assert "GlobalAveragePool" in [node.op_type for node in model.graph.node]
    used = {name for node in model.graph.node for name in node.input}
    assert all(tensor.name in used for tensor in model.graph.initializer)


# --- a batch size that is frozen -----------------------------------------------------------


class Frozen(nn.Module):
    """conv, pool, and then one of the ways in which people lose the batch dimension."""

    def __init__(self, how: str) -> None:
        super().__init__()
        self.how = how
        self.conv = nn.Conv2d(3, 4, 3, padding=1)
        self.dense = nn.Linear(4 * 64, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = F.max_pool2d(F.relu(self.conv(x)), 2)
        if self.how == "view 4":
            x = x.view(4, -1)
        elif self.how == "view 2":
            x = x.view(2, -1)
        elif self.how == "reshape tuple":
            x = x.reshape((4, 256))
        elif self.how == "torch.reshape":
            x = torch.reshape(x, (4, -1))
        elif self.how == "mixes images":
            return x.view(4, 5, -1).mean(-1) if x.numel() % 20 == 0 else x.view(4, 256)[:, :5]
        return self.dense(x)


@pytest.mark.parametrize("how", ["view 4", "view 2", "reshape tuple", "torch.reshape", "mixes images"])
def test_a_frozen_batch_is_an_error_that_names_the_reshape(sample_NCHW: np.ndarray, tmp_path: Path, how: str) -> None:
    with pytest.raises(ExportError) as caught:
        export(Frozen(how), sample_NCHW, tmp_path)
    batch = 2 if how == "view 2" else 4
    assert f"freezes its batch size at {batch}" in caught.value.asked
    assert "view(" in caught.value.asked or "reshape(" in caught.value.asked
    assert Path(__file__).name in caught.value.asked
    assert "flatten(1)" in caught.value.remedy
    assert not list(tmp_path.glob("*.onnx"))


def test_a_frozen_batch_can_be_asked_for(sample_NCHW: np.ndarray, tmp_path: Path) -> None:
    module = Frozen("view 4")
    variant = export(module, sample_NCHW, tmp_path, fixed_batch=4)
    assert variant.fixed_batch == 4
    assert any("fixed batch 4" in note for note in variant.notes)
    assert np.abs(onnx_logits(variant.onnx_path, sample_NCHW[:4]) - torch_logits(module, sample_NCHW[:4])).max() <= 1e-4
    shape = onnx.load(str(variant.onnx_path)).graph.input[0].type.tensor_type.shape
    assert shape.dim[0].dim_value == 4


class Branching(nn.Module):
    """Runs at every batch size, and makes the exporter take it as a constant."""

    def __init__(self, how: str) -> None:
        super().__init__()
        self.how = how
        self.dense = nn.Linear(768, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.how == "branch on the batch":
            return self.dense(x.flatten(1)) if x.shape[0] == 2 else self.dense(x.flatten(1)) * 2
        if self.how == "branch on values":
            return self.dense(x.flatten(1)) if float(x.mean()) > 0 else self.dense(x.flatten(1)) * 2
        return torch.stack([self.dense(image.flatten()) for image in x])


@pytest.mark.parametrize("how", ["branch on the batch", "branch on values", "loop over images"])
def test_forward_methods_that_cannot_be_traced(sample_NCHW: np.ndarray, tmp_path: Path, how: str) -> None:
    with pytest.raises(ExportError) as caught:
        export(Branching(how), sample_NCHW, tmp_path)
    assert caught.value.found
    assert caught.value.remedy


# --- other models that must not become files ------------------------------------------------


class Noisy(nn.Module):
    def __init__(self, how: str) -> None:
        super().__init__()
        self.how = how
        self.dense = nn.Linear(768, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x.flatten(1)
        x = F.dropout(x, 0.5, training=True) if self.how == "dropout" else x + torch.rand_like(x)
        return self.dense(x)


@pytest.mark.parametrize("how", ["dropout", "noise"])
def test_a_module_that_answers_differently_each_time_is_refused(sample_NCHW: np.ndarray, tmp_path: Path, how: str) -> None:
    with pytest.raises(ExportError, match="differently each time"):
        export(Noisy(how), sample_NCHW, tmp_path)


@pytest.mark.parametrize(
    ("module", "words"),
    [
        (nn.Sequential(nn.Conv2d(1, 4, 3), nn.Flatten(), nn.Linear(784, 5)), ("cannot take images of 3x16x16", "channels")),
        (nn.Sequential(nn.AvgPool2d(8), nn.Flatten(), nn.Linear(48, 5)), ("cannot take images of 3x16x16", "48x5")),
        (nn.Sequential(nn.Flatten(), nn.Linear(768, 7)), ("gives 7 logits", "5 classes")),
        (nn.Conv2d(3, 5, 3), ("cannot take images", "output of shape (2, 5, 14, 14)")),
    ],
    ids=["channels", "size", "classes", "no classifier"],
)
def test_models_that_do_not_fit_the_images(module: nn.Module, words: tuple[str, ...], sample_NCHW: np.ndarray, tmp_path: Path) -> None:
    with pytest.raises(ExportError) as caught:
        export(module, sample_NCHW, tmp_path)
    assert all(word in str(caught.value) for word in words)
    assert caught.value.found
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    "change",
    [
        {"mean": (0.5,), "std": (0.2, 0.2, 0.2)},
        {"mean": (0.5, 0.5, 0.5), "std": (0.2,)},
        {"mean": (0.5, 0.5, 0.5), "std": (0.2, 0.0, 0.2)},
    ],
)
def test_preprocessing_that_does_not_fit(change: dict[str, tuple[float, ...]], sample_NCHW: np.ndarray, tmp_path: Path) -> None:
    with pytest.raises(ExportError, match="preprocessing"):
        export(net(), sample_NCHW, tmp_path, preprocessing=Preprocessing(**change))


@pytest.mark.parametrize("kind", ["float", "other size", "one image", "the same image", "none"])
def test_samples_that_prove_nothing_are_refused(sample_NCHW: np.ndarray, tmp_path: Path, kind: str) -> None:
    sample = {
        "float": sample_NCHW.astype(np.float32),
        "other size": sample_NCHW[:, :, :8],
        "one image": sample_NCHW[:1],
        "the same image": np.repeat(sample_NCHW[:1], 65, axis=0),
        "none": sample_NCHW[:0],
    }[kind]
    with pytest.raises(ExportError, match="sample images"):
        export_graph(net(), PREPROCESSING, SHAPE_CHW, CLASSES, sample, tmp_path, {})


def test_a_wrong_graph_does_not_pass_although_its_top1_agrees(
    sample_NCHW: np.ndarray, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """CASES P7: logits are compared, not the winner."""
    from deploycnn.export import _torch

    def damaged(model: onnx.ModelProto) -> onnx.ModelProto:
        model = cleaned(model)
        bias = next(tensor for tensor in model.graph.initializer if tensor.name.endswith("dense.bias"))
        bias.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(bias) + np.float32(0.01), bias.name))  # the same for every class
        return model

    cleaned: Callable[[onnx.ModelProto], onnx.ModelProto] = _torch.cleaned
    monkeypatch.setattr(_torch, "cleaned", damaged)
    with pytest.raises(ExportError, match="does not compute what the model computes"):
        export(net(), sample_NCHW, tmp_path)


def test_the_archive_holds_plain_json(exported: tuple[Net, Variant]) -> None:
    with zipfile.ZipFile(exported[1].program_path) as archive:
        model = next(name for name in archive.namelist() if name.endswith("models/model.json"))
        assert json.loads(archive.read(model))


FULL_DISK = """
import resource, sys
from pathlib import Path
import numpy as np, torch
from deploycnn.errors import StoreError
from deploycnn.export import export_graph
from deploycnn.types import Preprocessing

x = np.random.default_rng(0).integers(0, 256, (70, 3, 8, 8), np.uint8)
net = torch.nn.Sequential(torch.nn.Conv2d(3, 4, 3), torch.nn.ReLU(), torch.nn.Flatten(), torch.nn.Linear(144, 3))
grey = Preprocessing(mean=(0.5,) * 3, std=(0.3,) * 3)
resource.setrlimit(resource.RLIMIT_FSIZE, (8000, 8000))  # the graph has 6 kB, the program more
try:
    export_graph(net, grey, (3, 8, 8), ("a", "b", "c"), x, Path(sys.argv[1]), {})
except StoreError as error:
    print("refused:", error.one_line)
"""


@pytest.mark.slow
def test_a_disk_that_takes_no_program_is_an_error_and_ends_no_process(tmp_path: Path) -> None:
    said = subprocess.run([sys.executable, "-c", FULL_DISK, str(tmp_path)], capture_output=True, text=True, timeout=120)
    assert said.returncode == 0, said.stderr
    assert said.stdout.startswith("refused:"), said.stdout
    assert [path.name for path in tmp_path.iterdir()] == ["graph.onnx"], "nothing half written"
