"""Hundreds of configurations have the times that they had: a change of one is [BREAKING] and has a reason.

``python tests/engine/test_configurations.py`` writes the file anew and says which have changed.
"""

from __future__ import annotations

import hashlib
import itertools
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import ddlsched
from ddlsched.cluster.disturbances import Disturbances
from ddlsched.results.result import Result

FILE = Path(__file__).parents[1] / "golden" / "configurations.json"
COMPILED = ("srsf", "srsf:communication=true", "srtf", "srtf:communication=true", "fifo", "las")
OTHERS = ("tiresias", "themis", "qssf")
COMMUNICATIONS = ("bounded-overlap:limit=1", "bounded-overlap:limit=2", "adadual", "preemptive")
KEYS = ("preemptive:by=service", "preemptive:by=time", "preemptive:by=bytes")
CONTENTIONS = ("10gbe", "linear:latency_s=1e-3", "max-min", "equal-share")
TOPOLOGIES = ("leaf-spine:servers_per_leaf=4,oversubscription=4", "fat-tree")
BUNDLES = ("ada-srsf", "srsf-1", "srsf-2", "srsf-3", "block-srtf")
DISTURBANCES = {
    "jitter": Disturbances(jitter_cv=0.2),
    "slow": Disturbances(straggler_share=0.3, straggler_slowdown=1.7),
    "fail": Disturbances(server_mtbf_s=60, server_repair_s=5, restart_s=1, checkpoint_iterations=5),
}
TIMES = ("start_ns", "finish_ns", "computing_ns", "communicating_ns", "network_wait_ns", "gpu_wait_ns", "queueing_ns")


def fingerprint(result: Result) -> str:
    """Return a hash of all times of the jobs and of how long each GPU computed."""
    digest = hashlib.sha256()
    for field in (*TIMES, "restarts"):
        digest.update(result.finished.state.jobs[field].tobytes())
    digest.update(result.finished.busy_ns.tobytes())
    return digest.hexdigest()[:16]


def configurations() -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield a name and the settings of a run of 160 small jobs."""
    networks = itertools.product(COMMUNICATIONS + KEYS, CONTENTIONS)
    for communication, contention in networks:
        network = {"placement": "lwf:kappa=1", "communication": communication, "contention": contention}
        for order in COMPILED:
            yield f"{order} | {communication} | {contention}", {"order": order} | network
        for topology in TOPOLOGIES:
            cluster = ddlsched.Cluster(num_servers=16, topology=topology)
            yield f"{topology} | {communication} | {contention}", network | {"cluster": cluster}
    for order, communication in itertools.product(OTHERS, ("bounded-overlap:limit=1", "adadual")):
        yield f"{order} | {communication}", {"order": order, "communication": communication}
    for bundle in BUNDLES:
        yield bundle, {"scheduler": bundle}
        yield f"{bundle} | interference", {"scheduler": bundle, "interference": "uniform:share=0.3"}
        for name, disturbances in DISTURBANCES.items():
            yield f"{bundle} | {name}", {"scheduler": bundle, "disturbances": disturbances, "seed": 5}


def fingerprints() -> dict[str, str]:
    workload = ddlsched.microsoft_160(seed=3, scale=0.01)
    return {name: fingerprint(ddlsched.simulate(workload, **options)) for name, options in configurations()}


@pytest.mark.slow
def test_every_configuration_has_the_times_that_it_had() -> None:
    known = json.loads(FILE.read_text())
    found = fingerprints()
    assert {name for name in found if known.get(name) != found[name]} == set()
    assert known.keys() == found.keys()


if __name__ == "__main__":
    before = json.loads(FILE.read_text()) if FILE.exists() else {}
    after = fingerprints()
    print(*(name for name in after if before.get(name) != after[name]), sep="\n")
    FILE.write_text(json.dumps(after, indent=0) + "\n")
