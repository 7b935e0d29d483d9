"""``ddlsched simulate``: one run, from a workload file to its metrics."""

from __future__ import annotations

import csv
import math
import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ddlsched.cli.dataclass_options import Given, Panel, option
from ddlsched.cli.reporting import emit, json_text, notice, run_status, without_nan, write_told
from ddlsched.cli.run_arguments import refuse_ineffective, run_arguments
from ddlsched.cluster.cluster import Cluster
from ddlsched.cluster.disturbances import Disturbances, jitter_remark
from ddlsched.deferred import np
from ddlsched.engine.run_options import RunOptions
from ddlsched.errors import InputError, UnknownNameError
from ddlsched.io.files import MOST_BYTES, refuse_unwritable
from ddlsched.options import filled
from ddlsched.plugins import DEFAULT_ADMISSION, DEFAULT_BUNDLE

if TYPE_CHECKING:
    from ddlsched.results.result import Result
    from ddlsched.workload.job import Workload

_MOST_DRAWS = 100_000
_POLICIES = ("placement", "order", "communication", "allocation", "path", "admission", "interference")
"""Options that name a policy or a model of one."""


@dataclass(frozen=True, kw_only=True)
class OutputOptions:
    """What a run writes and prints.

    Parameters
    ----------
    jobs_out
        Write each job's job_id, start_s, finish_s, jct_s, exact to the nanosecond, as CSV (empty where the run was cut
        off before).
    run_out
        Write the run's file, which 'ddlsched explain' and --replay read: its jobs with all metrics, where they were,
        the workload, and the flags.
    draws
        Run so often, with jobs' lengths that differ by at most 0.1 % or one iteration: how much one run is worth.
    timeline
        Write tasks and transfers as a trace for https://ui.perfetto.dev.
    timeline_window
        Only this part of the timeline, seconds, e.g. 100:160.
    as_json
        Print the metrics as one JSON object.
    """

    jobs_out: Path | None = option(None, metavar="FILE.csv")
    run_out: Path | None = option(None, metavar="FILE.parquet")
    draws: int = option(1, metavar="N")
    timeline: Path | None = option(None, metavar="FILE.json")
    timeline_window: str | None = option(None, metavar="FROM:TO", shown="all")
    as_json: bool = False


def simulate(
    context: typer.Context,
    jobs: str,
    options: Annotated[Given[RunOptions], Panel(only_given=True)],
    disturbances: Annotated[
        Given[Disturbances],
        Panel(
            "What goes wrong (all drawn from --seed)",
            metavars={"outages": "FILE.csv", "failures": "NAME|FILE.csv"},
            only_given=True,
        ),
    ],
    output: Annotated[Given[OutputOptions], Panel("Run and results")],
) -> None:
    """Simulate the jobs of a workload to the end and print the metrics.

    The defaults are those of the 64-GPU experiment.

    NAME is one of 'ddlsched list', such as lwf:kappa=1, or your own class: path/to/file.py:ClassName:parameter=value.

    Parameters
    ----------
    jobs
        Workload file: .csv, .parquet or .json; or a generator, whose jobs --seed makes, e.g.
        microsoft-160:scale=0.01 or gen.py:function:parameter=1.
    """
    out = output.made()
    window = _window(out.timeline, out.timeline_window)
    if not 0 < out.draws <= _MOST_DRAWS:
        raise InputError(f"--draws {out.draws}: is no number of runs; expected 1 to {_MOST_DRAWS}")
    refuse_ineffective(context)
    if out.run_out is not None and out.run_out.suffix == ".csv":
        raise InputError(f"--run-out {out.run_out}: is written as Parquet; expected FILE.parquet (CSV is --jobs-out)")
    _refuse_outputs(jobs, {"--jobs-out": out.jobs_out, "--run-out": out.run_out, "--timeline": out.timeline})
    from ddlsched.engine.run_progress import long_run_remark
    from ddlsched.simulation import simulate as run

    given = run_arguments(options.values, disturbances.values)
    seed = given.pop("seed", 0)
    workload = _made_or_read(jobs, seed)
    if remark := long_run_remark(workload.task_ends):
        notice(remark)
    if remark := jitter_remark(disturbances.values.get("jitter_cv", 0.0)):
        notice(remark)
    gpus = given.get("cluster", Cluster()).num_gpus
    with run_status(f"simulating {len(workload)} jobs on {gpus} GPUs") as watch:
        result = run(workload, seed=seed, timeline=window, watch=watch, **given)
    used = _used(result) | _drawn(workload, seed, given, out.draws, result)
    if out.run_out is not None:
        _write_run(result, jobs, seed, given, out.run_out)
    _write_files(result, out.jobs_out, out.timeline)
    numbers = without_nan(result.summary() | used)  # NaN where no counted job finished, which JSON has not
    emit(json_text(numbers) if out.as_json else _metrics_table(result, used, _setting(result, given)))
    for line in _remarks(result) if out.as_json else ():
        notice(line)


def _window(timeline: Path | None, text: str | None) -> bool | tuple[float, float]:
    """Return what ``simulate(timeline=...)`` takes."""
    if text is None:
        return timeline is not None
    if timeline is None:
        raise InputError(f"--timeline-window {text}: there is no timeline; expected --timeline FILE.json as well")
    try:
        from_s, to_s = (float(part) for part in text.split(":"))
    except ValueError:
        raise InputError(f"--timeline-window {text}: is no window; expected FROM:TO, such as 100:160 (s)") from None
    if not 0 <= from_s < to_s:
        raise InputError(f"--timeline-window {text}: is empty; expected 0 <= FROM < TO (s)")
    return from_s, to_s


def _refuse_outputs(jobs: str, outputs: dict[str, Path | None]) -> None:
    """Refuse, before the run, a file that cannot be written or that would destroy another."""
    taken = {os.path.realpath(jobs): "JOBS"}
    for flag, path in outputs.items():
        if path is None:
            continue
        other = taken.setdefault(os.path.realpath(path), flag)
        if other != flag and not path.is_char_device():
            raise InputError(f"{flag} {path}: is the same file as {other}; expected another")
        refuse_unwritable(path, flag, (".json", ".parquet") if flag == "--timeline" else ())


def _made_or_read(jobs: str, seed: int) -> Workload:
    """Return the jobs of a generator or a file; what is neither, nor nearly a generator's name, is taken for a file."""
    from ddlsched.workload.workload_files import nearest_generators, read_workload, workload_of

    try:
        return workload_of(jobs, seed)
    except UnknownNameError:
        if ":" in jobs or nearest_generators(jobs):
            raise
        return read_workload(jobs)


def _drawn(workload: Workload, seed: int, given: Mapping[str, Any], draws: int, first: Result) -> dict[str, float]:
    """Return what further draws of the run, the first of which it is, tell of it; nothing for one."""
    from ddlsched.results.metrics import ensemble_of
    from ddlsched.simulation import simulate as run

    if draws == 1:
        return {}
    results = [_finished(first, 1, draws)]
    for draw in range(2, draws + 1):
        with run_status(f"simulating draw {draw} of {draws}") as watch:
            result = run(workload, seed=seed, watch=watch, **given, draw=draw - 1)
        results.append(_finished(result, draw, draws))
    return ensemble_of(results).metrics()


def _finished(result: Result, draw: int, draws: int) -> Result:
    """Return a draw, if a job that counts has finished in it: without one it has no average."""
    if math.isnan(result.summary()["average_jct_s"]):
        fault = f"no job that counts has finished in draw {draw}"
        raise InputError(f"--draws {draws}: {fault}; expected one in each (--warmup-s, --until-s)")
    return result


def _used(result: Result) -> dict[str, float]:
    """Return how often doors were used, of those that were."""
    from ddlsched.results.result import door_counts

    return {name: count for name, count in door_counts(result).items() if count}


def _write_files(result: Result, jobs_out: Path | None, timeline: Path | None) -> None:
    """Write the times of the jobs and the timeline where they are asked for."""
    if jobs_out is not None:
        write_told(jobs_out, "--jobs-out", f"the times of {len(result.workload)} jobs", _write_jobs, result)
    if timeline is not None:
        from ddlsched.results.timeline import write_timeline

        write_timeline(result, timeline)
        notice(f"wrote the timeline to {timeline}")


def _write_run(result: Result, workload: str, seed: int, options: Mapping[str, Any], path: Path) -> None:
    """Write the file of a run, as a sweep keeps it."""
    from ddlsched.comparisons.sweeps.run import Run, describe
    from ddlsched.comparisons.sweeps.stored_runs import run_bytes

    run = Run(labels={}, workload=workload, seed=seed, options=options)
    held = run_bytes(result, describe(run.inputs, set()), {}, _kept(Path(workload)), stays=True)
    write_told(path, "--run-out", "the run", lambda file: file.write_bytes(held))


def _kept(workload: Path) -> Path | None:
    """Return the workload's file if the run's file can hold it: no pipe, and not too large to be read back."""
    return workload if workload.is_file() and workload.stat().st_size <= MOST_BYTES else None


def _write_jobs(result: Result, path: Path) -> None:
    records = result.finished.state.jobs
    jct_ns = np.where(records.finish_ns >= 0, records.finish_ns - records.arrival_ns, -1)
    times_ns = (records.start_ns, records.finish_ns, jct_ns)
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(["job_id", "start_s", "finish_s", "jct_s"])
        for job, *times in zip(result.workload, *(column.tolist() for column in times_ns), strict=True):
            writer.writerow([job.job_id, *map(_exact_s, times)])


def _exact_s(time_ns: int) -> str:
    if time_ns < 0:
        return ""
    # A float of seconds would lose nanoseconds beyond 104 days.
    return f"{time_ns // 10**9}.{time_ns % 10**9:09d}"


def _setting(result: Result, given: Mapping[str, Any]) -> str:
    """Return by which policies and over which network jobs ran, of the arguments of ``ddlsched.simulate``."""
    from ddlsched.plugins.names import resolve_bundle

    asked = filled(RunOptions, given) | vars(given.get("disturbances", Disturbances()))
    doors = dict(resolve_bundle(asked["scheduler"] or DEFAULT_BUNDLE))
    doors |= {"placement": f"replay of {given['replay']}"} if asked["replay"] is not None else {}
    doors |= {"admission": DEFAULT_ADMISSION} if asked["queues"] is not None else {}
    further = {
        name: asked[name] for name in (*_POLICIES, "checkpoint", "recovery", "health") if asked[name] is not None
    }
    policies = " + ".join((doors | further).values())
    return f"Policies: {policies}. Network: {result.cluster.topology}, {asked['contention']} contention."


def _metrics_table(result: Result, used: dict[str, float], ran: str) -> str:
    """Return the metrics for a reader; ``ran`` is a line under them."""
    title = f"{len(result.workload)} jobs on {result.cluster.num_gpus} GPUs"
    if left_out := result.num_left_out:
        title += f", {left_out} not counted (warm-up, or the end of a stream)"
    if later := result.num_future:
        title += f", {later} not counted (arrive later)"
    draws = {name: used.pop(name) for name in [*used] if name.startswith("draws")}
    rows = [*_rows(result.summary(), used), *_draw_rows(draws)]
    names, values = (max(len(row[column]) for row in rows) for column in (0, 1))
    table = [f" {name:<{names}}  {value:>{values}}  {unit}".rstrip() for name, value, unit in rows]
    styled = typer.style(title, bold=True) if sys.stdout.isatty() or os.environ.get("FORCE_COLOR") else title
    return "".join(f"{line}\n" for line in [styled, *table, ran, *_remarks(result)])


def _remarks(result: Result) -> list[str]:
    """Return what is to be known of the figures, a line each."""
    from ddlsched.network.contention import card_remark
    from ddlsched.results.metrics import ON_NETWORK, network_remark, sampled_text
    from ddlsched.results.result import PHASE_FIELDS

    most, remark = result.most_jobs_on_a_gpu, card_remark(result.contention, result.finished.network)
    shared = f"GPUs were shared: up to {most} jobs at a time on one (--exclusive: one job a GPU)."
    sampled = [sampled_text(result)] if result.finished.sampled else []
    spent_ns = {phase: int(result.finished.state.jobs[field].sum()) for phase, field in PHASE_FIELDS.items()}
    total_ns = sum(spent_ns.values()) or 1
    saturated = network_remark(*(spent_ns[f"{phase}_s"] / total_ns for phase in ("queueing", *ON_NETWORK)))
    return [*sampled, *([shared] if most > 1 else []), *filter(None, [remark, saturated and f"Network: {saturated}"])]


def _rows(summary: dict[str, float], used: dict[str, float]) -> list[tuple[str, str, str]]:
    from ddlsched.results.result import COUNTS

    unfinished, restarts = summary["unfinished_jobs"], summary["restarts"]
    cut = [("finished jobs", f"{summary['jobs'] - unfinished:,}", ""), ("unfinished jobs", f"{unfinished:,}", "")]
    apart = (cut if unfinished else []) + ([("restarts", f"{restarts:,}", "")] if restarts else [])
    return [
        ("average JCT", f"{summary['average_jct_s']:.3f}", "s"),
        ("median JCT", f"{summary['median_jct_s']:.3f}", "s"),
        ("95th percentile JCT", f"{summary['p95_jct_s']:.3f}", "s"),
        ("makespan", f"{summary['makespan_s']:.3f}", "s"),
        ("GPU utilisation", f"{100 * summary['gpu_utilisation']:.1f}", "%"),
        *apart,
        *(_count(COUNTS[name], count) for name, count in used.items()),
        ("events", f"{summary['events']:,}", ""),
        ("wall time of the engine", f"{summary['engine_s']:.3f}", "s"),
    ]


def _draw_rows(draws: Mapping[str, float]) -> list[tuple[str, str, str]]:
    if not draws:
        return []
    low, high = (draws[f"draws_average_jct_{end}_s"] for end in ("low", "high"))
    return [
        (f"average JCT of {draws['draws']} draws", f"{draws['draws_average_jct_s']:.3f}", f"s [{low:.3f}, {high:.3f}]"),
        ("one run deviates by", f"{100 * draws['draws_run_deviation']:.2f}", "%"),
        ("a job deviates by", f"{100 * draws['draws_job_deviation']:.2f}", "%"),
    ]


def _count(label: str, count: float) -> tuple[str, str, str]:
    """Return the row of how often a door was used; a label of bytes ends with their unit."""
    name = label.removesuffix(" (GB)")
    shown = name[:1].lower() + name[1:]
    return (shown, f"{count / 1e9:,.3f}", "GB") if label.endswith("(GB)") else (shown, f"{count:,}", "")
