"""The cluster: servers, their GPUs and memory, and the topology of the network between them."""

from __future__ import annotations

from dataclasses import dataclass

from ddlsched.errors import InputError
from ddlsched.topology import Topology
from ddlsched.units import MAX_NS, bytes_from_mb, is_whole

__all__ = ["Cluster"]

MAX_GPUS = 10_000_000


@dataclass(frozen=True, kw_only=True)
class Cluster:
    """Servers of one kind; by default those of the 64-GPU experiment.

    GPUs are numbered server by server: server s holds ``s * gpus_per_server`` and the following.

    Parameters
    ----------
    num_servers, gpus_per_server
        Counts, at least 1.
    gpu_memory_mb
        Memory of each GPU, MB (1e6 B).
    topology
        The network; an instance, or a plug-in's name such as ``"leaf-spine:spines=4"``.
    """

    num_servers: int = 16
    gpus_per_server: int = 4
    gpu_memory_mb: float = 32768.0
    topology: Topology | str = "star"

    def __post_init__(self) -> None:
        if not is_whole(self.num_servers, 1) or not is_whole(self.gpus_per_server, 1):
            raise InputError(
                f"cluster: {self.num_servers} servers of {self.gpus_per_server} GPUs; expected at least 1 of each"
            )
        if self.num_gpus > MAX_GPUS:
            raise InputError(f"cluster: {self.num_gpus} GPUs; expected at most {MAX_GPUS}")
        if not 0 < self.gpu_memory_mb <= MAX_NS / 1e6:
            raise InputError(f"cluster: gpu_memory_mb is {self.gpu_memory_mb}; expected a finite number > 0")

    @property
    def num_gpus(self) -> int:
        """GPUs of all servers."""
        return self.num_servers * self.gpus_per_server

    @property
    def gpu_memory_bytes(self) -> int:
        """Memory of each GPU, bytes."""
        return bytes_from_mb(self.gpu_memory_mb)
