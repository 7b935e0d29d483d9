"""Recorded jobs that share a network: what they are foretold from recordings of each alone, and what they took."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar, Final

from measured import Line

import ddlsched
from ddlsched.errors import InputError
from ddlsched.network.contention import MaxMin
from ddlsched.network.packet_rings import PacketRings
from ddlsched.plugins.names import resolve
from ddlsched.real.calibration.measurements import read_measurements
from ddlsched.real.calibration.shares import read_shares
from ddlsched.real.testbed.measuring import Pinned
from ddlsched.real.testbed.run_models import run_models
from ddlsched.training.recorded.rank_steps import RankTrace
from ddlsched.workload.dag import IterationDag

Ranks = Sequence[RankTrace]
SERVERS = (0, 1)
FIDELITY: Final = Path(__file__).parents[1] / "fidelity" / "measured"
LONGER: Final = 2
"""How many times as long the others go on beside the job whose steps are counted."""


def max_min(network: Line) -> MaxMin:
    """Return max-min sharing of a network that was fitted to recordings."""
    return MaxMin(latency_s=network.latency_s, per_byte_s=max(network.per_byte_s, 1e-15))


@dataclass(frozen=True, kw_only=True)
class RingsOfTwo(PacketRings):
    """Packets of two ranks, between which a broadcast goes as an all-reduce's ring does."""

    only_rings: ClassVar[bool] = False


def models(network: Line) -> dict[str, MaxMin]:
    """Return contention models of a network that was fitted to recordings of jobs alone.

    How connections share is not told by these: those constants are of another experiment on the same testbed,
    ``experiments/fidelity``. There exponent, window and loss were chosen on mixes whose rings overlap in part, and
    exponent and window fitted to pairs of all-reduces on the same two servers, which showed no loss.
    """
    plain = max_min(network)
    found = run_models(read_measurements(FIDELITY / "calibration.csv"), read_shares(FIDELITY / "shares.csv")).by_name
    mixes = resolve("contention", found["connection-shares"].contention)
    pairs = resolve("contention", found["size-shares"].contention)
    of_mixes = replace(mixes, latency_s=plain.latency_s, per_byte_s=plain.per_byte_s, step_s=0.0)
    packets = RingsOfTwo(**vars(resolve("contention", found["packet-rings"].contention)))
    of_pairs = replace(of_mixes, exponent=pairs.exponent, window_bytes=pairs.window_bytes)
    return {
        "max-min": plain,
        "packet-rings": replace(packets, latency_s=plain.latency_s, per_byte_s=plain.per_byte_s, step_s=0.0),
        "connection-shares": of_mixes,
        "connection-shares of pairs": of_pairs,
        "connection-shares of pairs, no loss": replace(of_pairs, loss=0.0),
    }


def simulated_s(dags: Mapping[str, IterationDag], steps: Mapping[str, int], contention: MaxMin) -> dict[str, float]:
    """Return the mean time of a step of each job, seconds: all begin at once, and each ends after its steps.

    Each has a rank on either server, on a GPU of its own.
    """
    jobs = [
        ddlsched.Job(
            job_id=name, arrival_s=0, num_gpus=len(SERVERS), iterations=steps[name], iteration=dag, gpu_memory_mb=1
        )
        for name, dag in dags.items()
    ]
    # The card is faster than any network that is fitted, which alone is to be the limit.
    cluster = ddlsched.Cluster(
        num_servers=len(SERVERS), gpus_per_server=len(jobs), topology="star:nic_gbps=1000", exclusive=True
    )
    result = ddlsched.simulate(
        ddlsched.Workload.of(jobs),
        cluster,
        placement=Pinned(servers=dict.fromkeys(dags, SERVERS)),
        communication="bounded-overlap:limit=100",
        contention=contention,
    )
    return {row.job_id: row.jct_s / steps[row.job_id] for row in result.jobs.itertuples()}


def beside_s(dags: Mapping[str, IterationDag], steps: Mapping[str, int], contention: MaxMin) -> dict[str, float]:
    """Return the mean time of a step of each job, seconds, while all of the others go on.

    Measured steps are those in which all jobs ran (:func:`at_once`), so simulated ones must be, too.
    """
    found = {}
    for name in dags:
        counts = {other: count * (1 if other == name else LONGER) for other, count in steps.items()}
        found[name] = simulated_s(dags, counts, contention)[name]
    return found


def counts_of(dags: Mapping[str, IterationDag], network: Line, seconds: float) -> dict[str, int]:
    """Return how many steps each job needs so that all of them run for as long as they contend."""
    steps = dict.fromkeys(dags, 10)
    for _ in range(4):  # Each round knows better how long a step takes beside the others.
        step_s = simulated_s(dags, steps, max_min(network))
        steps = {name: max(round(seconds / step_s[name]), 1) for name in dags}
    return steps


def at_once(runs: Mapping[str, Ranks]) -> dict[str, list[RankTrace]]:
    """Return of jobs that were recorded together the steps in which all of them ran from begin to end.

    Raises
    ------
    InputError
        A job has no such step.
    """
    ranks = [rank for run in runs.values() for rank in run]
    since_ns = max(min(step.begin_ns for step in rank.steps.values()) for rank in ranks)
    until_ns = min(max(step.begin_ns + (step.wall_ns or 0) for step in rank.steps.values()) for rank in ranks)
    shared = {name: _within(run, since_ns, until_ns) for name, run in runs.items()}
    for name, run in shared.items():
        if not run[0].steps:
            raise InputError(f"{run[0].source}: no step of {name} lies where all jobs ran; expected more --seconds")
    return shared


def _within(run: Ranks, since_ns: int, until_ns: int) -> list[RankTrace]:
    numbers = [
        number
        for number in run[0].steps
        if all(
            since_ns <= rank.steps[number].begin_ns and rank.steps[number].begin_ns + wall_ns <= until_ns
            for rank in run
            for wall_ns in [rank.steps[number].wall_ns or 0]
        )
    ]
    return [replace(rank, steps={number: rank.steps[number] for number in numbers}) for rank in run]
