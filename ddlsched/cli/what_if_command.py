"""``ddlsched what-if``: a log as it was, with one thing changed; who gains, and who loses."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from ddlsched.cli.dataclass_options import Given, Panel
from ddlsched.cli.reporting import emit, json_text, run_status, without_nan
from ddlsched.cli.run_arguments import refuse_ineffective, run_arguments
from ddlsched.cluster.disturbances import Disturbances
from ddlsched.deferred import pd
from ddlsched.engine.run_options import RunOptions
from ddlsched.options import Option

if TYPE_CHECKING:
    from ddlsched.comparisons.what_if import WhatIf

_RUN = "The run as it was"
_SHOWN_JOBS = 3


def what_if(
    context: typer.Context,
    jobs: str,
    *,
    change: Annotated[list[str], Option(metavar="NAME=VALUE")],
    options: Annotated[Given[RunOptions], Panel(_RUN, without=("replay",), only_given=True)],
    disturbances: Annotated[Given[Disturbances], Panel(_RUN, metavars={"outages": "FILE.csv"}, only_given=True)],
    draws: int = 1,
    as_json: bool = False,
) -> None:
    """Simulate jobs as they were, and again with something changed; say which tenants gain and which lose.

    Parameters
    ----------
    jobs
        Workload file whose jobs have queues, or a generator.
    change
        What changes: servers=+4, quota.team-a=32, or any flag of a run, e.g. admission=kai, queues=other.yaml
        or topology=fat-tree:k=8.
    draws
        Run both so often, with jobs' lengths that differ by at most 0.1 % or one iteration: changes get
        intervals.
    as_json
        Print tenants and jobs as one JSON object.
    """
    from ddlsched.comparisons.what_if import what_if as both
    from ddlsched.workload.workload_files import workload_of

    refuse_ineffective(context)
    given = run_arguments(options.values, disturbances.values)
    workload = workload_of(jobs, given.get("seed", 0))
    with run_status(f"simulating {len(workload)} jobs {2 * draws} times"):
        found = both(workload, given, change, draws=draws)
    emit(_json(found) if as_json else _text(found, change))


def _json(found: WhatIf) -> str:
    tables = {"tenants": found.tenants().reset_index(names="queue"), "jobs": found.jobs()}
    return json_text({name: [without_nan(row) for row in each.to_dict("records")] for name, each in tables.items()})


def _text(found: WhatIf, change: list[str]) -> str:
    tenants, jobs = found.tenants(), found.jobs()
    width = max(map(len, [*tenants.index, "tenant"]))
    head = f"{'tenant':<{width}}  {'jobs':>7}  {'mean wait (s)':>23}  {'mean JCT (s)':>23}  {'change':>8}"
    lines = [f"with {', '.join(change)}:", "", f"{head}{_interval_head(tenants)}  preempted"]
    for queue, row in tenants.iterrows():
        if not row["jobs"]:
            lines.append(f"{queue!s:<{width}}  {0:>7}  none that counts finished in both runs")
            continue
        waits = f"{row['wait_before_s']:>10,.0f} -> {row['wait_after_s']:>9,.0f}"
        jct = f"{row['jct_before_s']:>10,.0f} -> {row['jct_after_s']:>9,.0f}"
        stops = f"{row['preemptions_before']:.0f} -> {row['preemptions_after']:.0f}"
        faster = f"{100 * row['jct_change']:>+6.1f} %{_interval(row)}"
        lines.append(f"{queue!s:<{width}}  {row['jobs']:>7,.0f}  {waits}  {jct}  {faster}  {stops}")
    return "\n".join([*lines, "", *_verdict(tenants[:-1]), *_most(jobs)]) + "\n"


def _interval_head(tenants: pd.DataFrame) -> str:
    return f"  {'95 % interval':>17}" if "verdict" in tenants else ""


def _interval(row: pd.Series) -> str:
    if "verdict" not in row:
        return ""
    return f"  [{100 * row['jct_change_low']:>+6.1f}, {100 * row['jct_change_high']:>+6.1f}] %"


def _verdict(tenants: pd.DataFrame) -> list[str]:
    """Return who gains and who loses: of one run by more than a thousandth of its mean JCT."""
    change = tenants["jct_change"]
    groups = {"gain": change < -1e-3, "lose": change > 1e-3}
    if "verdict" in tenants:
        names = {"gain": "better", "lose": "worse", "undecided": "undecided"}
        groups = {name: tenants["verdict"] == said for name, said in names.items()}
    return [f"{name}: {', '.join(map(str, tenants.index[group])) or 'nobody'}" for name, group in groups.items()]


def _most(jobs: pd.DataFrame) -> list[str]:
    """Return the jobs that gain and lose most."""
    lines = []
    for name, rows, sign in (("gains", jobs.head(_SHOWN_JOBS), 1), ("loses", jobs.tail(_SHOWN_JOBS)[::-1], -1)):
        for _, row in rows.iterrows():
            if sign * row["gain_s"] > 0:
                lines.append(f"  job {row['job_id']} of {row['queue']} {name} {abs(row['gain_s']):,.0f} s")
    return lines
