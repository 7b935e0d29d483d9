"""What changing a job's parallelism moves and takes: Tenplex's published rows, growth, and failures.

    python experiments/reconfiguration/run.py [--out DIR]

Prints the tables and writes them to DIR/tables.
"""

from __future__ import annotations

import itertools
import sys
from collections.abc import Iterator

import numpy as np
import pandas as pd
from published import FAILURES, FROM, GPUS_PER_HOST, HOSTS, MODELS, RESIZES, Change, tensors_of
from schemes import central_s, collection, lost_with, moved, stored_bytes

from ddlsched.checkpoints.change_cost import Site, reconfiguration_s, staying
from ddlsched.checkpoints.collection import StoredParallelism, StoredRegion, TensorCollection
from ddlsched.checkpoints.plan import NoReplicaError, ReshardPlan, plan
from experiments.commands import new_parser, write_tables
from topologies.star import Star

GB = 1e9
NIC_GBPS = 100.0
"""Of a host, stated: what the published machines had is not known here."""
HOST_BYTES_PER_S = 20e9
"""Copies between a host's GPUs, stated: about PCIe 4.0 x16 both ways."""
SITE = Site(topology=Star(nic_gbps=NIC_GBPS), host_bytes_per_s=HOST_BYTES_PER_S)
GROWTH = (8, 16, 32, 64, 128)


def size_table() -> pd.DataFrame:
    """Return the checkpoints' sizes at (4,2,1), computed from the models' descriptions alone."""
    rows = []
    for model, (_, published_gb) in MODELS.items():
        ours_gb = sum(stored_bytes(collection(tensors_of(model), FROM, GPUS_PER_HOST))) / GB
        rows.append({"model": model, "published_gb": published_gb, "ours_gb": ours_gb})
    return pd.DataFrame(rows)


def bytes_table() -> pd.DataFrame:
    """Return bytes over the network, and seconds at the stated bandwidths, by scheme; the published seconds beside."""
    return pd.DataFrame([row for model, change in itertools.product(MODELS, RESIZES) for row in _rows(model, change)])


def _rows(model: str, change: Change) -> Iterator[dict[str, object]]:
    tensors = tensors_of(model)
    old, new = (collection(tensors, to, GPUS_PER_HOST) for to in (FROM, change.to))
    for found in moved(old, new, SITE):
        yield {
            "model": model,
            "change": change.name,
            "scheme": found.scheme,
            "network_gb": found.network_bytes / GB,
            "lower_bound_gb": found.lower_bound_bytes / GB,
            "not_kept_gb": found.not_kept_bytes / GB,
            "handled_gb": found.all_bytes / GB,
            "transfer_s": found.transfer_s,
            "central_s": central_s(old, new, NIC_GBPS * 1e9 / 8),
            "published_s": change.tenplex_s[model],
            "published_central_s": change.central_s[model],
        }


def fit_table(found: pd.DataFrame) -> pd.DataFrame:
    """Return start-up seconds and the rate of all hosts that explain the published seconds, by kind of change.

    Least squares of seconds over the bytes that the published scheme handles (all of them). ``predicted_s`` is what the
    same start-up and rate make of those bytes of the 6.7B model that our plan does not find where they are needed.
    """
    rows = []
    for change, group in found.groupby("change", sort=False):
        published = group[group["scheme"] == "published"]
        slope, start_s = np.polyfit(published["handled_gb"], published["published_s"], 1)
        error = np.abs((start_s + slope * published["handled_gb"]) / published["published_s"] - 1).max()
        ours = group[(group["scheme"] == "plan, staying") & (group["model"] == "6.7B")].iloc[0]
        rows.append(
            {
                "change": change,
                "start_s": start_s,
                "rate_gb_per_s": 1 / slope,
                "largest_error": error,
                "published_s": ours["published_s"],
                "predicted_s": start_s + slope * ours["not_kept_gb"],
            }
        )
    return pd.DataFrame(rows)


def growth_table(model: str = "6.7B") -> pd.DataFrame:
    """Return the seconds of doubling a job's GPUs, by which degree is doubled; hosts of 8 GPUs."""
    rows = []
    tensors = tensors_of(model)
    for gpus, kind in itertools.product(GROWTH, ("DP", "TP", "PP")):
        before = StoredParallelism(tp=4, pp=2, dp=gpus // 8)
        degrees = {"tp": before.tp, "pp": before.pp, "dp": before.dp}
        after = StoredParallelism(**{**degrees, kind.lower(): 2 * degrees[kind.lower()]})
        old, new = (collection(tensors, to, 8) for to in (before, after))
        schemes = {found.scheme: found.transfer_s for found in moved(old, new, SITE)}
        central = central_s(old, new, NIC_GBPS * 1e9 / 8)
        rows.append({"change": kind, "from_gpus": gpus, "to_gpus": 2 * gpus, **schemes, "central": central})
    return pd.DataFrame(rows)


def failure_table(model: str = "XL") -> pd.DataFrame:
    """Return, for every set of hosts of (4,2,2) that fails, what can be recovered, and how long the transfer takes."""
    old = collection(tensors_of(model), StoredParallelism(tp=4, pp=2, dp=2), GPUS_PER_HOST)
    sets = [failed for count in (1, 2, 3) for failed in itertools.combinations(range(HOSTS), count)]
    rows = [
        {"failed_gpus": len(failed) * GPUS_PER_HOST, "failed_hosts": _text(failed), **_recovery(old, failed)}
        for failed in sets
    ]
    return pd.DataFrame(rows)


def _recovery(old: TensorCollection, failed: tuple[int, ...]) -> dict[str, object]:
    """Return the change to (4,2,1), or (4,1,1) if one host is left, on those hosts that need least."""
    left = [host for host in range(HOSTS) if host not in failed]
    to = StoredParallelism(tp=4, pp=min(2, len(left)))
    lost = lost_with(old, failed)
    try:
        changes = [_change(old, to, hosts, lost) for hosts in itertools.combinations(left, to.pp)]
    except NoReplicaError as error:
        lacking = str(error).split(":")[0]
        return {"to": _degrees(to), "transfer_s": np.nan, "network_gb": np.nan, "no_replica_of": lacking}
    best = min(changes, key=lambda change: change.bytes_by_way["network"])
    seconds, network_gb = reconfiguration_s(best, SITE).transfer_s, best.bytes_by_way["network"] / GB
    return {"to": _degrees(to), "transfer_s": seconds, "network_gb": network_gb, "no_replica_of": ""}


def _change(old: TensorCollection, to: StoredParallelism, hosts: tuple[int, ...], lost: tuple[int, ...]) -> ReshardPlan:
    devices = tuple(host * GPUS_PER_HOST + number for host in hosts for number in range(GPUS_PER_HOST))
    allocation = StoredRegion(devices=devices, hosts=tuple(device // GPUS_PER_HOST for device in devices))
    return plan(old, staying(old, old.resized(to, allocation=allocation), lost), lost=lost)


def _degrees(parallelism: StoredParallelism) -> str:
    return f"({parallelism.tp},{parallelism.pp},{parallelism.dp})"


def _text(numbers: tuple[int, ...]) -> str:
    return " ".join(map(str, numbers))


def failure_summary(found: pd.DataFrame) -> pd.DataFrame:
    """Return how many sets of failed hosts leave a replica of everything; the published seconds beside."""
    groups = found.groupby("failed_gpus")["transfer_s"]
    table = pd.DataFrame({"sets": groups.size(), "recoverable": groups.count(), "longest_transfer_s": groups.max()})
    published = pd.DataFrame(FAILURES, index=["published_s", "published_checkpoint_s"]).T
    return table.join(published).reset_index(names="failed_gpus")


def main() -> int:
    """Compute, print, write."""
    out = new_parser(__doc__, "reconfiguration").parse_args().out
    found, growth, failures = bytes_table(), growth_table(), failure_table()
    tables = {
        "sizes": size_table(),
        "published": found,
        "fit": fit_table(found),
        "growth": growth,
        "failures": failures,
        "failure_summary": failure_summary(failures),
    }
    write_tables(out / "tables", tables, float_format="%.6g")
    for name, table in tables.items():
        print(f"## {name}\n\n{table.to_string(index=False, float_format='{:.4g}'.format, na_rep='-')}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
