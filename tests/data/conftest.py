"""Small images and small archives in the forms that users have; the real ones are a fixture of all tests."""

from __future__ import annotations

import http.server
import pickle
import struct
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from deploycnn.data import DataSet, cifar10, load_dataset
from deploycnn.recipe import DataOptions
from deploycnn.store import Store
from deploycnn.types import Progress

SMALL_BATCH = 20


class Loader:
    """`load_dataset` with a store of its own, remembering what it was told."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.progress: list[Progress] = []
        self.warnings: list[str] = []

    def __call__(self, **options: object) -> DataSet:
        return load_dataset(DataOptions.model_validate(options), self.store, self.progress.append, self.warnings.append)


@pytest.fixture
def load(store: Store) -> Loader:
    return Loader(store)


def python2_pickle(rows_ND: np.ndarray, labels: list[int]) -> bytes:
    """A batch as Python 2 pickled the official ones: its strings load as str under Latin-1."""

    def string(data: bytes) -> bytes:
        return b"U" + bytes([len(data)]) + data if len(data) < 256 else b"T" + struct.pack("<i", len(data)) + data

    def integer(value: int) -> bytes:
        return b"K" + bytes([value]) if value < 256 else b"M" + struct.pack("<H", value)

    array = b"cnumpy.core.multiarray\n_reconstruct\ncnumpy\nndarray\n" + integer(0) + b"\x85" + string(b"b") + b"\x87R"
    array += b"(" + integer(1) + integer(rows_ND.shape[0]) + integer(rows_ND.shape[1]) + b"\x86"
    array += b"cnumpy\ndtype\n" + string(b"u1") + integer(0) + integer(1) + b"\x87R"
    array += b"(" + integer(3) + string(b"|") + b"NNN" + 2 * (b"J" + struct.pack("<i", -1)) + integer(0) + b"tb"
    array += b"\x89" + string(rows_ND.tobytes()) + b"tb"
    listed = b"](" + b"".join(map(integer, labels)) + b"e"
    return b"\x80\x02}(" + string(b"labels") + listed + string(b"data") + array + b"u."


@pytest.fixture
def small_batches(monkeypatch: pytest.MonkeyPatch) -> dict[str, tuple[np.ndarray, list[int]]]:
    """Six batches of 20 images instead of 10,000, by name: rows (20, 3072) and labels."""
    monkeypatch.setattr(cifar10, "BATCH", SMALL_BATCH)
    random = np.random.default_rng(0)
    batches = {}
    for name in (*cifar10.TRAIN_BATCHES, cifar10.TEST_BATCH):
        labels = [number % 10 for number in range(SMALL_BATCH)]
        batches[name] = (random.integers(0, 256, (SMALL_BATCH, 3072), np.uint8), labels)
    return batches


@pytest.fixture
def batches_py(tmp_path: Path, small_batches: dict[str, tuple[np.ndarray, list[int]]]) -> Path:
    """The small batches as `cifar-10-batches-py`: two as Python 2 wrote them, the others by this Python, all protocols."""
    folder = tmp_path / "py" / "cifar-10-batches-py"
    folder.mkdir(parents=True)
    for number, (name, (rows_ND, labels)) in enumerate(small_batches.items()):
        modern = pickle.dumps({b"data": rows_ND, b"labels": labels}, protocol=number) if number < 4 else b""
        (folder / name).write_bytes(modern or python2_pickle(rows_ND, labels))
    return folder


@pytest.fixture
def batches_bin(tmp_path: Path, small_batches: dict[str, tuple[np.ndarray, list[int]]]) -> Path:
    """The small batches as `cifar-10-batches-bin`."""
    folder = tmp_path / "bin" / "cifar-10-batches-bin"
    folder.mkdir(parents=True)
    for name, (rows_ND, labels) in small_batches.items():
        np.hstack([np.array(labels, np.uint8)[:, None], rows_ND]).tofile(folder / f"{name}.bin")
    return folder


Draw = Callable[..., Path]


@pytest.fixture
def draw(tmp_path: Path) -> Draw:
    """Writes images of random pixels: `draw("train/cat/1.png", mode="RGB", size=(8, 8))` below tmp_path / "images"."""
    random = np.random.default_rng(0)

    def write(name: str, mode: str = "RGB", size: tuple[int, int] = (8, 8), **saving: object) -> Path:
        path = tmp_path / "images" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        pixels = random.integers(0, 256, (size[1], size[0], 4), np.uint8)
        image = Image.fromarray(pixels)
        (image if "A" in mode else image.convert("RGB")).convert(mode).save(path, **saving)  # type: ignore[arg-type]
        return path

    return write


class Site:
    """A web server for a test: `files` by path; `cut` ends every answer after so many bytes."""

    def __init__(self) -> None:
        self.files: dict[str, bytes] = {}
        self.cut: int | None = None
        self.status = 200  # of answers to HEAD
        self.asked: list[str] = []
        site = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_HEAD(self) -> None:
                self.send_response(site.status)
                self.end_headers()

            def do_GET(self) -> None:
                site.asked.append(self.path)
                data = site.files.get(self.path)
                if data is None:
                    self.send_error(404)
                    return
                self.send_response(200)
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data[: site.cut])

            def log_message(self, format: str, *args: object) -> None:
                pass

        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.address = f"http://127.0.0.1:{self._server.server_port}/"
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.02})
        self._thread.start()

    def close(self) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


@pytest.fixture
def site() -> Iterator[Site]:
    running = Site()
    yield running
    running.close()


@pytest.fixture
def offline(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every way out goes through a proxy that is not there."""
    for name in ("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    for name in ("no_proxy", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)
