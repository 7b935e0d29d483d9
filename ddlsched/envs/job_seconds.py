"""What time costs: each job that is in the system costs a second a second, so that the sum is that of all JCTs."""

from __future__ import annotations

import numpy as np

from ddlsched.policies.job_view import JobsTogether
from ddlsched.policies.views import JobView
from ddlsched.units import s_from_ns
from ddlsched.workload.job import Workload

__all__ = ["JobSeconds"]


class JobSeconds:
    """Counts job-seconds from decision to decision.

    A job that has ended counts up to the first decision after its end; :meth:`rest` puts that right at the end of the
    run.

    Parameters
    ----------
    workload
        Whose jobs arrive.
    """

    def __init__(self, workload: Workload) -> None:
        self._arrivals_s = np.sort([s_from_ns(job.arrival_ns) for job in workload])  # as the clock has them
        self._num_arrived = self._num_ended = 0
        self._num_there: int | None = None
        self._running: dict[int, JobView] = {}
        self._together: JobsTogether | None = None
        self._counted_s, self._now_s = 0.0, -1.0

    def started(self, job: JobView) -> None:
        """Note a job that runs from now on."""
        self._running[job.number], self._together = job, None

    def there(self, num_jobs: int) -> None:
        """Note how many jobs are there, of those that have arrived by the next call of :meth:`since`."""
        self._num_there = num_jobs

    def since(self, now_s: float) -> float:
        """Return the job-seconds since the last call."""
        if now_s == self._now_s:  # One of several decisions at an instant: nobody has arrived since the first.
            self._count_ended()
            return 0.0
        before = self._num_arrived
        self._num_arrived = int(np.searchsorted(self._arrivals_s, now_s, side="right"))
        new_s = float((now_s - self._arrivals_s[before : self._num_arrived]).sum())
        passed_s = (now_s - self._now_s) * (before - self._num_ended) + new_s
        self._count_ended()
        self._now_s = now_s
        self._counted_s += passed_s
        return passed_s

    def rest(self, sum_of_jct_s: float) -> float:
        """Return what is left to count of a run that has ended, negative if too much was counted."""
        return sum_of_jct_s - self._counted_s

    def _count_ended(self) -> None:
        if self._num_there is not None:
            self._num_ended = self._num_arrived - self._num_there
        elif self._running:
            if self._together is None:
                self._together = JobsTogether(self._running.values())
            left = self._together.iterations_left  # of all at once: each decision asks
            if not left.all():
                self._running = {
                    number: job for (number, job), more in zip(self._running.items(), left, strict=True) if more
                }
                self._num_ended += int((left == 0).sum())
                self._together = None
