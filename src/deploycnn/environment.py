"""Facts of the machine: what must be known to compare two latencies, or to understand one.

Nothing here imports a tensor library or starts a process. Everything that cannot be read is None or "" and no error;
where a GPU is missing, the reason is kept.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import json
import math
import os
import platform
import sys
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path

from deploycnn.types import Value

# Flags of /proc/cpuinfo (x86: `flags`, ARM: `Features`) that decide which kernels run, by the name shown.
INSTRUCTION_SETS = {
    "sse4_2": "sse4.2",
    "avx": "avx",
    "avx2": "avx2",
    "fma": "fma",
    "f16c": "f16c",
    "avx512f": "avx512f",
    "avx512bw": "avx512bw",
    "avx512dq": "avx512dq",
    "avx512vl": "avx512vl",
    "avx512_vnni": "avx512_vnni",
    "avx512_bf16": "avx512_bf16",
    "avx512_fp16": "avx512_fp16",
    "avx_vnni": "avx_vnni",
    "avx_vnni_int8": "avx_vnni_int8",
    "amx_tile": "amx_tile",
    "amx_int8": "amx_int8",
    "amx_bf16": "amx_bf16",
    "asimd": "neon",
    "asimdhp": "fp16",
    "asimddp": "dotprod",
    "i8mm": "i8mm",
    "bf16": "bf16",
    "sve": "sve",
}

_NOTABLE = ("amx_int8", "avx512_vnni", "avx_vnni", "avx512f", "avx2", "i8mm", "dotprod", "neon")  # the first one it has is shown

# Distributions whose version can change a number in a record.
PACKAGES = (
    "torch",
    "torchvision",
    "onnx",
    "onnxscript",
    "onnxruntime",
    "onnxruntime-gpu",
    "onnxconverter-common",
    "apache-tvm",
    "apache-tvm-ffi",
    "xgboost-cpu",
    "tensorrt",
    "tensorrt-rtx-cu13",
    "openvino",
    "torchao",
    "triton",
    "numpy",
    "scipy",
    "ml-dtypes",
)


class Cpu(Value):
    """The processor, and how much of it this process may use."""

    model: str  # "AMD EPYC 7763 64-Core Processor"
    revision: str = ""  # "family 6 model 207 stepping 2": virtual machines hide the model's name, not this
    architecture: str  # x86_64, aarch64, arm64, AMD64
    instruction_sets: tuple[str, ...]  # those of INSTRUCTION_SETS that it has
    logical_cores: int  # of the machine
    usable_cores: int  # by affinity and quota, whole cores, at least 1
    quota_cores: float | None = None  # cgroup CPU quota, None: unlimited
    governor: str | None = None  # frequency governor of the first core: performance, powersave, ...
    turbo: bool | None = None


class Memory(Value):
    total_bytes: int
    limit_bytes: int | None = None  # cgroup limit where it is below the total


class Gpu(Value):
    """One NVIDIA GPU, as NVML lists it (PCI order)."""

    name: str
    capability: int  # compute capability times ten, 89 for 8.9
    memory_bytes: int
    power_limit_w: float | None = None


class System(Value):
    name: str  # Linux, Darwin, Windows
    release: str  # of the kernel
    distribution: str = ""  # "Debian GNU/Linux 12 (bookworm)"
    container: str | None = None  # docker, podman, kubernetes, ...; None: no sign of one


class Environment(Value):
    """One machine, as one process sees it."""

    cpu: Cpu
    memory: Memory
    gpus: tuple[Gpu, ...] = ()
    gpu_reason: str = ""  # why `gpus` is empty
    driver: str | None = None  # NVIDIA driver, "580.65.06"
    cuda_driver: str | None = None  # newest CUDA that the driver can run, "13.0"
    cuda_visible_devices: str | None = None  # the variable, None: not set
    os: System
    python: str
    packages: Mapping[str, str]  # versions of the PACKAGES that are installed

    @property
    def id(self) -> str:
        """Twelve hex digits, equal where latencies may be compared.

        Over the CPU's model, revision, instruction sets and usable cores, the GPUs and their driver, and the kind of operating
        system. Not over package and kernel versions: to compare those on one machine is what `compare` is for.
        """
        cpu = self.cpu
        facts = {
            "cpu": [cpu.model, cpu.revision, cpu.architecture, sorted(cpu.instruction_sets), cpu.usable_cores, cpu.quota_cores],
            "gpus": [[gpu.name, gpu.capability, gpu.memory_bytes] for gpu in self.gpus],
            "driver": self.driver,
            "os": self.os.name,
        }
        return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()[:12]

    @property
    def summary(self) -> str:
        """The machine on one line: `AMD EPYC 7763, 2 of 4 cores, avx2, 8 GB; no GPU; Linux, Python 3.11.7`."""
        cores = f"{self.cpu.usable_cores} of {self.cpu.logical_cores} cores"
        if self.cpu.usable_cores == self.cpu.logical_cores:
            cores = "1 core" if self.cpu.logical_cores == 1 else f"{self.cpu.logical_cores} cores"
        widest = next((name for name in _NOTABLE if name in self.cpu.instruction_sets), "")
        memory = f"{round(min(self.memory.total_bytes, self.memory.limit_bytes or math.inf) / 1e9)} GB"
        cpu = ", ".join(part for part in (self.cpu.model, cores, widest, memory) if part)
        gpus = ", ".join(f"{gpu.name} (sm{gpu.capability})" for gpu in self.gpus) or "no GPU"
        return f"{cpu}; {gpus}; {self.os.name}, Python {self.python}"


@cache
def environment() -> Environment:
    """This machine, read once per process."""
    gpus = _gpus()
    return Environment(
        cpu=read_cpu(),
        memory=read_memory(),
        **gpus,
        cuda_visible_devices=os.environ.get("CUDA_VISIBLE_DEVICES"),
        os=read_system(),
        python=platform.python_version(),
        packages={name: version for name in PACKAGES if (version := package_version(name))},
    )


@cache
def package_version(name: str) -> str | None:
    """Version of an installed distribution without importing it, None where it is not installed."""
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


@cache
def has_vnni() -> bool:
    """Whether 8-bit products are summed in 32 bits here, so that int8 kernels need no reduced range.

    On x86 that takes AVX-VNNI or AVX512-VNNI: older kernels add pairs in saturating 16 bits (vpmaddubsw). ARM's
    kernels widen first and never saturate.
    """
    sets = read_cpu().instruction_sets
    return "avx_vnni" in sets or "avx512_vnni" in sets or platform.machine().lower() in ("arm64", "aarch64")


@cache
def usable_cores() -> int:
    """Whole cores that this process may use: affinity and cgroup quota, at least 1."""
    return read_cpu().usable_cores


# --- processor ----------------------------------------------------------------------------


def read_cpu(root: Path = Path("/")) -> Cpu:
    """The processor by /proc and /sys under `root`; elsewhere than on Linux by py-cpuinfo (about a second)."""
    text = _text(root / "proc/cpuinfo")
    model, revision, flags = _parsed_cpuinfo(text) if text else _foreign_cpu()
    logical = os.cpu_count() or 1
    quota = _quota_cores(root)
    allowed = len(os.sched_getaffinity(0)) if sys.platform == "linux" else logical
    return Cpu(
        model=model or platform.processor() or platform.machine(),
        revision=revision,
        architecture=platform.machine(),
        instruction_sets=tuple(shown for flag, shown in INSTRUCTION_SETS.items() if flag in flags),
        logical_cores=logical,
        usable_cores=max(1, min(allowed, math.floor(quota) if quota else allowed)),
        quota_cores=quota,
        governor=_text(root / "sys/devices/system/cpu/cpu0/cpufreq/scaling_governor") or None,
        turbo=_turbo(root),
    )


def _parsed_cpuinfo(text: str) -> tuple[str, str, set[str]]:
    """Model, revision and flags of the first processor in the text of /proc/cpuinfo."""
    fields: dict[str, str] = {}
    for line in text.splitlines():
        name, _, value = line.partition(":")
        fields.setdefault(name.strip().lower(), value.strip())
    model = fields.get("model name") or fields.get("hardware", "")
    if not model and "cpu part" in fields:  # ARM servers give numbers only
        model = f"ARM implementer {fields.get('cpu implementer', '?')} part {fields['cpu part']}"
    names = {"family": "cpu family", "model": "model", "stepping": "stepping"}
    revision = " ".join(f"{shown} {fields[name]}" for shown, name in names.items() if name in fields)
    return " ".join(model.split()), revision, set(fields.get("flags", fields.get("features", "")).split())


def _foreign_cpu() -> tuple[str, str, set[str]]:
    """Model, revision and flags where there is no /proc."""
    try:
        from cpuinfo import get_cpu_info
    except ImportError:
        return "", "", set()
    info = get_cpu_info()
    arm = {"asimd"} if platform.machine().lower() in ("arm64", "aarch64") else set()
    return str(info.get("brand_raw", "")), "", {str(flag) for flag in info.get("flags", ())} | arm


def _turbo(root: Path) -> bool | None:
    cpu = root / "sys/devices/system/cpu"
    if boost := _text(cpu / "cpufreq/boost"):
        return boost == "1"
    if forbidden := _text(cpu / "intel_pstate/no_turbo"):
        return forbidden == "0"
    return None


# --- limits of the control group ----------------------------------------------------------


def _quota_cores(root: Path) -> float | None:
    """The tightest CPU quota over the process's control groups (v2: cpu.max, v1: cpu.cfs_*), None: unlimited."""
    quotas = []
    for folder in _control_groups(root, "cpu"):
        limit, _, period = _text(folder / "cpu.max").partition(" ")
        if not limit:
            limit, period = _text(folder / "cpu.cfs_quota_us"), _text(folder / "cpu.cfs_period_us")
        if limit.isdigit() and period.isdigit() and int(period):  # "max" and -1 mean no limit
            quotas.append(int(limit) / int(period))
    return min(quotas, default=None)


def _control_groups(root: Path, controller: str) -> Iterator[Path]:
    """Folders that may limit this process, from its own group up to the root of the hierarchy."""
    for line in _text(root / "proc/self/cgroup").splitlines():
        _, controllers, path = [*line.split(":", 2), "", ""][:3]
        if controllers and controller not in controllers.split(","):
            continue
        base = root / "sys/fs/cgroup" / (controller if controllers else "")
        group = Path(path.lstrip("/"))
        for folder in (group, *group.parents):
            yield base / folder


# --- memory, system -----------------------------------------------------------------------


def read_memory(root: Path = Path("/")) -> Memory:
    """Physical memory, and the tightest control-group limit where that is lower."""
    for line in _text(root / "proc/meminfo").splitlines():
        if line.startswith("MemTotal:"):
            total = int(line.split()[1]) * 1024
            break
    else:
        import psutil

        total = int(psutil.virtual_memory().total)
    limits = []
    for folder in _control_groups(root, "memory"):
        text = _text(folder / "memory.max") or _text(folder / "memory.limit_in_bytes")
        if text.isdigit() and int(text) < total:  # "max", or v1's huge number, mean no limit
            limits.append(int(text))
    return Memory(total_bytes=total, limit_bytes=min(limits, default=None))


def read_system(root: Path = Path("/")) -> System:
    """The operating system, and whether it looks like a container."""
    pretty = [line for line in _text(root / "etc/os-release").splitlines() if line.startswith("PRETTY_NAME=")]
    return System(
        name=platform.system(),
        release=platform.release(),
        distribution=pretty[0].partition("=")[2].strip('"') if pretty else "",
        container=_container(root),
    )


def _container(root: Path) -> str | None:
    if (root / "run/.containerenv").exists():
        return "podman"
    if "KUBERNETES_SERVICE_HOST" in os.environ:
        return "kubernetes"
    if (root / ".dockerenv").exists():
        return "docker"
    return os.environ.get("container") or None  # noqa: SIM112 - systemd-nspawn, lxc and buildah set it so


# --- GPUs ---------------------------------------------------------------------------------


def _gpus() -> dict[str, object]:
    """Fields of Environment about GPUs. Quiet without a driver: the reason is in `gpu_reason`."""
    if os.environ.get("CUDA_VISIBLE_DEVICES", "all").strip() in ("", "-1"):
        return {"gpu_reason": "CUDA_VISIBLE_DEVICES hides every GPU"}
    try:
        import pynvml
    except ImportError:
        return {"gpu_reason": "the package nvidia-ml-py is not installed"}
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        return {"gpu_reason": f"no NVIDIA driver answers ({error})"}
    try:
        cuda = int(pynvml.nvmlSystemGetCudaDriverVersion_v2())
        gpus = tuple(_gpu(pynvml.nvmlDeviceGetHandleByIndex(i)) for i in range(pynvml.nvmlDeviceGetCount()))
        return {
            "gpus": gpus,
            "gpu_reason": "" if gpus else "the NVIDIA driver lists no GPU",
            "driver": str(pynvml.nvmlSystemGetDriverVersion()),
            "cuda_driver": f"{cuda // 1000}.{cuda % 1000 // 10}",
        }
    except pynvml.NVMLError as error:
        return {"gpu_reason": f"the NVIDIA driver does not answer ({error})"}
    finally:
        pynvml.nvmlShutdown()


def _gpu(handle: object) -> Gpu:
    import pynvml

    major, minor = pynvml.nvmlDeviceGetCudaComputeCapability(handle)
    try:
        power_limit_w = pynvml.nvmlDeviceGetEnforcedPowerLimit(handle) / 1000
    except pynvml.NVMLError:  # laptops and virtual GPUs do not say
        power_limit_w = None
    return Gpu(
        name=str(pynvml.nvmlDeviceGetName(handle)),
        capability=10 * major + minor,
        memory_bytes=int(pynvml.nvmlDeviceGetMemoryInfo(handle).total),
        power_limit_w=power_limit_w,
    )


def _text(path: Path) -> str:
    """The stripped text of a file of the kernel, "" where it cannot be read."""
    try:
        return path.read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return ""
