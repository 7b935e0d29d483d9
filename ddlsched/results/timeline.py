"""The timeline of a run as a trace file for https://ui.perfetto.dev; :mod:`ddlsched.results.slices` has the tables."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from ddlsched.engine.outcome import ragged
from ddlsched.io.files import replacing
from ddlsched.results.slices import (
    STATE_TASK,
    Slices,
    computing,
    crossed,
    repeated,
    rows_of,
    sending,
    write_timeline_table,
)
from ddlsched.workload.groups import parts_of
from ddlsched.workload.tasks import CollectiveTask

if TYPE_CHECKING:
    from ddlsched.results.result import Result

_GPUS, _LINKS, _JOBS = 1, 2, 3
_PROCESSES = {_GPUS: "GPUs", _LINKS: "Links", _JOBS: "Jobs"}


def write_timeline(result: Result, path: Path | str) -> None:
    """Write the timeline as Chrome trace-event JSON, which https://ui.perfetto.dev opens, or as a table.

    A file that ends in ``.parquet`` gets the table of :func:`~ddlsched.results.slices.timeline_table`.

    Process *GPUs* has a row a GPU, with its tasks and its server's outages; *Links* a row a link, or several
    where transfers overlap, and the number of transfers on it over time; *Jobs* marks arrivals, starts, stops, moves
    and finishes. Rows without content are left out. Times are exact to the nanosecond, and one run always
    gives the same bytes. Perfetto chooses colours by a slice's name without its digits, so jobs with numbers for
    ids are coloured by task.

    Parameters
    ----------
    result
        A run with a timeline.
    path
        The file, which appears whole or not at all.

    Raises
    ------
    InputError
        The run was not recorded, or the file cannot be written.
    """
    if Path(path).suffix.lower() == ".parquet":
        write_timeline_table(result, Path(path))
        return
    trace = _Trace(result)
    with replacing(Path(path), "timeline") as beside, beside.open("w", encoding="ascii", newline="\n") as file:
        file.write('{"traceEvents": [')
        separator = "\n"
        for event in trace.events():
            file.write(separator)
            file.write(event)
            separator = ",\n"
        file.write('\n], "displayTimeUnit": "ms"}\n')


class _OnLinks(NamedTuple):
    """Columns of transfer slices on links: place in the columns of the slices, link, how often crossed, lane."""

    place: np.ndarray
    link: np.ndarray
    crossings: np.ndarray
    lane: np.ndarray


def _on_links(result: Result, slices: Slices) -> _OnLinks:
    """Return a row for each slice and link, sorted by link, lane and start."""
    num_links = len(result.finished.network.links)
    which, routes = crossed(result, slices.stay, slices.task, slices.start_ns)
    first, links = ragged(routes)
    place, nth = repeated(np.array([len(route) for route in routes], np.int64)[which])
    link = links[first[which[place]] + nth]
    # A transfer may cross a link more than once.
    pair, crossings = np.unique(place * num_links + link, return_counts=True)
    place, link = np.divmod(pair, num_links)
    lane = _lanes(slices, place, link)
    order = np.lexsort((slices.start_ns[place], lane, link))
    return _OnLinks(place[order], link[order], crossings[order], lane[order])


def _lanes(slices: Slices, place: np.ndarray, link: np.ndarray) -> np.ndarray:
    """Return a lane for each slice on a link: the lowest free one, kept until the transfer ends or pauses."""
    continues = _continues(slices)[place]
    start_ns, transfer = slices.start_ns[place], slices.owner[place]
    # At an instant, those that continue come first, so that a newcomer does not take their lane.
    order = np.lexsort((transfer, ~continues, start_ns, link))
    columns = (link, transfer, start_ns, slices.end_ns[place], continues)
    lanes, last_link = [], -1
    free_ns: list[int] = []
    lane_of: dict[int, int] = {}
    for number, owner, start, end, same in rows_of(*(column[order] for column in columns)):
        if number != last_link:
            last_link, free_ns, lane_of = number, [], {}
        if not same:
            lane_of[owner] = next((n for n, free in enumerate(free_ns) if free <= start), len(free_ns))
        lane = lane_of[owner]
        free_ns[lane : lane + 1] = [end]
        lanes.append(lane)
    result = np.empty(len(order), np.int64)
    result[order] = lanes
    return result


def _continues(slices: Slices) -> np.ndarray:
    """Return for each slice whether its transfer was running until then."""
    order = np.lexsort((slices.start_ns, slices.owner))
    transfer, start_ns, end_ns = slices.owner[order], slices.start_ns[order], slices.end_ns[order]
    result = np.zeros(len(order), bool)
    result[order[1:]] = (transfer[1:] == transfer[:-1]) & (start_ns[1:] == end_ns[:-1])
    return result


def _counts(
    start_ns: np.ndarray, end_ns: np.ndarray, crossings: np.ndarray, from_ns: int, to_ns: int
) -> tuple[np.ndarray, np.ndarray]:
    """Return when the number of transfers on a link changes within the window, and to what."""
    times, place = np.unique(np.concatenate([start_ns, end_ns]), return_inverse=True)
    change = np.zeros(len(times), np.int64)
    np.add.at(change, place, np.concatenate([crossings, -crossings]))
    # What else began or ended outside the window is not known: it opens with the number at its start.
    count, times = np.cumsum(change), np.maximum(times, from_ns)
    last = np.append(times[1:] != times[:-1], True) & (times < to_ns)
    count, times = count[last], times[last]
    changed = np.diff(count, prepend=0) != 0
    return times[changed], count[changed]


def _us(ns: int) -> str:
    """Return microseconds with all three decimals; a float's own text would lose some."""
    return f"{ns // 1000}.{ns % 1000:03d}"


def _event(phase: str, category: str, name: str, process: int, tid: int, time_ns: int, rest: str) -> str:
    start = f'{{"ph":"{phase}","cat":"{category}","name":{name},"pid":{process},"tid":{tid}'
    return f'{start},"ts":{_us(time_ns)},{rest}}}'


def _slice(category: str, name: str, process: int, tid: int, start_ns: int, end_ns: int, args: str) -> str:
    rest = f'"dur":{_us(end_ns - start_ns)},"args":{{{args}}}'
    return _event("X", category, name, process, tid, start_ns, rest)


class _Trace:
    """The trace events of a run, each a line of JSON."""

    def __init__(self, result: Result) -> None:
        self._result = result
        self._state = result.finished.state
        self._compute = computing(result)
        self._transfers = sending(result)
        self._on_links = _on_links(result, self._transfers)
        self._labels: dict[tuple[int, int], tuple[str, str]] = {}
        # Perfetto shows a row's number after its name, hence GPU 14 as 1014; it must not be its process's number.
        link_rows = np.unique(np.stack([self._on_links.link, self._on_links.lane]), axis=1)
        self._link_rows = {(link, lane): row for row, (link, lane) in enumerate(link_rows.T.tolist())}
        self._block: int = 10 ** len(str(max(result.cluster.num_gpus, len(self._link_rows), len(result.workload))))

    def events(self) -> Iterator[str]:
        """Return all events: a process after the other, in each its rows in order."""
        yield from self._rows_of(_GPUS, self._gpu_names())
        yield from self._gpu_events()
        yield from self._rows_of(_LINKS, self._link_names())
        yield from self._link_events()
        yield from self._counters()
        marks = self._marks()
        yield from self._rows_of(_JOBS, {job: f"job {self._result.workload[job].job_id}" for job, _, _ in marks})
        yield from self._mark_events(marks)

    def _rows_of(self, process: int, names: dict[int, str]) -> Iterator[str]:
        """Return the names and the order of a process and its rows."""
        if names:
            yield _metadata("process", {"pid": process}, _PROCESSES[process], process)
        for row, name in names.items():
            yield _metadata("thread", {"pid": process, "tid": self._tid(process, row)}, name, row)

    def _tid(self, process: int, row: int) -> int:
        return process * self._block + row

    def _gpu_names(self) -> dict[int, str]:
        server, gpus = self._state.gpus.server, set(self._compute.owner.tolist())
        gpus.update(gpu for gpu, _, _ in self._outages())
        return {gpu: f"server {server[gpu]}, GPU {gpu}" for gpu in sorted(gpus)}

    def _outages(self) -> list[tuple[int, int, int]]:
        """Return GPU, from and to of each failure within the window."""
        run, first_gpus = self._state.run[0], self._result.cluster.first_gpus
        return [
            (gpu, down_ns, up_ns)
            for server, down_ns, up_ns in self._result.finished.outages
            if down_ns < run.record_to_ns and up_ns > run.record_from_ns
            for gpu in range(first_gpus[server], first_gpus[server + 1])
        ]

    def _link_names(self) -> dict[int, str]:
        links = self._result.finished.network.links
        names = {row: (links[link].name, lane) for (link, lane), row in self._link_rows.items()}
        return {row: f"{name} ({lane + 1})" if lane else name for row, (name, lane) in names.items()}

    def _label(self, job: int, task: int) -> tuple[str, str]:
        """Return name and args of a task's slices, as JSON that lacks only the number of the iteration."""
        if (job, task) not in self._labels:
            name = self._result.workload[job].dag.part_names[task] if task >= 0 else STATE_TASK
            title = json.dumps(f"job {self._result.workload[job].job_id} {name}, iteration ")
            args = f'{self._job_args(job)}{self._group_args(job, task)},"task":{json.dumps(name)},"iteration":'
            self._labels[job, task] = title.removesuffix('"'), args
        return self._labels[job, task]

    def _job_args(self, number: int) -> str:
        job = self._result.workload[number]
        model = "" if job.model is None else f',"model":{json.dumps(job.model)}'
        return f'"job":{json.dumps(job.job_id)}{model}'

    def _group_args(self, number: int, part: int) -> str:
        """Return the kind and the workers of a collective of a job with groups, as JSON."""
        job = self._result.workload[number]
        if part < 0 or not job.dag.groups:
            return ""
        tuple_of_part = parts_of(job.dag.tasks, job.dag.groups, job.num_gpus)[part]
        task = job.dag.tasks[tuple_of_part.task]
        kind = f',"kind":"{task.kind}"' if isinstance(task, CollectiveTask) else ""
        return f'{kind},"workers":{json.dumps(tuple_of_part.workers)}'

    def _gpu_events(self) -> Iterator[str]:
        for gpu, job, stay, task, iteration, start_ns, end_ns, cut in rows_of(*self._compute[:8]):
            name, args = self._label(job, task)
            by = self._result.finished.stays[stay].ended_by.removeprefix("stopped ")
            title, tid = f'{name}{iteration}{f", cut {by}" if cut else ""}"', self._tid(_GPUS, gpu)
            yield _slice("compute", title, _GPUS, tid, start_ns, end_ns, f"{args}{iteration}")
        for gpu, down_ns, up_ns in self._outages():
            yield _slice("outage", '"server down"', _GPUS, self._tid(_GPUS, gpu), down_ns, up_ns, "")

    def _link_events(self) -> Iterator[str]:
        on = self._on_links
        columns = (column[on.place] for column in self._transfers[1:])
        for link, lane, job, _, task, iteration, start_ns, end_ns, sharing, rate in rows_of(on.link, on.lane, *columns):
            name, args = self._label(job, task)
            tid = self._tid(_LINKS, self._link_rows[link, lane])
            args = f'{args}{iteration},"sharing":{sharing},"rate_bytes_per_s":{rate!r}'
            yield _slice("transfer", f'{name}{iteration}"', _LINKS, tid, start_ns, end_ns, args)

    def _counters(self) -> Iterator[str]:
        on, run = self._on_links, self._state.run[0]
        start_ns, end_ns = self._transfers.start_ns[on.place], self._transfers.end_ns[on.place]
        window = int(run.record_from_ns), int(run.record_to_ns)
        for link in np.unique(on.link).tolist():
            here = slice(*np.searchsorted(on.link, [link, link + 1]))
            name = json.dumps(self._result.finished.network.links[link].name)
            tid = self._tid(_LINKS, self._link_rows[link, 0])
            for time_ns, count in rows_of(*_counts(start_ns[here], end_ns[here], on.crossings[here], *window)):
                yield _event("C", "transfer", name, _LINKS, tid, time_ns, f'"args":{{"transfers":{count}}}')

    def _marks(self) -> list[tuple[int, int, str]]:
        """Return job, time and kind of what happened to jobs within the window, job by job."""
        jobs, run = self._state.jobs, self._state.run[0]
        marks = [(job, int(time_ns), 0, "arrival") for job, time_ns in enumerate(jobs.arrival_ns)]
        for stay in self._result.finished.stays:
            finishes = stay.to_ns == jobs.finish_ns[stay.job]
            marks.append((stay.job, stay.from_ns, 1, "start"))
            if finishes or stay.to_ns < self._result.finished.end_ns:
                marks.append((stay.job, stay.to_ns, 2, "finish" if finishes else stay.ended_by))
        window = run.record_from_ns, min(run.record_to_ns, self._result.finished.end_ns)
        return [(job, at_ns, kind) for job, at_ns, _, kind in sorted(marks) if window[0] <= at_ns <= window[1]]

    def _mark_events(self, marks: list[tuple[int, int, str]]) -> Iterator[str]:
        for job, time_ns, kind in marks:
            name = json.dumps(f"job {self._result.workload[job].job_id} {kind}")
            rest = f'"s":"t","args":{{{self._job_args(job)}}}'
            yield _event("i", "job", name, _JOBS, self._tid(_JOBS, job), time_ns, rest)


def _metadata(what: str, row: dict[str, int], name: str, place: int) -> str:
    """Return the events that name a process or thread and put it in its place."""
    named = {"ph": "M", "name": f"{what}_name", **row, "args": {"name": name}}
    sorted_ = {"ph": "M", "name": f"{what}_sort_index", **row, "args": {"sort_index": place}}
    return f"{json.dumps(named)},\n{json.dumps(sorted_)}"
