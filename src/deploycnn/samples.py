"""Raw latency samples of a run: `samples.npz` beside `record.json`.

Every figure about latency in a record can be recomputed from this file. It is a plain numpy archive: for a row named
`onnxruntime/int8/cpu@b32`, `np.load("samples.npz")["onnxruntime/int8/cpu@b32.time_ns"]` holds one int64 per run, and
`.runs_B`, `.round_B`, `.process_B`, `.start_s_B` say for each block how many runs it had, in which round and process it
ran, and when it began (seconds since measuring began). Rows of `CELL#device` hold device times: one sample a block, its mean run.
"""

from __future__ import annotations

import hashlib
import io
import zipfile
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from deploycnn.disk import write_atomic
from deploycnn.errors import RecordError

SAMPLES_NAME = "samples.npz"


@dataclass(frozen=True, kw_only=True)
class Samples:
    """All runs of one artifact at one batch size. B blocks, N runs, in the order in which they ran."""

    time_ns: NDArray[np.int64]  # (N,) duration of each run
    runs_B: NDArray[np.int64]  # runs of each block; they sum to N
    round_B: NDArray[np.int64]
    process_B: NDArray[np.int64]  # number of the restart
    start_s_B: NDArray[np.float64]

    def __post_init__(self) -> None:
        blocks = {self.runs_B.size, self.round_B.size, self.process_B.size, self.start_s_B.size}
        if len(blocks) != 1 or int(self.runs_B.sum()) != self.time_ns.size:
            raise RecordError("latency samples do not add up", found=self._shapes(), remedy="measure again")
        if self.time_ns.size == 0:
            raise RecordError("there are no latency samples", remedy="measure again")
        if self.runs_B.min() < 1 or self.time_ns.min() < 0:
            raise RecordError("latency samples hold empty blocks or negative times", remedy="measure again")

    def _shapes(self) -> str:
        return ", ".join(f"{field.name} {getattr(self, field.name).shape}" for field in fields(self))

    @property
    def n_blocks(self) -> int:
        return int(self.runs_B.size)

    @property
    def block_N(self) -> NDArray[np.int64]:
        """The block of each run, 0 to B - 1."""
        return np.repeat(np.arange(self.n_blocks), self.runs_B)

    @property
    def round_N(self) -> NDArray[np.int64]:
        """The round of each run."""
        return np.repeat(self.round_B, self.runs_B)

    @property
    def process_N(self) -> NDArray[np.int64]:
        """The restart of each run."""
        return np.repeat(self.process_B, self.runs_B)

    def in_rounds(self, round_R: NDArray[np.int64]) -> Samples:
        """Only the blocks that ran in those rounds. Raises RecordError where there are none."""
        kept_B = np.isin(self.round_B, round_R)
        return Samples(
            time_ns=self.time_ns[kept_B[self.block_N]],
            runs_B=self.runs_B[kept_B],
            round_B=self.round_B[kept_B],
            process_B=self.process_B[kept_B],
            start_s_B=self.start_s_B[kept_B],
        )

    def blocks(self) -> list[NDArray[np.int64]]:
        """The runs of each block, in nanoseconds."""
        return np.split(self.time_ns, np.cumsum(self.runs_B)[:-1])


_KINDS = {field.name: np.float64 if field.name == "start_s_B" else np.int64 for field in fields(Samples)}


def sample_name(cell: str, batch: int) -> str:
    """The row's name in the file: `onnxruntime/int8/cpu@b32`."""
    return f"{cell}@b{batch}"


def split_name(name: str) -> tuple[str, int]:
    """Cell and batch size of a row's name. Raises RecordError where it is none."""
    cell, mark, batch = name.rpartition("@b")
    if not mark or not batch.isdecimal():
        raise RecordError(f"'{name}' is not the name of a row of samples", remedy="measure again")
    return cell, int(batch)


def write_samples(path: Path, rows: Mapping[str, Samples]) -> str:
    """Writes all rows, compressed, by atomic rename. Returns the file's sha256.

    Raises:
        StoreError: the disk said no.
    """
    buffer = io.BytesIO()
    arrays = {f"{name}.{field}": getattr(row, field) for name, row in rows.items() for field in _KINDS}
    np.savez_compressed(buffer, **arrays)
    data = buffer.getvalue()
    write_atomic(path, data)
    return hashlib.sha256(data).hexdigest()


class SamplesFile(Mapping[str, Samples]):
    """Rows by name, each read when it is first asked for, and kept.

    Args:
        path: the file.
        sha256: what `write_samples` gave back; checked at once where given.

    Raises:
        RecordError: missing, damaged, or another file than the record's (also when a row is read).
    """

    def __init__(self, path: Path, sha256: str | None = None) -> None:
        self._path = path
        if not path.is_file():
            raise RecordError(f"the samples {path} are missing", remedy="copy samples.npz together with record.json, or measure again")
        if sha256 is not None:
            with path.open("rb") as file:
                found = hashlib.file_digest(file, "sha256").hexdigest()
            if found != sha256:
                raise RecordError(
                    f"the samples {path} are not the ones of this record",
                    found=f"sha256 {found[:12]}, expected {sha256[:12]}",
                    remedy="copy samples.npz together with record.json, or measure again",
                )
        try:
            with zipfile.ZipFile(path) as archive:
                members = [name.removesuffix(".npy") for name in archive.namelist()]
        except (zipfile.BadZipFile, OSError, ValueError) as error:
            raise self._damaged(error) from error
        self._names = [name.removesuffix(".time_ns") for name in members if name.endswith(".time_ns")]
        self._read: dict[str, Samples] = {}

    def __getitem__(self, name: str) -> Samples:
        if name not in self._names:
            raise KeyError(name)
        if name not in self._read:
            self._read[name] = self._row(name)
        return self._read[name]

    def _row(self, name: str) -> Samples:
        try:
            with np.load(self._path, allow_pickle=False) as archive:
                arrays = {field: archive[f"{name}.{field}"].astype(kind, casting="same_kind") for field, kind in _KINDS.items()}
        except (zipfile.BadZipFile, OSError, ValueError, TypeError, KeyError, EOFError, zlib.error) as error:
            raise self._damaged(error) from error
        return Samples(**arrays)

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)

    def _damaged(self, error: Exception) -> RecordError:
        return RecordError(f"the samples {self._path} are damaged", found=str(error) or type(error).__name__, remedy="measure again")


def read_samples(path: Path, sha256: str | None = None) -> SamplesFile:
    """The samples of a run: `path` is the file, its folder, or the record beside it.

    Raises:
        RecordError: missing, damaged, or another file than the record's.
    """
    if path.is_dir():
        path = path / SAMPLES_NAME
    elif path.suffix == ".json":
        path = path.with_name(SAMPLES_NAME)
    return SamplesFile(path, sha256)
