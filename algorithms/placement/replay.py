"""The GPUs and starts of a run that was made before."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import numpy as np

from ddlsched.cluster.cluster import Cluster
from ddlsched.comparisons.sweeps.stored_runs import read_stays
from ddlsched.errors import InputError
from ddlsched.policies.views import ClusterView, GpuId, JobView
from ddlsched.ranges import Checked, ranged
from ddlsched.units import s_from_ns


@dataclass(frozen=True, kw_only=True)
class Replay(Checked, who="replay"):
    """Each job on the GPUs that it had in another run, from the time when it had them there.

    A job whose GPUs have no room for it then starts when they have; unless some were stopped there, each GPU gets its
    jobs in the order in which it had them. One that was stopped has a start for each time that it left the queue, which
    a run in which it queues as often uses in turn.

    Parameters
    ----------
    run
        The run's file, of ``simulate --run-out``.
    spare
        Above 1, all starts are kept: each server has so many times the GPUs that it had in the other run, and a job
        whose GPUs are still taken has spare ones. Else a late end delays others, but an early one moves none ahead.
    """

    run: str
    spare: int = ranged(1, 1, 64)

    def begin(self, cluster: Cluster, rng: np.random.Generator) -> _Replaying:
        """Return the policy with the other run's stays; InputError if the file is no run's."""
        servers = list(pairwise(cluster.first_gpus.tolist()))
        if any((behind - first) % self.spare for first, behind in servers):
            raise InputError(f"replay: spare is {self.spare}; expected servers of so many times the other run's GPUs")
        own = [(first, behind, (behind - first) // self.spare) for first, behind in servers]
        copies = [range(first + place, behind, gpus) for first, behind, gpus in own for place in range(gpus)]
        return _Replaying(self.run, read_stays(Path(self.run)), copies)


class _Replaying:
    def __init__(self, run: str, stays: dict[str, list[tuple[int, list[int]]]], copies: list[range]) -> None:
        self._run, self._copies = run, copies
        self._stays = {job_id: [(s_from_ns(from_ns), gpus) for from_ns, gpus in own] for job_id, own in stays.items()}
        self._starts_s = sorted({from_s for own in self._stays.values() for from_s, _ in own})
        self._next = 0
        self._answers: dict[tuple[int, float], list[GpuId]] = {}
        self._starts_on: dict[GpuId, list[float]] = defaultdict(list)
        if all(len(own) == 1 for own in self._stays.values()) and len(copies[0]) == 1:
            for from_s, gpus in sorted(stay for own in self._stays.values() for stay in own):
                for gpu in gpus:
                    self._starts_on[gpu].append(from_s)

    def place(self, job: JobView, cluster: ClusterView) -> Sequence[GpuId] | None:
        asked = job.number, cluster.now_s
        if asked in self._answers:  # an admission has asked where it would start, and now it does
            return self._answers[asked]
        own = self._stays.get(job.job_id)
        if not own:
            less_often = (
                f"started job {job.job_id!r} less often: a failure or a policy stopped it here that did not there; "
                "expected runs without either, or a placement in place of the replay"
            )
            why = less_often if own is not None else f"has no start of job {job.job_id!r}; expected the same jobs"
            raise InputError(f"the run {self._run} {why}")
        from_s, gpus = own[0]
        if len(gpus) != job.num_gpus or max(gpus) >= len(self._copies):
            raise InputError(f"the run {self._run} had it on the GPUs {gpus}; expected {job.num_gpus} of this cluster")
        if cluster.now_s < from_s:
            return None
        free = [next((copy for copy in self._copies[gpu] if cluster.fits(job, copy)), -1) for gpu in gpus]
        if min(free) < 0:
            return None
        if any(from_s > self._starts_on[gpu][0] for gpu in gpus if self._starts_on[gpu]):
            return None  # another comes first
        for gpu in gpus:
            del self._starts_on[gpu][:1]
        del own[0]
        self._answers[asked] = free
        return free

    def wake_s(self, now_s: float) -> float | None:
        while self._next < len(self._starts_s) and self._starts_s[self._next] <= now_s:
            self._next += 1
        return self._starts_s[self._next] if self._next < len(self._starts_s) else None
