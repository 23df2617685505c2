"""What is known about a machine. Everything that cannot be read is None or ""."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping

from pydantic import Field

from deploycnn.types import Value

_NOTABLE = ("amx_int8", "avx512_vnni", "avx_vnni", "avx512f", "avx2", "i8mm", "dotprod", "neon")  # the first one it has is shown


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


class GpuState(Value):
    """One GPU at one moment. None: it does not say."""

    sm_mhz: int | None = None
    memory_mhz: int | None = None
    temperature_c: int | None = None
    power_w: float | None = None
    reasons: tuple[str, ...] = ()  # why clocks are held down: "power cap", "heat", "idle", ...


class GpuFacts(Value):
    """One GPU before, while and after something was measured on it. Looks are taken between rounds."""

    name: str
    before: GpuState
    after: GpuState
    sm_mhz: tuple[int, int] | None = None  # lowest and highest at looks when it was not idle
    hottest_c: int | None = None
    highest_power_w: float | None = None
    reasons: tuple[str, ...] = ()  # seen at any look, "idle" left out
    throttled_s: Mapping[str, float] = Field(default_factory=dict)  # by cause, counted by the driver while measuring
    others: tuple[int, ...] = ()  # processes on the card that are not ours, by pid
    other_use: float | None = None  # share of time that it was busy before anything of ours ran


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
