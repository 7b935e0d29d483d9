"""A run that is stopped, resharded and continued by other processes goes on as if nothing had happened."""

from __future__ import annotations

from pathlib import Path

import pytest
from worlds import GPT, START, STEPS, STOP, Uninterrupted, World, run_of

from ddlsched.checkpoints.collection import parse_parallelism
from ddlsched.checkpoints.content import content_hashes
from ddlsched.checkpoints.plan import NoReplicaError
from ddlsched.checkpoints.reading import Reading
from ddlsched.checkpoints.resharding import reshard
from ddlsched.checkpoints.tensor_models import StoredTransformer

pytestmark = pytest.mark.torch

ROUNDING = 1e-7
"""Relative difference of losses that the order of float32 sums over tensor-parallel ranks makes."""


def resharded(source: Path, to: str, destination: Path, **options: object) -> Path:
    reshard(source, destination, to=parse_parallelism(to), verify=True, **options)  # type: ignore[arg-type]
    return destination


def contents(checkpoint: Path) -> dict[str, str]:
    return dict(content_hashes(Reading.at(checkpoint)))


@pytest.mark.parametrize("to", ["tp=1,pp=2,dp=1", "tp=4,pp=1,dp=1", "tp=1,pp=1,dp=2", "tp=2,pp=2,dp=1"])
def test_a_run_goes_on_under_another_parallelism_and_back(
    world: World, uninterrupted: Uninterrupted, to: str, tmp_path: Path
) -> None:
    there = resharded(uninterrupted.stopped, to, tmp_path / "there")
    losses = world.train(there, 3, tmp_path / "after")
    assert losses == pytest.approx(uninterrupted.losses[STOP : STOP + 3], rel=ROUNDING, abs=0)
    back = resharded(tmp_path / "after", START, tmp_path / "back")
    assert world.train(back, 2) == pytest.approx(uninterrupted.losses[STOP + 3 : STEPS], rel=ROUNDING, abs=0)


@pytest.mark.parametrize("to", ["tp=2,pp=1,dp=1", "tp=2,pp=2,dp=1", "tp=2,pp=1,dp=2"])
def test_where_sums_keep_their_order_the_run_goes_on_to_the_bit(
    world: World, uninterrupted: Uninterrupted, to: str, tmp_path: Path
) -> None:
    there = resharded(uninterrupted.stopped, to, tmp_path / "there")
    assert world.train(there, STEPS - STOP, tmp_path / "end") == uninterrupted.losses[STOP:]
    assert contents(tmp_path / "end") == contents(uninterrupted.end)


KINDS = {
    "ZeRO-1": {"sharding": "zero1"},
    "bfloat16 with fp32 master weights, ZeRO-1": {"sharding": "zero1", "dtype": "BF16"},
    "gated, grouped queries, q k v apart": {
        "model": StoredTransformer(**{**vars(GPT), "gated": True, "key_value_heads": 2, "fused_qkv": "parts"})
    },
    "untied": {"model": StoredTransformer(**{**vars(GPT), "tied": False, "key_value_heads": 2})},
}


@pytest.mark.parametrize("kind", KINDS)
def test_other_models_and_optimisers_go_on_as_well(world: World, kind: str, tmp_path: Path) -> None:
    run = run_of(world, kind, **KINDS[kind])
    same_order = resharded(run.stopped, "tp=2,pp=2,dp=1", tmp_path / "bits")
    assert world.train(same_order, STEPS - STOP, tmp_path / "end") == run.losses[STOP:]
    assert contents(tmp_path / "end") == contents(run.end)
    # bfloat16 has 8 bits: sums in another order differ in what they round to.
    tolerance = 1e-4 if "bfloat16" in kind else ROUNDING
    other_order = resharded(run.stopped, "tp=1,pp=1,dp=2", tmp_path / "order")
    assert world.train(other_order, 2) == pytest.approx(run.losses[STOP : STOP + 2], rel=tolerance, abs=0)


def test_a_run_survives_the_loss_of_a_replica(world: World, uninterrupted: Uninterrupted, tmp_path: Path) -> None:
    """Of 4 devices 2 are left: tensor rank 0 of the first replica and tensor rank 1 of the second."""
    there = resharded(uninterrupted.stopped, "tp=2", tmp_path / "there", lost=(1, 2))
    assert world.train(there, STEPS - STOP) == uninterrupted.losses[STOP:]


def test_what_no_replica_holds_is_named(world: World, uninterrupted: Uninterrupted, tmp_path: Path) -> None:
    with pytest.raises(NoReplicaError, match=r"tensor embedding\.word\.weight: with ranks 0, 2 lost, no replica of"):
        resharded(uninterrupted.stopped, "tp=2", tmp_path / "there", lost=(0, 2))
    assert not (tmp_path / "there").exists()
    sharded = world.made("sharded optimiser", sharding="zero1")
    with pytest.raises(NoReplicaError, match=r"tensor optimiser\.exp_avg\S*: with rank 3 lost, no replica of"):
        resharded(sharded, "tp=2", tmp_path / "there", lost=(3,))


def test_a_checkpoint_whose_step_is_not_its_iteration_is_refused(world: World, tmp_path: Path) -> None:
    from processes import TrainingError

    start = world.made("contradiction", "tp=1")
    text = (start / "checkpoint.json").read_text()
    (start / "checkpoint.json").write_text(text.replace('"iteration": 40', '"iteration": 0'))
    with pytest.raises(TrainingError, match=r"optimiser\.step is 40; expected 0"):
        world.train(start, 1)


def test_the_model_learns(uninterrupted: Uninterrupted) -> None:
    """Else equal losses would say little."""
    assert len(set(uninterrupted.losses)) == STEPS
    assert uninterrupted.losses[-1] < uninterrupted.losses[0] - 0.1
