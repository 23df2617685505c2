"""The command line. Commands import what they need when they run, so that `--help` costs no tensor library."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, NoReturn

import typer

from deploycnn import __version__
from deploycnn.errors import EXIT_INTERRUPTED, DeployError

EXIT_CODES = """Exit codes: 0 done; 1 nothing meets the limits (compare: a regression); 2 wrong usage or recipe; 3 compare: inconclusive;
4 compare: incomparable; 5 data or model cannot be used; 6 this machine lacks something (package, device, disk space, lock);
7 gpu-check: no GPU here; 130 interrupted (run the same command again to go on)."""

app = typer.Typer(
    name="deploycnn",
    help="Decide which compiled artifact of a CNN classifier to ship, with the proof.",
    epilog=EXIT_CODES,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _version(asked: bool) -> None:
    if asked:
        typer.echo(f"deploycnn {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and stop.")] = False,
) -> None:
    """Decide which compiled artifact of a CNN classifier to ship, with the proof."""


Settings = Annotated[list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Lay a value over the recipe; YAML, repeatable.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Say nothing but warnings and the result.")]


@app.command()
def run(
    recipe: Annotated[str, typer.Argument(help="A recipe's name or file.")] = "quickstart",
    settings: Settings = None,
    out: Annotated[Path | None, typer.Option("--out", "-o", metavar="DIR", help="Folder of the run [default: runs/TIME-RECIPE].")] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with a training that was stopped.")] = False,
    remeasure: Annotated[bool, typer.Option("--remeasure", help="Measure again even where nothing changed.")] = False,
    quiet: Quiet = False,
) -> None:
    """Train, export, quantise, compile, validate, measure; say what to ship."""
    from deploycnn.assets import recipe_path
    from deploycnn.pipeline.console import Talk
    from deploycnn.pipeline.run import RunOptions, run_recipe
    from deploycnn.recipe import load_recipe

    options = RunOptions(out=out, resume=resume, remeasure=remeasure, command=_command())
    raise typer.Exit(run_recipe(load_recipe(recipe_path(recipe), settings or ()), options, Talk(quiet=quiet)))


@app.command()
def train(
    recipe: Annotated[str, typer.Argument(help="A recipe's name or file.")] = "quickstart",
    settings: Settings = None,
    out: Annotated[Path, typer.Option("--out", "-o", metavar="FILE", help="The checkpoint.")] = Path("checkpoint.safetensors"),
    resume: Annotated[bool, typer.Option("--resume", help="Go on with a training that was stopped.")] = False,
    quiet: Quiet = False,
) -> None:
    """Train and do nothing else; under torchrun, on several GPUs or processes."""
    from deploycnn.assets import recipe_path
    from deploycnn.pipeline.console import Talk
    from deploycnn.pipeline.training import train_command
    from deploycnn.recipe import load_recipe

    loaded = load_recipe(recipe_path(recipe), settings or ())
    raise typer.Exit(train_command(loaded, out, resume=resume, talk=Talk(quiet=quiet)))


@app.command()
def doctor(as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False) -> None:
    """What this machine has, and what each backend can do here."""
    from deploycnn.pipeline.doctor import show_doctor

    show_doctor(as_json=as_json)


@app.command()
def report(
    run_folder: Annotated[Path, typer.Argument(metavar="RUN", help="Folder of a run, or its record.json.")],
) -> None:
    """Print a run's report again and rewrite its files, from its record alone."""
    from deploycnn.pipeline.reporting import report_again

    report_again(run_folder)


@app.command()
def compare(
    runs: Annotated[list[Path], typer.Argument(metavar="BASE NEW", help="Folders of runs, oldest first; more than two show a history.")],
    fail_above: Annotated[str | None, typer.Option("--fail-above", metavar="5%", help="Loss from which it is a regression.")] = None,
    metric: Annotated[list[str] | None, typer.Option("--metric", help="p50, p90, p99, throughput, top1 or size; repeatable.")] = None,
    out: Annotated[list[Path] | None, typer.Option("--out", "-o", metavar="FILE", help="Also write .md, .json, .html.")] = None,
) -> None:
    """Set two runs side by side, cell by cell; exit code 1 on a regression."""
    from deploycnn.pipeline.comparing import compare_command

    raise typer.Exit(compare_command(runs, fail_above=fail_above, metrics=metric or (), out=out or ()))


@app.command()
def recommend(
    run_folder: Annotated[Path, typer.Argument(metavar="RUN", help="Folder of a run, or its record.json.")],
    objective: Annotated[str | None, typer.Option(help="latency, throughput or size [default: the recipe's].")] = None,
    batch: Annotated[int | None, typer.Option(help="Batch size judged.")] = None,
    p99_ms: Annotated[float | None, typer.Option("--p99-ms", help="Largest p99 latency, in milliseconds.")] = None,
    max_drop_pp: Annotated[float | None, typer.Option("--max-drop-pp", help="Largest loss of top-1, in percentage points.")] = None,
    memory_mb: Annotated[float | None, typer.Option("--memory-mb", help="Largest peak memory, in megabytes.")] = None,
    size_mb: Annotated[float | None, typer.Option("--size-mb", help="Largest artifact, in megabytes.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Decide again what to ship, from a record alone; exit code 1 where nothing meets the limits."""
    from deploycnn.pipeline.recommending import recommend_command

    given = {"objective": objective, "batch": batch, "p99_ms": p99_ms, "memory_mb": memory_mb, "size_mb": size_mb}
    raise typer.Exit(recommend_command(run_folder, given, max_drop_pp=max_drop_pp, as_json=as_json))


@app.command()
def resume(
    run_folder: Annotated[Path, typer.Argument(metavar="RUN", help="Folder of a run with deferred cells, from this machine or another.")],
    out: Annotated[
        Path | None, typer.Option("--out", "-o", metavar="DIR", help="Copy the run there first [default: work in its own folder].")
    ] = None,
    data: Annotated[Path | None, typer.Option(metavar="DIR", help="Where the data set is, for a bundle without test images.")] = None,
    quiet: Quiet = False,
) -> None:
    """Finish on this machine what a run deferred: validate, measure, merge into its record."""
    from deploycnn.pipeline.console import Talk
    from deploycnn.pipeline.resuming import ResumeOptions, resume_run

    raise typer.Exit(resume_run(run_folder, ResumeOptions(out=out, data=data, command=_command()), Talk(quiet=quiet)))


@app.command()
def debug(
    run_folder: Annotated[Path, typer.Argument(metavar="RUN", help="Folder of a run, or its record.json.")],
    artifact: Annotated[str, typer.Option("--artifact", "-a", metavar="NAME", help="As the report names it: onnxruntime/int8/cpu.")],
    images: Annotated[int, typer.Option(min=1, help="Images to look at, of the validation part.")] = 32,
    tolerance: Annotated[float | None, typer.Option(min=0, help="Relative error of a node [default: by precision].")] = None,
    data: Annotated[Path | None, typer.Option(metavar="DIR", help="Where the data set is [default: the recipe's].")] = None,
    quiet: Quiet = False,
) -> None:
    """Node by node: where an artifact leaves the fp32 reference, and whether precision or compiler did it."""
    from deploycnn.pipeline.console import Talk
    from deploycnn.pipeline.debugging import DebugOptions, debug_run

    options = DebugOptions(artifact=artifact, images=images, tolerance=tolerance, data=data)
    raise typer.Exit(debug_run(run_folder, options, Talk(quiet=quiet)))


@app.command()
def load(
    run_folder: Annotated[Path, typer.Argument(metavar="RUN", help="Folder of a run, or its record.json.")],
    artifact: Annotated[str, typer.Option("--artifact", "-a", metavar="NAME", help="As the report names it: onnxruntime/int8/cpu.")],
    scenario: Annotated[str | None, typer.Option(metavar="NAME", help="single-stream, offline or server.")] = None,
    qps: Annotated[float | None, typer.Option(min=1e-3, help="server: queries per second, Poisson arrivals.")] = None,
    find_qps: Annotated[bool, typer.Option("--find-qps", help="server: find the highest rate whose p99 stays under --p99-ms.")] = False,
    p99_ms: Annotated[float | None, typer.Option("--p99-ms", min=1e-6, help="server: largest p99 latency, in milliseconds.")] = None,
    data: Annotated[Path | None, typer.Option(metavar="DIR", help="Where the data set is [default: the recipe's].")] = None,
    quiet: Quiet = False,
) -> None:
    """Load as MLPerf makes it, unofficial; exit code 1 where the p99 is over the bound."""
    from deploycnn.pipeline.console import Talk
    from deploycnn.pipeline.offering_load import LoadAsked, load_command

    asked = LoadAsked(artifact=artifact, scenario=scenario, qps=qps, find_qps=find_qps, p99_ms=p99_ms, data=data)
    raise typer.Exit(load_command(run_folder, asked, Talk(quiet=quiet)))


runs_app = typer.Typer(help="List past runs; `runs prune` frees space.", invoke_without_command=True, no_args_is_help=False)
app.add_typer(runs_app, name="runs")
Root = Annotated[Path, typer.Option("--root", metavar="DIR", help="Folder that the runs lie in.")]


@runs_app.callback()
def runs(
    context: typer.Context, root: Root = Path("runs"), as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False
) -> None:
    """List past runs: when, which recipe and data set, what to ship, which machine; `runs prune` frees space."""
    from deploycnn.pipeline.runs_command import show_runs

    if context.invoked_subcommand is None:
        show_runs(root, as_json=as_json)


@runs_app.command("prune")
def runs_prune(
    root: Root = Path("runs"),
    keep: Annotated[int | None, typer.Option("--keep", metavar="N", help="Keep the N newest runs.")] = None,
    older_than: Annotated[float | None, typer.Option("--older-than", metavar="DAYS", help="Remove only what is older.")] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say what would go.")] = False,
) -> None:
    """Remove old runs and what nothing else needs of the cache; what a kept run needs stays."""
    from deploycnn.pipeline.runs_command import prune_runs

    prune_runs(root, keep=keep, older_than_days=older_than, dry_run=dry_run)


@app.command("gpu-check")
def gpu_check(
    settings: Settings = None,
    out: Annotated[Path | None, typer.Option("--out", "-o", metavar="DIR", help="Folder of the run [default: gpu-check].")] = None,
    quiet: Quiet = False,
) -> None:
    """On a machine with a GPU: the tests that need one, then every GPU backend over the GPU recipe."""
    from deploycnn.pipeline import gpu_check as check
    from deploycnn.pipeline.console import Talk
    from deploycnn.pipeline.run import RunOptions

    raise typer.Exit(check.gpu_check(settings or (), RunOptions(out=out, command=_command()), Talk(quiet=quiet)))


def _command() -> str:
    return " ".join(["deploycnn", *sys.argv[1:]])


def main() -> NoReturn:
    """Runs a command; a user's mistake is one message and an exit code."""
    try:
        app()
    except DeployError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(error.exit_code)
    except (KeyboardInterrupt, SystemExit) as end:  # typer turns Ctrl-C into an exit of its own
        if isinstance(end, SystemExit) and end.code != EXIT_INTERRUPTED:
            raise
        print("interrupted: run the same command again, with --resume to go on with a training that was stopped", file=sys.stderr)
        sys.exit(EXIT_INTERRUPTED)
    raise AssertionError("typer always exits")
