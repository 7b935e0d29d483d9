"""The rule by which a traced job becomes a training job: a model, the time of an iteration, how many iterations."""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ddlsched.deferred import np, pd
from ddlsched.errors import InputError
from ddlsched.ranges import check_fields, ranged
from ddlsched.workload.generators.microsoft import MODELS, ModelTimes

if TYPE_CHECKING:
    import numpy.typing as npt

    from ddlsched.network.contention import ContentionModel

FORWARD_SHARE = 0.4
"""Forward's share of a traced iteration's compute time: 0.400 to 0.405 in the four measured models."""
PARAMETERS = {
    "alexnet": 61_100_840,
    "vgg11": 132_863_336,
    "vgg19": 143_667_240,
    "resnet18": 11_689_512,
    "resnet101": 44_549_160,
    "resnet152": 60_192_808,
    "googlenet": 6_624_904,
    "shufflenet_v2_x1_0": 2_278_604,
    "inception4": 42_679_816,
    "bert": 109_482_240,
    "gpt2": 124_439_808,
}
"""Parameters of models that traces name and that are not measured: torchvision's documentation of each model; timm's
inception_v4; bert-base-uncased and gpt2 of Hugging Face. A gradient has 4 bytes a parameter."""
_BYTES_PER_PARAMETER = 4
_OTHER_NAMES = {"inception3": "inceptionv3"}
_MOST_S = 9.2e9
"""What a 64-bit count of nanoseconds holds, of time and of GPU time; more is refused."""


def _plain(name: str) -> str:
    plain = re.sub("[^a-z0-9]", "", name.lower())
    return _OTHER_NAMES.get(plain, plain)


def _stand_in(name: str, parameters: int) -> ModelTimes:
    """Return a model with its own gradient; memory and passes are those of the measured one nearest in gradient."""
    message_bytes = float(_BYTES_PER_PARAMETER * parameters)
    nearest = min(MODELS, key=lambda model: abs(model.message_bytes - message_bytes))
    return nearest._replace(name=name, message_bytes=message_bytes)


_KNOWN = tuple(MODELS) + tuple(_stand_in(name, parameters) for name, parameters in PARAMETERS.items())
_NUMBER_OF = {_plain(model.name): number for number, model in enumerate(_KNOWN)}


OF_REPORT = ("drawn", "alone_s", "refused")
"""Columns of :meth:`JobRule.apply` that are no workload's."""


@dataclass(frozen=True, kw_only=True)
class JobRule:
    """Turns traced jobs into training jobs whose time alone on their GPUs is the traced duration.

    - Model: the trace's own if its gradient is known (the four measured ones and :data:`PARAMETERS`), else one of
      the four, drawn by a hash of the seed and the job's id: the same whatever else is imported.
    - Compute time of an iteration: the trace's own (duration / iterations, or the time it states), of which forward
      is 0.4; else the model's.
    - Time of an iteration alone: compute, and on several servers the all-reduce, latency + bytes x time of a byte.
      A job is on as few servers as can be.
    - Iterations: duration / time of an iteration alone, to the nearest, at least 1; the trace's own where it tells
      no duration.

    Parameters
    ----------
    contention
        Whose latency, bytes and time of a byte count.
    gpus_per_server
        Decides which jobs are on several servers.
    seed
        Of the drawn models, from 0.

    Raises
    ------
    InputError
        A value out of range, or a contention model that knows no time of a byte.
    """

    contention: ContentionModel
    gpus_per_server: int = ranged(4, 1)
    seed: int = ranged(1, 0)

    def __post_init__(self) -> None:
        check_fields(self, "import")
        try:
            _ = self.contention.alone_per_byte_s
        except InputError:
            name = type(self.contention).__name__
            expected = "expected its per_byte_s, such as max-min:per_byte_s=8e-10"
            raise InputError(f"contention {name}: per_byte_s is unknown without a network; {expected}") from None

    def all_reduce_s(self, message_bytes: float, num_gpus: int) -> float:
        """Return the time of a job's all-reduce alone: 0 on one server."""
        servers = -(-num_gpus // self.gpus_per_server)
        from ddlsched.network.contention import ring_bytes

        if servers == 1:
            return 0.0
        wire_bytes = ring_bytes(self.contention, message_bytes, servers)
        return self.contention.latency_s + wire_bytes * self.contention.alone_per_byte_s

    def drawn(self, job_id: str) -> int:
        """Return the number in ``MODELS`` that is drawn for a job."""
        digest = hashlib.blake2b(f"{self.seed}:{job_id}".encode(), digest_size=8).digest()
        return int.from_bytes(digest) % len(MODELS)

    def apply(self, traced: pd.DataFrame) -> pd.DataFrame:
        """Return the columns of a workload file, and those of :data:`OF_REPORT`.

        Parameters
        ----------
        traced
            The columns of :class:`~ddlsched.workload.traces.traced.TracedJob`, a row a job.
        """
        numbers = traced["model"].map(lambda name: -1 if name is None else _NUMBER_OF.get(_plain(name), -1))
        model = numbers.to_numpy(dtype=np.int64, copy=True)
        drawn = model < 0
        model[drawn] = [self.drawn(job_id) for job_id in traced["job_id"][drawn]]
        known = pd.DataFrame(_KNOWN).iloc[model].reset_index(drop=True)
        forward_s, backward_s = _passes(traced, known)
        all_reduce_s = self._all_reduces(known["message_bytes"].to_numpy(), traced["num_gpus"].to_numpy())
        iteration_s = forward_s + backward_s + all_reduce_s
        duration_s, traced_iterations = traced["duration_s"].to_numpy(), traced["iterations"].to_numpy()
        iterations = np.where(np.isnan(duration_s), traced_iterations, duration_s / iteration_s)
        iterations = np.maximum(np.rint(iterations), 1.0)
        service_s = (forward_s + backward_s) * iterations * traced["num_gpus"].to_numpy()
        return pd.DataFrame(
            {
                "job_id": traced["job_id"].to_numpy(),
                "arrival_s": traced["arrival_s"].to_numpy(),
                "gpus": traced["num_gpus"].to_numpy(),
                "iterations": iterations.clip(max=2.0**62).astype(np.int64),
                "forward_s": forward_s,
                "backward_s": backward_s,
                "message_bytes": known["message_bytes"],
                "gpu_memory_mb": known["gpu_memory_mb"],
                "model": known["name"],
                **{name: traced[name].to_numpy() for name in ("user", "time_limit_s", "queue", "priority")},
                "drawn": drawn,
                "alone_s": iterations * iteration_s,
                "refused": (service_s > _MOST_S) | (traced["arrival_s"].to_numpy() > _MOST_S),
            }
        )

    def _all_reduces(
        self, message_bytes: npt.NDArray[np.float64], gpus: npt.NDArray[np.int64]
    ) -> npt.NDArray[np.float64]:
        if not len(gpus):
            return np.zeros(0)
        pairs, place = np.unique(np.stack([message_bytes, gpus.astype(np.float64)]), axis=1, return_inverse=True)
        times = np.array([self.all_reduce_s(float(size), int(count)) for size, count in pairs.T])
        return times[place.reshape(-1)]


def _passes(traced: pd.DataFrame, known: pd.DataFrame) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    """Return forward and backward in seconds, whole nanoseconds, as the simulator's clock will count them."""
    iterations = traced["iterations"].to_numpy(dtype=np.float64)
    with np.errstate(divide="ignore"):
        from_duration_s = np.where(iterations > 0, traced["duration_s"].to_numpy() / iterations, np.nan)
    compute_s = np.where(np.isnan(traced["compute_s"]), from_duration_s, traced["compute_s"])
    own = np.isnan(compute_s)
    forward_s = np.where(own, known["forward_s"], FORWARD_SHARE * compute_s)
    backward_s = np.where(own, known["backward_s"], (1 - FORWARD_SHARE) * compute_s)
    # Never 0: an iteration takes at least a nanosecond each way.
    return np.maximum(np.rint(forward_s * 1e9), 1.0) / 1e9, np.maximum(np.rint(backward_s * 1e9), 1.0) / 1e9
