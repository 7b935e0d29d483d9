"""A run under way: its arrays, what policies see of them, and who has had which GPUs."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable
from typing import Any

import numpy as np

from ddlsched.cluster.cluster import Cluster
from ddlsched.engine.decisions.costs import CommunicationCosts
from ddlsched.engine.outcome import Residency
from ddlsched.engine.records import Columns, Records, State, make_records
from ddlsched.errors import InputError
from ddlsched.network.topology import Network
from ddlsched.policies.views import JobView, TransferView
from ddlsched.units import MAX_NS, NS_PER_S, s_from_ns
from ddlsched.workload.elastic_job import Rescale
from ddlsched.workload.job import Workload


class RunState:
    """What the parts of a run share.

    Attributes
    ----------
    workload, cluster, network
        What is simulated.
    arrays
        Those of the event loop. Another ``State`` once an array had to grow, so never keep it.
    run
        The run's one record.
    now, jobs, gpus, links, transfers, tasks, workers
        Fields of those arrays that never grow, an array each, from which one value is read several times as fast as
        from a record; ``now`` those of the run.
    views, transfer_views
        What policies see of the jobs, by number, and of the transfers of jobs that were placed.
    stays, stays_of
        Every job's stays on GPUs, in the order of placement; those of each job, by number.
    server_of_gpu
        Server of each GPU.
    """

    def __init__(self, workload: Workload, cluster: Cluster, network: Network, arrays: State) -> None:
        self.workload, self.cluster, self.network = workload, cluster, network
        self.arrays = arrays
        self.run: Records = arrays.run[0]
        self.now, self.jobs, self.workers = map(Columns, (arrays.run, arrays.jobs, arrays.workers))
        self.gpus, self.links = Columns(arrays.gpus), Columns(arrays.links)
        self.transfers, self.tasks = Columns(arrays.transfers), Columns(arrays.tasks)
        self.views = [JobView(job, number, self.jobs, number) for number, job in enumerate(workload)]
        self.transfer_views: dict[int, TransferView] = {}
        self.stays: list[Residency] = []
        self.stays_of: defaultdict[int, list[Residency]] = defaultdict(list)
        self.server_of_gpu: list[int] = cluster.server_of_gpu.tolist()

    @property
    def now_ns(self) -> int:
        """The instant."""
        return int(self.now.now_ns.item(0))

    @property
    def now_s(self) -> float:
        """The instant, seconds."""
        return s_from_ns(self.now_ns)

    def make_room(self, name: str, needed: int) -> None:
        """Lengthen an array that is too short."""
        array = getattr(self.arrays, name)
        if needed > len(array):
            length = max(needed, len(array) + len(array) // 2)
            kind = "entry" if name == "entries" else name[:-1]
            longer = np.zeros(length, array.dtype) if array.dtype.names is None else make_records(kind, length)
            longer[: len(array)] = array
            self.arrays = self.arrays._replace(**{name: longer})
            if name == "tasks":
                self.tasks = Columns(longer)

    def refuse_long_service(self, costs: CommunicationCosts) -> None:
        """Refuse jobs whose service with communication, or load, the clock cannot hold wherever they run.

        What a job of groups sends depends on where it is: it is checked with its GPUs.
        """
        for number, job in enumerate(self.workload):
            if job.num_gpus > 1 and not self.jobs.grouped.item(number):
                wire = [costs.wire_bytes(message, job.num_gpus) for message in job.dag.messages]
                self.check_service(number, sum(costs.alone_ns(w, 0.0) for w in wire))
                self.check_service(number, sum(map(costs.bytes_load_ns, wire)))

    def check_service(self, number: int, iteration_ns: int) -> None:
        """Refuse a job whose service with so much communication in each iteration the clock cannot hold."""
        jobs = self.jobs
        communication_ns = iteration_ns * jobs.iterations.item(number) * jobs.num_gpus.item(number)
        self.refuse_service(number, jobs.service_ns.item(number) + communication_ns)

    def refuse_service(self, number: int, service_ns: int) -> None:
        """Raise InputError for more service than the clock holds."""
        if service_ns > MAX_NS:
            raise InputError(
                f"{self.workload.where(number)}: job {self.workload[number].job_id!r} has more compute and "
                "communication x GPUs (or load by load_per_byte_s) than the clock holds; expected at most "
                f"{MAX_NS / NS_PER_S:.4g} s in all"
            )

    def end_stay(self, number: int, why: str = "stopped by a failure") -> None:
        """Note that a job has no GPUs any more."""
        self.views[number]._placed((), ())
        stay = self.stays[self.jobs.stay.item(number)]
        stay.to_ns, stay.ended_by = self.now_ns, why
        stay.begin_ns = self.begin_of_work_ns(number, stay)
        if stay.safe_ns == MAX_NS and self.jobs.saved_ns.item(number) > stay.from_ns:
            stay.safe_ns = int(self.jobs.saved_ns.item(number))

    def begin_of_work_ns(self, number: int, stay: Residency) -> int:
        """Return from when on a job has worked in its last stay; MAX_NS if its state never came."""
        if not stay.state_bytes:
            return stay.from_ns + stay.hold_ns
        began_ns = self.jobs.began_ns.item(number)
        return int(began_ns) if began_ns > stay.from_ns else MAX_NS

    def rescale(self, number: int, had: Collection[int], gpus: Collection[int], **others: Any) -> Rescale:
        """Return the change of a job from GPUs that it had to others, as a model of its cost sees it."""
        return Rescale(
            job_id=self.workload[number].job_id,
            time_s=self.now_s,
            from_gpus=len(had),
            to_gpus=len(gpus),
            added_gpus=len({*gpus}.difference(had)),
            removed_gpus=len({*had}.difference(gpus)),
            to_servers=len({self.server_of_gpu[gpu] for gpu in gpus}),
            **others,
        )

    def gpus_of(self, servers: Iterable[int]) -> list[int]:
        """Return all GPUs of some servers."""
        first = self.cluster.first_gpus
        return [gpu for server in servers for gpu in range(first.item(server), first.item(server + 1))]

    def gpus_on(self, gpus: Iterable[int], servers: Collection[int]) -> list[int]:
        """Return those GPUs that are on some servers."""
        return [gpu for gpu in gpus if self.server_of_gpu[gpu] in servers]

    def is_present(self, server: int) -> bool:
        """Return whether a server is there."""
        gpu = self.cluster.first_gpus.item(server)
        return bool(self.gpus.free_bytes.item(gpu) >= -1)  # -1 where a job has the GPU for itself

    def free_gpus(self) -> list[int]:
        """Return the GPUs of present servers without a job, ascending."""
        free = (self.gpus.num_residents == 0) & (self.gpus.free_bytes >= 0)
        return np.flatnonzero(free).tolist()
