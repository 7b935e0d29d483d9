"""Muri on its own traces, beside what its authors' simulator prints for them.

    python tests/rivals/muri_trace.py               trace 3: 992 jobs on 8 servers of 8 GPUs
    python tests/rivals/muri_trace.py --traces 1 2 3 4 --policies SRTF SRSF

Its ground is no network: a job has times on storage and CPU, on the GPU and on the network, and those of a group all
take the group's period. ``ddlsched`` knows the last two alone, so that the jobs are replayed here as Muri's paper says:
at each arrival and end the cluster is emptied, jobs are sorted, and those that fit run. The groups are those of
``algorithms/placement/muri.py``.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import permutations
from pathlib import Path

import pandas as pd

from algorithms.placement.muri import grouped
from experiments.commands import PUBLIC_DATA

SERVERS, GPUS_PER_SERVER = 8, 8
MOST = 4
SLOWER = {1: 1.015, 2: 1.33 / 1.015, 3: 1.5 / 1.015, 4: 1.37 / 1.015}
"""An iteration's time over what profiles say, by how many jobs share GPUs: measured by Muri's authors."""
START_S = {
    "bert": (10, 10, 10, 10, 10, 10),
    "gpt2": (10, 10, 10, 10, 10, 10),
    "a2c": (38, 39, 39, 46, 46, 46),
    "dqn": (5, 5, 6, 6, 8, 8),
    "vgg16": (7, 7, 8, 9, 9, 10),
    "vgg19": (7, 7, 8, 9, 10, 10),
    "resnet18": (4, 5, 5, 7, 7, 7),
    "shufflenet_v2_x1_0": (4, 4, 5, 5, 7, 8),
}
"""What a job that runs loses at each arrival or end, seconds, on 1, 2, 4, 8, 16 and 32 GPUs: measured by them, too."""
SAME_S = 1e-4
"""Events no farther apart are one."""
POLICIES = ("SRTF", "SRSF", "Muri-S")
MEASURES = ("average_jct_s", "makespan_s", "p99_jct_s")
THEIRS_S = {
    (1, "SRTF"): (1_370_603, 26_045_466, 16_647_148),
    (1, "SRSF"): (980_141, 26_065_759, 15_529_913),
    (1, "Muri-S"): (867_706, 18_446_535, 10_618_148),
    (2, "SRTF"): (2_665_607, 48_847_005, 33_128_484),
    (2, "SRSF"): (2_213_950, 49_026_465, 31_241_251),
    (2, "Muri-S"): (1_342_400, 34_163_947, 19_994_294),
    (3, "SRTF"): (193_082, 8_174_135, 4_538_891),
    (3, "SRSF"): (185_022, 8_174_135, 4_189_699),
    (3, "Muri-S"): (85_503, 8_174_135, 992_405),
    (4, "SRTF"): (581_983, 14_787_991, 7_768_533),
    (4, "SRSF"): (487_167, 14_887_909, 7_372_568),
    (4, "Muri-S"): (365_468, 11_029_124, 3_734_841),
}
"""By trace and policy average JCT, makespan and 99th percentile: Rivendile/Muri @ 4e69a78, draw_fig9-10.py."""


@dataclass(eq=False, kw_only=True)
class Traced:
    """A job of a trace, and how far it has come; ``times`` are those of an iteration on each resource, seconds."""

    arrival_s: float
    gpus: int
    iterations_left: float
    iteration_s: float
    times: tuple[float, ...]
    start_s: float
    period_s: float = 0.0
    lost_s: float = 0.0
    finish_s: float = 0.0

    @property
    def left_s(self) -> float:
        """What is left if it runs alone, seconds."""
        return self.iterations_left * self.iteration_s


def jobs_of(file: Path) -> list[Traced]:
    """Return a trace's jobs, by arrival; the first resource, storage and CPU, is two of half its time each."""
    made = []
    for row in pd.read_csv(file).itertuples():
        first_s, *rest_s = (row.resource_time_0 / 1e3, row.resource_time_1 / 1e3, row.resource_time_2 / 1e3)
        made.append(
            Traced(
                arrival_s=row.submit_time / 1e3,
                gpus=row.num_gpu,
                iterations_left=float(row.iterations),
                iteration_s=row.iteration_time / 1e3 * SLOWER[1],
                times=(first_s / 2, first_s / 2, *rest_s),
                start_s=START_S[row.model_name][min(row.num_gpu, 32).bit_length() - 1],
            )
        )
    return sorted(made, key=lambda job: job.arrival_s)


class Servers:
    """How many GPUs each server has free."""

    def __init__(self) -> None:
        self._free = [GPUS_PER_SERVER] * SERVERS

    def take(self, gpus: int) -> bool:
        """Take GPUs of the first server that has them, of whole ones if one is too small; return whether there are."""
        whole = [server for server, free in enumerate(self._free) if free == GPUS_PER_SERVER]
        if gpus > GPUS_PER_SERVER:
            chosen = whole[: gpus // GPUS_PER_SERVER] if gpus <= len(whole) * GPUS_PER_SERVER else []
        else:
            chosen = [server for server, free in enumerate(self._free) if free >= gpus][:1]
        for server in chosen:
            self._free[server] -= min(gpus, GPUS_PER_SERVER)
        return bool(chosen)


def replay(jobs: Sequence[Traced], policy: str) -> None:
    """Run jobs, in order of arrival, until all have ended, and write when each did."""
    coming, there, running, now_s = list(reversed(jobs)), list[Traced](), list[Traced](), 0.0
    while coming or there:
        ends_s = [now_s + job.iterations_left * job.period_s for job in running]
        then_s = min([*ends_s, *(job.arrival_s for job in coming[-1:])])
        for job, end_s in zip(running, ends_s, strict=True):
            job.iterations_left -= max(then_s - now_s - job.lost_s, 0.0) / job.period_s
            if end_s <= then_s + SAME_S:
                job.finish_s = then_s
                there.remove(job)
        while coming and coming[-1].arrival_s <= then_s + SAME_S:
            there.append(coming.pop())
        now_s, running = then_s, list(started(there, policy))


def started(there: Sequence[Traced], policy: str) -> Iterator[Traced]:
    """Yield the jobs that run from now on, with their periods, of those that are there."""
    by_gpus = policy != "SRTF"
    servers = Servers()
    for group in groups_of(sorted(there, key=lambda job: job.left_s * (job.gpus if by_gpus else 1)), policy):
        if servers.take(group[0].gpus):
            for job in group:
                job.period_s = period_of(group)
                job.lost_s = sum(other.start_s for other in group)
                yield job


def groups_of(ordered: Sequence[Traced], policy: str) -> list[list[Traced]]:
    """Return who would share GPUs, the first group first; with SRTF and SRSF nobody does."""
    if policy != "Muri-S":
        return [[job] for job in ordered]
    jobs = admitted(ordered)
    groups = grouped([job.times for job in jobs], [job.gpus for job in jobs], SERVERS * GPUS_PER_SERVER, MOST)
    kept = [part for group in sorted(groups) for part in taken_apart([jobs[number] for number in group])]
    return sorted(kept, key=lambda group: jobs.index(group[0]))


def admitted(ordered: Sequence[Traced]) -> list[Traced]:
    """Return the jobs that could be placed if each place took up to four of equally many GPUs, in the order given."""
    servers, places, chosen = Servers(), dict[int, int](), list[Traced]()
    for job in ordered:
        if not places.get(job.gpus) and servers.take(job.gpus):
            places[job.gpus] = MOST
        if places.get(job.gpus):
            places[job.gpus] -= 1
            chosen.append(job)
    return chosen


def taken_apart(group: list[Traced]) -> list[list[Traced]]:
    """Return a group, or its jobs alone if they are slower together than one after another."""
    return [[job] for job in group] if period_of(group) > sum(job.iteration_s for job in group) else [group]


def period_of(group: Sequence[Traced]) -> float:
    """Return what an iteration of each of a group's jobs takes, seconds."""
    if len(group) == 1:
        return group[0].iteration_s
    return pipelined_s(tuple(sorted(job.times for job in group))) * SLOWER[len(group)]


@cache
def pipelined_s(times: tuple[tuple[float, ...], ...]) -> float:
    """Return the period of two to four jobs whose first stage lasts for two of four slots: the least over their orders.

    A slot begins when all stages of the one before have ended; where none is, at once. Two jobs may also be half a
    period apart.
    """
    stages = [(first_s + second_s, gpu_s, network_s) for first_s, second_s, gpu_s, network_s in times]
    periods_s = [_turn_s(order) for order in permutations(stages)]
    if len(stages) == 2:
        (one, one_gpu, one_network), (other, other_gpu, other_network) = stages
        periods_s.append(max(one, other_gpu + other_network) + max(other, one_gpu + one_network))
    return min(periods_s)


def _turn_s(order: Sequence[tuple[float, float, float]]) -> float:
    """Return the time of four slots, once they repeat, of jobs of which each is a slot behind the one before."""
    ends_s = [0.0]
    for slot in range(8):
        at = {place: order[place] for place in range(len(order))}
        stages_s = [ends_s[slot] + at[(slot + 1) % 4][2]] if (slot + 1) % 4 in at else []
        stages_s += [ends_s[slot] + at[(slot + 2) % 4][1]] if (slot + 2) % 4 in at else []
        stages_s += [ends_s[slot - 1] + at[(slot + 3) % 4][0]] if slot and (slot + 3) % 4 in at else []
        ends_s.append(max(stages_s, default=0.0))
    return ends_s[8] - ends_s[4]


def compared(file: Path, policy: str, theirs_s: Sequence[float]) -> dict[str, object]:
    """Return average JCT, makespan and 99th percentile of the JCT, seconds, here and of its simulator."""
    jobs = jobs_of(file)
    replay(jobs, policy)
    jct_s = sorted(job.finish_s - job.arrival_s for job in jobs)
    here_s = (sum(jct_s) / len(jct_s), max(job.finish_s for job in jobs), jct_s[int(len(jct_s) * 0.99)])
    theirs = {f"its_{name}": value for name, value in zip(MEASURES, theirs_s, strict=True)}
    return {"trace": file.stem, "policy": policy, **dict(zip(MEASURES, here_s, strict=True)), **theirs}


def main() -> None:
    """Print the table, and write it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=PUBLIC_DATA / "traces" / "muri-sigcomm22", metavar="DIR")
    parser.add_argument("--out", type=Path, default=Path("results/rivals/muri_trace.csv"), metavar="FILE")
    parser.add_argument("--traces", type=int, nargs="*", choices=(1, 2, 3, 4), default=[3])
    parser.add_argument("--policies", nargs="*", choices=POLICIES, default=POLICIES)
    given = parser.parse_args()
    table = pd.DataFrame(
        compared(given.data / f"trace{trace}.csv", policy, THEIRS_S[trace, policy])
        for trace in given.traces
        for policy in given.policies
    )
    print(table.to_string(index=False, float_format="{:,.0f}".format))
    given.out.parent.mkdir(parents=True, exist_ok=True)
    table.to_csv(given.out, index=False, float_format="%.6g", lineterminator="\n")


if __name__ == "__main__":
    main()
