"""What modules outside the engine begin with is what it was."""

from __future__ import annotations

import pytest
from kept_beginnings import beginnings, modules_of
from kept_numbers import assert_kept

ROOMS = [
    "algorithms", "topologies", "ddlsched.checkpoints", "ddlsched.cli", "ddlsched.cluster", "ddlsched.comparisons",
    "ddlsched.envs", "ddlsched.io", "ddlsched.network", "ddlsched.plugins", "ddlsched.policies", "ddlsched.real",
    "ddlsched.results", "ddlsched.training", "ddlsched.workload",
]  # fmt: skip


@pytest.mark.parametrize("room", ROOMS)
def test_what_modules_begin_with_is_what_it_was(room: str) -> None:
    """Another constant, or another number where a call says none, is another result: who changes one sees it here."""
    told = {module.__name__.removeprefix(f"{room}."): beginnings(module) for module in modules_of(room)}
    assert_kept(f"beginnings-of-{room.removeprefix('ddlsched.')}", {name: each for name, each in told.items() if each})
