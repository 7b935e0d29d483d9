"""Every valid combination of parallelism and cluster variants, estimated at once and ranked."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeAlias

import numpy as np

from ddlsched.deferred import pd
from ddlsched.errors import InputError
from ddlsched.training.estimate import Amount, Recompute
from ddlsched.training.estimate.clusters import Plan
from ddlsched.training.estimate.hardware import Machine, MemoryExpansion, Precision
from ddlsched.training.estimate.models import Model
from ddlsched.training.estimate.parallel_layout import MOST, Parallelism, stage_blocks
from ddlsched.training.estimate.step_estimate import estimate

PLAN_AXES = ("tensor", "pipeline", "micro_batch", "interleave", "expert", "zero", "sequence_parallel", "overlap")
"""Axes of the parallelism that hold numbers; ``data`` follows from the GPUs."""

CLUSTER_AXES = (
    "memory_bandwidth",
    "link_bandwidth",
    "network_bandwidth",
    "compute",
    "expansion_gb",
    "expansion_gb_per_s",
)
"""Axes of the cluster. The first four are factors to the GPU's and network's own."""

_MOST = 50_000_000
"""Combinations that are still checked: a few GB of memory."""

_CHUNK = 8192
"""Configurations that one thread takes at a time: few enough for a core's cache."""


_Columns: TypeAlias = Mapping[str, np.ndarray]


@dataclass(frozen=True, kw_only=True)
class DesignSweep:
    """What to try.

    Parameters
    ----------
    axes
        Values by name, of :data:`PLAN_AXES` and :data:`CLUSTER_AXES`. Without ``tensor``, ``pipeline`` or
        ``micro_batch``: every one that divides (stages with a block fewer at the ends only where ``pipeline`` is
        given); of the other axes: only the default (interleave 1, expert 1, ZeRO 0, no
        sequence parallelism, no overlap, the cluster as it is).
    recompute
        What to try of recomputation.
    """

    axes: Mapping[str, Sequence[float]] = field(default_factory=dict)
    recompute: Sequence[Recompute] = ("none", "selective", "full")

    def __post_init__(self) -> None:
        for name, values in self.axes.items():
            if name not in (known := (*PLAN_AXES, *CLUSTER_AXES)):
                raise InputError(f"sweep: {name!r} is no axis; expected one of {', '.join(known)}")
            if not len(values):
                raise InputError(f"sweep: {name} has no values; expected at least one")


_DEFAULTS: dict[str, Sequence[float]] = {
    **dict.fromkeys(("interleave", "expert"), (1,)),
    **dict.fromkeys(("zero", "sequence_parallel", "overlap"), (0,)),
    **dict.fromkeys(CLUSTER_AXES[:4], (1.0,)),
}


def design(
    model: Model, plan: Plan, *, num_gpus: int, global_batch: int, sweep: DesignSweep, precision: Precision = "half"
) -> pd.DataFrame:
    """Return all valid configurations, those that fit first, the fastest of them first.

    Parameters
    ----------
    model, plan
        What to train on what cluster.
    num_gpus
        Of the cluster.
    global_batch
        Samples of a step.
    sweep
        What to try.
    precision
        Of matrix products.

    Raises
    ------
    InputError
        The cluster has another number of GPUs, or there are too many combinations.

    Returns
    -------
    DataFrame
        The axes, ``data``, ``recompute``, and ``step_s, mfu, memory_gb, missing_gb, fits, energy_j, cost`` a step.
    """
    if not 1 <= global_batch <= MOST:
        raise InputError(f"global batch is {global_batch}; expected a whole number from 1 to {MOST:,}")
    machine = plan.machine(num_gpus)
    if machine.num_gpus != num_gpus:
        raise InputError(f"the cluster has {machine.num_gpus} GPUs; expected the {num_gpus} to try, or no nodes=N")
    axes = _all_axes(sweep, machine, num_gpus, global_batch)
    combinations = math.prod(len(values) for values in axes.values())
    if combinations > _MOST:
        raise InputError(f"sweep: {combinations:,} combinations; expected at most {_MOST:,}: give fewer values")
    plans = _grid({name: values for name, values in axes.items() if name in PLAN_AXES})
    variants = _grid({name: values for name, values in axes.items() if name not in PLAN_AXES})
    tables = []
    for recompute in sweep.recompute:
        plan_of = partial(_parallelism, recompute=recompute, gpus=num_gpus, batch=global_batch)
        kept = _valid(model, plan_of(plans), num_gpus)
        valid = np.flatnonzero(kept if "pipeline" in sweep.axes else kept & _has_even_stages(model, plans))
        columns = _crossed({name: column[valid] for name, column in plans.items()}, variants)
        tables.append(_estimates(model, machine, columns, plan_of, precision))
    table = pd.concat(tables, ignore_index=True)
    return table.sort_values(["fits", "step_s"], ascending=[False, True], ignore_index=True, kind="stable")


def _grid(axes: _Columns) -> dict[str, np.ndarray]:
    """Return a column an axis, with a row a combination."""
    return {name: np.ravel(part) for name, part in zip(axes, np.meshgrid(*axes.values(), indexing="ij"), strict=True)}


def _crossed(one: _Columns, other: _Columns) -> dict[str, np.ndarray]:
    """Return every row of one with every row of the other."""
    (rows,), (others,) = ({len(column) for column in columns.values()} for columns in (one, other))
    repeated = {name: np.repeat(column, others) for name, column in one.items()}
    return repeated | {name: np.tile(column, rows) for name, column in other.items()}


def _all_axes(sweep: DesignSweep, machine: Machine, num_gpus: int, global_batch: int) -> dict[str, np.ndarray]:
    free = {"tensor": _divisors(num_gpus), "pipeline": _divisors(num_gpus), "micro_batch": _divisors(global_batch)}
    axes: dict[str, Sequence[float]] = {**free, **_DEFAULTS, **sweep.axes}
    if machine.expansion is not None:
        axes.setdefault("expansion_gb", [machine.expansion.capacity_bytes / 1e9])
        axes.setdefault("expansion_gb_per_s", [machine.expansion.bytes_per_s / 1e9])
    if ("expansion_gb" in axes) != ("expansion_gb_per_s" in axes):
        raise InputError("sweep: memory expansion needs expansion_gb and expansion_gb_per_s; expected both or neither")
    return {
        name: np.asarray(values, dtype=np.int64 if name in PLAN_AXES else np.float64) for name, values in axes.items()
    }


def _divisors(number: int) -> list[int]:
    small = [divisor for divisor in range(1, math.isqrt(max(number, 0)) + 1) if number % divisor == 0]
    return sorted({*small, *(number // divisor for divisor in small)})


def _parallelism(columns: _Columns, recompute: Recompute, gpus: int, batch: int) -> Parallelism:
    plan: dict[str, Any] = {name: columns[name] for name in PLAN_AXES}
    for flag in ("sequence_parallel", "overlap"):
        plan[flag] = plan[flag].astype(bool)
    data = np.maximum(gpus // (plan["tensor"] * plan["pipeline"]), 1)
    return Parallelism(**plan, data=data, global_batch=batch, recompute=recompute)


def _valid(model: Model, plan: Parallelism, gpus: int) -> np.ndarray:
    """Return which combinations keep all rules."""
    rules = [*plan.rules(gpus), *model.rules(plan)]
    valid: np.ndarray = np.all(np.broadcast_arrays(*(rule.holds for rule in rules)), axis=0)
    return valid


def _has_even_stages(model: Model, columns: _Columns) -> Amount:
    plan = Parallelism(pipeline=columns["pipeline"], interleave=columns["interleave"])
    blocks = stage_blocks(model.layers(Parallelism()).num_blocks, plan)
    return blocks.end == blocks.middle


def _estimates(
    model: Model, machine: Machine, columns: _Columns, plan_of: Callable[[_Columns], Parallelism], precision: Precision
) -> pd.DataFrame:
    """Return the table of configurations that are valid, a chunk a thread at a time."""
    size = len(columns["tensor"])
    chunks = [
        {name: column[at : at + _CHUNK] for name, column in columns.items()} for at in range(0, max(size, 1), _CHUNK)
    ]

    def table(chunk: _Columns) -> pd.DataFrame:
        plan = plan_of(chunk)
        found = estimate(model, plan, _variant(machine, chunk), precision=precision)
        results: dict[str, Amount] = {
            "step_s": found.step_s,
            "mfu": found.mfu,
            "memory_gb": found.memory.total_bytes / 1e9,
            "missing_gb": found.missing_bytes / 1e9,
            "fits": found.fits,
            "energy_j": found.energy_j,
            "cost": found.cost,
        }
        return pd.DataFrame({**chunk, "data": plan.data, "recompute": plan.recompute, **results})

    with ThreadPoolExecutor() as threads:
        tables = list(threads.map(table, chunks))
    return pd.concat(tables, ignore_index=True)


def _variant(machine: Machine, columns: _Columns) -> Machine:
    """Return the machine with each configuration's factors and memory expansion."""
    gpu = machine.gpu
    gpu = dataclasses.replace(
        gpu,
        memory_bytes_per_s=gpu.memory_bytes_per_s * columns["memory_bandwidth"],
        peak_flops_per_s={name: peak * columns["compute"] for name, peak in gpu.peak_flops_per_s.items()},
    )
    inside, *outside = machine.tiers
    tiers = [inside._replace(bytes_per_s=inside.bytes_per_s * columns["link_bandwidth"])]
    tiers += [tier._replace(bytes_per_s=tier.bytes_per_s * columns["network_bandwidth"]) for tier in outside]
    expansion = machine.expansion
    if "expansion_gb" in columns:
        shared_by = 1 if expansion is None else expansion.shared_by
        expansion = MemoryExpansion(
            capacity_bytes=1e9 * columns["expansion_gb"],
            bytes_per_s=1e9 * columns["expansion_gb_per_s"],
            shared_by=shared_by,
        )
    return dataclasses.replace(machine, gpu=gpu, tiers=tuple(tiers), expansion=expansion)


def best_of(table: pd.DataFrame, rows: str, columns: str, value: str = "step_s") -> pd.DataFrame:
    """Return the least value of the configurations that fit, by two axes: the cells of a heat map."""
    fitting = table[table["fits"]]
    cells = fitting.pivot_table(index=rows, columns=columns, values=value, aggfunc="min")
    return cells.reindex(index=sorted(table[rows].unique()), columns=sorted(table[columns].unique()))


def pareto_front(times: np.ndarray, costs: np.ndarray) -> np.ndarray:
    """Return the numbers of the configurations that none other beats in both, fastest first."""
    order = np.lexsort((costs, times))
    least = np.minimum.accumulate(costs[order])
    better = np.concatenate([[True], costs[order][1:] < least[:-1]]) if len(order) else np.array([], dtype=bool)
    front: np.ndarray = order[better]
    return front
