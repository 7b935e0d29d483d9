"""Steady streams: jobs drawn from a mix or a trace, arriving at a stated load, so that a workload has seeds.

The load is what arrives each second, in GPU-seconds, over the GPUs. A job's GPU-seconds are its time alone x its GPUs:
compute, and if it needs several servers, its all-reduces without contention.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache
from pathlib import Path

import numpy as np

from ddlsched.errors import InputError
from ddlsched.network.contention import TEN_GBE
from ddlsched.ranges import check_arguments
from ddlsched.units import s_from_ns
from ddlsched.workload.dag import AllReduceTask
from ddlsched.workload.elastic_job import ElasticJob
from ddlsched.workload.generators.microsoft import microsoft_160
from ddlsched.workload.job import Job, Workload
from ddlsched.workload.workload_files import read_workload

LARGE_CLUSTER_GPUS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512)
LARGE_CLUSTER_SHARES = (0.30, 0.10, 0.10, 0.18, 0.12, 0.08, 0.06, 0.035, 0.02, 0.005)
"""Sizes of jobs in large clusters, and how many have each: most are small, most GPU time is in large ones."""
_MICROSOFT = "microsoft-160"
_ARRIVALS = ("poisson", "diurnal")
_MOST_JOBS = 1_000_000


def gpu_seconds(job: Job, *, per_byte_s: float = TEN_GBE["per_byte_s"], gpus_per_server: int = 4) -> float:
    """Return the time of a job alone x its GPUs, seconds; ``per_byte_s`` is what a byte of an all-reduce takes."""
    return job.num_gpus * job.iterations * _iteration_s(job, per_byte_s, gpus_per_server)


def _iteration_s(job: Job, per_byte_s: float, gpus_per_server: int) -> float:
    """Return the time of an iteration of a job alone, seconds."""
    messages = [task.message_bytes for task in job.dag.tasks if isinstance(task, AllReduceTask)]
    sending_s = sum(messages) * per_byte_s if job.num_gpus > gpus_per_server else 0.0
    return s_from_ns(job.dag.compute_ns) + sending_s


def stream(
    *,
    seed: int,
    of: str = _MICROSOFT,
    num_jobs: int = 500,
    load: float = 0.7,
    gpus: int = 64,
    gpus_per_server: int = 4,
    per_byte_s: float = TEN_GBE["per_byte_s"],
    arrivals: str = "poisson",
    day_s: float = 86_400.0,
    swing: float = 0.8,
    scale: float = 1.0,
) -> Workload:
    """Return jobs drawn with replacement from a mix, arriving at random times.

    Parameters
    ----------
    seed
        Of numpy's PCG64.
    of
        What is drawn from: ``microsoft-160``, of which the seed makes the jobs, or a workload file.
    num_jobs
        Jobs in all.
    load
        GPU-seconds that arrive each second, as a share of the GPUs, from 0.01 to 2; of diurnal arrivals, over a day.
    gpus
        Of the cluster that the load is meant for.
    gpus_per_server
        Of that cluster.
    per_byte_s
        Time of a byte of an all-reduce between servers, without contention, seconds.
    arrivals
        ``poisson``, or ``diurnal``: a Poisson process whose rate rises and falls by ``swing`` as a sine of ``day_s``.
    day_s
        The period of diurnal arrivals, seconds.
    swing
        How far their rate rises and falls, as a share of the mean rate, from 0 to 1.
    scale
        Multiplies iterations; arrivals follow from the load. ``day_s`` is scaled too.

    Raises
    ------
    InputError
        A value out of range, no such file, or jobs that take no time.
    """
    _check(load=load, gpus=gpus, gpus_per_server=gpus_per_server, num_jobs=num_jobs, scale=scale)
    if arrivals not in _ARRIVALS:
        raise InputError(f"arrivals is {arrivals!r}; expected {' or '.join(_ARRIVALS)}")
    check_arguments("stream", swing=(swing, 0.0, 1.0), day_s=(day_s, 1e-9))
    mix = microsoft_160(seed=seed).jobs if of == _MICROSOFT else _jobs_of(of)
    rng = np.random.default_rng(seed)
    jobs = [mix[place] for place in rng.integers(len(mix), size=num_jobs).tolist()]
    iterations = [max(1, round(job.iterations * scale)) for job in jobs]
    work_s = sum(
        job.num_gpus * count * _iteration_s(job, per_byte_s, gpus_per_server)
        for job, count in zip(jobs, iterations, strict=True)
    )
    if work_s == 0:
        raise InputError(f"the jobs of {of} take no time, so that no stream of them has a load")
    times = np.cumsum(rng.exponential(work_s / (load * gpus * num_jobs), size=num_jobs))
    if arrivals == "diurnal":
        times = _diurnal(times, day_s * scale, swing)
    return _renumbered(jobs, iterations, times)


def trace_window(
    *,
    seed: int,
    file: str,
    length_s: float | None = None,
    num_jobs: int | None = None,
    resample: bool = False,
    load: float | None = None,
    gpus: int = 64,
    gpus_per_server: int = 4,
    per_byte_s: float = TEN_GBE["per_byte_s"],
) -> Workload:
    """Return the jobs of a trace that arrive within a window whose place the seed draws; its clock starts there.

    Windows of different seeds may overlap: an interval over them is of this trace, not of others.

    Parameters
    ----------
    seed
        Of numpy's PCG64.
    file
        A workload file, as ``ddlsched workload import`` writes it.
    length_s, num_jobs
        Of the window, one of the two: seconds, at most from the first arrival to the last; or jobs, one behind the
        other, for a trace whose jobs come in heaps.
    resample
        At each arrival comes a job drawn with replacement from all of the window, in place of its own.
    load
        Arrivals are stretched to this load of the ``gpus`` (see :func:`stream`); by default they stay as they are.
    gpus, gpus_per_server, per_byte_s
        What the load is meant for.

    Raises
    ------
    InputError
        A value out of range, no such file, a window longer than the trace, one without a job, or a load of jobs that
        all arrive at once.
    """
    if load is not None:
        _check(load=load, gpus=gpus, gpus_per_server=gpus_per_server)
    if (length_s is None) == (num_jobs is None):
        raise InputError(f"length_s is {length_s}, num_jobs {num_jobs}; expected one of the two")
    jobs = sorted(_jobs_of(file), key=lambda job: job.arrival_s)
    arrivals_s = np.array([job.arrival_s for job in jobs])
    rng = np.random.default_rng(seed)
    if length_s is not None:
        first, end, from_s = _timed(file, arrivals_s, length_s, rng)
    else:
        first, end = _counted(len(jobs), num_jobs or 0, rng)
        from_s = float(arrivals_s[first])
        length_s = float(arrivals_s[end - 1]) - from_s
    times = arrivals_s[first:end] - from_s
    window = jobs[first:end]
    chosen = [window[place] for place in rng.integers(len(window), size=len(window))] if resample else window
    if load is not None:
        work_s = sum(gpu_seconds(job, per_byte_s=per_byte_s, gpus_per_server=gpus_per_server) for job in chosen)
        if length_s == 0:
            raise InputError(f"{file}: {len(chosen)} jobs arrive at once, at {from_s:g} s; expected no load, or more")
        times = times * (work_s / (load * gpus * length_s))
    return _renumbered(chosen, [job.iterations for job in chosen], times)


def _timed(file: str, arrivals_s: np.ndarray, length_s: float, rng: np.random.Generator) -> tuple[int, int, float]:
    """Return the first job of a window of so many seconds, the first behind it, and when it begins."""
    spare_s = float(np.ptp(arrivals_s)) - length_s
    if not length_s > 0 or spare_s < 0:
        raise InputError(f"length_s is {length_s}; expected seconds above 0, up to the trace's {np.ptp(arrivals_s):g}")
    from_s = float(arrivals_s[0]) + rng.uniform(0.0, spare_s)
    first, end = np.searchsorted(arrivals_s, [from_s, from_s + length_s]).tolist()
    if first == end:
        when = f"from {from_s:g} to {from_s + length_s:g} s"
        raise InputError(f"no job of {file} arrives {when}; expected a longer length_s than {length_s:g}, or num_jobs")
    return first, end, from_s


def _counted(jobs: int, wanted: int, rng: np.random.Generator) -> tuple[int, int]:
    """Return the first job of a window of so many jobs, and the first behind it."""
    if not 1 <= wanted <= jobs:
        raise InputError(f"num_jobs is {wanted}; expected a whole number from 1 to the trace's {jobs}")
    first = int(rng.integers(jobs - wanted + 1))
    return first, first + wanted


def _check(*, load: float, gpus: int, gpus_per_server: int, num_jobs: int = 1, scale: float = 1.0) -> None:
    counts = {"gpus": gpus, "gpus_per_server": gpus_per_server, "num_jobs": num_jobs}
    check_arguments("stream", **{name: (count, 1, _MOST_JOBS) for name, count in counts.items()})
    check_arguments("stream", load=(load, 0.01, 2.0), scale=(scale, 1e-6, 1e6))


def _diurnal(times: np.ndarray, day_s: float, swing: float) -> np.ndarray:
    """Return when a process of mean rate 1 that has come as far as ``times`` is there if its rate is a sine's.

    The rate 1 + swing sin(w t) has come as far as t + swing (1 - cos(w t)) / w at t, which is inverted on a grid.
    """
    w = 2 * np.pi / day_s
    grid = np.linspace(0.0, float(times[-1]) + day_s, 1 + 1000 * int(np.ceil(1 + times[-1] / day_s)))
    come = grid + swing * (1 - np.cos(w * grid)) / w
    there: np.ndarray = np.interp(times, come, grid)
    return there


def _renumbered(jobs: Sequence[Job], iterations: Sequence[int], times: np.ndarray) -> Workload:
    """Return the jobs with these arrivals, seconds, ascending, and numbers for ids: a drawn job may come twice."""
    return Workload.of(
        [
            replace(job, job_id=str(number), arrival_s=round(time_s, 9), iterations=count)
            for number, (job, count, time_s) in enumerate(zip(jobs, iterations, times.tolist(), strict=True))
        ]
    )


def _jobs_of(file: str) -> tuple[Job, ...]:
    try:
        stamp = Path(file).stat().st_mtime_ns
    except OSError:
        stamp = 0  # reading says what is wrong
    return _read(file, stamp)


@lru_cache(maxsize=2)
def _read(file: str, stamp: int) -> tuple[Job, ...]:  # noqa: ARG001 (a changed file is read again)
    jobs = read_workload(file).jobs
    if not jobs:
        raise InputError(f"{file}: has no jobs to draw from")
    if any(isinstance(job, ElasticJob) for job in jobs):
        raise InputError(f"{file}: has jobs that grow and shrink, whose time alone is not known; expected rigid jobs")
    return jobs
