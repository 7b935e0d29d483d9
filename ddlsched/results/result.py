"""The result of one run: tables of jobs, GPUs and links, and the summary."""

from __future__ import annotations

from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from ddlsched.errors import UnknownNameError, did_you_mean
from ddlsched.units import NS_PER_S

if TYPE_CHECKING:
    import pandas as pd

    from ddlsched.cluster import Cluster
    from ddlsched.engine.simulation import Finished
    from ddlsched.jobs import Workload

__all__ = ["Result"]


class Result:
    """What :func:`ddlsched.simulate` returns.

    Attributes
    ----------
    workload, cluster
        What was simulated.
    finished
        The run's records, for the timeline.
    """

    def __init__(self, workload: Workload, cluster: Cluster, finished: Finished) -> None:
        self.workload = workload
        self.cluster = cluster
        self.finished = finished

    def __repr__(self) -> str:
        average_jct_s = self.summary()["average_jct_s"]
        return f"<result: {len(self.workload)} jobs on {self.cluster.num_gpus} GPUs, average JCT {average_jct_s:.3f} s>"

    def gpus_of(self, job_id: str) -> tuple[int, ...]:
        """Return the GPUs of a job, in placement order."""
        for number, job in enumerate(self.workload):
            if job.job_id == job_id:
                return self.finished.gpus[number]
        raise UnknownNameError(f"no job is named {job_id!r}.{did_you_mean(job_id, (j.job_id for j in self.workload))}")

    def write_timeline(self, path: Path | str) -> None:
        """Write the timeline as a file that opens in https://ui.perfetto.dev; see :mod:`ddlsched.results.timeline`.

        Raises
        ------
        InputError
            The run was not recorded (``simulate(timeline=...)``), or the file cannot be written.
        """
        from ddlsched.results.timeline import write_timeline

        write_timeline(self, path)

    @cached_property
    def jobs(self) -> pd.DataFrame:
        """A row a job, in the order of the workload.

        Columns: job_id; arrival_s, start_s (placement), finish_s, jct_s (finish - arrival); queueing_s;
        compute_s (on each GPU); communication_s (time with a transfer running); network_wait_s (time with one
        waiting and none running); gpus, servers (counts); model and user, if the workload has them.
        """
        import pandas as pd

        records = self.finished.state.jobs
        columns = {
            "job_id": [job.job_id for job in self.workload],
            "arrival_s": records.arrival_ns / NS_PER_S,
            "start_s": records.start_ns / NS_PER_S,
            "finish_s": records.finish_ns / NS_PER_S,
            "jct_s": (records.finish_ns - records.arrival_ns) / NS_PER_S,
            "queueing_s": (records.start_ns - records.arrival_ns) / NS_PER_S,
            "compute_s": records.compute_ns * records.iterations / NS_PER_S,
            "communication_s": records.communicating_ns / NS_PER_S,
            "network_wait_s": records.network_wait_ns / NS_PER_S,
            "gpus": records.num_gpus,
            "servers": records.num_servers,
        }
        frame = pd.DataFrame(columns)
        for label in ("model", "user"):
            values = [getattr(job, label) for job in self.workload]
            if any(value is not None for value in values):
                frame[label] = values
        return frame

    @cached_property
    def gpus(self) -> pd.DataFrame:
        """A row a GPU: gpu, server, jobs (placed on it), busy_s (computing), utilisation (busy / last finish)."""
        import pandas as pd

        busy_ns = np.zeros(self.cluster.num_gpus, np.int64)
        jobs = np.zeros(self.cluster.num_gpus, np.int64)
        records = self.finished.state.jobs
        for number, gpus in self.finished.gpus.items():
            busy_ns[list(gpus)] += records.compute_ns[number] * records.iterations[number]
            jobs[list(gpus)] += 1
        utilisation = busy_ns / self._last_finish_ns if self._last_finish_ns else busy_ns * 0.0
        frame = pd.DataFrame({"gpu": np.arange(len(busy_ns)), "server": self.finished.state.gpus.server, "jobs": jobs})
        return frame.assign(busy_s=busy_ns / NS_PER_S, utilisation=utilisation)

    @cached_property
    def links(self) -> pd.DataFrame:
        """A row a link: link, bandwidth_bytes_per_s, bytes (carried), busy_s (time with a transfer), utilisation."""
        import pandas as pd

        state, links = self.finished.state, self.finished.network.links
        carried = np.zeros(len(links))
        for transfer in state.transfers:
            if transfer.num_entries:
                entries = state.entries[transfer.first_entry : transfer.first_entry + transfer.num_entries]
                np.add.at(carried, entries.link, transfer.bytes * state.jobs[transfer.job].iterations)
        busy_ns = state.links.busy_ns
        frame = pd.DataFrame({"link": [link.name for link in links]})
        frame["bandwidth_bytes_per_s"] = [link.bandwidth_bytes_per_s for link in links]
        utilisation = busy_ns / self._last_finish_ns if self._last_finish_ns else busy_ns * 0.0
        return frame.assign(bytes=carried, busy_s=busy_ns / NS_PER_S, utilisation=utilisation)

    @property
    def _last_finish_ns(self) -> int:
        return int(self.finished.state.jobs.finish_ns.max(initial=0))

    def summary(self) -> dict[str, float]:
        """Return the metrics of the run.

        ``average_jct_s``, ``median_jct_s`` and ``p95_jct_s`` (numpy's linear rule), ``makespan_s`` (last
        finish, from time 0), ``gpu_utilisation`` (compute-busy time / (GPUs x last finish)), ``events`` (task
        and transfer ends, also those that the engine skipped over) and ``engine_s`` (wall time).
        """
        jct_s = self.jobs["jct_s"].to_numpy()
        return {
            "average_jct_s": float(jct_s.mean()),
            "median_jct_s": float(np.quantile(jct_s, 0.5)),
            "p95_jct_s": float(np.quantile(jct_s, 0.95)),
            "makespan_s": self._last_finish_ns / NS_PER_S,
            "gpu_utilisation": float(self.gpus["utilisation"].mean()),
            "events": int(self.finished.state.run[0].events),
            "engine_s": self.finished.engine_s,
        }
