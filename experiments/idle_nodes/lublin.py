"""Batch jobs of a parallel machine by Lublin and Feitelson's model: nodes and run times.

"The workload on parallel supercomputers: modeling the characteristics of rigid jobs", JPDC 63(11), 2003, its
constants of batch jobs. Its arrivals with their daily rhythm are left out.
"""

from __future__ import annotations

import math

import numpy as np

SERIAL, POWER_OF_TWO = 0.244, 0.576
"""Shares of jobs: on one node; on a power of two that is not one."""
LEAST, BELOW_MOST, LOWER_SHARE = 0.8, 2.5, 0.86
"""log2 of a parallel job's nodes is uniform from 0.8 to that of the machine less 2.5 in 86 % of them, else above."""
SHORT, LONG = (4.2, 0.94), (312.0, 0.03)
"""Shape and scale of the two gammas of which the logarithm of a run time, in seconds, is drawn."""
SHORT_SHARE, LESS_A_NODE = 0.78, 0.0054
"""Share of the first gamma, and by how much it falls with every node."""
LONGEST_LOG = 12.0


def nodes_and_run_s(rng: np.random.Generator, num_jobs: int, most_nodes: int) -> tuple[np.ndarray, np.ndarray]:
    """Return nodes and run times, seconds, of so many jobs of a machine."""
    nodes = np.array([_nodes(rng, most_nodes) for _ in range(num_jobs)])
    return nodes, np.array([_run_s(rng, count) for count in nodes.tolist()])


def _nodes(rng: np.random.Generator, most_nodes: int) -> int:
    kind = rng.random()
    if kind <= SERIAL:
        return 1
    most = math.log2(most_nodes)
    middle = most - BELOW_MOST
    low, high = (LEAST, middle) if rng.random() <= LOWER_SHARE else (middle, most)
    log2 = rng.uniform(low, high)
    return round(2.0 ** (round(log2) if kind <= SERIAL + POWER_OF_TWO else log2))


def _run_s(rng: np.random.Generator, nodes: int) -> float:
    share = min(max(SHORT_SHARE - LESS_A_NODE * nodes, 0.0), 1.0)
    while True:
        shape, scale = SHORT if rng.random() <= share else LONG
        log = rng.gamma(shape, scale)
        if log <= LONGEST_LOG:
            return float(max(round(math.exp(log)), 1))
