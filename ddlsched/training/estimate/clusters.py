"""Clusters from one line, ``h100:nodes=64,nic_gbps=1600``, on one of the simulator's topologies if it is named."""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass
from typing import Any

from ddlsched.errors import InputError, did_you_mean
from ddlsched.training.estimate import hardware
from ddlsched.training.estimate.collectives import Span
from ddlsched.training.estimate.presets import (
    EFFICIENCIES,
    GPU_FIELDS,
    GPUS,
    PROGRAMS,
    USUAL_SERVERS,
    preset,
    usual_program,
)

_SHARES = {"ideal": (1.0, 1.0), "megatron": (0.76, 0.8), "eager": (0.76, 0.53)}
"""Of the data sheet's bandwidth inside and between nodes, by efficiency: 0.76 and 0.53 as fitted to measurements, 0.8
assumed as where the published times were measured (see EFFICIENCIES)."""

_STEP_S = (6.4e-6, 10e-6)
"""Latency of a step of a collective inside a node, as measured on A100s, and between nodes, assumed."""

_OVERHEAD_W = 400.0
_POWER_USAGE_EFFECTIVENESS = 1.2
"""Host, network and cooling, assumed: a DGX A100 takes 6.5 kW at most, twice its GPUs'."""


@dataclass(frozen=True, kw_only=True)
class Plan:
    """A cluster before its size is known.

    Parameters
    ----------
    gpu
        Each of them.
    nodes
        Servers; 0: as many as the parallelism needs.
    gpus_per_node, nic_gbps
        Of a server; Gbit/s of all its network cards together.
    expansion_gb, expansion_gb_per_s, expansion_shared_by
        Memory beside a GPU's own: GB and GB/s of a device, and how many GPUs share it. 0 GB: none.
    topology
        Network between servers, by name, in place of one switch; its own ``nic_gbps`` counts then.
    efficiency
        Name of how far the GPUs and networks stay below their data sheets.
    taken
        In place of that efficiency's: share of its own time that communication of gradients takes from the computation
        that hides it.
    """

    gpu: hardware.Gpu
    nodes: int = 0
    gpus_per_node: int = 8
    nic_gbps: float = 1600.0
    expansion_gb: float = 0.0
    expansion_gb_per_s: float = 0.0
    expansion_shared_by: int = 1
    topology: str | None = None
    efficiency: str = "megatron"
    taken: float | None = None

    def machine(self, num_gpus: int) -> hardware.Machine:
        """Return the cluster, with the servers that ``num_gpus`` need if ``nodes`` is 0.

        Raises
        ------
        InputError
            More GPUs than a server has, but no whole servers.
        """
        per_node = min(self.gpus_per_node, num_gpus) if self.nodes == 0 else self.gpus_per_node
        nodes = self.nodes or math.ceil(num_gpus / per_node)
        if self.nodes == 0 and num_gpus % per_node:
            raise InputError(f"{num_gpus} GPUs do not fill nodes of {per_node}; expected a multiple, or nodes=N given")
        reached = self._reached()[0]
        taken = reached.taken if self.taken is None else self.taken
        gpu = dataclasses.replace(self.gpu, efficiency=dataclasses.replace(reached, taken=taken))
        expansion = None
        if self.expansion_gb > 0:
            expansion = hardware.MemoryExpansion(
                capacity_bytes=1e9 * self.expansion_gb,
                bytes_per_s=1e9 * self.expansion_gb_per_s,
                shared_by=self.expansion_shared_by,
            )
        return hardware.Machine(
            gpu=gpu,
            tiers=self._tiers(nodes, per_node),
            expansion=expansion,
            overhead_w=_OVERHEAD_W,
            power_usage_effectiveness=_POWER_USAGE_EFFECTIVENESS,
        )

    def _reached(self) -> tuple[hardware.Efficiency, tuple[float, float]]:
        """Return how far the GPU stays below its data sheet, and the shares that its links reach."""
        if self.efficiency not in PROGRAMS:
            known: Any = EFFICIENCIES | dict.fromkeys(PROGRAMS)
            return preset(known, self.efficiency, "efficiency"), _SHARES[self.efficiency]
        program = PROGRAMS[self.efficiency]
        like = program.known(self.gpu.name)
        return program.efficiencies[like].at_clock(_clock(self.gpu, GPUS[like])), program.links[like]

    def _tiers(self, nodes: int, per_node: int) -> tuple[Span, ...]:
        inside, between = self._reached()[1]
        if self.topology is None:
            card = self.nic_gbps * 1e9 / 8 / self.gpus_per_node
            tiers: tuple[Span, ...] = Span(per_node, self.gpu.link_bytes_per_s), Span(nodes, card)
        else:
            tiers = hardware.tiers_of_topology(self.topology, num_servers=nodes, gpus_per_server=per_node, gpu=self.gpu)
        return tuple(
            tier._replace(
                bytes_per_s=tier.bytes_per_s * (between if number else inside),
                latency_s=max(tier.latency_s, _STEP_S[min(number, 1)]),
            )
            for number, tier in enumerate(tiers)
        )


def _clock(gpu: hardware.Gpu, measured: hardware.Gpu) -> float:
    """Return how many times as high a GPU's clock is as that of one of its kind with another power limit."""
    return 1.0 if gpu.peak_flops_per_s != measured.peak_flops_per_s else hardware.clock(gpu, measured)


_WHOLE = ("nodes", "gpus_per_node", "expansion_shared_by")
_OF_PLAN = (*_WHOLE, "nic_gbps", "expansion_gb", "expansion_gb_per_s", "taken")
_FIELDS = (*_OF_PLAN, *GPU_FIELDS)
"""Of a line."""


def parse_cluster(text: str, *, topology: str | None = None, efficiency: str = "") -> Plan:
    """Return the cluster of a line such as ``a100-80:nodes=16,nic_gbps=800,expansion_gb=256,expansion_gb_per_s=100``.

    A name of :data:`~.presets.GPUS`, then what differs from its usual server: any field of :class:`Plan` that is a
    number, or ``memory_gb``, ``memory_gb_per_s``, ``link_gb_per_s``, ``price_per_hour``, ``power_w`` of the GPU.

    Without an ``efficiency`` it is that of :func:`~.measured.usual_program`.

    Raises
    ------
    InputError
        An unknown name or field, or a value that is no number > 0.
    """
    name, _, rest = text.partition(":")
    gpu: hardware.Gpu = preset(GPUS, name, "GPU")
    given: dict[str, Any] = dict(_field(text, part) for part in rest.split(",") if part)
    for field, (its_name, unit) in GPU_FIELDS.items():
        if field in given:
            gpu = dataclasses.replace(gpu, **{its_name: given.pop(field) * unit})
    for one, other in (("expansion_gb", "expansion_gb_per_s"), ("expansion_gb_per_s", "expansion_gb")):
        if one in given and other not in given:
            raise InputError(f"cluster {text}: has {one} but no {other}; expected both, GB and GB/s")
    given = USUAL_SERVERS[name] | given
    return Plan(gpu=gpu, topology=topology, efficiency=efficiency or usual_program(name), **given)


def _field(text: str, part: str) -> tuple[str, float]:
    field, equals, value = part.partition("=")
    if field not in _FIELDS:
        raise InputError(f"cluster {text}: {field!r} is no field of a cluster.{did_you_mean(field, _FIELDS)}")
    if not equals:
        raise InputError(f"cluster {text}: {field} has no value; expected {field}=NUMBER")
    try:
        number = int(value) if field in _WHOLE else float(value)
    except ValueError:
        number = -1
    if not (0 < number < math.inf or (field == "taken" and number == 0)):
        kind = "whole number from 1" if field in _WHOLE else f"finite number {'>=' if field == 'taken' else '>'} 0"
        raise InputError(f"cluster {text}: {field} is {value!r}; expected a {kind}")
    return field, number
