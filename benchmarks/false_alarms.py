"""How often does `compare` see a change where there is none?

    python benchmarks/false_alarms.py [--repetitions 20] [--budget 20] [--load 1] [--quick]

Runs the same artifacts again and again, on a machine that also carries a background load, and compares every run with the one
before. Promised: at most 5 % of the cells are called faster or slower. Fails where more are.
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter

from _runs_to_compare import Runs, background_load, scratch

from deploycnn import units
from deploycnn.environment import environment
from deploycnn.report.compare import compare_runs

PROMISED = 0.05


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repetitions", type=int, default=20)
    parser.add_argument("--budget", type=float, default=20.0, help="seconds of measuring per run")
    parser.add_argument("--load", type=int, default=1, help="processes of background load")
    parser.add_argument("--quick", action="store_true", help="two repetitions, to see that it runs")
    arguments = parser.parse_args()
    repetitions, budget_s = (2, 4.0) if arguments.quick else (arguments.repetitions, arguments.budget)
    verdicts: Counter[str] = Counter()
    print(environment().summary)
    with scratch() as folder, background_load(arguments.load):
        runs = Runs(folder, budget_s=budget_s)
        before = runs.run("run0", spin_s=1e-3)
        for repetition in range(repetitions):
            after = runs.run(f"run{repetition + 1}", spin_s=1e-3)
            comparison = compare_runs([before, after])
            verdicts.update(change.verdict for change in comparison.changes)
            called = [f"{c.row} {c.ratio.value:.3f}" for c in comparison.changes if c.verdict in ("faster", "slower") and c.ratio]
            shifts = ", ".join(f"{shift.ratio.value:.3f}" for shift in comparison.machine_shifts)
            print(f"repetition {repetition + 1}: machine {shifts}; called: {', '.join(called) or 'none'}", flush=True)
            before = after
    alarms = verdicts["faster"] + verdicts["slower"]
    share = alarms / max(1, verdicts.total())
    print(f"verdicts: {dict(verdicts)}")
    print(f"false alarms: {alarms} of {verdicts.total()} cells, {units.percent(share, 1)} (promised: at most {units.percent(PROMISED, 0)})")
    sys.exit(int(share > PROMISED))


if __name__ == "__main__":
    main()
