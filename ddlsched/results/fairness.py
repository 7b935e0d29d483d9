"""Fairness between jobs: finish-time fairness and Jain's index."""

from __future__ import annotations

import numpy as np

__all__ = ["average_contention", "finish_time_fairness", "jain_index"]


def average_contention(arrival_s: np.ndarray, finish_s: np.ndarray) -> np.ndarray:
    """Return how many jobs were in the system, itself included, on average over each job's life.

    Parameters
    ----------
    arrival_s, finish_s
        Of all jobs, seconds; a finish of NaN is after all others.

    Returns
    -------
    ndarray
        At least 1; 1 for a job that finished as it arrived; NaN for one that did not finish. By sorting and
        prefix sums, in O(n log n).
    """
    finished = ~np.isnan(finish_s)
    arrivals, finishes = np.sort(arrival_s), np.sort(finish_s[finished])
    times = np.sort(np.concatenate([arrivals, finishes]))
    present = np.searchsorted(arrivals, times, side="right") - np.searchsorted(finishes, times, side="right")
    job_seconds = np.concatenate([[0.0], np.cumsum(present[:-1] * np.diff(times))])
    begin, end = arrival_s[finished], finish_s[finished]
    during = job_seconds[np.searchsorted(times, end)] - job_seconds[np.searchsorted(times, begin)]
    life_s = end - begin
    contention = np.full(len(arrival_s), np.nan)
    contention[finished] = np.maximum(np.divide(during, life_s, out=np.ones(len(end)), where=life_s > 0.0), 1.0)
    return contention


def finish_time_fairness(
    arrival_s: np.ndarray, finish_s: np.ndarray, alone_s: np.ndarray, gpus: np.ndarray, num_gpus: int
) -> np.ndarray:
    """Return ρ of each job: its time in the shared cluster / its time in a fair share of it.

    With N jobs in the system on average over the job's life, a fair share is G / N of the cluster's G GPUs.
    A job that asks for n of them runs there as fast as alone if n <= G / N, else n N / G times as long:

        ρ = (finish - arrival) / (alone_s * max(1, n * N / G))

    ρ > 1: the job would have been better off with its share to itself.

    Parameters
    ----------
    arrival_s, finish_s, alone_s
        Of all jobs, seconds; a finish of NaN is after all others.
    gpus
        What each job asks for.
    num_gpus
        Of the cluster.

    Returns
    -------
    ndarray
        NaN for a job that did not finish, and for one that has no work (alone_s is 0).

    References
    ----------
    ρ, and its time in a 1/N share: Mahajan et al., "Themis: Fair and Efficient GPU Cluster Scheduling",
    NSDI 2020. N as the average over the job's life, and the time of a job with a fixed number of GPUs in a
    smaller share: Jayaram Subramanya et al., "Sia: Heterogeneity-aware, goodput-optimized ML-cluster
    scheduling", SOSP 2023, as in ``ftf_simulator.py`` of its artifact (github.com/siasosp23/artifacts). Worst
    ρ and the share of jobs with ρ > 1 as measures of a policy: Zheng et al., "Shockwave: Fair and Efficient
    Cluster Scheduling for Dynamic Adaptation in Machine Learning", NSDI 2023.
    """
    share_s = alone_s * np.maximum(1.0, gpus * average_contention(arrival_s, finish_s) / num_gpus)
    rho = np.full(len(share_s), np.nan)
    np.divide(finish_s - arrival_s, share_s, out=rho, where=share_s > 0.0)
    return rho


def jain_index(values: np.ndarray) -> float:
    """Return Jain's fairness index (sum x)^2 / (n sum x^2): 1 if all are alike, 1 / n if one has all.

    Parameters
    ----------
    values
        Not negative. NaN is returned of none, and of nothing but zeros: there is nothing to be divided fairly.

    References
    ----------
    Jain, Chiu, Hawe, "A Quantitative Measure of Fairness and Discrimination for Resource Allocation in Shared
    Computer Systems", DEC TR-301, 1984.
    """
    if not values.any():
        return float("nan")
    scaled = values / values.max()  # so that no square overflows or vanishes
    return float(scaled.sum() ** 2 / (len(scaled) * np.square(scaled).sum()))
