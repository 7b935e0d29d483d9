"""Runs with every plug-in, and with its parameters away from their defaults."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from kept_numbers import assert_kept, digest, short
from mixed_jobs import CAPACITY, GROUND, RAILS, TENANTS, elastic_jobs, jobs, sending

from ddlsched import Disturbances, Result, simulate

RUNS: dict[str, dict[str, dict[str, Any]]] = {
    "placement": {
        "arnold": {"": "servers_per_pod=2", "alpha": 0.0, "servers_per_pod": 3},
        "blocks": {"aligned": "false", "spanning_weight": 1.0, "price": "load", "per_byte_s": 1e-10},
        "cassini": {"candidates": "lwf+blocks"},
        "conservative-backfill": {"placement": "blocks", "error_sigma": 0.8},
        "delay": {"": "server_s=2", "server_s": 0.0, "rack_s": 1.0, "servers_per_rack": 2},
        "easy-backfill": {"placement": "blocks", "error_sigma": 3.0},
        "first-fit": {},
        "hived": {"cells": "a/2x4+b/1x8", "top_servers": 2},
        "in-order": {"placement": "lwf"},
        "kueue-topology": {"least_free": "false"},
        "learned-start": {"placement": "first-fit"},
        "levels": {},
        "list-scheduling": {},
        "lucid": {"window_s": 0.5},
        "lwf": {"kappa": 3},
        "monkeytree": {"": "gpus_per_rack=8,block_gpus=2,spines=2", "gpus_per_rack": 4, "block_gpus": 1, "spines": 1},
        "muri": {"most": 2, "rounds": 1},
        "near-enough": {},
        "random": {},
        "ranked": {},
        "rounds": {"placement": "lwf", "interval_s": 2.5, "in_order_between": "true"},
        "sjf-bsbf": {"slowdown": 1.05},
        "slurm-backfill": {"placement": "blocks", "depth": 2},
        "slurm-block": {"level": "pod"},
        "slurm-shape": {"placement": "lwf"},
        "volcano-hypernodes": {},
        "whole-racks": {"": "servers_per_rack=2,servers_per_pod=4", "servers_per_rack": 1, "servers_per_pod": 8},
        "whole-servers": {"": "servers_per_rack=2", "servers_per_rack": 4},
    },
    "order": {
        "fifo": {},
        "history": {"patience": 0.2},
        "las": {},
        "make-room": {"": "least_run_s=0.5,long_s=5", "long_s": 2.0, "patience": 0.5},
        "narrow-first": {"patience_s": 30.0},
        "qssf": {},
        "srsf": {"communication": "true"},
        "srtf": {"communication": "true"},
        "stopping-srtf": {"communication": "true", "least_gain_s": 2.0},
        "stopping-tiresias": {"": "threshold_gpu_s=9,interval_s=2", "queues": 1, "threshold_gpu_s": 3, "interval_s": 1},
        "themis": {},
        "tiresias": {"": "threshold_gpu_s=5", "threshold_gpu_s": 20.0, "queues": 2},
    },
    "communication": {
        "adadual": {},
        "bounded-overlap": {"limit": 2},
        "cassini": {"tick_s": 0.1, "drift": 0.5, "least_score": 0.2},
        "preemptive": {"by": "bytes"},
    },
    "path": {
        "crux": {"anew": "true"},
        "ecmp": {"seed": 7},
        "least-congested": {},
        "perfect": {},
        "route": {},
        "sglb": {"seed": 3, "best": 2},
    },
    "contention": {
        "1gbe-measured": {"latency_s": 0.01},
        "10gbe": {"latency_s": 0.01},
        "connection-shares": {"exponent": 0.9, "window_bytes": 1e5, "step_s": 1e-3, "chunk_bytes": 1e6, "loss": 0.1},
        "crux": {"": "levels=2", "levels": 3, "orders": 1},
        "equal-share": {"latency_s": 0.01, "per_byte_s": 3e-9},
        "linear": {"penalty_per_byte_s": 1e-9, "card_gbps": 20.0},
        "max-min": {"latency_s": 0.01},
        "mltcp": {"slope": 0.5, "intercept": 0.9, "message_parts": 3},
        "size-shares": {"exponent": 1.0, "window_bytes": 1e6, "chunk_bytes": 1e6},
        "strict-levels": {"": "first=4,factor=3,levels=3", "by": "bytes-sent", "first": 1.0, "factor": 1.5},
    },
    "interference": {"uniform": {"share": 0.9, "once": "true"}},
    "topology": {
        "clos": {"": "servers_per_rack=2,racks_per_pod=2,nic_gbps=20", "aggregations": 1, "cores": 1},
        "fat-tree": {"k": 6, "oversubscription": 3.0},
        "leaf-spine": {"servers_per_leaf": 3, "spines": 1, "nic_gbps": 25.0, "oversubscription": 8.0},
        "lingjun": {},
        "star": {"latency_s": 0.01, "nvlink_gbps": 40.0},
    },
    "recovery": {
        "shrink": {"least_share": 0.9, "replica_gpus": 2, "otherwise": "wait"},
        "spares": {"count": 2, "where": "rack", "start_s": 1.0, "otherwise": "wait"},
        "wait": {"patience_s": 0.5},
    },
    "checkpoint": {"daly": {}, "fixed": {"": "every_s=2", "every_s": 0.5}, "young": {}},
    "health": {"repeated-failures": {"": "count=2,check_s=20"}},
    "collective": {
        "direct": {},
        "double-binary-tree": {"port_share": 0.5},
        "halving-doubling": {},
        "hierarchical": {},
        "in-network": {"port_share": 0.3},
        "nccl": {"": "switches=all", "inside_s": 1e-4, "switch_s": 1e-3, "switch_gbps": 90.0, "port_share": 0.9},
        "ring": {},
    },
    "allocation": {
        "elastic-scaling": {"": "interval_s=10", "interval_s": 4.0, "most_gpus": 3, "batch": "max"},
        "gavel": {"": "round_s=10"},
        "malleable": {"most_jobs": 3, "scale_up_s": 1.0, "lookahead_s": 40.0},
        "malleable-equal-share": {"most_jobs": 3},
        "malleable-links": {"scale_up_s": 1.0, "lookahead_s": 40.0},
        "malleable-survival": {"horizon_s": 90.0},
        "malletrain": {"most_jobs": 3, "lookahead_s": 20.0, "most_scale": 2, "hold_s": 2.0},
        "rubick": {"": "round_s=10", "spare_share": 0.0},
        "sia": {"": "round_s=10", "round_s": 4.0, "power": 0.5, "queue_price": 9.0, "restart_s": 1.0},
        "tiresias": {},
    },
    "admission": {
        "hived": {"cells": "a/1x8+b/2x4+c/1x4"},
        "kai": {"": "usage_half_life_s=5", "usage_weight": 9.0},
        "kueue": {"fair_sharing": "true"},
        "slurm-multifactor": {
            "": "max_age_s=9,half_life_s=5,calc_period_s=2,requeue_s=3,qos_weight=0", "age_weight": 90000.0,
            "fair_share_weight": 0.0, "size_weight": 90000.0, "calc_period_s": 9.0,
        },
        "volcano": {"plugin": "drf"},
    },
}  # fmt: skip
"""By kind and name: a parameter and its value, each tried alone, beside what ``""`` says."""


def outcome(kind: str, spec: str) -> str:
    options: dict[str, Any] = {kind: spec, "seed": 3}
    if kind in ("checkpoint", "recovery", "health"):
        del options[kind]
        failing: dict[str, Any] = {"server_mtbf_s": 40.0, "server_repair_s": 5.0, "restart_s": 0.5, "state_mb": 50.0}
        options["disturbances"] = Disturbances(**failing | {"checkpoint": "fixed:every_s=3", kind: spec})
    if kind == "collective":
        del options[kind]
        return ended(simulate(sending(spec), RAILS, placement="first-fit"))
    if kind == "allocation":
        options |= {"capacity": CAPACITY, "rescale_cost": "up_s=2,down_s=1,start_s=0.5"}
        return ended(simulate(elastic_jobs(), replace(GROUND, topology="star"), **options))
    if kind == "admission":
        options |= {"queues": TENANTS} | ({} if spec.startswith("hived") else {"placement": "first-fit"})
    if kind in ("order", "communication", "path"):
        options |= {"placement": "lwf"}
    if kind == "path":
        options |= {"contention": "max-min"}
    tiers = kind == "placement" and spec.startswith(("levels", "kueue", "volcano", "slurm-block", "ranked"))
    ground = replace(GROUND, exclusive=kind == "admission" and spec.startswith("hived"))
    return ended(simulate(jobs(tiers=tiers), ground, **options))


def ended(run: Result) -> str:
    state = run.finished.state
    where = (run.gpus_of(job.job_id) for job in run.workload)
    told = digest([state.jobs.start_ns, state.jobs.finish_ns, *where])
    return f"{short(state.jobs.finish_ns.mean() / 1e9)} {told}"


def cases(kind: str) -> Iterator[tuple[str, str]]:
    """Each plug-in beside what it is given, and with one parameter more."""
    for name, values in RUNS[kind].items():
        usual = dict(part.split("=") for part in values.get("", "").split(",") if part)
        for change in ({}, *({parameter: value} for parameter, value in values.items() if parameter)):
            given = ",".join(f"{parameter}={value}" for parameter, value in (usual | change).items())
            yield f"{name} {next(iter(change), '')}".strip(), f"{name}:{given}" if given else name


@pytest.mark.long
@pytest.mark.parametrize("kind", RUNS)
def test_each_parameter_changes_a_run_and_runs_are_what_they_were(kind: str) -> None:
    found = {case: outcome(kind, spec) for case, spec in cases(kind)}
    for case, told in found.items():
        name, _, parameter = case.partition(" ")
        assert not parameter or told != found[name], case
    assert_kept(f"runs-{kind}", found)
