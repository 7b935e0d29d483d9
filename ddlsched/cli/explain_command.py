"""``ddlsched explain``: why one job of a finished run waited, and for whom."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from ddlsched.cli.reporting import emit, json_text, run_status, without_nan
from ddlsched.deferred import pd
from ddlsched.errors import UnknownNameError, did_you_mean

if TYPE_CHECKING:
    from ddlsched.engine.outcome import Window

_MOST = 6


def itinerary_text(stays: pd.DataFrame, transfers: pd.DataFrame) -> str:
    """Return lines on stays if there are several, on the paths of the last, and on kinds of transfers if several."""
    lines = [*_stays(stays), *_paths(stays), *_transfers(transfers)]
    return "".join(f"{line}\n" for line in lines)


def _stays(stays: pd.DataFrame) -> Iterator[str]:
    """Yield a line for each of the last stays: when, where, what came along and why it ended."""
    if len(stays) < 2:
        return
    yield ""
    yield f"On GPUs {len(stays)} times" + (f", the last {_MOST}:" if len(stays) > _MOST else ":")
    for stay in stays.tail(_MOST).to_dict("records"):
        until = "" if stay["to_s"] != stay["to_s"] else f" to {stay['to_s']:.3f}"
        state = f", {stay['state_bytes'] / 1e9:.3f} GB of state over the network" if stay["state_bytes"] else ""
        ending = f", {stay['ended_by']}" if stay["ended_by"] else ""
        yield f"  {stay['from_s']:.3f}{until} s on GPUs {_some(list(map(str, stay['gpus'])))}{state}{ending}"


def _paths(stays: pd.DataFrame) -> Iterator[str]:
    """Yield the links between switches that flows cross; of a job that chooses anew, all that they crossed."""
    if len(stays) and (names := stays.iloc[-1]["paths"]):
        yield ""
        yield f"Paths between switches: {_some(names)}"


def _transfers(transfers: pd.DataFrame) -> Iterator[str]:
    """Yield for how long each collective and the state were on the network; together that may be longer than both."""
    if len(transfers) < 2:
        return
    yield ""
    yield "On the network (collectives may overlap):"
    longest = transfers.sort_values("seconds", ascending=False, kind="stable")
    for row in longest.head(_MOST).to_dict("records"):
        tuples = f", {row['tuples']} tuples" if row["tuples"] > 1 else ""
        what = row["task"] if row["kind"] == row["task"] else f"{row['task']} ({row['kind']}{tuples})"
        yield f"  {row['seconds']:>12.3f} s  {what}"
    if len(transfers) > _MOST:
        yield f"  and {len(transfers) - _MOST} shorter ones"


def _some(names: Sequence[str]) -> str:
    more = f" and {len(names) - _MOST} more" if len(names) > _MOST else ""
    return ", ".join(names[:_MOST]) + more


_HOLDERS = 5
_PLACES = 6
_WAITS = {"queueing": "In the queue", "gpu_wait": "On its GPUs, for them", "network_wait": "For the network"}


def explain(run: Path, job: str, *, as_json: bool = False) -> None:
    """Say what a job waited for, which jobs held that, where it went and what it sent.

    The run is simulated again, and what touches the job is recorded; where several jobs held it at once, they share
    the time equally.

    Parameters
    ----------
    run
        A run's file: of 'ddlsched simulate --run-out', or in the folder runs/ of a comparison, whose runs.csv
        says which is whose.
    job
        The job's job_id.
    as_json
        Print every blocker as one JSON object.
    """
    from ddlsched.comparisons.sweeps.stored_runs import read_jobs, repeat
    from ddlsched.results.explanation import explain as blockers_of
    from ddlsched.results.explanation import reservations, stays_of, transfers_of
    from ddlsched.results.reliability import failure_costs_of
    from ddlsched.results.result import PHASES

    row = _row(run, read_jobs(run, ("job_id", "start_s", "finish_s")), job)
    with run_status(f"simulating {run} again, with a timeline") as watch:
        result = repeat(run, timeline=_window(row, job), watch=watch)
        blockers, reserved = blockers_of(result, job), reservations(result, job)
        stays, transfers, failures = stays_of(result, job), transfers_of(result, job), failure_costs_of(result, job)
    now = result.jobs[result.jobs["job_id"] == job].iloc[0]
    phases = {phase.removesuffix("_s"): float(now[phase]) for phase in PHASES}
    if as_json:
        found = {"job_id": job, "state": str(now["state"]), "phases_s": phases, "blockers": blockers.to_dict("records")}
        found |= {"reservations": reserved.to_dict("records"), "transfers": transfers.to_dict("records")}
        found["failures"] = [without_nan(row) for row in failures.to_dict("records")]
        found["stays"] = [without_nan(row) for row in stays.to_dict("records")]
        emit(json_text(found))
    else:
        departures = [each for each in result.finished.departures if each.job == result.number_of(job)]
        emit(
            _text(now, phases, blockers, [each.moved for each in departures])
            + _failures(failures)
            + _reserved(reserved)
            + itinerary_text(stays, transfers)
        )


def _stops(restarts: int, moved: list[bool]) -> str:
    """Return who took a job off its GPUs, and how often; ``moved`` has an entry for each time that a policy did."""
    counts = {
        "Stopped by failures": restarts - len(moved),
        "Stopped by a policy": moved.count(False),
        "Moved": sum(moved),
    }
    return ", ".join(f"{what} {_many(count, 'time')}" for what, count in counts.items() if count)


def _failures(failures: pd.DataFrame) -> str:
    """Return what each cause of failures cost the job, the dearest first."""
    if failures.empty:
        return ""
    costs = ["detection_s", "lost_s", "without_gpus_s", "starting_s"]
    sums = failures.groupby("cause")[costs].sum().assign(count=failures["cause"].value_counts())
    lines = ["", "Failures: until they were noticed, work lost, without GPUs, to start again (s)"]
    for cause in sums[costs].sum(axis=1).sort_values(ascending=False, kind="stable").index:
        seconds = "".join(f"{sums.loc[cause, cost]:>14.3f}" for cost in costs)
        lines.append(f"{seconds}  {cause}, {_many(int(sums.loc[cause, 'count']), 'time')}")
    return "\n".join(lines) + "\n"


def _reserved(reserved: pd.DataFrame) -> str:
    """Return what a placement policy told of when the job was to start."""
    if reserved.empty:
        return ""
    first, last = reserved.iloc[0], reserved.iloc[-1]
    lines = ["", f"Reserved from {first['start_s']:.3f} s, as was said at {first['made_s']:.3f} s"]
    if len(reserved) > 1:
        lines.append(f"  in the end from {last['start_s']:.3f} s, as was said at {last['made_s']:.3f} s")
    return "\n".join(lines) + "\n"


def _row(run: Path, jobs: pd.DataFrame, job: str) -> pd.Series:
    ids = jobs["job_id"].astype(str)
    if not (ids == job).any():
        raise UnknownNameError(f"{run}: no job is named {job!r}.{did_you_mean(job, ids)}")
    return jobs[ids == job].iloc[0]


def _window(row: pd.Series, job: str) -> Window:
    """Return the part of the run that has to be recorded: the job's, from its first placement to its end."""
    from ddlsched.engine.outcome import Window

    start_s, finish_s = float(row["start_s"]), float(row["finish_s"])
    if start_s != start_s:  # never placed: what it waited for in the queue needs no record
        return Window(0.0, 1e-9, job)
    if finish_s != finish_s:
        return Window(start_s, job_id=job)
    return Window(start_s, max(finish_s, start_s + 1e-9), job)


def _text(row: pd.Series, phases: dict[str, float], blockers: pd.DataFrame, departures: list[bool]) -> str:
    total_s = sum(phases.values())
    ending = f"JCT {total_s:.3f} s" if row["state"] == "finished" else f"{row['state']}, so far {total_s:.3f} s"
    where = f" on {_many(row['servers'], 'server')}" if row["servers"] else ""
    lines = [f"job {row['job_id']}, {_many(row['gpus'], 'GPU')}{where}: {ending}", ""]
    for phase, seconds in phases.items():
        lines.append(f"  {phase.replace('_', ' '):<16}{seconds:>14.3f} s  {_share(seconds, total_s):>6}")
    if row["restarts"]:
        lost = f"{row['lost_s']:.3f} s on its GPUs were for nothing"
        lines += ["", f"{_stops(int(row['restarts']), departures)}: {lost}"]
    for phase, title in _WAITS.items():
        own = blockers[blockers["phase"] == phase]
        if len(own):
            lines += ["", f"{title}: {own['seconds'].sum():.3f} s", *_holders(own, row["job_id"])]
    return "\n".join(lines) + "\n"


def _holders(own: pd.DataFrame, job_id: str) -> list[str]:
    """Return a line a job that held something, the longest first, with what it held most."""
    total_s, lines = own["seconds"].sum(), []
    names = own["held_by"].map(lambda job: f"job {job}", na_action="ignore").fillna(own["waited_for"])
    held = own.assign(by=names.mask(own["held_by"] == job_id, "its own checkpoint"))
    groups = sorted(held.groupby("by", sort=False), key=lambda group: -group[1]["seconds"].sum())
    for by, rows in groups[:_HOLDERS]:
        seconds = rows["seconds"].sum()
        what = "" if rows["held_by"].isna().all() else f"  {_places(rows['waited_for'].tolist())}"
        lines.append(f"  {seconds:>12.3f} s  {_share(seconds, total_s):>6}  {by}{what}")
    rest_s = sum(rows["seconds"].sum() for _, rows in groups[_HOLDERS:])
    if rest_s:
        lines.append(f"  {rest_s:>12.3f} s  {_share(rest_s, total_s):>6}  {_many(len(groups) - _HOLDERS, 'other')}")
    return lines


def _many(count: int, what: str) -> str:
    return f"{count} {what}" if count == 1 else f"{count} {what}s"


def _places(names: list[str]) -> str:
    """Return what was held, the longest first, each kind of thing named once: GPUs 3, 4 and 2 more."""
    more = f" and {len(names) - _PLACES} more" if len(names) > _PLACES else ""
    (kind, *others) = {name.rpartition(" ")[0] for name in names}
    if others or len(names) == 1:
        return f"({', '.join(names[:_PLACES])}{more})"
    return f"({kind}s {', '.join(name.rpartition(' ')[2] for name in names[:_PLACES])}{more})"


def _share(seconds: float, total_s: float) -> str:
    return f"{100 * seconds / total_s:.1f} %" if total_s else "-"
