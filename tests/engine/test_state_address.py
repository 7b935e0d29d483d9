"""Compiled code gets a state by its address, which is that of its own arrays and holds in one process."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable

import numba
import numpy as np
import pytest

from ddlsched.engine.native.machine_code import ENGINE_OPTIONS, CalledFromPython
from ddlsched.engine.native.state import STATE
from ddlsched.engine.records import State, example_state, make_records


@numba.njit(**ENGINE_OPTIONS)
def _read(s, row, column):
    return s.run[0].now_ns + 10 * s.speeds[row, column] + 100 * len(s.jobs)


read = CalledFromPython(_read, (STATE, numba.int64, numba.int64))


def state_of(now_ns: int) -> State:
    run = make_records("run", 1)
    run.now_ns = now_ns
    return example_state()._replace(run=run, jobs=make_records("job", 3), speeds=np.array([[0.1, 0.2], [0.3, 0.4]]))


def test_arrays_are_read_where_they_are() -> None:
    state = state_of(5)
    assert read(state, 1, 0) == 5 + 3 + 300
    state.run.now_ns, state.speeds[1, 0] = 6, 0.5
    assert read(state, 1, 0) == 6 + 5 + 300


@pytest.mark.parametrize(
    "other",
    [
        lambda state: pickle.loads(pickle.dumps(state)),
        copy.deepcopy,
        lambda state: state._replace(run=state.run.copy()),
    ],
)
def test_another_state_has_an_address_of_its_own(other: Callable[[State], State]) -> None:
    state = state_of(5)
    assert read(state, 0, 0) == 306
    second = other(state)
    second.run.now_ns = 7
    assert (read(second, 0, 0), read(state, 0, 0)) == (308, 306)
