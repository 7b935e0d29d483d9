"""Small networks of dense layers, from arrays in a file that is parsed and never executed."""

from __future__ import annotations

import io
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from ddlsched.errors import InputError
from ddlsched.io.files import replacing
from ddlsched.io.reading import read_bytes

__all__ = ["DenseLayer", "DenseNetwork", "read_network", "write_network"]

_MOST_BYTES = 64 << 20


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
