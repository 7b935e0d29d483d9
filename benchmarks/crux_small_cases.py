"""How near Crux comes to the best in small cases, in GPU utilisation: paths, priorities, and their compression.

Up to 20 hosts on a leaf-spine, 5 jobs, 3 levels, as the paper has it (1,500 cases: 97.7 / 97.2 / 97.1 % of the best).
What the jobs and the network are there is not published; here they are drawn. Utilisation is the compute done within a
horizon of 20 iterations of the slowest job. The best is found by trying everything: all choices of paths of at most
five flows, all orders of jobs, all levels of jobs.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import permutations, product
from typing import Any

import numpy as np
import typer
from benchmark_tables import Table, say, workload_of

import ddlsched
from algorithms.contention.crux import Crux
from ddlsched.network.contention import MaxMin
from topologies.leaf_spine import LeafSpine

JOBS, LEVELS, GPUS_PER_HOST = 5, 3, 8
_SPINES = 2
_MOST_PATHS = 64
PUBLISHED = {"paths": "97.7 %", "priority": "97.2 %", "compression": "97.1 %"}


@dataclass(frozen=True, kw_only=True)
class Levels(MaxMin):
    """Each job the level of its number."""

    levels: tuple[int, ...]
    compiled = False

    def level(self, transfer: Any) -> int:
        """Return the job's level."""
        return self.levels[transfer.job.number]


@dataclass(frozen=True, kw_only=True)
class FixedPaths:
    """Each flow between leaves the path of its place among all such flows of the run."""

    chosen_paths: tuple[int, ...]

    def begin(self, cluster: Any, rng: Any) -> _Counting:
        """Return what counts."""
        return _Counting(self.chosen_paths)


class _Counting:
    def __init__(self, chosen: tuple[int, ...]) -> None:
        self._chosen = iter(chosen)

    def path(self, flow: Any, network: Any) -> int:
        """Return the next path."""
        return next(self._chosen, 0) if len(flow.paths) > 1 else 0


@dataclass(frozen=True, kw_only=True)
class Where:
    """Each job the hosts that were drawn for it."""

    hosts: tuple[tuple[int, ...], ...]

    def place(self, job: Any, cluster: Any) -> list[int]:
        """Return the job's GPUs: one of each of its hosts, that of its number."""
        return [host * GPUS_PER_HOST + job.number for host in self.hosts[job.number]]


@dataclass(frozen=True)
class Case:
    """Jobs, where they are, and how long they are watched."""

    workload: ddlsched.Workload
    cluster: ddlsched.Cluster
    where: Where
    horizon_s: float

    def utilisation(self, path: Any, contention: Any) -> float:
        """Return the compute done, GPU-seconds."""
        result = ddlsched.simulate(
            self.workload,
            self.cluster,
            placement=self.where,
            order="fifo",
            communication="bounded-overlap:limit=99",
            path=path,
            contention=contention,
            until_s=self.horizon_s,
        )
        return float(result.gpus["busy_s"].sum())


def case(seed: int) -> Case:
    """Draw a case."""
    rng = np.random.default_rng(seed)
    hosts = int(rng.integers(8, 21))
    compute_s, network_s = rng.uniform(0.2, 2.0, JOBS), rng.uniform(0.2, 2.0, JOBS)
    sizes = rng.integers(2, 5, JOBS)
    places = tuple(tuple(sorted(rng.choice(hosts, size, replace=False).tolist())) for size in sizes)
    workload = workload_of(gpus=sizes, iterations=10_000, forward_s=compute_s, message_bytes=network_s * 1e9)
    topology = LeafSpine(servers_per_leaf=4, spines=_SPINES, oversubscription=2)
    cluster = ddlsched.Cluster(num_servers=hosts, gpus_per_server=GPUS_PER_HOST, topology=topology)
    horizon_s = 20.0 * float((compute_s + network_s).max())
    return Case(workload, cluster, Where(hosts=places), horizon_s)


def flows_between_leaves(places: Sequence[Sequence[int]]) -> int:
    """Return how many flows of rings go from leaf to leaf."""
    return sum(a // 4 != b // 4 for hosts in places for a, b in zip(hosts, [*hosts[1:], hosts[0]], strict=True))


def all_paths(given: Case, rng: np.random.Generator) -> Iterator[FixedPaths]:
    """Yield all choices of paths; of more than 64 so many drawn ones, so that the best may be better still."""
    count = flows_between_leaves(given.where.hosts)
    if _SPINES**count <= _MOST_PATHS:
        yield from (FixedPaths(chosen_paths=chosen) for chosen in product(range(_SPINES), repeat=count))
    else:
        for _ in range(_MOST_PATHS):
            yield FixedPaths(chosen_paths=tuple(rng.integers(_SPINES, size=count).tolist()))


def shares(seed: int) -> dict[str, float]:
    """Return Crux's utilisation over the best, for each of its three steps by itself."""
    given = case(seed)
    rng, per_byte_s = np.random.default_rng(seed), 1e-9
    orders = [Levels(levels=order, per_byte_s=per_byte_s) for order in permutations(range(JOBS))]
    levels = [Levels(levels=each, per_byte_s=per_byte_s) for each in product(range(LEVELS), repeat=JOBS)]
    fair, whole = MaxMin(per_byte_s=per_byte_s), Crux(per_byte_s=per_byte_s)
    paths = {
        "paths": (given.utilisation("crux", fair), [given.utilisation(path, fair) for path in all_paths(given, rng)]),
        "priority": (given.utilisation("crux", whole), [given.utilisation("crux", order) for order in orders]),
        "compression": (
            given.utilisation("crux", Crux(per_byte_s=per_byte_s, levels=LEVELS)),
            [given.utilisation("crux", each) for each in levels],
        ),
    }
    return {step: own / max(own, *others) for step, (own, others) in paths.items()}


def main(cases: int = 40) -> None:
    """Print the table."""
    found: list[dict[str, float]] = []
    for seed in range(cases):
        say(f"case {seed + 1} of {cases}")
        found.append(shares(seed))
    rows = []
    for step, published in PUBLISHED.items():
        values = 100 * np.array([each[step] for each in found])
        error = 1.96 * values.std(ddof=1) / len(values) ** 0.5
        rows.append([step, values.mean(), f"+- {error:.1f}", values.min(), published])
    columns = ("step", "of the best, %", "95 %", "worst case, %", "published")
    print(Table(title="Crux in small cases", columns=columns, rows=rows, notes=[f"{cases} cases."]))


if __name__ == "__main__":
    typer.run(main)
