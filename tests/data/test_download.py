from __future__ import annotations

import gzip
import hashlib
import json
import os
import socket
import subprocess
import sys
import tarfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from deploycnn.data import DataMissing, _download, cifar10, fashion_mnist, mnist
from deploycnn.data._download import Resource, fetch_resources, unreachable
from deploycnn.errors import DataError, StoreError
from deploycnn.types import Progress

CONTENT = bytes(range(256)) * 4000


def resource(site: Any, name: str = "file.bin", content: bytes = CONTENT) -> Resource:
    site.files[f"/{name}"] = content
    return Resource(urls=(f"{site.address}{name}",), name=name, md5=hashlib.md5(content).hexdigest())


def fetch(site: Any, root: Path, *resources: Resource, place: str = "") -> list[Progress]:
    steps: list[Progress] = []
    fetch_resources("made", site.address, lambda: resources, root, place, steps.append, never)
    return steps


def never(line: str) -> None:
    raise AssertionError(f"warned: {line}")


def visible(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir() if path.suffix != ".lock") if folder.exists() else []


# --- fetching --------------------------------------------------------------------------------


def test_a_file_arrives_whole_and_says_how_far_it_is(site: Any, tmp_path: Path) -> None:
    steps = fetch(site, tmp_path / "root", resource(site))
    assert (tmp_path / "root" / "file.bin").read_bytes() == CONTENT
    assert visible(tmp_path / "root") == ["file.bin"]
    assert steps[-1] == Progress(done=len(CONTENT), total=len(CONTENT), unit="bytes", note="file.bin")
    assert [step.done for step in steps] == sorted({step.done for step in steps})


def test_several_files_arrive_together_with_their_folder(site: Any, tmp_path: Path) -> None:
    fetch(site, tmp_path, resource(site, "a"), resource(site, "b", b"b"), place="SET/raw")
    assert visible(tmp_path / "SET" / "raw") == ["a", "b"]
    assert visible(tmp_path) == ["SET"]


def test_what_is_there_is_not_fetched_again(site: Any, tmp_path: Path) -> None:
    wanted = resource(site)
    fetch(site, tmp_path, wanted)
    fetch(site, tmp_path, wanted)
    assert site.asked == ["/file.bin"]


def test_the_next_mirror_is_tried(site: Any, tmp_path: Path) -> None:
    wanted = resource(site)
    mirrored = Resource(urls=(f"{site.address}gone", "http://127.0.0.1:9/refused", *wanted.urls), name=wanted.name, md5=wanted.md5)
    fetch(site, tmp_path, mirrored)
    assert visible(tmp_path) == ["file.bin"]


def test_other_contents_are_refused(site: Any, tmp_path: Path) -> None:
    wanted = resource(site)
    site.files["/file.bin"] = CONTENT[:-1] + b"x"
    with pytest.raises(DataError, match="incomplete or corrupt") as caught:
        fetch(site, tmp_path, wanted)
    assert wanted.md5 in caught.value.found
    assert visible(tmp_path) == []
    assert not isinstance(caught.value, DataMissing)


def test_a_connection_that_closes_early(site: Any, tmp_path: Path) -> None:
    wanted = resource(site)
    site.cut = 300_000
    with pytest.raises(DataError, match="broke off") as caught:
        fetch(site, tmp_path, wanted)
    assert f"of {len(CONTENT):,} bytes" in caught.value.found
    assert visible(tmp_path) == []


def test_a_file_that_nobody_has(site: Any, tmp_path: Path) -> None:
    with pytest.raises(DataMissing) as caught:
        fetch(site, tmp_path, Resource(urls=(f"{site.address}gone",), name="gone", md5=""))
    assert "404" in caught.value.found
    assert visible(tmp_path) == []


def test_without_torchvision(site: Any, tmp_path: Path) -> None:
    def resources() -> list[Resource]:
        raise ModuleNotFoundError("No module named 'torchvision'")

    with pytest.raises(DataMissing) as caught:
        fetch_resources("made", site.address, resources, tmp_path, "", lambda step: None, never)
    assert "torchvision cannot be imported" in caught.value.found


def test_a_root_that_is_a_file(site: Any, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(StoreError):
        fetch(site, tmp_path / "file", resource(site))


def test_whoever_waits_for_another_process_is_told(site: Any, tmp_path: Path) -> None:
    from deploycnn.store import lock

    lines: list[str] = []
    held = lock(tmp_path / ".made.lock", "a test", 0)
    held.__enter__()

    def tell(line: str) -> None:
        lines.append(line)
        held.__exit__(None, None, None)

    fetch_resources("made", site.address, lambda: [resource(site)], tmp_path, "", lambda step: None, tell)
    assert len(lines) == 1
    assert "a test" in lines[0]
    assert visible(tmp_path) == ["file.bin"]


# --- no network --------------------------------------------------------------------------------


@pytest.fixture
def silence() -> Iterator[str]:
    """A host that takes connections and never says a word."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        yield f"127.0.0.1:{listener.getsockname()[1]}"


@pytest.mark.usefixtures("offline")
@pytest.mark.parametrize("name", ["cifar10", "mnist", "fashion-mnist"])
def test_offline_is_found_out_at_once_and_said_in_one_line(name: str, load: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fashion_mnist, "DEBIAN", tmp_path / "not installed")
    start_s = time.monotonic()
    with pytest.raises(DataMissing) as caught:
        load(name=name, root=tmp_path / "empty")
    assert time.monotonic() - start_s < 10
    assert f"{name} is not on disk and cannot be downloaded" in caught.value.one_line
    assert str(tmp_path / "empty") in caught.value.found
    assert "\n" not in caught.value.one_line


@pytest.mark.slow
@pytest.mark.parametrize("way", ["proxy", "host"])
def test_a_network_that_swallows_everything(way: str, silence: str, load: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if way == "proxy":
        for name in ("https_proxy", "HTTPS_PROXY"):
            monkeypatch.setenv(name, f"http://{silence}")
        monkeypatch.delenv("no_proxy", raising=False)
        monkeypatch.delenv("NO_PROXY", raising=False)
    else:
        monkeypatch.setattr(cifar10, "SITE", f"http://{silence}/")
    start_s = time.monotonic()
    dataset = load(root=tmp_path / "empty", fallback="synthetic10", train=10, test=10)
    assert time.monotonic() - start_s < 10
    assert dataset.name == "synthetic10"
    assert len(load.warnings) == 1


def test_a_name_server_that_never_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_download, "REACH_S", 0.3)

    def hang(*arguments: object, **keywords: object) -> None:
        time.sleep(2)
        raise OSError("given up")

    monkeypatch.setattr(socket, "getaddrinfo", hang)
    start_s = time.monotonic()
    assert "no answer from somewhere.example within" in unreachable("http://somewhere.example/")
    assert time.monotonic() - start_s < 1.5


def test_an_unknown_host() -> None:
    assert "cannot be reached" in unreachable("http://nowhere.invalid/")


@pytest.mark.parametrize(("status", "reached"), [(200, True), (403, True), (404, True), (407, False), (502, False), (504, False)])
def test_an_error_of_the_site_is_an_answer_and_one_of_a_proxy_is_none(status: int, reached: bool, site: Any) -> None:
    site.status = status
    assert (unreachable(site.address) == "") is reached


def test_a_proxy_is_used(site: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("http_proxy", site.address)
    for name in ("no_proxy", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)
    assert unreachable("http://nowhere.invalid/") == ""


@pytest.mark.usefixtures("offline")
def test_images_on_disk_need_no_network(load: Any, batches_py: Path) -> None:
    assert load(root=batches_py).name == "cifar10"
    assert not load.warnings


# --- whole data sets through torchvision's addresses -------------------------------------------------


def archive_of(folder: Path, target: Path) -> bytes:
    with tarfile.open(target, "w:gz", compresslevel=1) as archive:
        archive.add(folder, folder.name)
    return target.read_bytes()


def test_cifar10_is_downloaded(load: Any, site: Any, batches_py: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from torchvision.datasets import CIFAR10

    content = archive_of(batches_py, tmp_path / "whole.tar.gz")
    wanted = resource(site, CIFAR10.filename, content)
    monkeypatch.setattr(CIFAR10, "url", wanted.urls[0])
    monkeypatch.setattr(CIFAR10, "tgz_md5", wanted.md5)
    monkeypatch.setattr(cifar10, "SITE", site.address)
    dataset = load(root=tmp_path / "data", fallback="synthetic10")
    assert dataset.name == "cifar10"
    assert len(dataset.train) == 100
    assert visible(tmp_path / "data") == ["cifar-10-python.tar.gz"]
    assert any(step.unit == "bytes" for step in load.progress)
    assert not load.warnings


@pytest.mark.parametrize(("module", "kind"), [(mnist, "MNIST"), (fashion_mnist, "FashionMNIST")])
def test_idx_files_are_downloaded(module: Any, kind: str, load: Any, site: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import torchvision.datasets

    from deploycnn.data import _idx

    monkeypatch.setattr(_idx, "COUNTS", {"train": 30, "t10k": 20})
    monkeypatch.setattr(fashion_mnist, "DEBIAN", tmp_path / "not installed")
    resources = []
    for name, _ in getattr(torchvision.datasets, kind).resources:
        count = 30 if name.startswith("train") else 20
        shape = (count, 28, 28) if "images" in name else (count,)
        header = bytes([0, 0, 8, len(shape)]) + b"".join(side.to_bytes(4) for side in shape)
        values = np.arange(np.prod(shape)) % 10
        content = gzip.compress(header + values.astype(np.uint8).tobytes())
        resources.append((name, resource(site, name, content).md5))
    monkeypatch.setattr(getattr(torchvision.datasets, kind), "resources", resources)
    monkeypatch.setattr(getattr(torchvision.datasets, kind), "mirrors", [site.address])
    monkeypatch.setattr(module, "SITE", site.address)
    dataset = load(name=module.__name__.rpartition(".")[2].replace("_", "-"), root=tmp_path / "data")
    assert (len(dataset.train), len(dataset.test), dataset.shape_CHW) == (30, 20, (1, 28, 28))
    assert len(visible(tmp_path / "data" / kind / "raw")) == 4


LOAD = """
import json, sys, types
from pathlib import Path
CIFAR10 = types.SimpleNamespace(filename="cifar-10-python.tar.gz")
sys.modules["torchvision"] = sys.modules["torchvision.datasets"] = types.SimpleNamespace(CIFAR10=CIFAR10)  # importing it takes long
from deploycnn.data import cifar10, load_dataset
from deploycnn.recipe import DataOptions
from deploycnn.store import Store
CIFAR10.url, CIFAR10.tgz_md5, cifar10.SITE, cifar10.BATCH = sys.argv[1], sys.argv[2], sys.argv[3], 20
dataset = load_dataset(DataOptions(root=Path(sys.argv[4])), Store(Path(sys.argv[5])), lambda step: None, print)
print(json.dumps([dataset.name, dataset.sha256, len(dataset.train)]))
"""


@pytest.mark.slow
def test_two_loads_at_once_on_one_empty_folder(site: Any, batches_py: Path, tmp_path: Path) -> None:
    """D9: one downloads, the other waits for it; both decode into one cache; nothing is mixed or left over."""
    wanted = resource(site, "cifar-10-python.tar.gz", archive_of(batches_py, tmp_path / "whole.tar.gz"))
    arguments = [wanted.urls[0], wanted.md5, site.address, str(tmp_path / "data"), str(tmp_path / "store")]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    runs = [
        subprocess.Popen(
            [sys.executable, "-c", LOAD, *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment
        )
        for _ in range(2)
    ]
    answers = []
    for run in runs:
        stdout, stderr = run.communicate(timeout=120)
        assert run.returncode == 0, stderr
        answers.append(json.loads(stdout.splitlines()[-1]))
    assert answers[0] == answers[1]
    assert answers[0][0] == "cifar10"
    assert site.asked == ["/cifar-10-python.tar.gz"]
    assert visible(tmp_path / "data") == ["cifar-10-python.tar.gz"]
