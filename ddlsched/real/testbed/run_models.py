"""How measured runs are simulated: models with the constants that jobs alone and pairs gave, and mixes under them."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from ddlsched.cluster.cluster import Cluster
from ddlsched.cluster.disturbances import Disturbances
from ddlsched.deferred import pd
from ddlsched.engine.decisions.checked_policies import communication_form
from ddlsched.errors import InputError, label
from ddlsched.network.packet_rings import PacketRings
from ddlsched.network.weighted_shares import ConnectionShares, SizeShares
from ddlsched.plugins.names import resolve
from ddlsched.policies.views import NetworkView, TransferView
from ddlsched.real.calibration.fit import Constant
from ddlsched.real.calibration.measurements import Measurements
from ddlsched.real.calibration.shares import ShareRows, fit_size_shares, fit_wait
from ddlsched.real.gate.transfer_gate import CHUNK_BYTES, WINDOW
from ddlsched.real.testbed.fidelity import WITH, WITHOUT
from ddlsched.real.testbed.measuring import fitted_constants, fitted_models
from ddlsched.real.testbed.real_run import gate_settings
from ddlsched.simulation import simulate
from ddlsched.workload.tasks import CollectiveTask

if TYPE_CHECKING:
    from ddlsched.real.testbed.fidelity import Mix

_LEAST_WAIT_S = 1e-4
"""A chunk's end is awaited by looking again when it could be there at full rate, but not more often than this."""
_PART_OF_A_BYTE = 1e-3
"""Which floats may leave of a chunk that has ended."""


@dataclass(frozen=True, kw_only=True)
class InChunks:
    """Another policy that pauses transfers, of messages that go in chunks: those under way are sent to their end.

    So a message of at most ``window`` chunks cannot be paused once it has begun.

    Parameters
    ----------
    policy
        An instance with ``transfer_key`` or ``select``.
    chunk_bytes, window
        Of the gate: the largest part of what is reduced that goes at a time, bytes, and how many are under way at once.
    """

    policy: Any
    chunk_bytes: float = CHUNK_BYTES
    window: int = WINDOW

    def __post_init__(self) -> None:
        if communication_form(self.policy) not in ("transfer_key", "select"):
            raise InputError(f"InChunks: policy is {self.policy!r}; expected one with transfer_key or select")

    def begin(self, cluster: Cluster, rng: np.random.Generator) -> _Agent:
        """Return the agent of a run."""
        policy = self.policy.begin(cluster, rng) if hasattr(self.policy, "begin") else self.policy
        return _Agent(policy, self.chunk_bytes, self.window)


class _Agent:
    """Remembers up to where transfers are sent that the policy has paused."""

    def __init__(self, policy: Any, chunk_bytes: float, window: int) -> None:
        self._policy, self._chunk_bytes, self._window = policy, chunk_bytes, window
        self._told_bytes: dict[int, float] = {}
        self._wake_s: float | None = None

    def select(self, transfers: Sequence[TransferView], network: NetworkView) -> list[TransferView]:
        """Return what the policy chooses, and what it pauses that still has chunks under way."""
        chosen = self._chosen(transfers, network)
        numbers = {transfer.number for transfer in chosen}
        paused = [transfer for transfer in transfers if transfer.is_active and transfer.number not in numbers]
        told = {each.number: self._told_bytes.get(each.number, self._granted_bytes(each)) for each in paused}
        going = [each for each in paused if told[each.number] - each.bytes_sent > _PART_OF_A_BYTE]
        self._told_bytes = {each.number: told[each.number] for each in going}
        least_s = [(told[each.number] - each.bytes_sent) * network.per_byte_s for each in going]
        self._wake_s = network.now_s + max(min(least_s), _LEAST_WAIT_S) if going else None
        return [*chosen, *going]

    def _granted_bytes(self, transfer: TransferView) -> float:
        """Return how many bytes a transfer will have sent once its chunks under way have ended."""
        chunks = max(math.ceil(_reduced_bytes(transfer) / self._chunk_bytes), 1)
        chunk_bytes = transfer.message_bytes / chunks
        ended = math.floor((transfer.bytes_sent + _PART_OF_A_BYTE) / chunk_bytes)
        return min(ended + self._window, chunks) * chunk_bytes

    def _chosen(self, transfers: Sequence[TransferView], network: NetworkView) -> list[TransferView]:
        if communication_form(self._policy) == "select":
            return list(self._policy.select(transfers, network))
        taken: set[int] = set()
        chosen = []
        for transfer in sorted(transfers, key=lambda each: (self._policy.transfer_key(each, network), each.number)):
            if taken.isdisjoint(transfer.links):
                taken.update(transfer.links)
                chosen.append(transfer)
        return chosen

    def wake_s(self, now_s: float) -> float | None:
        """Return when a chunk may end after which a transfer pauses, or the policy's own time."""
        own = self._policy.wake_s(now_s) if hasattr(self._policy, "wake_s") else None
        return min((wake_s for wake_s in (own, self._wake_s) if wake_s is not None), default=None)


def _reduced_bytes(transfer: TransferView) -> float:
    """Return what a transfer reduces: the largest message of its job that its ring can carry with the bytes it moves.

    A contention model may move more, for what steps cost. Of a job without collectives,
    whose state moves, it is all that moves.
    """
    servers = len(transfer.servers)
    most_bytes = transfer.message_bytes * servers / (2 * max(servers - 1, 1)) * (1 + 1e-9)
    sizes = sorted(task.message_bytes for task in transfer.job.dag.tasks if isinstance(task, CollectiveTask))
    return max([size for size in sizes if size <= most_bytes] or sizes[:1], default=transfer.message_bytes)


_REAL_ONLY = ("chunk_bytes", "window", "slots", "train")
"""What the gate is told and a simulation has not."""


@dataclass(frozen=True, kw_only=True)
class RunModel:
    """How runs are simulated.

    Parameters
    ----------
    contention
        The contention model, an instance or as ``simulate --contention`` takes it.
    in_chunks
        The same where messages go in chunks; by default no other.
    chunks_end
        Whether chunks under way still end when a policy pauses their transfer, as on the testbed
        (:class:`~ddlsched.real.testbed.run_models.InChunks`); otherwise transfers pause at once.
    jitter_cv
        Coefficient of variation of compute times.
    seeds
        Over how many seeds of the jitter times are averaged.
    """

    contention: Any
    in_chunks: Any = None
    chunks_end: bool = False
    jitter_cv: float = 0.0
    seeds: int = 1

    def __str__(self) -> str:
        """Return what a list of models says of it."""
        parts = [_told(self.contention)]
        if self.in_chunks is not None:
            parts.append(f"in chunks {_told(self.in_chunks)}")
        if self.chunks_end:
            parts.append("chunks under way end")
        if self.jitter_cv > 0:
            parts.append(f"computes vary by {100 * self.jitter_cv:g} %, mean of {self.seeds} seeds")
        return "; ".join(parts)


def _told(contention: Any) -> str:
    return contention if isinstance(contention, str) else label(contention)


def simulated_runs(mixes: Sequence[Mix], models: Mapping[str, RunModel]) -> pd.DataFrame:
    """Return a row a job of each mix, policy and model: mix, model, policy, job_id, jct_s, iteration_s, finish_s."""
    return pd.concat(list(_simulated(mixes, models)), ignore_index=True)


def _simulated(mixes: Sequence[Mix], models: Mapping[str, RunModel]) -> Iterator[pd.DataFrame]:
    for mix in mixes:
        for policy, given in mix.policies.items():
            for name, model in models.items():
                runs = [_jobs(mix, given, model, seed) for seed in range(model.seeds)]
                table = runs[0][["job_id"]].copy()
                for column in ("jct_s", "finish_s", "iteration_s"):
                    table[column] = np.mean([run[column] for run in runs], axis=0)
                yield table.assign(mix=mix.name, model=name, policy=policy)


def _jobs(mix: Mix, given: Mapping[str, Any], model: RunModel, more_seed: int) -> pd.DataFrame:
    """Return the jobs of one simulated run."""
    settings = gate_settings(mix.cluster, **given)
    pauses = communication_form(settings.communication) != "admit"
    in_chunks = pauses or settings.chunk_bytes is not None
    decides = {name: value for name, value in given.items() if name not in _REAL_ONLY}
    decides["seed"] = settings.seed + more_seed
    if pauses and model.chunks_end:
        chunk_bytes = CHUNK_BYTES if settings.chunk_bytes is None else settings.chunk_bytes
        decides["communication"] = InChunks(
            policy=settings.communication, chunk_bytes=chunk_bytes, window=settings.window
        )
    result = simulate(
        mix.workload,
        mix.cluster,
        contention=model.in_chunks or model.contention if in_chunks else model.contention,
        disturbances=Disturbances(jitter_cv=model.jitter_cv),
        **decides,
    )
    iterations = np.array([job.iterations for job in mix.workload])
    return result.jobs.assign(iteration_s=(result.jobs.finish_s - result.jobs.start_s) / iterations)


_CHOSEN = {"exponent": 0.25, "window_bytes": 3e5, "loss": 0.03}
"""On the training mixes of experiments/fidelity, at 100 Mbit/s: neither jobs alone nor pairs on the same servers tell
them."""

_CHOSEN_OF_PACKETS = {"overhead": 0.04}
"""On the same mixes: the counters of the testbed's interfaces have half of it."""


@dataclass(frozen=True)
class RunModels:
    """What calibrations fit.

    Parameters
    ----------
    by_name
        The models.
    wait
        Of rings, as ``packet-rings`` and ``connection-shares`` have it; None where they have none.
    """

    by_name: Mapping[str, RunModel]
    wait: Constant | None = None


def run_models(rows: Measurements, shares: ShareRows | None, alone: ShareRows | None = None) -> RunModels:
    """Return the models that the rows fit, and those that need shares if these were measured.

    ``packet-rings`` is the testbed as it is known, packet by packet; ``connection-shares`` has shares of links that
    were found on training mixes. Both have the wait of rings if jobs alone tell it. Each model after them leaves one
    thing out or adds one.

    Raises
    ------
    InputError
        No model fits with a time of a byte above 0.
    """
    models = {name: RunModel(contention=preset) for name, preset in fitted_models(rows).items()}
    if shares is None:
        return RunModels(models)
    fit = fit_size_shares(shares, rows)
    models["size-shares"] = RunModel(contention=fit.whole, in_chunks=fit.in_chunks)
    wait = fit_wait(alone, resolve("contention", fit.of_connections)) if alone else None
    found = {name: constant.value for name, constant in fit.constants.items()}
    whole = ConnectionShares(
        latency_s=found["latency_s"],
        per_byte_s=found["per_byte_s"],
        step_s=found.get("step_s", 0.0),
        wait=wait.value if wait else 0.0,
        **_CHOSEN,
    )
    return RunModels(models | _with_ablations(whole, fitted_constants(rows)) | _by_packets(whole), wait)


def _by_packets(alone: ConnectionShares) -> dict[str, RunModel]:
    """Return ``packet-rings``, whose transfers alone cost what those of ``connection-shares`` do, and ablations."""
    packets = PacketRings(
        latency_s=alone.latency_s,
        per_byte_s=alone.per_byte_s,
        step_s=alone.step_s,
        wait=alone.wait,
        **_CHOSEN_OF_PACKETS,
    )
    model = RunModel(contention=packets, chunks_end=True)
    return {
        "packet-rings": model,
        f"{WITHOUT}no loss of packets": replace(model, contention=replace(packets, queue_bytes=2e6)),
        f"{WITHOUT}no time to react": replace(model, contention=replace(packets, react_s=0.0)),
        f"{WITHOUT}no overhead": replace(model, contention=replace(packets, overhead=0.0)),
    }


def _with_ablations(whole: ConnectionShares, without_steps: Mapping[str, float]) -> dict[str, RunModel]:
    model = RunModel(contention=whole, chunks_end=True)
    a_transfer = SizeShares(
        **{field.name: getattr(whole, field.name) for field in fields(SizeShares)}  # all but the loss
    )
    return {
        "connection-shares": model,
        f"{WITHOUT}a share a transfer": replace(model, contention=a_transfer),
        f"{WITHOUT}even shares": replace(model, contention=replace(whole, exponent=0.0)),
        f"{WITHOUT}no loss": replace(model, contention=replace(whole, loss=0.0)),
        f"{WITHOUT}no steps": replace(model, contention=replace(whole, step_s=0.0, **without_steps)),
        f"{WITHOUT}pauses at once": replace(model, chunks_end=False),
        **({f"{WITHOUT}no wait": replace(model, contention=replace(whole, wait=0.0))} if whole.wait else {}),
        f"{WITH}jitter of 3 %": replace(model, jitter_cv=0.03, seeds=3),
    }
