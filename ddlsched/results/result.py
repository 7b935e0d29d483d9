"""The result of one run: tables of jobs, GPUs and links, and the summary."""

from __future__ import annotations

import html
from dataclasses import asdict, fields
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from ddlsched.deferred import pd
from ddlsched.engine.field_values import JobState
from ddlsched.errors import PluginError, label
from ddlsched.plugins.names import Charts
from ddlsched.results.slices import RunRecords, timeline_table
from ddlsched.units import NS_PER_S
from ddlsched.workload.elastic_job import Rescale

if TYPE_CHECKING:
    from ddlsched.cluster.cluster import Cluster
    from ddlsched.engine.outcome import Finished
    from ddlsched.network.contention import ContentionModel
    from ddlsched.workload.job import Workload

PHASE_FIELDS = {
    "queueing_s": "queueing_ns",
    "computing_s": "computing_ns",
    "gpu_wait_s": "gpu_wait_ns",
    "communication_s": "communicating_ns",
    "network_wait_s": "network_wait_ns",
    "restart_s": "restarting_ns",
}
PHASES = tuple(PHASE_FIELDS)
"""Columns of :attr:`Result.jobs` that add up to a finished job's JCT."""

_STATES = ("future", "queued", "running", "finished", "dropped")  # by the engine's numbers
_SAMPLED = ("allocated_gpus", "queued_jobs", "active_transfers", "waiting_transfers")


class Result(RunRecords):
    """What :func:`ddlsched.simulate` returns.

    Attributes
    ----------
    workload, cluster
        What was simulated.
    finished
        The run's records, for :mod:`ddlsched.results.timeline`.
    plot
        Charts: ``result.plot.jct()``, ``phases()``, ``placements()``, ``utilisation()``
        (:class:`ddlsched.comparisons.charts.run_charts.RunCharts`).

    Its tables are pandas DataFrames; names end in their unit (``_s`` seconds, ``_bytes``).

    ================  ================================  =====================================================
    table             a row is                          columns
    ================  ================================  =====================================================
    ``jobs``          a job, in workload order          times, phases of its JCT, GPUs, servers, state
    ``gpus``          a GPU                             server, jobs, busy_s, utilisation (0 to 1)
    ``links``         a link                            bandwidth_bytes_per_s, bytes, busy_s, utilisation
    ``samples``       a time, at most 257 of them       busy and allocated GPUs, queued jobs, transfers
    ``placements``    a GPU of a job and a stay on it   job_id, gpu, server, from_s, to_s
    ``rescales``      a change of an elastic job        GPUs before and after, time_s, cost_s
    ================  ================================  =====================================================
    """

    plot = Charts("result")

    def __init__(self, workload: Workload, cluster: Cluster, finished: Finished, counted: np.ndarray) -> None:
        super().__init__(workload, cluster, finished)
        self._counted = counted

    def __repr__(self) -> str:
        average_jct_s = self.summary()["average_jct_s"]
        jobs = "1 job" if len(self.workload) == 1 else f"{len(self.workload)} jobs"
        return f"<result: {jobs} on {self.cluster.num_gpus} GPUs, average JCT {average_jct_s:.3f} s>"

    def _repr_html_(self) -> str:
        rows = [(name, f"{value:,.6g}") for name, value in self.summary().items()]
        summary = pd.DataFrame(rows, columns=["metric", "value"]).to_html(index=False, border=0)
        return f"<p><b>{html.escape(repr(self)[1:-1])}</b></p>{summary}{self.jobs.head().to_html(border=0)}"

    @property
    def timeline(self) -> pd.DataFrame:
        """What GPUs and transfers did, of a recorded run (:func:`~ddlsched.results.slices.timeline_table`)."""
        return timeline_table(self)

    @property
    def contention(self) -> ContentionModel:
        """The contention model, bound to the network."""
        return self.finished.contention

    def gpus_of(self, job_id: str) -> tuple[int, ...]:
        """Return the GPUs of a job, in placement order; of its last stay, or none if it was never placed."""
        return self.finished.gpus.get(self.number_of(job_id), ())

    def number_of(self, job_id: str) -> int:
        """Return a job's row in the workload, from 0.

        Raises
        ------
        UnknownNameError
            No job has this id.
        """
        return self.workload.number_of(job_id)

    @cached_property
    def jobs(self) -> pd.DataFrame:
        """A row a job, in the order of the workload.

        Columns: job_id; arrival_s, start_s (first placement), finish_s, jct_s (finish - arrival), NaN for what has
        not happened. What a job was doing at each moment from arrival to finish, adding up to jct_s: queueing_s;
        computing_s (some worker computed, no transfer ran or waited); gpu_wait_s (its GPUs were busy with other
        jobs); communication_s (a transfer ran); network_wait_s (one waited and none ran); restart_s (holding GPUs
        to start again after a failure, or for a change of an elastic job). compute_s (computing on each GPU, mean
        over its GPUs; also during communication); lost_s (time on GPUs whose work a failure or a change destroyed);
        restarts (of an elastic job also its changes while it ran); gpus, servers (counts; of an elastic job those
        that it had last); state at the end of the run (finished, running, queued, future or dropped); counted
        (arrived after the warm-up; of a steady stream by rank, neither its first fifth nor its last tenth);
        model and user, if the workload has them.
        """
        records = self.finished.state.jobs
        done = records.state == JobState.FINISHED
        # One that goes on with what failures have left of its GPUs is told by all of them.
        gpus = np.where(records.elastic == 1, records.num_gpus, [job.num_gpus for job in self.workload])
        columns = {
            "job_id": [job.job_id for job in self.workload],
            "arrival_s": records.arrival_ns / NS_PER_S,
            "start_s": _seconds(records.start_ns, records.start_ns >= 0),
            "finish_s": _seconds(records.finish_ns, done),
            "jct_s": _seconds(records.finish_ns - records.arrival_ns, done),
            **{name: records[field] / NS_PER_S for name, field in PHASE_FIELDS.items()},
            "compute_s": np.where(records.elastic == 1, records.busy_per_gpu_ns, records.busy_ns / gpus) / NS_PER_S,
            "lost_s": records.lost_ns / NS_PER_S,
            "restarts": records.restarts,
            "gpus": gpus,
            "servers": records.num_servers,
            "state": np.array(_STATES)[records.state],
            "counted": self._counted,
        }
        frame = pd.DataFrame(columns)
        for name in ("model", "user"):
            values = [getattr(job, name) for job in self.workload]
            if any(value is not None for value in values):
                frame[name] = values
        return frame

    @cached_property
    def gpus(self) -> pd.DataFrame:
        """A row a GPU: gpu, server, jobs (placed on it), busy_s (computing), utilisation (busy / time).

        Both are of the time from the end of the warm-up to the end of the run; NaN if that is none.
        """
        jobs = np.zeros(self.cluster.num_gpus, np.int64)
        for stay in self.finished.stays:
            jobs[list(stay.gpus)] += 1
        frame = pd.DataFrame({"gpu": np.arange(len(jobs)), "server": self.cluster.server_of_gpu, "jobs": jobs})
        return frame.assign(busy_s=self.finished.busy_ns / NS_PER_S, utilisation=self._gpu_utilisation)

    @cached_property
    def rescales(self) -> pd.DataFrame:
        """A row a change of an elastic job, in order of time: the fields of Rescale, and cost_s, what it took.

        See :class:`ddlsched.workload.elastic_job.Rescale`.
        """
        changes = self.finished.rescales
        frame = pd.DataFrame([asdict(change) for _, change, _ in changes], columns=[f.name for f in fields(Rescale)])
        return frame.assign(cost_s=[cost_ns / NS_PER_S for _, _, cost_ns in changes])

    @cached_property
    def links(self) -> pd.DataFrame:
        """A row a link: link, bandwidth_bytes_per_s, bytes (carried), busy_s (time with a transfer), utilisation.

        All are of the whole run, its warm-up included.
        """
        links, records = self.finished.network.links, self.finished.state.links
        frame = pd.DataFrame({"link": [link.name for link in links]})
        frame["bandwidth_bytes_per_s"] = [link.bandwidth_bytes_per_s for link in links]
        utilisation = records.busy_ns / max(self.finished.end_ns, 1)
        return frame.assign(bytes=records.bytes, busy_s=records.busy_ns / NS_PER_S, utilisation=utilisation)

    @cached_property
    def samples(self) -> pd.DataFrame:
        """A row a sampling time, at most 257 of them, evenly spaced but for the last, which is the end of the run.

        Columns: time_s; busy_gpus (mean number of GPUs computing since the row before); and at that time
        allocated_gpus (with a job on them), queued_jobs, active_transfers, waiting_transfers.
        """
        state = self.finished.state
        records = state.samples[: state.run[0].num_samples]
        spans_ns = np.diff(records.time_ns, prepend=0)
        columns = {"time_s": records.time_ns / NS_PER_S, "busy_gpus": records.busy_ns / np.maximum(spans_ns, 1)}
        return pd.DataFrame(columns | {name: records[name] for name in _SAMPLED})

    @cached_property
    def placements(self) -> pd.DataFrame:
        """A row a GPU of a job and a stay on it: job_id, gpu, server, from_s, to_s; in the order of placement."""
        stays = self.finished.stays
        frame = pd.DataFrame({"job_id": [self.workload[stay.job].job_id for stay in stays]}, dtype=object)
        frame["gpu"] = [list(stay.gpus) for stay in stays]
        frame["from_s"] = [stay.from_ns / NS_PER_S for stay in stays]
        frame["to_s"] = [stay.to_ns / NS_PER_S for stay in stays]
        frame = frame.explode("gpu", ignore_index=True).astype({"gpu": np.int64})
        frame.insert(2, "server", self.cluster.server_of_gpu[frame["gpu"]])
        return frame

    @cached_property
    def most_jobs_on_a_gpu(self) -> int:
        """How many jobs were on one GPU at a time at most; 0 if no job was placed."""
        stays = self.finished.stays
        gpus = np.array([gpu for stay in stays for gpu in stay.gpus], np.int64)
        counts = [len(stay.gpus) for stay in stays]
        from_ns = np.repeat(np.array([stay.from_ns for stay in stays], np.int64), counts)
        until_ns = [self.finished.end_ns if stay.to_ns < 0 else stay.to_ns for stay in stays]
        to_ns = np.repeat(np.array(until_ns, np.int64), counts)
        change = np.repeat([-1, 1], len(gpus))  # one that leaves makes room for one that comes at that instant
        order = np.lexsort((change, np.concatenate([to_ns, from_ns]), np.tile(gpus, 2)))
        return int(np.cumsum(change[order]).max(initial=0))

    @property
    def num_left_out(self) -> int:
        """How many jobs no metric counts: those of a warm-up, or of the ends of a steady stream."""
        return int((~self._counted).sum())

    @property
    def num_future(self) -> int:
        """How many jobs had not arrived when the run was cut off."""
        return int((self.finished.state.jobs.state == JobState.FUTURE).sum())

    @property
    def skipped_iterations(self) -> int:
        """Iterations that the engine skipped over, since their job met nobody on its GPUs and links."""
        return int(self.finished.state.run[0].skipped_iterations)

    @property
    def contended_iterations(self) -> int:
        """Iterations that ended while their job shared a GPU with another job, or a link with another job's ring."""
        return int(self.finished.state.run[0].contended_iterations)

    @property
    def leapt_iterations(self) -> int:
        """Of the contended iterations, those that a sampled run let pass at measured rates."""
        return int(self.finished.state.run[0].leapt_iterations)

    @property
    def computed_iterations(self) -> int:
        """Of the contended iterations, those that were simulated one by one: no leap and no period jump passed them."""
        run = self.finished.state.run[0]
        return int(run.contended_iterations - run.leapt_iterations - run.jumped_contended)

    def summary(self) -> dict[str, float]:
        """Return the metrics of the run.

        Over the counted jobs that finished: ``average_jct_s``, ``median_jct_s`` and ``p95_jct_s`` (numpy's linear
        rule; NaN if there are none). ``makespan_s`` (last finish, from time 0), ``gpu_utilisation`` (compute-busy
        time / (GPUs x time from the end of the warm-up to the end of the run)), ``jobs`` and ``unfinished_jobs``
        (counted ones that have arrived), ``restarts``, ``events`` (task and transfer ends, also those that the
        engine skipped over) and ``engine_s`` (wall time).

        Examples
        --------
        Two jobs that compute for 3 s on two GPUs each, of a server of four; the second comes at 1.5 s.

        >>> from ddlsched import Cluster, DataParallelIteration, Job, Workload, simulate
        >>> step = DataParallelIteration(forward_s=0.1, backward_s=0.2, message_bytes=125e6)
        >>> jobs = [
        ...     Job(job_id=name, arrival_s=arrival_s, num_gpus=2, iterations=10, iteration=step, gpu_memory_mb=4096)
        ...     for name, arrival_s in (("first", 0), ("second", 1.5))
        ... ]
        >>> summary = simulate(Workload.of(jobs), Cluster(num_servers=1)).summary()
        >>> summary["average_jct_s"], summary["makespan_s"], round(summary["gpu_utilisation"], 3)
        (3.0, 4.5, 0.667)
        """
        records = self.finished.state.jobs
        counted = self._counted & (records.state != JobState.FUTURE)
        done = counted & (records.state == JobState.FINISHED)
        jct_s = (records.finish_ns - records.arrival_ns)[done] / NS_PER_S
        return {
            **averages(jct_s, "jct_s"),
            "makespan_s": int(records.finish_ns.max(initial=0)) / NS_PER_S,
            "gpu_utilisation": float(self._gpu_utilisation.mean()),
            "jobs": int(counted.sum()),
            "unfinished_jobs": int(counted.sum()) - len(jct_s),
            "restarts": int(records.restarts.sum()),
            "events": int(self.finished.state.run[0].events),
            "engine_s": self.finished.engine_s,
        }

    @property
    def _gpu_utilisation(self) -> np.ndarray:
        """Of each GPU from the end of the warm-up to the end of the run; NaN if that is none."""
        span_ns = self.finished.end_ns - self.finished.warmup_ns
        return self.finished.busy_ns / span_ns if span_ns else np.full(self.cluster.num_gpus, np.nan)


def averages(values: np.ndarray, name: str) -> dict[str, float]:
    """Return ``average_NAME``, ``median_NAME`` and ``p95_NAME`` (numpy's linear rule), NaN if there is no value."""
    found = (values.mean(), *np.quantile(values, [0.5, 0.95])) if len(values) else [np.nan] * 3
    return {f"{kind}_{name}": float(each) for kind, each in zip(("average", "median", "p95"), found, strict=True)}


def _seconds(times_ns: np.ndarray, known: np.ndarray) -> np.ndarray:
    return np.where(known, times_ns / NS_PER_S, np.nan)


COUNTS = {
    "stops": "Stops by a policy",
    "moves": "Moves by the placement",
    "state_bytes": "State over the network (GB)",
    "inside_bytes": "Over ports of GPUs (GB)",
}
"""What is counted, and what tables call it; bytes in units of 1e9."""


def door_counts(result: Result) -> dict[str, float]:
    """Return the counts of a run, by the keys of :data:`COUNTS`.

    ``stops`` and ``moves`` are of running jobs, by policies; ``state_bytes`` what these jobs were to take along to
    other servers, each byte once; ``inside_bytes`` what went over the ports of GPUs towards others of their server,
    where the topology states the inside of servers, added up over the ports.
    """
    finished = result.finished
    moves = sum(departure.moved for departure in finished.departures)
    port_bytes = finished.state.links.bytes[finished.network.ports]
    return {
        "stops": len(finished.departures) - moves,
        "moves": moves,
        "state_bytes": sum(stay.state_bytes for stay in finished.stays),
        "inside_bytes": float(np.sum(port_bytes)),
    }


_ROUNDING, _MEASURED = 1.01, 1.1
"""Parts of its bandwidth that a link may seem to carry: in a run whose times are rounded, in one whose leaps go on at
measured rates."""


def refuse_faster_than_links(result: Result) -> None:
    """Refuse the run of a contention model whose transfers were faster than the links that they crossed.

    A model that is meant to be, such as one of a network without contention, says ``exceeds_links = True``.

    Raises
    ------
    PluginError
        A link carried more bytes than its bandwidth allows in the time in which a transfer was on it.
    """
    meant = getattr(result.contention, "exceeds_links", False)
    if meant or not getattr(result.contention, "conserves_bytes", True):
        return
    links, records = result.finished.network.links, result.finished.state.links
    # A transfer lasts whole nanoseconds, so that many of few bytes seem faster than they were.
    rounded_s = int(result.finished.state.run[0].events) / NS_PER_S
    seeming = _MEASURED if result.leapt_iterations else _ROUNDING
    most_bytes = links.bytes_per_s * (records.busy_ns / NS_PER_S * seeming + rounded_s)
    for number in np.flatnonzero(records.bytes > most_bytes)[:1].tolist():
        link, carried_bytes, busy_s = links[number], records.bytes.item(number), records.busy_ns.item(number) / NS_PER_S
        raise PluginError(
            f"contention {label(result.contention)}: link {link.name} carried {carried_bytes:.4g} bytes in the "
            f"{busy_s:.4g} s in which it was busy; expected at most its {link.bandwidth_bytes_per_s:.4g} B/s "
            "(a faster card: --topology star:nic_gbps=...)"
        )
