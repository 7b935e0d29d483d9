"""What stopping a job costs: one price list for orders, placements and allocations, whatever the jobs' scale."""

from __future__ import annotations

from dataclasses import dataclass

from ddlsched.cluster.disturbances import Disturbances
from ddlsched.network.topology import Network
from ddlsched.ranges import LAST_S, Checked, ranged
from ddlsched.units import MAX_NS
from ddlsched.workload.elastic_job import ConstantRescaleCost
from ddlsched.workload.job import Job


@dataclass(frozen=True, kw_only=True)
class StopPrices(Checked, who="stop prices"):
    """What going on after a stop costs, the same for all who stop jobs.

    Jobs of which only a part of the iterations is simulated pay that part of each price; otherwise a stop would weigh
    more against their service than it does.

    Parameters
    ----------
    restart_s
        Time for which a whole job holds its GPUs before it goes on, seconds.
    state_mb
        What a whole job takes along from each of its GPUs to other servers, MB; by default all its memory there.
    scale
        Which part of their iterations jobs have.
    """

    restart_s: float = ranged(30.0, 0.0, LAST_S)
    state_mb: float | None = ranged(None, 0.0, MAX_NS / 1e6)
    scale: float = ranged(1.0, 0.0, 1.0, above=True)

    def scaled(self, whole: float) -> float:
        """Return a price, a threshold of service or an interval of whole jobs as jobs of this scale have it."""
        return whole * self.scale

    def disturbances(self) -> Disturbances:
        """Return the prices for orders that stop jobs and placements that move them."""
        restart_s = self.scaled(self.restart_s)
        if self.state_mb is None:
            return Disturbances(restart_s=restart_s, state_share=self.scale)
        return Disturbances(restart_s=restart_s, state_mb=self.scaled(self.state_mb))

    def rescale_cost(self, job: Job, network: Network, gpus_per_server: int) -> ConstantRescaleCost:
        """Return the prices for allocations that take a job's GPUs: those of going on elsewhere, on a free network."""
        return ConstantRescaleCost.restart(going_on_elsewhere_s(self.disturbances(), job, network, gpus_per_server))


def going_on_elsewhere_s(prices: Disturbances, job: Job, network: Network, gpus_per_server: int) -> float:
    """Return the seconds until a job goes on on other servers: its state crosses the cards of as few as hold it."""
    gpus = min(job.num_gpus, gpus_per_server)
    card_bytes_per_s = network.nic_bytes_per_s * min(gpus, network.cards)
    return prices.restart_s + gpus * prices.state_bytes(job.gpu_memory_bytes) / card_bytes_per_s
