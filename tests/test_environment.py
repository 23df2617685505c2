"""Facts of machines that are not this one, by made-up trees of /proc and /sys; then those of this one."""

from __future__ import annotations

import importlib.metadata
import json
import os
import subprocess
import sys
import types
from pathlib import Path

import pytest

from deploycnn.environment import (
    Cpu,
    Environment,
    Gpu,
    Memory,
    System,
    environment,
    gpus,
    has_vnni,
    machine,
    package_version,
    usable_cores,
)
from deploycnn.environment.machine import read_cpu, read_memory, read_system

EPYC = """processor\t: 0
vendor_id\t: AuthenticAMD
cpu family\t: 25
model\t\t: 1
model name\t: AMD EPYC 7763 64-Core   Processor
stepping\t: 1
flags\t\t: fpu sse4_2 avx avx2 fma f16c

processor\t: 1
cpu family\t: 25
model name\t: another
flags\t\t: avx512f
"""
SAPPHIRE = "model name: Intel(R) Xeon(R)\nflags: avx2 avx512f avx512bw avx512_vnni avx_vnni amx_tile amx_int8 amx_bf16\n"
GRAVITON = "processor\t: 0\nFeatures\t: fp asimd asimdhp asimddp i8mm bf16 sve\nCPU implementer\t: 0x41\nCPU part\t: 0xd40\n"


def tree(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


# --- processor ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("cpuinfo", "model", "revision", "has", "has_not"),
    [
        (EPYC, "AMD EPYC 7763 64-Core Processor", "family 25 model 1 stepping 1", {"avx2", "fma", "f16c"}, {"avx512f", "avx_vnni"}),
        (SAPPHIRE, "Intel(R) Xeon(R)", "", {"avx512_vnni", "avx_vnni", "amx_int8"}, {"neon", "fma"}),
        (GRAVITON, "ARM implementer 0x41 part 0xd40", "", {"neon", "dotprod", "i8mm", "fp16"}, {"avx2"}),
    ],
)
def test_processors_are_read(tmp_path: Path, cpuinfo: str, model: str, revision: str, has: set[str], has_not: set[str]) -> None:
    cpu = read_cpu(tree(tmp_path, {"proc/cpuinfo": cpuinfo}))
    assert cpu.model == model
    assert cpu.revision == revision
    assert has <= set(cpu.instruction_sets)
    assert not has_not & set(cpu.instruction_sets)


@pytest.mark.parametrize(
    ("cpuinfo", "machine_name", "expected"),
    [(EPYC, "x86_64", False), (SAPPHIRE, "x86_64", True), (GRAVITON, "aarch64", True), ("flags: avx_vnni\n", "x86_64", True)],
)
def test_vnni(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cpuinfo: str, machine_name: str, expected: bool) -> None:
    cpu = read_cpu(tree(tmp_path, {"proc/cpuinfo": cpuinfo}))
    monkeypatch.setattr("deploycnn.environment.read_cpu", lambda: cpu)
    monkeypatch.setattr("platform.machine", lambda: machine_name)
    assert has_vnni.__wrapped__() is expected


def test_without_proc_the_slow_library_is_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    facts = {"brand_raw": "Apple M2", "flags": []}
    monkeypatch.setitem(sys.modules, "cpuinfo", types.SimpleNamespace(get_cpu_info=lambda: facts))
    monkeypatch.setattr("platform.machine", lambda: "arm64")
    cpu = read_cpu(tmp_path)
    assert (cpu.model, cpu.instruction_sets) == ("Apple M2", ("neon",))
    monkeypatch.setitem(sys.modules, "cpuinfo", None)  # not installed
    assert read_cpu(tmp_path).model


@pytest.mark.parametrize(
    ("files", "governor", "turbo"),
    [
        ({}, None, None),
        ({"cpu0/cpufreq/scaling_governor": "powersave\n", "intel_pstate/no_turbo": "0\n"}, "powersave", True),
        ({"cpu0/cpufreq/scaling_governor": "performance\n", "intel_pstate/no_turbo": "1\n"}, "performance", False),
        ({"cpufreq/boost": "1\n"}, None, True),
        ({"cpufreq/boost": "0\n"}, None, False),
    ],
)
def test_frequency_settings(tmp_path: Path, files: dict[str, str], governor: str | None, turbo: bool | None) -> None:
    root = tree(tmp_path, {"proc/cpuinfo": EPYC} | {f"sys/devices/system/cpu/{name}": text for name, text in files.items()})
    cpu = read_cpu(root)
    assert (cpu.governor, cpu.turbo) == (governor, turbo)


# --- limits -------------------------------------------------------------------------------

V2 = "sys/fs/cgroup"
V1 = "sys/fs/cgroup/cpu"


@pytest.mark.parametrize(
    ("files", "quota", "cores"),
    [
        ({}, None, 8),
        ({"proc/self/cgroup": "0::/\n", f"{V2}/cpu.max": "max 100000\n"}, None, 8),
        ({"proc/self/cgroup": "0::/\n", f"{V2}/cpu.max": "250000 100000\n"}, 2.5, 2),
        ({"proc/self/cgroup": "0::/\n", f"{V2}/cpu.max": "50000 100000\n"}, 0.5, 1),
        ({"proc/self/cgroup": "0::/\n", f"{V2}/cpu.max": "6400000 100000\n"}, 64.0, 8),
        # The parent's limit binds too, and is the tighter one.
        ({"proc/self/cgroup": "0::/a/b\n", f"{V2}/a/b/cpu.max": "400000 100000", f"{V2}/a/cpu.max": "300000 100000"}, 3.0, 3),
        # A container sees its own group as the root although its path is long.
        ({"proc/self/cgroup": "0::/docker/abc\n", f"{V2}/cpu.max": "200000 100000"}, 2.0, 2),
        (
            {"proc/self/cgroup": "3:cpuset:/\n2:cpu,cpuacct:/\n", f"{V1}/cpu.cfs_quota_us": "-1", f"{V1}/cpu.cfs_period_us": "100000"},
            None,
            8,
        ),
        (
            {"proc/self/cgroup": "2:cpu,cpuacct:/x\n", f"{V1}/x/cpu.cfs_quota_us": "150000", f"{V1}/x/cpu.cfs_period_us": "50000"},
            3.0,
            3,
        ),
        ({"proc/self/cgroup": "nonsense\n\n0::/\n", f"{V2}/cpu.max": "garbage"}, None, 8),
        ({"proc/self/cgroup": "0::/\n", f"{V2}/cpu.max": "100000 0"}, None, 8),
    ],
)
def test_cores_that_may_be_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, files: dict[str, str], quota: float | None, cores: int
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(8)), raising=False)
    monkeypatch.setattr(os, "cpu_count", lambda: 64)
    cpu = read_cpu(tree(tmp_path, {"proc/cpuinfo": EPYC} | files))
    assert cpu.quota_cores == quota
    assert cpu.usable_cores == cores
    assert cpu.logical_cores == 64


@pytest.mark.parametrize(
    ("files", "limit"),
    [
        ({}, None),
        ({"proc/self/cgroup": "0::/\n", f"{V2}/memory.max": "max\n"}, None),
        ({"proc/self/cgroup": "0::/\n", f"{V2}/memory.max": "2147483648\n"}, 2147483648),
        ({"proc/self/cgroup": "0::/\n", f"{V2}/memory.max": "999999999999999\n"}, None),
        ({"proc/self/cgroup": "4:memory:/j\n", "sys/fs/cgroup/memory/j/memory.limit_in_bytes": "1073741824\n"}, 1073741824),
        ({"proc/self/cgroup": "4:memory:/\n", "sys/fs/cgroup/memory/memory.limit_in_bytes": "9223372036854771712\n"}, None),
    ],
)
def test_memory(tmp_path: Path, files: dict[str, str], limit: int | None) -> None:
    memory = read_memory(tree(tmp_path, {"proc/meminfo": "MemTotal:       16000000 kB\nMemFree: 1 kB\n"} | files))
    assert memory == Memory(total_bytes=16_384_000_000, limit_bytes=limit)


def test_memory_without_proc(tmp_path: Path) -> None:
    assert read_memory(tmp_path).total_bytes > 100_000_000


@pytest.mark.parametrize(
    ("files", "variables", "container"),
    [
        ({}, {}, None),
        ({".dockerenv": ""}, {}, "docker"),
        ({"run/.containerenv": ""}, {"container": "oci"}, "podman"),
        ({".dockerenv": ""}, {"KUBERNETES_SERVICE_HOST": "10.0.0.1"}, "kubernetes"),
        ({}, {"container": "lxc"}, "lxc"),
    ],
)
def test_containers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, files: dict[str, str], variables: dict[str, str], container: str | None
) -> None:
    for name in ("container", "KUBERNETES_SERVICE_HOST"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    system = read_system(tree(tmp_path, {"etc/os-release": 'ID=debian\nPRETTY_NAME="Debian GNU/Linux 12 (bookworm)"\n'} | files))
    assert system.container == container
    assert system.distribution == "Debian GNU/Linux 12 (bookworm)"


# --- GPUs ---------------------------------------------------------------------------------


class NVMLError(Exception):
    """As pynvml's."""


def fake_nvml(**changed: object) -> types.SimpleNamespace:
    """A pynvml with two GPUs, of which the second does not tell its power limit."""

    def limit(handle: int) -> int:
        if handle:
            raise NVMLError("Not Supported")
        return 700_000

    calls: dict[str, object] = {
        "NVMLError": NVMLError,
        "nvmlInit": lambda: None,
        "nvmlShutdown": lambda: None,
        "nvmlDeviceGetCount": lambda: 2,
        "nvmlDeviceGetHandleByIndex": lambda index: index,
        "nvmlDeviceGetName": lambda handle: ["NVIDIA H200", "NVIDIA L4"][handle],
        "nvmlDeviceGetCudaComputeCapability": lambda handle: [(9, 0), (8, 9)][handle],
        "nvmlDeviceGetMemoryInfo": lambda handle: types.SimpleNamespace(total=[150_754_820_096, 24_000_000_000][handle]),
        "nvmlDeviceGetEnforcedPowerLimit": limit,
        "nvmlSystemGetDriverVersion": lambda: "580.65.06",
        "nvmlSystemGetCudaDriverVersion_v2": lambda: 13010,
    }
    return types.SimpleNamespace(**(calls | changed))


def failing(*arguments: object) -> None:
    raise NVMLError("Driver Not Loaded")


def test_gpus_are_listed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setitem(sys.modules, "pynvml", fake_nvml())
    found = gpus.read_gpus()
    assert found["driver"] == "580.65.06"
    assert found["cuda_driver"] == "13.1"
    assert found["gpu_reason"] == ""
    assert found["gpus"] == (
        Gpu(name="NVIDIA H200", capability=90, memory_bytes=150_754_820_096, power_limit_w=700.0),
        Gpu(name="NVIDIA L4", capability=89, memory_bytes=24_000_000_000),
    )


@pytest.mark.parametrize(
    ("nvml", "reason"),
    [
        (fake_nvml(nvmlInit=failing), "no NVIDIA driver answers (Driver Not Loaded)"),
        (fake_nvml(nvmlDeviceGetCount=failing), "the NVIDIA driver does not answer (Driver Not Loaded)"),
        (fake_nvml(nvmlDeviceGetName=failing), "the NVIDIA driver does not answer (Driver Not Loaded)"),
        (fake_nvml(nvmlDeviceGetCount=lambda: 0), "the NVIDIA driver lists no GPU"),
        (None, "the package nvidia-ml-py is not installed"),
    ],
)
def test_without_gpus_the_reason_is_kept_and_nothing_is_printed(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], nvml: object, reason: str
) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setitem(sys.modules, "pynvml", nvml)  # None: not installed
    found = gpus.read_gpus()
    assert found["gpu_reason"] == reason
    assert not found.get("gpus")
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize("hidden", ["", " ", "-1"])
def test_hidden_gpus_are_none(monkeypatch: pytest.MonkeyPatch, hidden: str) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", fake_nvml())
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", hidden)
    assert gpus.read_gpus() == {"gpu_reason": "CUDA_VISIBLE_DEVICES hides every GPU"}


# --- the whole ----------------------------------------------------------------------------


def example(**changed: object) -> Environment:
    fields: dict[str, object] = {
        "cpu": Cpu(model="AMD EPYC 7763", architecture="x86_64", instruction_sets=("avx", "avx2"), logical_cores=4, usable_cores=2),
        "memory": Memory(total_bytes=16_000_000_000, limit_bytes=8_000_000_000),
        "os": System(name="Linux", release="6.1"),
        "python": "3.11.7",
        "packages": {"torch": "2.14.1"},
    }
    return Environment.model_validate(fields | changed)


GPU = Gpu(name="NVIDIA L4", capability=89, memory_bytes=24_000_000_000)


def test_the_summary_is_one_line() -> None:
    assert example().summary == "AMD EPYC 7763, 2 of 4 cores, avx2, 8 GB; no GPU; Linux, Python 3.11.7"
    assert "; NVIDIA L4 (sm89); " in example(gpus=[GPU]).summary


@pytest.mark.parametrize(
    "changed",
    [
        {"cpu": example().cpu.model_copy(update={"model": "AMD EPYC 9654"})},
        {"cpu": example().cpu.model_copy(update={"revision": "family 25 model 17 stepping 1"})},
        {"cpu": example().cpu.model_copy(update={"usable_cores": 4})},
        {"cpu": example().cpu.model_copy(update={"quota_cores": 2.5})},
        {"cpu": example().cpu.model_copy(update={"instruction_sets": ("avx", "avx2", "avx_vnni")})},
        {"gpus": [GPU]},
        {"driver": "580.65.06"},
        {"os": System(name="Windows", release="11")},
    ],
)
def test_machines_whose_latencies_differ_have_different_ids(changed: dict[str, object]) -> None:
    assert example(**changed).id != example().id


@pytest.mark.parametrize(
    "changed",
    [
        {"packages": {"torch": "2.15.0"}},
        {"python": "3.12.1"},
        {"os": System(name="Linux", release="6.12", distribution="Debian GNU/Linux 13", container="docker")},
        {"cpu": example().cpu.model_copy(update={"governor": "performance", "instruction_sets": ("avx2", "avx")})},
    ],
)
def test_what_compare_compares_does_not_change_the_id(changed: dict[str, object]) -> None:
    assert example(**changed).id == example().id


def test_this_machine() -> None:
    here = environment()
    assert here is environment()
    assert here.cpu.model
    assert 1 <= here.cpu.usable_cores == usable_cores() <= here.cpu.logical_cores
    assert here.memory.total_bytes > 100_000_000
    assert here.packages["numpy"] == package_version("numpy")
    assert bool(here.gpus) != bool(here.gpu_reason)
    assert len(here.id) == 12
    assert "\n" not in here.summary


def test_it_survives_a_round_trip_through_json() -> None:
    again = Environment.model_validate_json(environment().model_dump_json())
    assert again == environment()
    assert again.id == environment().id


def test_a_package_that_is_not_there_has_no_version() -> None:
    assert package_version("no-such-package-at-all") is None


def test_the_id_is_the_same_in_another_process_and_nothing_heavy_is_loaded() -> None:
    code = (
        "import sys, json; from deploycnn.environment import environment; "
        "print(json.dumps([environment().id, [n for n in ('torch', 'numpy', 'onnx', 'tvm', 'cpuinfo') if n in sys.modules]]))"
    )
    answer = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[1] / "src"), "PYTHONHASHSEED": "7"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert answer.stderr == ""
    assert json.loads(answer.stdout) == [environment().id, []]


def test_files_that_cannot_be_read_are_no_error(tmp_path: Path) -> None:
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc" / "cpuinfo").mkdir()
    (tmp_path / "etc").mkdir()
    (tmp_path / "etc" / "os-release").write_bytes(b"\xff\xfe\x00")
    assert machine.read_cpu(tmp_path).logical_cores >= 1
    assert machine.read_system(tmp_path).distribution == ""


@pytest.mark.parametrize("name", ["numpy", "pydantic", "Pydantic", "PyYAML", "nvidia-ml-py", "nvidia_ml_py"])
def test_versions_are_those_of_importlib(name: str) -> None:
    assert package_version(name) == importlib.metadata.version(name)
