"""Do base image, CUDA and wheels fit each other? Run by the image builds, before and after the installation.

    fits.py base --python 3.12 --constraints constraints.txt [--cuda]    before gigabytes are installed
    fits.py requirements pyproject.toml [EXTRA ...]                      the dependencies, one a line, for pip
    fits.py installed [--cuda] [--torch-index URL]                       imports everything, prints `deploycnn doctor`

Every fault found is printed, each with what was found and what to do, and the exit status is 1. Only the standard library is used:
the first two run where nothing is installed.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import platform
import re
import subprocess
import sys
import sysconfig
from collections.abc import Iterable, Mapping
from pathlib import Path

# The package whose pin says for which CUDA the wheels were built.
CUDA_PIN = "nvidia-cuda-runtime"
# The wheels of torch and onnxruntime are manylinux_2_28.
OLDEST_GLIBC = (2, 28)
PYTHONS = ("3.11", "3.12", "3.13")
# What the backends and the stages import. Full TensorRT is an extra.
MODULES = (
    "torch",
    "torchvision",
    "onnx",
    "onnxscript",
    "onnxruntime",
    "openvino",
    "tvm",
    "xgboost",
    "tensorrt_rtx",
    "cuda.bindings.runtime",
)
OPTIONAL_MODULES = ("tensorrt",)
READY_ON_CPU = ("inductor", "onnxruntime", "openvino", "torch", "tvm")
# They come with the driver, from the host, when a container starts; never with an image.
DRIVER_LIBRARIES = ("libcuda.so.1", "libnvidia-ml.so.1")
IMPORT_TIMEOUT_S = 300.0


def pins(constraints: str) -> dict[str, str]:
    """Version by normalised package name (`ml-dtypes`, not `ml_dtypes`) of a constraints file."""
    found = re.findall(r"^([A-Za-z0-9._-]+)==(\S+)", constraints, flags=re.MULTILINE)
    return {re.sub(r"[-_.]+", "-", name).lower(): version for name, version in found}


def requirements(pyproject: Mapping[str, object], extras: Iterable[str]) -> list[str]:
    """The dependencies of a parsed pyproject.toml and of some of its extras, as they stand there."""
    project = pyproject["project"]
    assert isinstance(project, dict)
    return [*project["dependencies"], *(line for extra in extras for line in project["optional-dependencies"][extra])]


def python_faults(asked: str, running: str) -> list[str]:
    """Faults of the Python that runs this (`3.12.4`) against the one asked for (`3.12`)."""
    if asked not in PYTHONS:
        return [f"PYTHON={asked} is not supported: build with one of {', '.join(PYTHONS)}"]
    if running != asked and not running.startswith(f"{asked}."):
        return [f"PYTHON={asked} was asked for, the image has {running}: give a BASE_IMAGE (or PYTHON_IMAGE) with Python {asked}"]
    return []


def libc_faults(name: str, version: str) -> list[str]:
    """Faults of the C library, as `platform.libc_ver()` names it."""
    if name != "glibc":
        return ["the base image has no glibc (is it Alpine?), and there are no wheels for it: take one with Debian or Ubuntu"]
    if tuple(int(part) for part in version.split(".")[:2]) < OLDEST_GLIBC:
        oldest = ".".join(str(part) for part in OLDEST_GLIBC)
        return [f"the base image's glibc is {version}, the wheels need {oldest}: take a newer base (Debian 12, Ubuntu 24.04)"]
    return []


def cuda_faults(base: str | None, wheels: str | None, of: str) -> list[str]:
    """Faults between the base image's CUDA (its CUDA_VERSION) and the CUDA that wheels were built for; majors must be equal.

    Within a major, NVIDIA's minor version compatibility lets wheels of one minor run on another.
    """
    if not base:
        return [
            "the base image does not say its CUDA (no CUDA_VERSION in its environment): build with CUDA=..., or a BASE_IMAGE of nvidia/cuda"
        ]
    if not wheels:
        return [f"{of} is built without CUDA: a GPU image needs the CUDA build (leave TORCH_INDEX empty)"]
    if base.split(".")[0] != wheels.split(".")[0]:
        return [
            f"the base image has CUDA {base}, {of} is built for CUDA {wheels}: "
            f"build with CUDA={wheels.split('.')[0]}.x, or pin wheels for CUDA {base.split('.')[0]}"
        ]
    return []


def library_faults(ldd: str, there: Iterable[str]) -> list[str]:
    """Faults of one shared library: what `ldd` does not find, the driver's own part aside, and the wheels do not bring either.

    Args:
        ldd: what `ldd` printed.
        there: file names of the libraries that the installed wheels bring.
    """
    missing = re.findall(r"^\s*(\S+) => not found", ldd, flags=re.MULTILINE)
    lacking = sorted(set(missing) - set(there) - set(DRIVER_LIBRARIES))
    return [f"no installed wheel brings {name}: onnxruntime-gpu and the nvidia-* wheels are for different CUDAs" for name in lacking]


def doctor_faults(report: Mapping[str, object]) -> list[str]:
    """Faults in what `doctor --json` says: on a CPU everything but TensorRT runs, and TensorRT for RTX builds."""
    rows = report["backends"]
    assert isinstance(rows, list)
    said = {(row["backend"], row["target"]): row for row in rows}
    expected = [(name, "cpu", ("ready",)) for name in READY_ON_CPU] + [("tensorrt", "cuda:sm89", ("ready", "build-only"))]
    faults = []
    for name, target, states in expected:
        row = said.get((name, target))
        if row is None:
            faults.append(f"doctor knows no backend {name} on {target}: the package is not whole")
        elif row["state"] not in states:
            faults.append(f"{name} is {row['state']} on {target}: {row['reason']}; {row['remedy']}")
    return faults


def base_faults(python: str, constraints: Path, *, cuda: bool) -> list[str]:
    """Everything that can be known before the installation."""
    faults = [*python_faults(python, platform.python_version()), *libc_faults(*platform.libc_ver())]
    if cuda:
        wheels = pins(constraints.read_text(encoding="utf-8")).get(CUDA_PIN)
        faults += cuda_faults(os.environ.get("CUDA_VERSION"), wheels, f"{CUDA_PIN} in {constraints.name}")
    return faults


def installed_faults(*, cuda: bool, torch_index: str) -> list[str]:
    """Imports every compiler in a process of its own, asks torch and onnxruntime for their CUDA, prints `doctor` and judges it."""
    optional = [name for name in OPTIONAL_MODULES if importlib.util.find_spec(name) is not None]
    faults = [fault for name in [*MODULES, *optional] for fault in _import_faults(name)]
    if faults:
        return faults  # nothing behind them can answer
    torch_cuda = _said("import torch; print(torch.version.cuda or '')")
    if torch_index and torch_cuda:
        faults.append(
            f"torch is the build for CUDA {torch_cuda} although TORCH_INDEX was given: that index has no CPU wheel of this version"
        )
    if cuda:
        onnxruntime_cuda = _said("from onnxruntime.capi import build_and_package_info as b; print(getattr(b, 'cuda_version', ''))")
        faults += cuda_faults(os.environ.get("CUDA_VERSION"), torch_cuda, "torch")
        faults += cuda_faults(os.environ.get("CUDA_VERSION"), onnxruntime_cuda, "onnxruntime")
        faults += _provider_faults()
    command = [sys.executable, "-m", "deploycnn.pipeline", "doctor"]
    subprocess.run(command, check=True)
    report = subprocess.run([*command, "--json"], check=True, capture_output=True, text=True).stdout
    return faults + doctor_faults(json.loads(report))


def _import_faults(name: str) -> list[str]:
    try:
        done = subprocess.run(
            [sys.executable, "-c", f"import {name}"], capture_output=True, text=True, timeout=IMPORT_TIMEOUT_S, check=False
        )
    except subprocess.TimeoutExpired:
        return [f"import {name} did not end within {IMPORT_TIMEOUT_S:.0f} s"]
    if done.returncode == 0:
        print(f"import {name}: fine", flush=True)
        return []
    last = done.stderr.strip().splitlines()[-1:] or [f"killed by signal {-done.returncode}"]
    return [f"import {name} fails: {last[0]}"]


def _said(program: str) -> str:
    return subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True).stdout.strip()


def _provider_faults() -> list[str]:
    packages = Path(sysconfig.get_path("purelib"))
    provider = packages / "onnxruntime" / "capi" / "libonnxruntime_providers_cuda.so"
    if not provider.is_file():
        return [f"onnxruntime has no CUDA provider ({provider.name} is missing): install onnxruntime-gpu, not onnxruntime"]
    ldd = subprocess.run(["ldd", str(provider)], check=True, capture_output=True, text=True).stdout
    return library_faults(ldd, (path.name for path in (packages / "nvidia").rglob("lib*.so*")))


def main() -> int:
    """Runs one of the three; returns the exit status."""
    parser = argparse.ArgumentParser(description="Do base image, CUDA and wheels fit each other?")
    commands = parser.add_subparsers(dest="command", required=True)
    base = commands.add_parser("base")
    base.add_argument("--python", required=True)
    base.add_argument("--constraints", type=Path, required=True)
    base.add_argument("--cuda", action="store_true")
    wanted = commands.add_parser("requirements")
    wanted.add_argument("pyproject", type=Path)
    wanted.add_argument("extras", nargs="*")
    installed = commands.add_parser("installed")
    installed.add_argument("--cuda", action="store_true")
    installed.add_argument("--torch-index", default="")
    given = parser.parse_args()
    if given.command == "requirements":
        import tomllib  # new in 3.11: an older Python gets as far as being told so by `base`

        print("\n".join(requirements(tomllib.loads(given.pyproject.read_text(encoding="utf-8")), given.extras)))
        return 0
    if given.command == "base":
        faults = base_faults(given.python, given.constraints, cuda=given.cuda)
    else:
        faults = installed_faults(cuda=given.cuda, torch_index=given.torch_index)
    for fault in faults:
        print(f"this image does not fit: {fault}", file=sys.stderr)
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
