"""The fidelity experiment: its mixes, its plan, and its tables from the runs that are committed."""

from __future__ import annotations

import argparse
import itertools
from pathlib import Path

import pytest
from experiment_scripts import EXPERIMENTS, scripts_of

from ddlsched.errors import InputError

mixes, run = scripts_of("fidelity", "mixes", "run")
MEASURED = EXPERIMENTS / "fidelity" / "measured"


@pytest.mark.parametrize("seed", range(12))
def test_a_seed_is_a_mix_within_the_bounds(seed: int) -> None:
    mix = mixes.mix_of(seed, tuple(mixes.POLICIES))
    assert mix == mixes.mix_of(seed, tuple(mixes.POLICIES))
    assert mix.cluster.num_servers in (4, 6, 8)
    assert 2 <= len(mix.workload) <= 6
    pinned = mix.policies["SRSF(1)"]["placement"].servers
    for job in mix.workload:
        assert 2 <= job.num_gpus == len(set(pinned[job.job_id])) <= 4
        assert 0.2e6 <= job.iteration.message_bytes <= 2.4e6
        reduce_s = job.iteration.message_bytes * 2 * (job.num_gpus - 1) / job.num_gpus / 12.5e6
        assert 0.19 < (job.iteration.forward_s + job.iteration.backward_s) / reduce_s < 3.1
    assert "placement" not in mix.policies["Block-SRTF"]


def test_both_halves_meet_every_network() -> None:
    for half in (0, 1):
        assert {mixes.cluster_name(seed) for seed in range(half, 20, 2)} == set(mixes.CLUSTERS)


def test_the_full_plan_is_that_of_the_page() -> None:
    planned = run.planned_runs(run.parsed([]))
    assert len(planned) == 180 + 20 * 5 * 3
    several = [one for one in planned if one.policy != mixes.BASELINE]
    assert {run.seed_of(one.mix.name) % 2 for one in several} == {1}
    names = [mixes.cluster_name(run.seed_of(one.mix.name)) for one in planned]
    assert sum(a != b for a, b in itertools.pairwise(names)) == len(mixes.CLUSTERS) - 1


def test_tables_come_from_the_committed_runs_without_root(capsys: pytest.CaptureFixture[str]) -> None:
    run.main(["--measured", str(MEASURED)])
    text = capsys.readouterr().out
    assert "== training mixes" in text
    assert "== held out mixes" in text
    assert "runs the machine may have been the limit" in text
    held_out = text.split("== held out mixes")[1]
    assert all(policy in held_out for policy in mixes.POLICIES)
    assert "gain in mean JCT" in held_out


def test_a_folder_that_is_not_empty_needs_resume(tmp_path: Path) -> None:
    (tmp_path / "other").touch()
    args = argparse.Namespace(out=tmp_path, resume=False, quick=True)
    with pytest.raises(InputError, match="is not empty; expected --resume, or a new folder"):
        run.measure(args, [])


def test_counts_below_one_are_refused() -> None:
    with pytest.raises(InputError, match="--repeats is 0; expected at least 1"):
        run.parsed(["--repeats", "0"])
