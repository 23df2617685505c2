"""What an identical second run costs beyond its imports, and that it recomputes nothing.

    python benchmarks/rerun.py [RECIPE] [--set KEY=VALUE ...] [--rounds 5]

Runs the recipe once in a fresh cache, then again `--rounds` times in alternation with a process that only imports the modules
that an identical run has imported by its end. Promised: the second run takes under 2 s beyond the imports.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from deploycnn import units
from deploycnn.environment import environment

# Runs the command line in this process and writes down, in order, what it imported.
OBSERVED = """
import json, sys
from pathlib import Path
before, listing = set(sys.modules), Path(sys.argv.pop(1))
from deploycnn.pipeline.cli import app
try:
    app()
finally:
    listing.write_text(json.dumps([name for name in sys.modules if name not in before]))
"""
# Some modules are made by others and cannot be imported by name; the ones that made them are in the list too.
IMPORTED = """
import contextlib, importlib, json, sys, warnings
from pathlib import Path
warnings.simplefilter("ignore")
for name in json.loads(Path(sys.argv[1]).read_text()):
    with contextlib.suppress(ImportError):
        importlib.import_module(name)
"""


def wall_s(command: list[str], variables: dict[str, str]) -> float:
    start_s = time.perf_counter()
    finished = subprocess.run(command, capture_output=True, text=True, env={**os.environ, **variables})
    if finished.returncode not in (0, 1):  # 1: nothing to ship, still a whole run
        sys.exit(finished.stderr)
    return time.perf_counter() - start_s


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("recipe", nargs="?", default="quickstart")
    parser.add_argument("--set", action="append", default=[], dest="settings", metavar="KEY=VALUE")
    parser.add_argument("--rounds", type=int, default=5)
    arguments = parser.parse_args()
    settings = [part for setting in arguments.settings for part in ("--set", setting)]
    with tempfile.TemporaryDirectory() as folder:
        variables = {"DEPLOYCNN_CACHE": str(Path(folder) / "cache")}
        run = [sys.executable, "-m", "deploycnn.pipeline", "run", arguments.recipe, *settings, "--out", str(Path(folder) / "run")]
        first_s = wall_s(run, variables)
        listing = Path(folder) / "modules.json"
        wall_s([sys.executable, "-c", OBSERVED, str(listing), *run[3:]], variables)
        imports = [sys.executable, "-c", IMPORTED, str(listing)]
        pairs = [(wall_s(run, variables), wall_s(imports, variables)) for _ in range(arguments.rounds)]
        n_modules = len(json.loads(listing.read_text()))
    again_s, imports_s = (statistics.median(values) for values in zip(*pairs, strict=True))
    beyond = [run_s - import_s for run_s, import_s in pairs]
    print(environment().summary)
    print(f"recipe {arguments.recipe}: first run {units.seconds(first_s)}, identical run median {units.seconds(again_s)} of {len(pairs)}")
    print(f"imports alone: {n_modules:,} modules, median {units.seconds(imports_s)}")
    print(f"beyond imports: median {units.seconds(statistics.median(beyond))}, at most {units.seconds(max(beyond))} (promised: under 2 s)")
    print(f"ratio of an identical run to the first: {units.ratio(again_s / first_s)}")


if __name__ == "__main__":
    main()
