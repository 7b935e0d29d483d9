"""What modules outside the engine begin with is what it was."""

from __future__ import annotations

from importlib import import_module

import pytest
from kept_beginnings import beginnings, modules_of
from kept_numbers import assert_kept

ROOMS = [
    "algorithms", "topologies", "ddlsched.checkpoints", "ddlsched.cli", "ddlsched.cluster", "ddlsched.comparisons",
    "ddlsched.envs", "ddlsched.io", "ddlsched.network", "ddlsched.plugins", "ddlsched.policies", "ddlsched.real",
    "ddlsched.results", "ddlsched.testing", "ddlsched.training", "ddlsched.workload",
]  # fmt: skip


@pytest.mark.parametrize("room", ROOMS)
def test_what_modules_begin_with_is_what_it_was(room: str) -> None:
    """Another constant, or another number where a call says none, is another result: who changes one sees it here."""
    told = {module.__name__.removeprefix(f"{room}."): beginnings(module) for module in modules_of(room)}
    assert_kept(f"beginnings-of-{room.removeprefix('ddlsched.')}", {name: each for name, each in told.items() if each})


def test_what_modules_beside_the_rooms_begin_with_is_what_it_was() -> None:
    modules = ("deferred", "errors", "options", "ranges", "simulation", "units")
    told = {name: beginnings(import_module(f"ddlsched.{name}")) for name in modules}
    assert_kept("beginnings-beside-rooms", {name: each for name, each in told.items() if each})
