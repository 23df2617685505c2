"""Energy from pretended counters, and its absence said."""

from __future__ import annotations

from pathlib import Path

import pytest

from deploycnn.measure.energy import EnergyMeter


class Machine:
    """Two packages that draw so many watts each, by a clock of their own."""

    def __init__(self, root: Path, start_uj: int = 0) -> None:
        self.now_s = 0.0
        self.folders = [root / f"sys/class/powercap/intel-rapl:{i}" for i in range(2)]
        self.energy_uj = [float(start_uj), float(start_uj)]
        for i, folder in enumerate(self.folders):
            folder.mkdir(parents=True)
            (folder / "name").write_text(f"package-{i}\n")
            (folder / "max_energy_range_uj").write_text("1000000000")
        core = root / "sys/class/powercap/intel-rapl:0:0"
        core.mkdir()
        (core / "name").write_text("core")
        (core / "energy_uj").write_text("123")  # part of the package's
        self._write()

    def draw(self, watts: float, seconds: float) -> None:
        self.now_s += seconds
        self.energy_uj = [(value + watts * seconds * 1e6) % 1e9 for value in self.energy_uj]
        self._write()

    def _write(self) -> None:
        for folder, value in zip(self.folders, self.energy_uj, strict=True):
            (folder / "energy_uj").write_text(str(int(value)))


@pytest.mark.parametrize("start_uj", [0, 999_000_000])  # the counter starts anew in the middle of the work
def test_net_energy_of_both_packages(tmp_path: Path, start_uj: int) -> None:
    machine = Machine(tmp_path, start_uj)
    meter = EnergyMeter(root=tmp_path, clock_s=lambda: machine.now_s, sleep=lambda s: machine.draw(10, s))

    def work() -> int:
        machine.draw(35, 4.0)
        return 1000

    found = meter.measure(work, batch=8, idle_s=1.0)
    assert found is not None
    assert found.idle_w == pytest.approx(20, rel=0.01)
    assert found.busy_w == pytest.approx(70, rel=0.01)
    assert found.joules_per_image == pytest.approx((70 - 20) * 4 / 1000, rel=0.01)
    assert found.source == "RAPL package-0, package-1"
    assert meter.reason == ""


def test_a_machine_without_counters_says_so(tmp_path: Path) -> None:
    meter = EnergyMeter(root=tmp_path)
    assert meter.measure(lambda: 1, batch=1, idle_s=0.0) is None
    assert "not available here" in meter.reason


def test_counters_that_may_not_be_read_are_said(tmp_path: Path) -> None:
    machine = Machine(tmp_path)
    for folder in machine.folders:
        (folder / "energy_uj").unlink()
    assert "by root only" in EnergyMeter(root=tmp_path).reason


def test_a_gpu_that_is_not_there_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    pynvml = pytest.importorskip("pynvml")

    def refuse() -> None:
        raise pynvml.NVMLError(pynvml.NVML_ERROR_LIBRARY_NOT_FOUND)

    monkeypatch.setattr(pynvml, "nvmlInit", refuse)
    meter = EnergyMeter(gpu=0)
    assert meter.measure(lambda: 1, batch=1) is None
    assert "counts no energy" in meter.reason
