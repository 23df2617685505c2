"""Is a slowdown of 10 % found?

    python benchmarks/power.py [--repetitions 20] [--budget 20] [--load 0] [--quick]

The null backend spins; in every second run its spinning is prolonged by a tenth of what a run of it takes at batch 1. Promised:
`compare` calls it slower, and a regression, in at least 95 % of the repetitions. Fails where fewer are. What is called of the
other backends, where nothing changed, is printed too.
"""

from __future__ import annotations

import argparse
import sys

from _runs_to_compare import Runs, background_load, scratch

from deploycnn import units
from deploycnn.environment import environment
from deploycnn.recordfile import read_record
from deploycnn.report.compare import compare_runs

PROMISED = 0.95
SLOWDOWN = 0.10
SPIN_S = 1e-3
CELL = "null/fp32/cpu"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repetitions", type=int, default=20)
    parser.add_argument("--budget", type=float, default=20.0, help="seconds of measuring per run")
    parser.add_argument("--load", type=int, default=0, help="processes of background load")
    parser.add_argument("--quick", action="store_true", help="two repetitions, to see that it runs")
    arguments = parser.parse_args()
    repetitions, budget_s = (2, 4.0) if arguments.quick else (arguments.repetitions, arguments.budget)
    found = false = others = 0
    print(environment().summary)
    with scratch() as folder, background_load(arguments.load):
        runs = Runs(folder, budget_s=budget_s, batches=(1,))
        for repetition in range(repetitions):
            base = runs.run(f"base{repetition}", spin_s=SPIN_S)
            cell = read_record(base).cell(CELL)
            assert cell is not None
            new = runs.run(f"new{repetition}", spin_s=SPIN_S + SLOWDOWN * cell.latencies[0].p50_s.value)
            comparison = compare_runs([base, new])
            (planted,) = [change for change in comparison.changes if change.cell == CELL]
            rest = [change for change in comparison.changes if not change.cell.startswith("null")]
            found += planted.verdict == "slower" and planted.regression
            false += sum(change.verdict in ("faster", "slower") for change in rest)
            others += len(rest)
            assert planted.ratio is not None
            between = f"{planted.ratio.value:.3f} [{planted.ratio.low:.3f}, {planted.ratio.high:.3f}]"
            print(f"repetition {repetition + 1}: {planted.verdict} {between} {planted.reason}", flush=True)
    share = found / repetitions
    print(f"planted {units.percent(SLOWDOWN, 0)}: found {found} of {repetitions}, {units.percent(share, 0)} (promised: 95 %)")
    print(f"called where nothing changed: {false} of {others}")
    sys.exit(int(share < PROMISED))


if __name__ == "__main__":
    main()
