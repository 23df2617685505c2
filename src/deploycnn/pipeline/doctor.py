"""`doctor`: what this machine has, and what each backend can do on it."""

from __future__ import annotations

import json
from collections.abc import Sequence

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from deploycnn import units
from deploycnn.backends import backend_classes
from deploycnn.environment import Environment, environment
from deploycnn.pipeline.console import stdout_console
from deploycnn.types import Readiness, Target

TARGETS = (Target(device="cpu"), Target(device="cuda"), Target(device="cuda", capability=89))


def show_doctor(*, as_json: bool, console: Console | None = None) -> None:
    """Prints the machine's facts and the backends' readiness."""
    console = console or stdout_console()
    machine = environment()
    readiness = probe_all(TARGETS)
    if as_json:
        rows = [{"backend": name, "target": str(target), **said.model_dump()} for name, target, said in readiness]
        console.print_json(json.dumps({"environment": machine.model_dump(mode="json"), "machine": machine.id, "backends": rows}))
        return
    _show_machine(machine, console)
    _show_backends(readiness, console)


def probe_all(targets: Sequence[Target]) -> list[tuple[str, Target, Readiness]]:
    """(backend, target, readiness) for every backend found, the null backend aside."""
    return [(name, target, kind().probe(target)) for name, kind in backend_classes().items() if name != "null" for target in targets]


def _show_machine(machine: Environment, console: Console) -> None:
    cpu, memory = machine.cpu, machine.memory
    gpus = [f"{gpu.name}, compute capability {gpu.capability / 10}, {units.size(gpu.memory_bytes)}" for gpu in machine.gpus]
    limit = f" (this process may use {units.size(memory.limit_bytes)})" if memory.limit_bytes else ""
    facts = {
        "CPU": cpu.model,
        "instructions": " ".join(cpu.instruction_sets) or "not known",
        "cores": f"{cpu.usable_cores} usable of {cpu.logical_cores}",
        "memory": units.size(memory.total_bytes) + limit,
        "GPU": "; ".join(gpus) or f"none: {machine.gpu_reason}",
        "driver": f"{machine.driver}, up to CUDA {machine.cuda_driver}" if machine.driver else "none",
        "system": f"{machine.os.distribution or machine.os.name}, kernel {machine.os.release}, Python {machine.python}",
        "machine id": machine.id,
        "packages": ", ".join(f"{name} {version}" for name, version in machine.packages.items()),
    }
    table = Table(box=None, show_header=False, pad_edge=False)
    table.add_column(style="bold", no_wrap=True)
    table.add_column(overflow="fold")
    for name, text in facts.items():
        table.add_row(name, escape(text))
    console.print(table)


def _show_backends(readiness: list[tuple[str, Target, Readiness]], console: Console) -> None:
    table = Table(box=None, pad_edge=False, header_style="bold")
    for heading in ("backend", "target", "state"):
        table.add_column(heading, no_wrap=True)
    table.add_column("why, and what to do", overflow="fold")
    styles = {"ready": "green", "build-only": "yellow", "unavailable": "dim"}
    for name, target, said in readiness:
        why = "; ".join(part for part in (said.reason, said.remedy) if part) or said.version
        table.add_row(name, str(target), f"[{styles[said.state]}]{said.state}[/]", escape(why))
    console.print()
    console.print(table)
