"""The inside of a server: how its GPUs reach each other, and which network card is whose."""

from __future__ import annotations

from dataclasses import dataclass

from ddlsched.errors import InputError
from ddlsched.ranges import REQUIRED, check_fields, ranged

__all__ = ["Inside", "refuse_bad_port"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Inside:
    """What a topology's attribute ``inside`` states; without it the inside of a server costs nothing.

    Parameters
    ----------
    gpu_gbps
        Bandwidth of a GPU's port towards the other GPUs of its server, in one direction: NVLink to a switch, or PCIe.
        What leaves the server goes straight from the GPU to its network card and does not count on the port.
    cards
        Network cards of a server. GPU i of n uses card floor(i cards / n).
    latency_s
        Of a step from one GPU to another, seconds.
    servers
        How many neighbours are one such inside, an NVLink domain: servers s to s + n - 1 for s a multiple of n.
    planes
        Networks apart that each card is on, by a port each; what it sends goes in equal parts over all of them.
    by_rail
        Whether what is for a card of another number goes to the GPU of that card of its own server first.
    """

    gpu_gbps: float = ranged(REQUIRED, 0.0, above=True)
    cards: int = ranged(1, 1, 1024)
    latency_s: float = ranged(0.0, 0.0, 1e6)
    servers: int = ranged(1, 1, 1024)
    planes: int = ranged(1, 1, 1024)
    by_rail: bool = False

    def __post_init__(self) -> None:
        check_fields(self, "inside of a server")

    def card_of(self, place: int, num_gpus: int) -> int:
        """Return the card of the GPU at a place of a server with so many."""
        return place * self.cards // num_gpus


def refuse_bad_port(name: str, nvlink_gbps: float | None, nvlink_latency_s: float) -> None:
    """Raise InputError for a topology that states the latency of a GPU's port, but not its bandwidth."""
    if nvlink_gbps is None and nvlink_latency_s:
        raise InputError(f"{name}: nvlink_latency_s is {nvlink_latency_s}; expected nvlink_gbps beside it")
