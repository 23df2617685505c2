"""How much memory this process has taken."""

from __future__ import annotations

from pathlib import Path


def peak_bytes() -> int:
    """Highest resident size of this program. Linux's ru_maxrss begins at the size of whoever started it; VmHWM does not."""
    status = Path("/proc/self/status")
    if status.exists():
        line = next(line for line in status.read_text(encoding="utf-8").splitlines() if line.startswith("VmHWM:"))
        return int(line.split()[1]) * 1024
    import resource

    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss  # bytes on macOS
