"""Who starts next, by a network that was trained in ``ddlsched.envs.OrderEnv``."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np

from ddlsched.cluster.cluster import Cluster
from ddlsched.errors import InputError
from ddlsched.policies.choosing import JOB_FEATURES, Choosing, begun_placement
from ddlsched.policies.dense_network import read_network
from ddlsched.policies.doors import PlacementPolicy

__all__ = ["LearnedStart"]

_SHIPPED: Final = Path(__file__).with_name("learned_start.npz")


@dataclass(frozen=True, kw_only=True)
class LearnedStart:
    """The job of the queue with the largest output of a network starts, or nobody if that output is the last.

    The network sees what :func:`ddlsched.policies.choosing.queue_features` returns of the first jobs; the order
    says which those are. That which is shipped was trained on exclusive GPUs, with ``order="srtf"``
    (``experiments/learned_order``).

    Parameters
    ----------
    weights
        File of :func:`ddlsched.policies.dense_network.write_network`; by default the shipped one.
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
