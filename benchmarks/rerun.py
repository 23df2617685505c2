"""What an identical second run costs beyond its imports, and that it recomputes nothing.

    python benchmarks/rerun.py [RECIPE] [--set KEY=VALUE ...] [--rounds 5]

Runs the recipe once in a fresh cache, then again `--rounds` times in alternation with a process that only imports what a
run imports. Promised: the second run takes under 2 s beyond the imports.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from deploycnn import units
from deploycnn.environment import environment

IMPORTS = "import deploycnn.pipeline.cli, deploycnn.pipeline.run"


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
        pairs = [(wall_s(run, variables), wall_s([sys.executable, "-c", IMPORTS], variables)) for _ in range(arguments.rounds)]
    again_s, imports_s = (statistics.median(values) for values in zip(*pairs, strict=True))
    beyond = [run_s - import_s for run_s, import_s in pairs]
    print(environment().summary)
    print(f"recipe {arguments.recipe}: first run {units.seconds(first_s)}, identical run median {units.seconds(again_s)} of {len(pairs)}")
    print(f"imports alone: median {units.seconds(imports_s)}")
    print(f"beyond imports: median {units.seconds(statistics.median(beyond))}, at most {units.seconds(max(beyond))} (promised: under 2 s)")
    print(f"ratio of an identical run to the first: {units.ratio(again_s / first_s)}")


if __name__ == "__main__":
    main()
