"""Queues of tenants: what can be one, its file, and how quotas add up."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from ddlsched import Preemption, Queue, Quota, Tenants
from ddlsched.cluster.cluster_files import plain_values, read_tenants, write_tenants
from ddlsched.errors import InputError
from ddlsched.policies.quota_tree import QuotaTree
from ddlsched.testing.admission_conformance import random_case

FILE = """
queues:
- {name: all, gpus: 2}
- name: a
  parent: all
  quotas: {any: {gpus: 8, borrowing_limit: 4, lending_limit: 6}}
  order: strict
  preemption: {within_queue: lower-priority, reclaim: any, borrow: lower-priority, borrow_max_priority: 3}
- {name: b, parent: all, gpus: 4, weight: 2.5}
"""
READ = Tenants(
    queues=(
        Queue(name="all", quotas={"any": Quota(gpus=2)}),
        Queue(
            name="a",
            parent="all",
            quotas={"any": Quota(gpus=8, borrowing_limit=4, lending_limit=6)},
            order="strict",
            preemption=Preemption(
                within_queue="lower-priority", reclaim="any", borrow="lower-priority", borrow_max_priority=3
            ),
        ),
        Queue(name="b", parent="all", quotas={"any": Quota(gpus=4)}, weight=2.5),
    )
)


def test_a_file_is_read_and_written(tmp_path: Path) -> None:
    path = tmp_path / "queues.yaml"
    path.write_text(FILE)
    assert read_tenants(path) == READ
    assert READ.leaves == ("a", "b")
    write_tenants(READ, path)
    assert read_tenants(path) == READ
    assert plain_values(READ)["queues"][2] == {
        "name": "b",
        "parent": "all",
        "quotas": {"any": {"gpus": 4}},
        "weight": 2.5,
    }


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("queues: [", ["is no YAML"]),
        ("a: 1", ["expected 'queues:'"]),
        ("queues: [{name: a, gpu: 3}]", ["queue 1: unknown field 'gpu'", "gpus"]),
        ("queues: [{name: a, gpus: -3}]", ["queue 'a': quota: gpus is -3; expected a whole number"]),
        ("queues: [{name: a, gpus: many}]", ["queue 'a': quota: gpus is 'many'"]),
        ("queues: [{name: a, parent: b}]", ["queue 'a': no queue is named 'b'"]),
        ("queues: [{name: a, parent: b}, {name: b, parent: a}]", ["queue 'a': is above itself"]),
        ("queues: [{name: a}, {name: a}]", ["queue 'a': is there twice"]),
        (
            "queues: [{name: a, preemption: {reclaim: all}}]",
            ["reclaim is 'all'; expected one of never"],
        ),
        ("queues: [{name: a, quotas: {any: {gpus: 1}, a100: {gpus: 1}}}]", ["'any' and of kinds"]),
        ("queues: [{name: a, preemption: lower}]", ["is 'lower'; expected fields"]),
        ("queues: [{name: a, weight: heavy}]", ["queues.yaml: queue 'a': weight is 'heavy'"]),
    ],
)
def test_what_is_no_file_of_queues_is_refused(tmp_path: Path, text: str, parts: list[str]) -> None:
    path = tmp_path / "queues.yaml"
    path.write_text(text)
    with pytest.raises(InputError) as refused:
        read_tenants(path)
    for part in [str(path), *parts]:
        assert part in str(refused.value)


def test_quotas_add_up_as_lending_limits_allow() -> None:
    tree = QuotaTree(READ)
    a, b, root = tree["a"], tree["b"], tree["all"]
    assert (a.kept["any"], root.quota["any"]) == (2, 2 + 6 + 4)
    assert (a.lacks("of no quota"), a.lacks("of no quota", 1)) == (False, True)
    assert (a.available("any"), b.available("any")) == (8 + 4, 12)
    b.add("any", 7)
    assert (b.borrowed("any"), a.available("any"), b.available("any")) == (3, 2 + 5, 5)
    assert tree.share(b) == (False, 3 / 12 / 2.5)
    a.add("any", 7)
    assert (root.used["any"], a.available("any"), b.available("any")) == (12, 0, 0)
    a.remove("any", 7)
    b.remove("any", 7)
    assert (root.used["any"], a.available("any")) == (0, 12)


@pytest.mark.long
def test_what_is_counted_in_groups_follows_from_what_queues_use() -> None:
    """Usage that is added and taken away in any order is what it is if reckoned from the queues upwards."""
    rng = np.random.default_rng(4)
    for _ in range(40):
        tree = QuotaTree(random_case(rng).tenants)
        held = []
        for _ in range(12):
            leaf = tree.leaves[int(rng.integers(len(tree.leaves)))]
            gpus = int(rng.integers(1, 5))
            if held and rng.random() < 0.4:
                leaf, gpus = held.pop(int(rng.integers(len(held))))
                leaf.remove("any", gpus)
            else:
                leaf.add("any", gpus)
                held.append((leaf, gpus))
            for node in tree.nodes.values():
                if node.is_leaf:
                    expected = sum(gpus for leaf, gpus in held if leaf is node)
                else:
                    expected = sum(max(0, c.used["any"] - c.kept.get("any", 0)) for c in node.children)
                assert node.used["any"] == expected
