"""What Gymnasium's wrappers and other people's training loops expect of environments of many runs."""

from __future__ import annotations

import functools
from typing import Any

import gymnasium
import numpy as np
import pytest

from ddlsched import Cluster
from ddlsched.envs import AllocationVectorEnv, CommunicationVectorEnv, OrderVectorEnv, PlacementVectorEnv
from ddlsched.errors import InputError

STREAM = "stream:load=1.3,num_jobs=12,scale=0.01"
SMALL = Cluster(num_servers=8, exclusive=True)
VECTORS: dict[str, tuple[Any, str, dict[str, Any]]] = {
    "Order": (OrderVectorEnv, STREAM, {"cluster": SMALL, "slots": 5}),
    "Placement": (PlacementVectorEnv, STREAM, {"cluster": SMALL}),
    "Communication": (CommunicationVectorEnv, STREAM, {"cluster": Cluster(num_servers=8)}),
    "Allocation": (AllocationVectorEnv, "elastic-mix:hours=0.1", {"cluster": SMALL}),
}


@functools.cache
def ended(name: str) -> tuple[Any, float, int, dict[str, Any]]:
    """Run to the end of the first episode: what is seen then, of that run; its return and decisions; infos."""
    kind, jobs, arguments = VECTORS[name]
    vector = kind(2, jobs, **arguments)
    seen, _ = vector.reset(seed=3)
    returns, decisions = np.zeros(vector.num_envs), 0
    while True:
        seen, rewards, terminated, _, infos = vector.step(seen["action_mask"].argmax(axis=1))
        returns += rewards
        decisions += 1
        if terminated.any():
            place = int(terminated.argmax())
            return {name: array[place] for name, array in seen.items()}, returns[place], decisions, infos


@pytest.mark.long
@pytest.mark.parametrize("name", VECTORS)
def test_item_20_an_action_is_allowed_at_the_end_of_an_episode(name: str) -> None:
    """A policy that masks takes one action more, which does not count."""
    seen, *_ = ended(name)
    assert seen["action_mask"].any()


@pytest.mark.long
@pytest.mark.parametrize("name", VECTORS)
def test_item_20_final_info_has_the_episode(name: str) -> None:
    """As CleanRL reads it: of each run that has ended a dictionary, and None of the others."""
    _, total, decisions, infos = ended(name)
    told = [info for info in infos["final_info"] if info and "episode" in info]
    assert len(told) == infos["_final_info"].sum() >= 1
    assert told[0]["episode"]["r"] == pytest.approx(total, rel=1e-9)
    assert told[0]["episode"]["l"] == decisions
    assert told[0]["average_jct_s"] in infos["average_jct_s"].tolist()


@pytest.mark.long
@pytest.mark.parametrize("name", VECTORS)
def test_item_20_make_vec_makes_the_compiled_vector(name: str) -> None:
    kind, jobs, arguments = VECTORS[name]
    made = gymnasium.make_vec(
        f"ddlsched/{name}-v0", num_envs=2, vectorization_mode="vector_entry_point", workload=jobs, **arguments
    )
    assert isinstance(made.unwrapped, kind)
    seen, _ = made.reset(seed=1)
    expected, _ = kind(2, jobs, **arguments).reset(seed=1)
    assert all((seen[key] == expected[key]).all() for key in expected)


@pytest.mark.long
def test_item_20_a_reset_mask_begins_only_the_runs_that_it_has() -> None:
    kind, jobs, arguments = VECTORS["Order"]
    vector, other = kind(3, jobs, **arguments), kind(3, jobs, **arguments)
    for each in (vector, other):
        seen, _ = each.reset(seed=[1, 2, 3])
        for _ in range(4):
            seen, *_ = each.step(seen["action_mask"].argmax(axis=1))
    masked, _ = vector.reset(seed=[7, 8, 9], options={"reset_mask": np.array([False, True, False])})
    anew, _ = kind(3, jobs, **arguments).reset(seed=[7, 8, 9])
    for name in seen:
        assert (masked[name][[0, 2]] == seen[name][[0, 2]]).all()
        assert (masked[name][1] == anew[name][1]).all()
    _, rewards, *_ = vector.step(masked["action_mask"].argmax(axis=1))
    _, expected, *_ = other.step(seen["action_mask"].argmax(axis=1))
    assert rewards[[0, 2]].tolist() == expected[[0, 2]].tolist()


@pytest.mark.long
@pytest.mark.parametrize("mask", [[True], [1, 0, 1], np.zeros(3, bool)])
def test_a_reset_mask_that_cannot_be_is_refused(mask: Any) -> None:
    kind, jobs, arguments = VECTORS["Order"]
    vector = kind(3, jobs, **arguments)
    with pytest.raises(InputError, match="expected all runs at the first reset"):
        vector.reset(options={"reset_mask": np.array([True, False, True])})
    vector.reset(seed=1)
    with pytest.raises(InputError, match="expected True or False for each of 3 runs"):
        vector.reset(options={"reset_mask": mask})
