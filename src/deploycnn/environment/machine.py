"""Processor, memory and operating system, by the files of the kernel where there are any."""

from __future__ import annotations

import math
import os
import platform
import sys
from collections.abc import Iterator
from pathlib import Path

from deploycnn.environment.facts import Cpu, Memory, System

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


def _text(path: Path) -> str:
    """The stripped text of a file of the kernel, "" where it cannot be read."""
    try:
        return path.read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return ""
