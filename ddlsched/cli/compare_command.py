"""``ddlsched compare``: policies on the same workloads, clusters and seeds; ``ddlsched report``: its tables, a page."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ddlsched.cli.dataclass_options import Given, Panel, is_given, option
from ddlsched.cli.reporting import emit, json_text, notice, one_line, status, without_nan
from ddlsched.cli.run_arguments import refuse_ineffective
from ddlsched.cluster.disturbances import Disturbances
from ddlsched.engine.run_options import RunOptions
from ddlsched.errors import InputError
from ddlsched.options import Option, declared
from ddlsched.plugins import DEFAULT_BUNDLE

if TYPE_CHECKING:
    from ddlsched.comparisons.comparison import Comparison
    from ddlsched.comparisons.settings import Location, Where

_POLICIES = "Policies"
_RUNS = "Run and results"
_DOORS = ("scheduler", "placement", "order", "communication", "allocation", "path", "admission")
_SEVERAL = (*_DOORS, "servers", "server_table", "topology", "contention")
_SHOWN = dict.fromkeys(("placement", "order", "communication"), f"{DEFAULT_BUNDLE}'s")


@dataclass(frozen=True, kw_only=True)
class CompareOptions:
    """What is compared beside the options of its runs, and how it is carried out.

    Parameters
    ----------
    name
        What tables and charts call a policy, once for each policy in their order.
    baseline
        Policy that the others are compared with.
    seeds
        How many (20), a range (0-19) or a list (1,5,9).
    draws
        Runs of a workload that no seed makes: their jobs' lengths differ by at most 0.1 %, or one iteration.
    config
        YAML file with all of the above, which flags replace; see docs/comparing.md.
    out
        Folder for finished runs and tables; the same one again goes on where it was.
    processes
        Runs at once.
    dask
        Scheduler of a Dask cluster that is to run them, e.g. tcp://10.0.0.1:8786.
    timeline
        Record this part of each policy's first run, seconds, e.g. 100:160.
    as_json
        Print the comparison as one JSON object.
    """

    name: Sequence[str] = option((), metavar="LABEL", shown="what tells them apart", panel=_POLICIES)
    baseline: str | None = option(None, metavar="LABEL", shown="the first", panel=_POLICIES)
    seeds: str | None = option(None, metavar="N", shown="20, which is 1-20", panel=_RUNS)
    draws: int | None = option(None, shown="1", panel=_RUNS)
    config: Path | None = option(None, metavar="FILE.yaml", panel=_RUNS)
    out: Path = option(Path("comparison"), metavar="DIR", panel=_RUNS)
    processes: int = option(-1, shown="one a core", panel=_RUNS)
    dask: str | None = option(None, metavar="ADDRESS", panel=_RUNS)
    timeline: str | None = option(None, metavar="FROM:TO", panel=_RUNS)
    as_json: bool = option(False, panel=_RUNS)


def compare(
    context: typer.Context,
    jobs: list[str] | None = None,
    *,
    options: Annotated[
        Given[RunOptions], Panel(without=("seed", "replay"), several=_SEVERAL, only_given=True, shown=_SHOWN)
    ],
    disturbances: Annotated[
        Given[Disturbances],
        Panel("What goes wrong (all drawn from the seed)", metavars={"outages": "FILE.csv"}, only_given=True),
    ],
    comparing: Annotated[Given[CompareOptions], Panel(several=("name",))],
) -> None:
    """Simulate policies on the same workloads, clusters and seeds, and compare them.

    The policies are each --scheduler, and every combination of what --placement, --order, --communication,
    --allocation, --path and --admission list.

    Finished runs are kept, and the same command goes on from them, whatever stopped it.

    A run that fails does not stop the rest; it is reported, and tried again the next time.

    Parameters
    ----------
    jobs
        Workload files, or generators whose jobs the seed makes, e.g. microsoft-160:scale=0.01 or
        gen.py:function:parameter=1.
    """
    asked = comparing.made()
    if asked.config is None:  # it may hold what a flag needs
        refuse_ineffective(context)
    flags: dict[str, Any] = {"workloads": jobs, "policies": _policies(options.values, asked.name)}
    flags |= {name: getattr(asked, name) for name in ("baseline", "seeds", "draws", "timeline")}
    listed = {name for name, option in declared(RunOptions).items() if option.listed}
    flags |= {name: value for name, value in options.values.items() if name in listed and name not in _DOORS}
    further = {name: value for name, value in options.values.items() if name not in listed}
    flags["options"] = further | ({"disturbances": disturbances.values} if disturbances.values else {})
    given = {name: value for name, value in flags.items() if value not in (None, [], {})}
    _refuse_processes(asked.processes)
    from ddlsched.comparisons.compare import carry_out, planned

    plan = planned(*_with_config(asked.config, given))
    try:
        comparison = carry_out(
            plan, asked.out, command=_command(context), processes=asked.processes, dask=asked.dask, say=notice
        )
    except KeyboardInterrupt:
        notice(f"finished runs are kept in {asked.out / 'runs'}; the same command goes on from there")
        raise
    _tell(comparison, asked.as_json)
    if len(comparison.failures):
        raise typer.Exit(1)


def _policies(given: Mapping[str, list[str]], names: Sequence[str]) -> list[Any]:
    """Return each bundle, and the combinations of all else that lists of policies name."""
    doors = {name: given[name] for name in _DOORS[1:] if given.get(name)}
    bundles = given.get("scheduler", [])
    if not names:
        return [*bundles, *([doors] if doors else [])]
    combined = [dict(zip(doors, chosen, strict=True)) for chosen in product(*doors.values())] if doors else []
    policies = [*({"scheduler": bundle} for bundle in bundles), *combined]
    if len(policies) != len(names):
        raise InputError(
            f"--name: is given {len(names)} times for {len(policies)} policies; expected one for each --scheduler, "
            "then for each combination of the other policies, in their order"
        )
    return [{"name": name} | policy for name, policy in zip(names, policies, strict=True)]


def _refuse_processes(processes: int) -> None:
    if processes < 1 and processes != -1:
        raise InputError(f"--processes {processes}: is no number of processes; expected 1 or more, or -1 for all cores")


def _with_config(config: Path | None, given: dict[str, Any]) -> tuple[dict[str, Any], Where]:
    """Return a file's fields with those of the flags in their place, and what tells where each stands."""
    if config is None:
        return given, _flag
    from ddlsched.comparisons.settings import read_yaml

    fields, line = read_yaml(config)
    asked = fields | given
    if isinstance(fields.get("options"), dict) and "options" in given:
        asked["options"] = _over(fields["options"], given["options"])
    return asked, lambda location: _flag(location) if _is_flagged(location, given) else line(location)


def _is_flagged(location: Location, flags: Any) -> bool:
    """Return whether the value at a place came from a flag."""
    for part in location:
        if not isinstance(flags, dict):
            return True
        if part not in flags:
            return False
        flags = flags[part]
    return bool(location)


def _over(options: dict[str, Any], flags: dict[str, Any]) -> dict[str, Any]:
    """Return a file's options with those of the flags in their place, the parts of one by themselves."""
    both = [name for name in flags if isinstance(flags[name], dict) and isinstance(options.get(name), dict)]
    return options | flags | {name: options[name] | flags[name] for name in both}


def _flag(location: Location) -> str:
    match location:
        case ():
            return "compare"
        case ("workloads", *_):
            return "JOBS"
        case ("policies", int(), str(door), *_):
            return f"--{door}"
        case ("policies", *_):
            return "--scheduler, --placement, --order, --communication, --allocation, --path or --admission"
        case ("options", "disturbances"):
            return "compare"
        case ("options", *names):
            return f"--{str(names[-1]).replace('_', '-')}"
    return f"--{str(location[0]).replace('_', '-')}"


def _command(context: typer.Context) -> list[str]:
    """Return the command line, as it would be typed again."""
    words = []
    for parameter in context.command.params:
        if is_given(context, str(parameter.name)):
            value = context.params[str(parameter.name)]
            flag = [parameter.opts[0]] if parameter.opts[0].startswith("--") else []
            several = value if isinstance(value, list | tuple) else [value]
            words += flag if isinstance(value, bool) else [word for each in several for word in (*flag, str(each))]
    return ["ddlsched", "compare", *words]


def _tell(comparison: Comparison, as_json: bool) -> None:
    failures = comparison.failures
    if as_json:
        emit(_json(comparison))
    else:
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
    return json_text(document)


def comparison_text(comparison: Comparison) -> str:
    """Return a table for each workload and cluster, and what is to be known before they are believed.

    It has some metrics; ``comparison.csv`` has all.
    """
    from ddlsched.comparisons.comparison_tables import SETTING
    from ddlsched.results.paired_comparison import METRICS, readable

    shown = (*METRICS, "average_slowdown", "worst_finish_time_fairness", "jain_index", "unfinished_jobs")
    table = comparison.table()
    drawn, baseline = comparison.asked.get("drawn_workloads", ()), comparison.baseline
    parts = [
        f"{workload} on {cluster}\n\n"
        + readable(rows, baseline=baseline, over="draws" if workload in drawn else "seeds")
        for (workload, cluster), rows in table[table["metric"].isin(shown)].groupby(SETTING, sort=False)
    ]
    return "\n".join(f"{part}\n" for part in [*(parts or ["No run finished."]), *comparison.notes()])


def report(
    folder: Annotated[Path, Option(metavar="DIR")],
    *,
    out: Annotated[Path | None, Option(metavar="FILE.html", shown="DIR/report.html")] = None,
) -> None:
    """Write a comparison as one HTML file with tables and interactive charts that opens without a network.

    Also draws its charts for papers, PNG and SVG, into DIR/charts.

    Parameters
    ----------
    folder
        Folder that 'ddlsched compare' wrote.
    out
        HTML file to write.
    """
    with status(f"reporting on {folder}"):
        from ddlsched.comparisons.report.html_report import report as write

        path = write(folder, out)
    notice(f"wrote {path} ({path.stat().st_size / 1e6:.1f} MB)")
