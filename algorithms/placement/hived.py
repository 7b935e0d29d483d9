"""HiveD: tenants own cells of fixed sizes, kept whole by splitting and merging buddies."""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from ddlsched.cluster.cluster import Cluster
from ddlsched.errors import InputError
from ddlsched.policies.views import ClusterView, GpuId, JobView
from ddlsched.ranges import Checked, ranged


@dataclass(frozen=True, kw_only=True)
class CellsOfTenants(Checked, who="hived"):
    """What HiveD is told of cells: who owns how many, and how large they may be.

    Raises
    ------
    InputError
        The largest cells have no power of two of servers, or the text does not say who owns what.
    """

    cells: str = ""
    top_servers: int = ranged(0, 0, 1_000_000)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.top_servers & (self.top_servers - 1):
            raise InputError(f"hived: top_servers is {self.top_servers}; expected a power of two, or 0")
        tenants_of(self.cells)


@dataclass(frozen=True, kw_only=True)
class HiveD(CellsOfTenants):
    """A job of a tenant gets GPUs of the tenant's cells; a cell is bound to GPUs while the tenant has jobs in it.

    Cells are 1, 2, 4, ... GPUs of a server (if a server has a power of two), a server, and 2, 4, ... servers. A job
    goes where its tenant's bound cells have room, the one with the most GPUs in use first; otherwise the smallest
    unbound one that holds it is bound: a free cell of its size, or the lowest larger one is split. What is given back
    merges with its buddies if all of them are free. So the cells that a tenant owns are there whenever it asks.
    Where ``top_servers`` says up to how many servers neighbours are nearer to each other than others are, cells are no
    larger, and an opportunistic job that is takes as many of the largest as it needs.

    Jobs without a user that owns cells, or larger than the largest of these, are opportunistic. Deviation: they are
    not stopped for others, but start only if all cells that are owned and unbound could still be bound; so no cell
    ever has to be chosen by how many of them are in it. Inside a server no switch or socket is known. Jobs must have
    GPUs for themselves.

    Parameters
    ----------
    top_servers
        Servers of the largest cells, a power of two: 1 on a star, on which all are alike; 0 for as many as there are.
    cells
        What tenants own: ``alice/2x8+alice/1x4+bob/1x16`` are two cells of 8 GPUs and one of 4 of alice's, one of 16 of
        bob's. By default everything is one tenant's, and each job has a cell of its own.

    References
    ----------
    Zhao et al., "HiveD: Sharing a GPU Cluster for Deep Learning with Guarantees", OSDI 2020.
    """

    def begin(self, cluster: Cluster, rng: np.random.Generator) -> _Tenants:
        """Return the cells of a run.

        Raises
        ------
        InputError
            The cluster cannot be divided into the cells that are owned, or its servers differ.
        """
        return _Tenants(self, cluster)


def tenants_of(text: str) -> dict[str, dict[int, int]]:
    """Return how many cells of how many GPUs each tenant owns.

    Raises
    ------
    InputError
        The text is none of that.
    """
    owned: dict[str, dict[int, int]] = {}
    for part in filter(None, text.split("+")):
        tenant, _, cells = part.partition("/")
        count, _, size = cells.partition("x")
        if not tenant or not count.isdecimal() or not size.isdecimal() or int(count) < 1 or int(size) < 1:
            raise InputError(f"hived: cells has {part!r}; expected tenant/count x GPUs, such as alice/2x8+bob/1x16")
        mine = owned.setdefault(tenant, {})
        mine[int(size)] = mine.get(int(size), 0) + int(count)
    return owned


class Cells:
    """The free cells of a cluster, by level; a cell is named by its first GPU.

    Raises
    ------
    InputError
        Servers differ in their GPUs.
    """

    def __init__(self, gpus_of_servers: Sequence[int], top_servers: int = 0) -> None:
        num_servers, gpus_per_server = len(gpus_of_servers), gpus_of_servers[0]
        if len(set(gpus_of_servers)) > 1:
            raise InputError("hived: servers differ in their GPUs; expected as many in each")
        inside = [2**k for k in range(gpus_per_server.bit_length()) if 2**k < gpus_per_server]
        if gpus_per_server & (gpus_per_server - 1):
            inside = [1]
        self.sizes = [*inside, gpus_per_server]
        """GPUs of a cell of each level."""
        most = min(top_servers or num_servers, num_servers) * gpus_per_server
        while self.sizes[-1] * 2 <= most:
            self.sizes.append(self.sizes[-1] * 2)
        self.free: list[set[int]] = [set() for _ in self.sizes]
        """The free cells of each level."""
        self._tops: set[tuple[int, int]] = set()
        first, left = 0, num_servers * gpus_per_server
        for level in range(len(self.sizes) - 1, -1, -1):
            while self.sizes[level] <= left:
                self._tops.add((level, first))
                self.free[level].add(first)
                first, left = first + self.sizes[level], left - self.sizes[level]

    def needed(self, num_gpus: int) -> tuple[int, int]:
        """Return the lowest level whose cells have so many GPUs, or the highest, and how many of its cells have."""
        level = next((level for level, size in enumerate(self.sizes) if size >= num_gpus), len(self.sizes) - 1)
        return level, -(-num_gpus // self.sizes[level])

    def take_all(self, level: int, count: int) -> tuple[int, ...]:
        """Take so many free cells; none if there are fewer."""
        firsts: list[int] = []
        while len(firsts) < count:
            first = self.take(level)
            if first is None:
                for taken in firsts:
                    self.give_back(level, taken)
                return ()
            firsts.append(first)
        return tuple(firsts)

    def take(self, level: int, cost: Callable[[range], int] | None = None) -> int | None:
        """Take a free cell, the first of least cost, splitting the lowest larger one if there is none; None without."""
        source = next((above for above in range(level, len(self.sizes)) if self.free[above]), None)
        if source is None:
            return None
        size, wide = self.sizes[level], self.sizes[source]
        chosen = min(self.free[source])
        if cost is not None:
            firsts = [first for parent in self.free[source] for first in range(parent, parent + wide, size)]
            chosen = min(firsts, key=lambda first: (cost(range(first, first + size)), first))
        parent = next(parent for parent in self.free[source] if parent <= chosen < parent + wide)
        self.free[source].remove(parent)
        for below in range(source - 1, level - 1, -1):
            cells = range(parent, parent + self.sizes[below + 1], self.sizes[below])
            parent = next(first for first in cells if first <= chosen < first + self.sizes[below])
            self.free[below].update(set(cells) - {parent})
        return chosen

    def give_back(self, level: int, first: int) -> None:
        """Give a cell back; it merges with its buddies as long as all of them are free."""
        self.free[level].add(first)
        while (level, first) not in self._tops:
            parent = first - (first - self._top_of(first)) % self.sizes[level + 1]
            buddies = set(range(parent, parent + self.sizes[level + 1], self.sizes[level]))
            if not buddies <= self.free[level]:
                return
            self.free[level] -= buddies
            level, first = level + 1, parent
            self.free[level].add(first)

    def _top_of(self, gpu: int) -> int:
        return max(first for _, first in self._tops if first <= gpu)

    def could_take(self, counts: Mapping[int, int]) -> bool:
        """Return whether so many cells of each level could be taken, one after the other."""
        trial = copy.copy(self)
        trial.free = [set(of_level) for of_level in self.free]
        wanted = sorted((level for level, count in counts.items() for _ in range(count)), reverse=True)
        return all(trial.take(level) is not None for level in wanted)


@dataclass(eq=False)
class BoundCell:
    """Cells that a tenant has jobs in, on their GPUs: one, or several of a job that no single one holds."""

    tenant: str | None
    level: int
    firsts: tuple[int, ...]
    """The first GPU of each."""
    size: int
    """GPUs of each."""
    used: dict[int, tuple[GpuId, ...]] = field(default_factory=dict)
    """Where its jobs are."""

    @property
    def num_used(self) -> int:
        """GPUs in use."""
        return sum(map(len, self.used.values()))

    @property
    def gpus(self) -> list[GpuId]:
        """All GPUs."""
        return [gpu for first in self.firsts for gpu in range(first, first + self.size)]


class OwnedCells:
    """The cells that tenants own: those not bound yet, and those that are.

    Parameters
    ----------
    cells
        The free cells of the cluster.
    tenants
        How many cells of how many GPUs each tenant owns.
    num_gpus
        Of the cluster.

    Attributes
    ----------
    bound
        The cells in which there are jobs, others' too.

    Raises
    ------
    InputError
        There are no cells of a size, or not so many in the cluster.
    """

    def __init__(self, cells: Cells, tenants: Mapping[str, Mapping[int, int]], num_gpus: int) -> None:
        self.cells, self.bound = cells, list[BoundCell]()
        for size in (size for sizes in tenants.values() for size in sizes if size not in cells.sizes):
            raise InputError(f"hived: cells has one of {size} GPUs; expected one of {cells.sizes}")
        self._unbound = {
            tenant: {cells.sizes.index(size): count for size, count in sizes.items() if count}
            for tenant, sizes in tenants.items()
        }
        if not self.could_all_be_bound():
            raise InputError(f"hived: cells ask for more than the {num_gpus} GPUs hold; expected fewer")
        self._largest = {
            tenant: max(map(cells.sizes.__getitem__, of), default=0) for tenant, of in self._unbound.items()
        }

    def could_all_be_bound(self) -> bool:
        """Return whether there are free cells for all that are owned and not bound."""
        return self.cells.could_take(sum(map(Counter, self._unbound.values()), Counter[int]()))

    def has_one_for(self, tenant: str | None, num_gpus: int) -> bool:
        """Return whether a tenant owns a cell that holds so many GPUs, bound or not."""
        return num_gpus <= self._largest.get(tenant or "", 0)

    def bind(self, tenant: str, num_gpus: int, cost: Callable[[range], int] | None = None) -> BoundCell | None:
        """Bind the smallest cell of a tenant that holds so many GPUs, where that costs least; None if none is left."""
        left = self._unbound[tenant]
        fits = [level for level, count in left.items() if count and self.cells.sizes[level] >= num_gpus]
        first = self.cells.take(min(fits), cost) if fits else None
        if first is None:
            return None
        left[min(fits)] -= 1
        return self.add(tenant, min(fits), (first,))

    def add(self, tenant: str | None, level: int, firsts: tuple[int, ...]) -> BoundCell:
        """Note that cells that were taken are bound."""
        self.bound.append(BoundCell(tenant, level, firsts, self.cells.sizes[level]))
        return self.bound[-1]

    def release(self, cell: BoundCell) -> None:
        """Give a cell back."""
        self.bound.remove(cell)
        for first in cell.firsts:
            self.cells.give_back(cell.level, first)
        if cell.tenant is not None:
            self._unbound[cell.tenant][cell.level] += 1


class _Tenants:
    def __init__(self, policy: HiveD, cluster: Cluster) -> None:
        cells = Cells(cluster.gpus_of_servers, policy.top_servers)
        self._owned = OwnedCells(cells, tenants_of(policy.cells), cluster.num_gpus)
        self._seen: tuple[ClusterView | None, set[int]] = None, set()
        """What the cluster was last seen by, and the jobs that were found there: nobody leaves while a view lasts."""

    def place(self, job: JobView, cluster: ClusterView) -> Sequence[GpuId] | None:
        """Return GPUs of a cell of the job's tenant."""
        self._take_back(cluster)
        tenant = job.user if self._owned.has_one_for(job.user, job.num_gpus) else None
        mine = [cell for cell in self._owned.bound if tenant is not None and cell.tenant == tenant]
        for cell in sorted(mine, key=lambda cell: (-cell.num_used, cell.firsts)):
            if gpus := self._room(cell, job, cluster):
                return self._use(cell, job, gpus)
        bound = self._lent(job.num_gpus) if tenant is None else self._owned.bind(tenant, job.num_gpus)
        if bound is None:
            return None
        if gpus := self._room(bound, job, cluster):
            return self._use(bound, job, gpus)
        self._owned.release(bound)
        return None

    def _lent(self, num_gpus: int) -> BoundCell | None:
        """Take cells for a job whose tenant owns none such, if they leave all that are owned."""
        level, count = self._owned.cells.needed(num_gpus)
        firsts = self._owned.cells.take_all(level, count)
        if not firsts:
            return None
        cell = self._owned.add(None, level, firsts)
        if self._owned.could_all_be_bound():
            return cell
        self._owned.release(cell)
        return None

    def _room(self, cell: BoundCell, job: JobView, cluster: ClusterView) -> list[GpuId]:
        """Return GPUs of a cell for a job, none if there are too few: the servers with the most in use first."""
        taken = {gpu for gpus in cell.used.values() for gpu in gpus}
        gpus = [gpu for gpu in cell.gpus if gpu not in taken and cluster.fits(job, gpu)]
        gpus = [gpu for gpu in gpus if not cluster.num_residents(gpu)]
        free_on = Counter(map(cluster.server_of, gpus))
        enough = {server: free for server, free in free_on.items() if free >= job.num_gpus}
        order = enough or {server: -free for server, free in free_on.items()}
        gpus.sort(key=lambda gpu: (order.get(cluster.server_of(gpu), cluster.num_gpus), gpu))
        return gpus[: job.num_gpus] if len(gpus) >= job.num_gpus else []

    def _use(self, cell: BoundCell, job: JobView, gpus: list[GpuId]) -> list[GpuId]:
        cell.used[job.number] = tuple(gpus)
        return gpus

    def _take_back(self, cluster: ClusterView) -> None:
        """Forget jobs that have left, and give back the cells in which nobody is."""
        if cluster is not self._seen[0]:
            self._seen = cluster, set()
        there = self._seen[1]
        for cell in list(self._owned.bound):
            for number, gpus in list(cell.used.items()):
                if number in there:
                    continue
                if number in [job.number for job in cluster.residents(gpus[0])]:
                    there.add(number)
                else:
                    del cell.used[number]
            if not cell.used:
                self._owned.release(cell)

    def cells(self) -> Iterator[tuple[str | None, range]]:
        """Yield whose each bound cell is, and its GPUs."""
        for cell in self._owned.bound:
            for first in cell.firsts:
                yield cell.tenant, range(first, first + cell.size)
