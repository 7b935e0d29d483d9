"""Who runs in the end of many drawn cases, by each admission policy, and that quotas count who runs all along."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from kept_numbers import assert_kept, digest
from mixed_jobs import GROUND, TENANTS, jobs

from ddlsched import Cluster, simulate
from ddlsched.plugins.names import resolve
from ddlsched.policies.tenants_view import TenantsView
from ddlsched.policies.views import ClusterView
from ddlsched.testing.admission_conformance import Case, play, random_case

POLICIES = (
    "hived",
    "kai",
    "kai:usage_half_life_s=3,usage_weight=2",
    "kueue",
    "kueue:fair_sharing=true",
    "slurm-multifactor:calc_period_s=2,max_age_s=9,requeue_s=0",
    "slurm-multifactor:backfill=slurm-backfill,calc_period_s=1,requeue_s=3,size_weight=9000",
    "volcano",
    "volcano:plugin=capacity",
    "volcano:plugin=drf",
)


def cases(number: int) -> Iterator[Case]:
    """Cases of which every other has more jobs than have room."""
    rng = np.random.default_rng(47)
    for place in range(number):
        case = random_case(rng)
        more = [job._replace(num_gpus=6 - job.num_gpus, priority=job.priority + 1) for job in case.jobs]
        yield replace(case, jobs=(*case.jobs, *reversed(more))) if place % 2 else case


@pytest.mark.long
def test_who_runs_in_the_end_is_who_did() -> None:
    found = {}
    for name in (name for name in POLICIES if "backfill" not in name):  # which asks for jobs' time limits
        ends = [play(case, resolve("admission", name), at_once=place % 3 > 0) for place, case in enumerate(cases(40))]
        found[name] = f"{sum(len(running) for _, running in ends)} {digest(ends)}"
    assert len({*found.values()}) == len(found)
    assert_kept("admissions", found)


class Counted:
    """A policy of which it is looked at what it leaves behind each time that it was asked."""

    def __init__(self, policy: Any) -> None:
        self._policy, self.rounds = policy, 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._policy, name)

    def begin(self, cluster: Cluster, rng: np.random.Generator) -> Counted:
        self._policy = self._policy.begin(cluster, rng) if hasattr(self._policy, "begin") else self._policy
        return self

    def admit(self, tenants: TenantsView, cluster: ClusterView) -> Iterator[Any]:
        yield from self._policy.admit(tenants, cluster)
        held = Counter[str]()
        for holding in tenants.holdings.values():
            held[holding.queue] += holding.num_gpus
        leaves = tenants.quotas.leaves
        assert {leaf.name: leaf.used["any"] for leaf in leaves} == {leaf.name: held[leaf.name] for leaf in leaves}
        self.rounds += 1


@pytest.mark.long
@pytest.mark.parametrize("name", POLICIES)
def test_a_policy_that_tries_what_would_be_leaves_quotas_as_they_were(name: str) -> None:
    policy = Counted(resolve("admission", name))
    cluster = replace(GROUND, exclusive=True)
    placement = None if getattr(resolve("admission", name), "chooses_gpus", False) else "first-fit"
    run = simulate(jobs(tiers=False), cluster, queues=TENANTS, admission=policy, placement=placement, seed=3)
    assert policy.rounds > len(run.workload)
