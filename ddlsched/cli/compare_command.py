"""``ddlsched compare``: policies on the same workloads, clusters and seeds, from what is asked to tables."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ddlsched.cli.failures import one_line
from ddlsched.cli.numbers import real, whole
from ddlsched.cli.output import emit, notice, without_nan
from ddlsched.errors import InputError

if TYPE_CHECKING:
    from ddlsched.comparisons.comparison import Comparison
    from ddlsched.comparisons.settings import Location, Where

__all__ = ["compare"]

_POLICIES = "Policies"
_RUNS = "Seeds and clusters"
_HOW = "How, and results"


def compare(
    context: typer.Context,
    jobs: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="JOBS",
            help="Workload files, or generators whose jobs the seed makes, e.g. microsoft-160:scale=0.01 or "
            "gen.py:function:parameter=1.",
            show_default=False,
        ),
    ] = None,
    scheduler: Annotated[
        list[str] | None,
        typer.Option(help="Bundle, e.g. ada-srsf, srsf-1.", metavar="BUNDLE", rich_help_panel=_POLICIES),
    ] = None,
    placement: Annotated[
        list[str] | None,
        typer.Option(
            help="On which GPUs a job runs, e.g. lwf:kappa=1 or mine.py:MyPolicy:alpha=0.5.",
            metavar="NAME",
            show_default="ada-srsf's",
            rich_help_panel=_POLICIES,
        ),
    ] = None,
    order: Annotated[
        list[str] | None,
        typer.Option(
            help="Which job goes first.", metavar="NAME", show_default="ada-srsf's", rich_help_panel=_POLICIES
        ),
    ] = None,
    communication: Annotated[
        list[str] | None,
        typer.Option(
            help="Which all-reduces overlap.", metavar="NAME", show_default="ada-srsf's", rich_help_panel=_POLICIES
        ),
    ] = None,
    allocation: Annotated[
        list[str] | None,
        typer.Option(
            help="How many GPUs each elastic job has, e.g. elastic-scaling:queue=true.",
            metavar="NAME",
            rich_help_panel=_POLICIES,
        ),
    ] = None,
    baseline: Annotated[
        str | None,
        typer.Option(
            help="Policy that the others are compared with.",
            metavar="LABEL",
            show_default="the first",
            rich_help_panel=_POLICIES,
        ),
    ] = None,
    seeds: Annotated[
        str | None,
        typer.Option(
            help="How many (20), a range (0-19) or a list (1,5,9).",
            metavar="N",
            show_default="20, which is 1-20",
            rich_help_panel=_RUNS,
        ),
    ] = None,
    servers: Annotated[
        list[int] | None,
        typer.Option(help="Number of servers.", metavar="N", parser=whole, show_default="16", rich_help_panel=_RUNS),
    ] = None,
    gpus_per_server: Annotated[
        int | None,
        typer.Option(help="GPUs of each server.", metavar="N", parser=whole, show_default="4", rich_help_panel=_RUNS),
    ] = None,
    gpu_memory_mb: Annotated[
        float | None,
        typer.Option(
            help="Memory of each GPU, MB (1e6 bytes).",
            metavar="MB",
            parser=real,
            show_default="32768",
            rich_help_panel=_RUNS,
        ),
    ] = None,
    server_table: Annotated[
        list[str] | None,
        typer.Option(
            help="Table of servers that differ (CSV), in place of the three above.",
            metavar="FILE.csv",
            rich_help_panel=_RUNS,
        ),
    ] = None,
    topology: Annotated[
        list[str] | None,
        typer.Option(help="Network between the servers.", metavar="NAME", show_default="star", rich_help_panel=_RUNS),
    ] = None,
    contention: Annotated[
        list[str] | None,
        typer.Option(
            help="How fast transfers go that share a link.",
            metavar="NAME",
            show_default="10gbe",
            rich_help_panel=_RUNS,
        ),
    ] = None,
    option: Annotated[
        list[str] | None,
        typer.Option(
            help="Further argument of ddlsched.simulate, e.g. load_per_byte_s=7.8e-9.",
            metavar="NAME=VALUE",
            rich_help_panel=_RUNS,
        ),
    ] = None,
    config: Annotated[
        Path | None,
        typer.Option(
            help="YAML file with all of the above, which flags replace; see docs/comparing.md.",
            metavar="FILE.yaml",
            rich_help_panel=_HOW,
        ),
    ] = None,
    out: Annotated[
        Path,
        typer.Option(
            help="Folder for finished runs and tables; the same one again goes on where it was.",
            metavar="DIR",
            rich_help_panel=_HOW,
        ),
    ] = Path("comparison"),
    processes: Annotated[
        int,
        typer.Option(help="Runs at once.", metavar="N", parser=whole, show_default="one a core", rich_help_panel=_HOW),
    ] = -1,
    dask: Annotated[
        str | None,
        typer.Option(
            help="Scheduler of a Dask cluster that is to run them, e.g. tcp://10.0.0.1:8786.",
            metavar="ADDRESS",
            rich_help_panel=_HOW,
        ),
    ] = None,
    timeline: Annotated[
        str | None,
        typer.Option(
            help="Record this part of each policy's first run, seconds, e.g. 100:160.",
            metavar="FROM:TO",
            rich_help_panel=_HOW,
        ),
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print the comparison as one JSON object.", rich_help_panel=_HOW)
    ] = False,
) -> None:
    """Simulate policies on the same workloads, clusters and seeds, and compare them.

    The policies are each --scheduler, and every combination of what --placement, --order, --communication and
    --allocation list.

    Finished runs are kept, and the same command goes on from them, whatever stopped it.

    A run that fails does not stop the rest; it is reported, and tried again the next time.
    """
    policies = _policies(scheduler, placement, order, communication, allocation)
    flags: dict[str, Any] = {"workloads": jobs, "policies": policies}
    flags |= {"baseline": baseline, "seeds": seeds, "servers": servers, "gpus_per_server": gpus_per_server}
    flags |= {
        "gpu_memory_mb": gpu_memory_mb,
        "server_table": server_table,
        "topology": topology,
        "contention": contention,
    }
    flags |= {"options": _options(option), "timeline": timeline}
    given = {name: value for name, value in flags.items() if value not in (None, [], {})}
    _refuse_processes(processes)
    from ddlsched.comparisons.compare import carry_out, planned

    plan = planned(*_with_config(config, given))
    try:
        comparison = carry_out(plan, out, command=_command(context), processes=processes, dask=dask, say=notice)
    except KeyboardInterrupt:
        notice(f"finished runs are kept in {out / 'runs'}; the same command goes on from there")
        raise
    _tell(comparison, as_json)
    if len(comparison.failures):
        raise typer.Exit(1)


def _policies(scheduler: list[str] | None, *lists: list[str] | None) -> list[Any]:
    names = ("placement", "order", "communication", "allocation")
    doors = {name: given for name, given in zip(names, lists, strict=True) if given}
    return [*(scheduler or []), *([doors] if doors else [])]


def _options(texts: list[str] | None) -> dict[str, Any]:
    """Return what ``name=value`` and ``name.part=value`` say."""
    options: dict[str, Any] = {}
    for text in texts or []:
        name, equals, value = text.partition("=")
        if not equals:
            raise InputError(f"--option {text}: is no option; expected NAME=VALUE, such as load_per_byte_s=7.8e-9")
        *outer, last = name.strip().split(".")
        inside = options
        for part in outer:
            inside = inside.setdefault(part, {})
        if not isinstance(inside, dict) or last in inside:
            raise InputError(f"--option {text}: {name} is given twice; expected once")
        inside[last] = value.strip()
    return options


def _refuse_processes(processes: int) -> None:
    if processes < 1 and processes != -1:
        raise InputError(f"--processes {processes}: is no number of processes; expected 1 or more, or -1 for all cores")


def _with_config(config: Path | None, given: dict[str, Any]) -> tuple[dict[str, Any], Where]:
    """Return a file's fields with those of the flags in their place, and what tells where each stands."""
    if config is None:
        return given, _flag
    from ddlsched.comparisons.yaml_file import read_yaml

    fields, line = read_yaml(config)
    return fields | given, lambda location: _flag(location) if location and location[0] in given else line(location)


def _flag(location: Location) -> str:
    match location:
        case ():
            return "compare"
        case ("workloads", *_):
            return "JOBS"
        case ("policies", int(), str(door), *_):
            return f"--{door}"
        case ("policies", *_):
            return "--scheduler, --placement, --order, --communication or --allocation"
        case ("options", *names):
            return f"--option {'.'.join(map(str, names))}"
    return f"--{str(location[0]).replace('_', '-')}"


def _command(context: typer.Context) -> list[str]:
    """Return the command line, as it would be typed again."""
    words = []
    for parameter in context.command.params:
        source, value = context.get_parameter_source(str(parameter.name)), context.params[str(parameter.name)]
        if source is None or source.name != "COMMANDLINE":
            continue
        flag = [parameter.opts[0]] if parameter.opts[0].startswith("--") else []
        if isinstance(value, bool):
            words += flag
        else:
            words += [
                word for each in (value if isinstance(value, list | tuple) else [value]) for word in (*flag, str(each))
            ]
    return ["ddlsched", "compare", *words]


def _tell(comparison: Comparison, as_json: bool) -> None:
    failures = comparison.failures
    if as_json:
        emit(_json(comparison))
    else:
        from ddlsched.cli.comparison_text import comparison_text

        emit(comparison_text(comparison))
        emit(f"\nTables: {comparison.folder}/runs.csv, comparison.csv, classes.csv\n")
        emit(f"Report: ddlsched report {shlex.quote(str(comparison.folder))}\n")
    if len(failures):
        first = failures.iloc[0]
        where = f"{first['policy']}, {first['workload']}, {first['cluster']}, seed {first['seed']}"
        many = f"{len(failures)} {'run' if len(failures) == 1 else 'runs'} failed ({comparison.folder}/failures.csv)"
        notice(one_line(f"{many}, the first: {where}: {first['message']}"))


def _json(comparison: Comparison) -> str:
    table = comparison.table()
    rows = [without_nan(row) for row in table.to_dict("records")]
    document = {"folder": str(comparison.folder), "baseline": comparison.baseline, "runs": len(comparison.runs)}
    document |= {"failures": len(comparison.failures), "notes": comparison.notes(), "comparison": rows}
    return json.dumps(document, indent=2) + "\n"
