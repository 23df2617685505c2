"""How long `--help` takes, against a bare start of the interpreter, in alternation.

    python benchmarks/startup.py [--rounds 15]

Promised: `python -m deploycnn.pipeline --help` imports no tensor library and takes under 0.4 s on the machine below.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import time

from deploycnn import units
from deploycnn.environment import environment

HEAVY = ("torch", "onnx", "onnxruntime", "tvm", "tensorrt", "tensorrt_rtx", "openvino", "scipy", "numpy")


def wall_s(command: list[str]) -> float:
    start_s = time.perf_counter()
    subprocess.run(command, check=True, capture_output=True)
    return time.perf_counter() - start_s


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=15)
    rounds = parser.parse_args().rounds
    bare = [sys.executable, "-c", "pass"]
    asked = [sys.executable, "-m", "deploycnn.pipeline", "--help"]
    code = f"import sys, deploycnn.pipeline.cli; print([name for name in {HEAVY!r} if name in sys.modules])"
    imported = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout.strip()
    wall_s(bare), wall_s(asked)
    pairs = [(wall_s(asked), wall_s(bare)) for _ in range(rounds)]
    ratios = sorted(help_s / bare_s for help_s, bare_s in pairs)
    print(environment().summary)
    print(f"--help: median {units.seconds(statistics.median(help_s for help_s, _ in pairs))} over {rounds} starts")
    print(f"bare interpreter: median {units.seconds(statistics.median(bare_s for _, bare_s in pairs))}")
    print(f"ratio: median {units.ratio(statistics.median(ratios))}, {units.ratio(ratios[0])} to {units.ratio(ratios[-1])}")
    print(f"tensor libraries imported for --help: {imported}")


if __name__ == "__main__":
    main()
