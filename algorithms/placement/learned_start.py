"""Who starts next, by a network that was trained in ``ddlsched.envs.OrderEnv``.

Small networks of dense layers are arrays in a file that is parsed and never executed.
"""

from __future__ import annotations

import io
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np

from ddlsched.cluster.cluster import Cluster
from ddlsched.errors import InputError
from ddlsched.io.files import read_bytes, replacing
from ddlsched.policies.choosing import JOB_FEATURES, Choosing, begun_placement
from ddlsched.policies.doors import PlacementPolicy

_SHIPPED: Final = Path(__file__).with_name("learned_start.npz")
_MOST_BYTES = 64 << 20


@dataclass(frozen=True, kw_only=True)
class LearnedStart:
    """The job of the queue with the largest output of a network starts, or nobody if that output is the last.

    The network sees what :func:`ddlsched.policies.choosing.queue_features` returns of the first jobs; the order
    says which those are. That which is shipped was trained on exclusive GPUs, with ``order="srtf"``
    (``experiments/learned_order``).

    Parameters
    ----------
    weights
        File of :func:`write_network`; by default the shipped one.
    placement
        Where jobs run: a policy with ``place``, or its name.
    """

    weights: str = ""
    placement: PlacementPolicy | str = "lwf"

    def begin(self, cluster: Cluster, rng: np.random.Generator) -> Choosing:
        """Return the policy with its network."""
        path = Path(self.weights) if self.weights else _SHIPPED
        network = read_network(path)
        slots = network.num_outputs - 1
        if slots < 1 or network.num_inputs != slots * len(JOB_FEATURES):
            sizes = f"{network.num_inputs} inputs and {network.num_outputs} outputs"
            raise InputError(f"{path}: has {sizes}; expected {len(JOB_FEATURES)} inputs for all outputs but one")

        def choose(features: np.ndarray, allowed: np.ndarray, _now_s: float) -> int:
            return int(np.argmax(np.where(allowed, network(features.ravel()), -np.inf)))

        return Choosing(begun_placement(self.placement, cluster, rng), slots, choose)


class DenseLayer(NamedTuple):
    """``weight`` (outputs, inputs) and ``bias`` (outputs,), float32."""

    weight: np.ndarray
    bias: np.ndarray


class DenseNetwork(NamedTuple):
    """Dense layers with tanh between them."""

    layers: tuple[DenseLayer, ...]

    @property
    def num_inputs(self) -> int:
        """Numbers that it is given."""
        return int(self.layers[0].weight.shape[1])

    @property
    def num_outputs(self) -> int:
        """Numbers that it returns."""
        return len(self.layers[-1].bias)

    def __call__(self, inputs: np.ndarray) -> np.ndarray:
        """Return the outputs for one array of inputs."""
        found = inputs
        for weight, bias in self.layers[:-1]:
            found = np.tanh(weight @ found + bias)
        last: np.ndarray = self.layers[-1].weight @ found + self.layers[-1].bias
        return last


def write_network(path: Path, layers: Sequence[DenseLayer]) -> None:
    """Write a network: ``weight_0``, ``bias_0``, ... as float32 in an ``.npz`` file, whole or not at all."""
    with replacing(path, "weights") as partial, zipfile.ZipFile(partial, "w") as archive:
        for number, layer in enumerate(layers):
            for kind, array in layer._asdict().items():
                with archive.open(f"{kind}_{number}.npy", "w") as file:
                    np.lib.format.write_array(file, np.asarray(array, np.float32), allow_pickle=False)


def read_network(path: Path) -> DenseNetwork:
    """Return the network of a file.

    Raises
    ------
    InputError
        It is no such file, or its arrays are no layers that fit one behind the other.
    """
    try:
        content = read_bytes(path, _MOST_BYTES)
        arrays = _arrays(content)
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror or error})") from None
    except (ValueError, EOFError, zipfile.BadZipFile, KeyError, NotImplementedError) as error:
        raise InputError(f"{path}: holds no arrays ({error}); expected weights in an .npz file") from None
    return DenseNetwork(tuple(_layers(path, arrays)))


def _arrays(content: bytes) -> dict[str, np.ndarray]:
    """Return the arrays of an .npz file; objects are refused."""
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        if sum(entry.file_size for entry in archive.infolist()) > _MOST_BYTES:
            raise ValueError(f"they take more than {_MOST_BYTES:,} bytes")
    with np.load(io.BytesIO(content), allow_pickle=False) as stored:
        return {name: stored[name] for name in stored.files}


def _layers(path: Path, arrays: Mapping[str, np.ndarray]) -> list[DenseLayer]:
    count = len(arrays) // 2
    if not count or set(arrays) != {f"{kind}_{number}" for number in range(count) for kind in DenseLayer._fields}:
        raise InputError(f"{path}: has the arrays {sorted(arrays)[:6]}; expected weight_0, bias_0, weight_1, ...")
    layers = [DenseLayer(arrays[f"weight_{number}"], arrays[f"bias_{number}"]) for number in range(count)]
    inputs = None
    for number, (weight, bias) in enumerate(layers):
        shape = (len(bias) if bias.ndim == 1 else -1, inputs if inputs is not None else weight.shape[-1:][0])
        if weight.shape != shape or 0 in shape:
            text = f"{path}: weight_{number} has shape {weight.shape}, bias_{number} {bias.shape}"
            raise InputError(f"{text}; expected (outputs, {inputs or 'inputs'}) and (outputs,)")
        if any(part.dtype != np.float32 or not np.isfinite(part).all() for part in (weight, bias)):
            raise InputError(f"{path}: layer {number} is not of finite float32 numbers; expected such")
        inputs = len(bias)
    return layers
