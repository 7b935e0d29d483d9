"""The order of samples, progress in it, and how ranks share global batches."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ddlsched.checkpoints.dataset_state import DatasetState, rank_slice, shuffled
from ddlsched.errors import InputError

states = st.builds(
    DatasetState,
    num_samples=st.integers(1, 200),
    global_batch=st.integers(1, 70),
    consumed_samples=st.integers(0, 500),
    seed=st.none() | st.integers(0, 2**63 - 1),
)


@pytest.mark.long
@given(state=states, ranks=st.lists(st.integers(1, 20), min_size=1, max_size=6))
def test_the_global_batches_are_the_same_however_often_the_number_of_ranks_changes(
    state: DatasetState, ranks: list[int]
) -> None:
    alone = state
    for number in ranks:
        parts = [state.rank_batch(rank, number) for rank in range(number)]
        assert np.concatenate(parts).tolist() == alone.batch().tolist()
        state = DatasetState.from_json(state.advanced().as_json(), "kept")
        alone = alone.advanced()


@given(state=states)
def test_an_epoch_holds_each_sample_once(state: DatasetState) -> None:
    whole = dataclasses.replace(state, global_batch=state.num_samples, consumed_samples=3 * state.num_samples)
    assert sorted(whole.batch().tolist()) == list(range(state.num_samples))


@pytest.mark.long
@given(state=states)
def test_progress_made_in_batches_of_another_size_neither_drops_nor_repeats_samples(state: DatasetState) -> None:
    one_by_one = dataclasses.replace(state, global_batch=1)
    changed = [*state.batch(), *dataclasses.replace(state.advanced(), global_batch=3).batch()]
    assert changed == [int(one_by_one.batch(ahead)[0]) for ahead in range(state.global_batch + 3)]


@given(state=states)
def test_batches_left_reach_the_end_of_the_epoch_and_no_further(state: DatasetState) -> None:
    left = state.batches_left_in_epoch
    assert state.advanced(left).epoch > state.epoch
    assert state.advanced(left - 1).epoch == state.epoch


@given(batch=st.integers(1, 100), ranks=st.integers(1, 30))
def test_ranks_get_ceil_of_the_batch_over_ranks_until_it_is_used_up(batch: int, ranks: int) -> None:
    each = -(-batch // ranks)
    places = [place for rank in range(ranks) for place in range(*rank_slice(rank, ranks, batch))]
    assert places == list(range(batch))
    assert all(end - begin <= each for begin, end in (rank_slice(rank, ranks, batch) for rank in range(ranks)))
    assert rank_slice(0, ranks, batch) == (0, each)


@pytest.mark.long
@given(count=st.integers(1, 5000), seed=st.integers(0, 2**63 - 1), epoch=st.integers(0, 1000))
def test_a_shuffle_is_a_permutation(count: int, seed: int, epoch: int) -> None:
    found = shuffled(np.arange(count, dtype=np.int64), count, (seed, epoch))
    assert np.array_equal(np.sort(found), np.arange(count))


def test_shuffles_differ_by_seed_and_epoch_and_are_for_ever_the_same() -> None:
    places = np.arange(1000, dtype=np.int64)
    orders = {tuple(shuffled(places, 1000, key).tolist()) for key in [(0, 0), (0, 1), (1, 0), (1, 1)]}
    assert len(orders) == 4
    # Checkpoints that were written stay valid only as long as these numbers do.
    assert shuffled(places[:8], 1000, (0, 0)).tolist() == FROZEN
    assert shuffled(np.array([0, 2**40 - 1]), 2**40, (7, 3)).tolist() == FROZEN_LARGE


FROZEN = [660, 352, 373, 831, 970, 297, 987, 621]
FROZEN_LARGE = [937920815915, 728600292601]


def mixed(value: int) -> int:
    """The finaliser of splitmix64, as Vigna's C code has it, after its increment."""
    value = (value + 0x9E3779B97F4A7C15) % 2**64
    value = (value ^ value >> 30) * 0xBF58476D1CE4E5B9 % 2**64
    value = (value ^ value >> 27) * 0x94D049BB133111EB % 2**64
    return value ^ value >> 31


def walked(place: int, count: int, seed: int, epoch: int) -> int:
    """What stands at a place, by whole numbers of Python: six rounds over the least 4**half, at least 4."""
    half = next(half for half in range(1, 32) if 4**half >= count)
    first = mixed(mixed(seed) ^ epoch)
    while True:
        left, right = divmod(place, 2**half)
        for turn in range(6):
            left, right = right, left ^ mixed(right ^ mixed((first + turn) % 2**64)) % 2**half
        place = left * 2**half + right
        if place < count:
            return place


@pytest.mark.parametrize("count", [1, 2, 3, 4, 5, 15, 16, 17, 63, 64, 65, 100])
def test_a_shuffle_is_the_one_that_whole_numbers_of_python_give(count: int) -> None:
    for seed, epoch in [(0, 0), (3, 1), (2**63 - 1, 2)]:
        found = shuffled(np.arange(count, dtype=np.int64), count, (seed, epoch))
        assert found.tolist() == [walked(place, count, seed, epoch) for place in range(count)]


def test_what_is_left_out_of_a_state_is_the_begin_shuffled_by_seed_0() -> None:
    state = DatasetState(num_samples=5, global_batch=2)
    assert state.as_json() == {
        "num_samples": 5, "global_batch": 2, "consumed_samples": 0, "seed": 0, "samples_hash": "",
    }  # fmt: skip
    assert state.advanced() == state.advanced(1) == dataclasses.replace(state, consumed_samples=2)
    assert state.batch().tolist() == state.batch(0).tolist() == [walked(place, 5, 0, 0) for place in (0, 1)]
    assert state.rank_batch(1, 2).tolist() == state.rank_batch(1, 2, 0).tolist() == [walked(1, 5, 0, 0)]


def test_the_files_own_order_goes_on_from_epoch_to_epoch() -> None:
    state = DatasetState(num_samples=5, global_batch=3, consumed_samples=4, seed=None)
    assert [state.batch(ahead).tolist() for ahead in range(3)] == [[4, 0, 1], [2, 3, 4], [0, 1, 2]]
    assert [state.rank_batch(rank, 2, 1).tolist() for rank in range(2)] == [[2, 3], [4]]
    assert [dataclasses.replace(state, consumed_samples=done).epoch for done in (0, 4, 5, 10)] == [0, 0, 1, 2]
    left = [dataclasses.replace(state, consumed_samples=done).batches_left_in_epoch for done in (0, 2, 3, 4, 5)]
    assert left == [2, 1, 1, 1, 2]


@pytest.mark.parametrize(
    ("field", "most", "said"),
    [
        ("num_samples", 2**40, "1099511627777; expected a whole number from 1 to 1099511627776"),
        ("global_batch", 2**40, "1099511627777; expected a whole number from 1 to 1099511627776"),
        ("consumed_samples", 2**62, "4611686018427388928; expected a whole number from 0 to 4611686018427387904"),
    ],
)
def test_the_largest_of_each_is_taken_and_the_next_is_not(field: str, most: int, said: str) -> None:
    given = {"num_samples": 5, "global_batch": 2}
    assert getattr(DatasetState(**given | {field: most}), field) == most
    with pytest.raises(InputError) as error:
        DatasetState(**given | {field: most + (1 if most < 2**53 else 1024)})  # what floats tell apart
    assert str(error.value) == f"dataset state: {field} is {said}"


@pytest.mark.long
def test_a_shuffle_puts_samples_everywhere() -> None:
    count, runs = 64, 4000
    landed = np.zeros((count, count))
    for epoch in range(runs):
        landed[np.arange(count), shuffled(np.arange(count, dtype=np.int64), count, (5, epoch))] += 1
    expected = runs / count
    chi_squared = ((landed - expected) ** 2 / expected).sum()
    assert abs(chi_squared - (count - 1) ** 2) < 5 * (2 * (count - 1) ** 2) ** 0.5


def test_a_batch_of_a_data_set_of_a_trillion_samples_needs_no_order_of_all() -> None:
    state = DatasetState(num_samples=10**12, global_batch=512, consumed_samples=10**12 - 100)
    batch = state.batch()
    assert len(set(batch[:100].tolist())) == 100
    assert batch.max() < 10**12


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("num_samples", 0), ("num_samples", 2**41), ("global_batch", 0), ("global_batch", 1.5),
        ("consumed_samples", -1), ("seed", -1), ("seed", True), ("samples_hash", None),
    ],
)  # fmt: skip
def test_states_that_cannot_be_are_refused(field: str, value: object) -> None:
    kept = {**DatasetState(num_samples=5, global_batch=2).as_json(), field: value}
    with pytest.raises(InputError, match=rf"^c\.json: dataset state: {field} is"):
        DatasetState.from_json(kept, "c.json")


@pytest.mark.parametrize(
    "kept", [None, [], {"num_samples": 5}, {**DatasetState(num_samples=5, global_batch=2).as_json(), "x": 1}]
)
def test_a_kept_state_has_all_fields_and_no_other(kept: object) -> None:
    with pytest.raises(InputError, match=r"^c\.json: the dataset state is .*; expected consumed_samples, global_batch"):
        DatasetState.from_json(kept, "c.json")


@pytest.mark.parametrize(("rank", "ranks"), [(2, 2), (-1, 2), (0, 0), (0, 1.0), (True, 2)])
def test_a_rank_that_is_none_is_refused(rank: int, ranks: int) -> None:
    with pytest.raises(InputError) as error:
        DatasetState(num_samples=5, global_batch=2).rank_batch(rank, ranks)
    said = f"data-parallel rank {rank} of {ranks}: expected a rank from 0 below the number of ranks"
    assert str(error.value) == said
