"""The house keeps its shape: import direction, lazy imports, sizes, rules that the syntax tree can see."""

from __future__ import annotations

import ast
import importlib.metadata
import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

SRC = Path(__file__).parents[1] / "src"
MODULES = sorted((SRC / "deploycnn").rglob("*.py"))

# From the top down. A module imports only from layers below its own, and from its own component.
LAYERS = (
    ("pipeline",),
    ("report",),
    ("workers",),
    ("train", "export", "precision", "validate", "measure", "backends"),  # stages never import one another or a backend
    ("data", "models", "graph"),
    ("store", "assets"),
    ("recordfile",),
    ("record", "samples"),
    ("environment", "recipe", "stats", "disk"),
    ("types",),
    ("units",),
    ("errors",),
)
LAYER_OF = {component: depth for depth, layer in enumerate(LAYERS) for component in layer}
MAY_IMPORT_BACKENDS = {"pipeline", "workers", "backends"}

# Light packages that every part may import at the top. Everything else is imported by the function that needs it.
LIGHT = ("numpy", "pydantic", "pyyaml", "typer", "rich", "filelock", "platformdirs", "pillow", "psutil", "safetensors")
HEAVY = {
    "numpy",
    "torch",
    "torchvision",
    "onnx",
    "onnxruntime",
    "tvm",
    "tensorrt",
    "tensorrt_rtx",
    "openvino",
    "scipy",
    "matplotlib",
    "PIL",
}
# Classes of nn.Module and the like, imported only by the function that builds them.
NETWORKS = {
    "deploycnn.models.lenet",
    "deploycnn.models.resnet8",
    "deploycnn.models.mnist_cnn",
    "deploycnn.export._pixels",
    "deploycnn.export._reshapes",
    "deploycnn.train._rounding",
}

CHILD_PROCESS = re.compile(r"(^|_)child(_|$|\.)")  # files that run as a process of their own and talk through a pipe


def module_name(path: Path, src: Path) -> str:
    parts = path.relative_to(src).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def component(name: str) -> str:
    """`deploycnn.data.cifar10` is of `data`; "" is the package itself."""
    return name.split(".")[1] if "." in name else ""


def imports(tree: ast.AST, known: set[str]) -> Iterator[tuple[int, str]]:
    """Line and full name of every module of ours that is imported anywhere in a file, function bodies included."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names if alias.name.split(".")[0] == "deploycnn")
        elif isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "deploycnn" and not node.level:
            assert node.module
            for alias in node.names:
                below = f"{node.module}.{alias.name}"
                yield node.lineno, below if below in known else node.module


def direction_faults(src: Path) -> list[str]:
    """Every import that does not go down, one line each."""
    paths = sorted((src / "deploycnn").rglob("*.py"))
    known = {module_name(path, src) for path in paths}
    faults = []
    for path in paths:
        name = module_name(path, src)
        here = component(name)
        if here not in LAYER_OF and here:
            faults.append(f"{name}: '{here}' has no layer")
            continue
        for line, imported in imports(ast.parse(path.read_text(encoding="utf-8")), known):
            there = component(imported)
            if there in (here, ""):
                continue
            where = f"{name}:{line} imports {imported}"
            if not here:
                faults.append(f"{where}: the package itself imports nothing")
            elif there not in LAYER_OF:
                faults.append(f"{where}: '{there}' has no layer")
            elif LAYER_OF[there] < LAYER_OF[here]:
                faults.append(f"{where}: that goes up")
            elif LAYER_OF[there] == LAYER_OF[here]:
                faults.append(f"{where}: that goes sideways")
            elif there == "backends" and here not in MAY_IMPORT_BACKENDS:
                faults.append(f"{where}: only pipeline and workers may")
    return faults


def test_imports_go_down_only() -> None:
    assert direction_faults(SRC) == []


@pytest.mark.parametrize(
    ("path", "text", "fault"),
    [
        ("types.py", "from deploycnn.recipe import Recipe", "goes up"),
        ("train.py", "def f():\n    from deploycnn.pipeline import cli", "goes up"),
        ("train.py", "from deploycnn import export", "goes sideways"),
        ("validate/a.py", "import deploycnn.measure.clock", "goes sideways"),
        ("precision/int8.py", "from deploycnn.backends import backend_class", "goes sideways"),
        ("report/html.py", "from deploycnn.backends import backend_class", "only pipeline and workers"),
        ("backends/torch.py", "from deploycnn.validate import judge", "goes sideways"),
        ("backends/torch.py", "from deploycnn.workers import Worker", "goes up"),
        ("data/a.py", "from deploycnn import models", "goes sideways"),
        ("helpers.py", "import json", "no layer"),
        ("types.py", "if 0:\n    from deploycnn import helpers", "no layer"),
        ("__init__.py", "from deploycnn.errors import DeployError", "imports nothing"),
    ],
)
def test_a_planted_import_in_the_wrong_direction_is_found(tmp_path: Path, path: str, text: str, fault: str) -> None:
    stubs = {f"{name}.py" for layer in LAYERS for name in layer} | {"pipeline/cli.py", "measure/clock.py", "helpers.py"}
    for stub in stubs - {path}:
        if stub == "helpers.py" and "helpers" not in text:
            continue
        file = tmp_path / "deploycnn" / stub
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text("")
    planted = tmp_path / "deploycnn" / path
    planted.parent.mkdir(parents=True, exist_ok=True)
    planted.write_text(text)
    faults = direction_faults(tmp_path)
    assert any(fault in line for line in faults), faults


@pytest.mark.parametrize(
    ("path", "text"),
    [
        ("pipeline/run.py", "from deploycnn.backends import backend_class\nfrom deploycnn import __version__, units"),
        ("workers/child.py", "from deploycnn.measure.clock import timed_block\nfrom deploycnn.backends import backend_class"),
        ("backends/tvm/_tune.py", "from deploycnn.backends._contract import Backend\nfrom deploycnn.environment import has_vnni"),
        ("data/cifar10.py", "from deploycnn.store import Store"),
    ],
)
def test_imports_that_go_down_are_let_through(tmp_path: Path, path: str, text: str) -> None:
    for stub in ("backends/_contract.py", "measure/clock.py", "units.py", "environment.py", "store.py", "__init__.py", path):
        file = tmp_path / "deploycnn" / stub
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text if stub == path else "")
    assert direction_faults(tmp_path) == []


def light_closure() -> set[str]:
    """The LIGHT distributions with all that they require, normalised."""
    wanted, waiting = set(), list(LIGHT)
    while waiting:
        name = re.sub(r"[-_.]+", "-", waiting.pop()).lower()
        if name in wanted:
            continue
        wanted.add(name)
        try:
            requirements = importlib.metadata.requires(name) or []
        except importlib.metadata.PackageNotFoundError:  # for another Python or system
            continue
        waiting += [re.match(r"[\w.-]+", text)[0] for text in requirements if "extra ==" not in text]  # type: ignore[index]
    return wanted


IMPORT_ALL = """
import importlib, json, sys, traceback
blocked, modules = json.load(sys.stdin)
class Blocker:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in blocked:
            raise ModuleNotFoundError(f"{name} is not installed", name=name)
sys.meta_path.insert(0, Blocker())
faults = {}
for module in modules:
    try:
        importlib.import_module(module)
    except BaseException as error:
        last = [f for f in traceback.extract_tb(error.__traceback__) if "deploycnn" in f.filename][-1:]
        faults[module] = f"{type(error).__name__}: {error} ({[(f.filename, f.lineno) for f in last]})"
print(json.dumps(faults))
"""


def import_faults(modules: list[str], blocked: set[str], src: Path) -> dict[str, str]:
    answer = subprocess.run(
        [sys.executable, "-W", "error::DeprecationWarning:deploycnn", "-c", IMPORT_ALL],
        input=json.dumps([sorted(blocked), modules]),
        capture_output=True,
        text=True,
        check=True,
        env={"PYTHONPATH": str(src), "PATH": "/usr/bin:/bin"},
    )
    faults: dict[str, str] = json.loads(answer.stdout.splitlines()[-1])
    return faults


@pytest.fixture(scope="module")
def optional_packages() -> set[str]:
    """Import names of everything installed that is not light, and of what may not be installed."""
    light = light_closure()
    owners = importlib.metadata.packages_distributions()
    heavy = {name for name, owned in owners.items() if not any(re.sub(r"[-_.]+", "-", dist).lower() in light for dist in owned)}
    return (heavy | HEAVY | {"tensorrt_rtx", "tensorflow", "keras", "dask"}) - {"numpy", "PIL", "deploycnn"}


def test_every_module_imports_without_any_optional_package(optional_packages: set[str]) -> None:
    assert {"torch", "onnx", "onnxruntime", "tvm", "scipy", "matplotlib"} <= optional_packages
    names = [module_name(path, SRC) for path in MODULES if path.stem != "__main__"]
    faults = import_faults([name for name in names if name not in NETWORKS], optional_packages, SRC)
    assert faults == {}


def test_a_planted_import_of_an_optional_package_is_found(tmp_path: Path, optional_packages: set[str]) -> None:
    package = tmp_path / "deploycnn"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "eager.py").write_text("import scipy.stats\n")
    (package / "lazy.py").write_text("import numpy\ndef f():\n    import torch\n")
    assert list(import_faults(["deploycnn.lazy", "deploycnn.eager"], optional_packages, tmp_path)) == ["deploycnn.eager"]


@pytest.mark.skipif(not (SRC / "deploycnn/pipeline/cli.py").exists(), reason="there is no command line yet")
def test_the_command_line_loads_nothing_heavy_to_print_its_help() -> None:
    code = "import sys, json, deploycnn.pipeline.cli; print(json.dumps(sorted({name.partition('.')[0] for name in sys.modules})))"
    answer = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, env={"PYTHONPATH": str(SRC), "PATH": "/usr/bin:/bin"}
    )
    assert HEAVY & set(json.loads(answer.stdout)) == set()


# --- rules that the syntax tree can see -----------------------------------------------------


def names_in(node: ast.AST | None) -> set[str]:
    return {n.id for n in ast.walk(node) if isinstance(n, ast.Name)} if node else set()


def catches_everything(handler: ast.ExceptHandler) -> bool:
    """`except:`, `except Exception`; `except BaseException` only where it ends by raising again (cleaning up)."""
    if handler.type is None or "Exception" in names_in(handler.type):
        return True
    ends_with_raise = isinstance(handler.body[-1], ast.Raise) and handler.body[-1].exc is None
    return "BaseException" in names_in(handler.type) and not ends_with_raise


CLOCKS = {"time", "time_ns", "perf_counter", "perf_counter_ns", "process_time", "process_time_ns", "thread_time", "clock_gettime"}


def reads_clock(node: ast.AST) -> bool:
    """Reading a clock; `time.sleep` and `time.monotonic` (a deadline) are none."""
    if isinstance(node, ast.ImportFrom) and node.module == "time":
        return any(alias.name in CLOCKS for alias in node.names)
    if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
        return (node.value.id == "time" and node.attr in CLOCKS) or (
            node.value.id == "datetime" and node.attr in ("now", "utcnow", "today")
        )
    return False


def house_faults(src: Path) -> list[str]:
    faults = []
    for path in sorted((src / "deploycnn").rglob("*.py")):
        text = path.read_text(encoding="utf-8")
        name = path.relative_to(src / "deploycnn").as_posix()
        here = name.partition("/")[0]
        if (lines := len(text.splitlines())) > 350:
            faults.append(f"{name}: {lines} lines")
        may_print = here in ("report", "pipeline") or CHILD_PROCESS.search(path.stem) or name == "backends/null.py"
        no_clock = here in ("backends", "validate") and name != "backends/null.py"
        for node in ast.walk(ast.parse(text)):
            where = f"{name}:{getattr(node, 'lineno', 0)}"
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                length = (node.end_lineno or node.lineno) - node.lineno + 1
                if length > 70:
                    faults.append(f"{where}: {node.name} has {length} lines")
            elif isinstance(node, ast.ExceptHandler) and catches_everything(node):
                faults.append(f"{where}: catches everything")
            elif isinstance(node, ast.ImportFrom) and node.level:
                faults.append(f"{where}: relative import")
            elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
                if node.func.id == "print" and not may_print:
                    faults.append(f"{where}: print")
                if node.func.id == "suppress" and {"Exception", "BaseException"} & set().union(*map(names_in, node.args)):
                    faults.append(f"{where}: catches everything")
            if isinstance(node, ast.Raise) and "NotImplementedError" in names_in(node.exc):
                faults.append(f"{where}: NotImplementedError")
            if no_clock and reads_clock(node):
                faults.append(f"{where}: reads a clock")
    return faults


def test_house_rules() -> None:
    assert house_faults(SRC) == []


@pytest.mark.parametrize(
    ("path", "text", "fault"),
    [
        ("train.py", "try:\n    f()\nexcept:\n    pass", "catches everything"),
        ("train.py", "try:\n    f()\nexcept Exception as e:\n    raise", "catches everything"),
        ("train.py", "try:\n    f()\nexcept (OSError, Exception):\n    pass", "catches everything"),
        ("train.py", "try:\n    f()\nexcept BaseException:\n    pass", "catches everything"),
        ("train.py", "with suppress(Exception):\n    f()", "catches everything"),
        ("train.py", "from . import errors", "relative import"),
        ("data/a.py", "def f():\n    print('x')", "print"),
        ("train.py", "def f():\n    raise NotImplementedError", "NotImplementedError"),
        ("train.py", "def f():\n" + "    x = 1\n" * 70, "f has 71 lines"),
        ("train.py", "x = 1\n" * 351, "351 lines"),
        ("backends/torch.py", "import time\nt = time.perf_counter()", "reads a clock"),
        ("backends/tvm/_a.py", "from time import time", "reads a clock"),
        ("validate/a.py", "from datetime import datetime\nd = datetime.now()", "reads a clock"),
    ],
)
def test_a_planted_breach_of_the_house_rules_is_found(tmp_path: Path, path: str, text: str, fault: str) -> None:
    file = tmp_path / "deploycnn" / path
    file.parent.mkdir(parents=True)
    file.write_text(text)
    assert [line for line in house_faults(tmp_path) if fault in line]


@pytest.mark.parametrize(
    ("path", "text"),
    [
        ("report/a.py", "print('x')"),
        ("workers/child.py", "print('x')"),
        ("backends/tvm/_build_child.py", "print('x')"),
        ("train.py", "try:\n    f()\nexcept BaseException:\n    tidy()\n    raise"),
        ("backends/tvm/_a.py", "import time\nuntil = time.monotonic() + 5\ntime.sleep(1)"),
        ("measure/clock.py", "import time\nt = time.perf_counter_ns()"),
    ],
)
def test_what_the_house_rules_allow(tmp_path: Path, path: str, text: str) -> None:
    file = tmp_path / "deploycnn" / path
    file.parent.mkdir(parents=True)
    file.write_text(text)
    assert house_faults(tmp_path) == []
