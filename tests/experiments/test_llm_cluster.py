"""Language-model jobs that share a cluster: what the experiment counts, on one seed."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest
from experiment_scripts import scripts_of

(run,) = scripts_of("llm_cluster", "run")
EXPECTED = Path(run.__file__).parent / "expected"


@pytest.mark.long
def test_jobs_on_hosts_at_random_run_longer_where_spines_are_few_only() -> None:
    on_few = run.outcome("ZeRO 3", "Clos, half", "hosts at random", "as placed", 0)[0]
    on_many = run.outcome("ZeRO 3", "Clos, full", "hosts at random", "as placed", 0)[0]
    assert on_few > 10 > on_many >= -1e-6


@pytest.mark.slow
def test_a_job_that_gets_gpus_of_a_larger_one_may_meet_another_at_once() -> None:
    """A GPU keeps the number of the last task it ran, of a job with more of them, until it runs the next."""
    assert run.outcome("tensor and pipeline", "Clos, half", "hosts at random", "as placed", 0)[0] > 10


@pytest.mark.long
def test_even_splits_over_two_racks_are_as_published() -> None:
    published = pd.read_csv(EXPECTED / "splits.csv")
    again = run.splits()
    assert again["step_s"].to_numpy() == pytest.approx(published["step_s"].to_numpy(), rel=1e-6)
    longer = again.set_index(["job", "trays"])["longer"]
    assert (longer.xs("8:8", level="trays") <= longer.xs("15:1", level="trays")).all()


@pytest.mark.long
def test_seed_0_is_part_of_the_published_mean() -> None:
    published = pd.read_csv(EXPECTED / "contention.csv").set_index(["mix", "fabric", "policy"])["longer"]
    mean = published["experts beside ZeRO 3", "Clos, half", "first-fit, as placed"]
    own = run.outcome("experts beside ZeRO 3", "Clos, half", "first-fit", "as placed", 0)[0]
    assert own == pytest.approx(mean, abs=1.0)
    assert own != 0


@pytest.mark.long
def test_jobs_in_required_blocks_lose_nothing_to_others_but_wait() -> None:
    names = "blocks required", "blocks preferred"
    required, preferred = (run.outcome("3 to 10 hosts", "Clos, half", name, "as placed", 0) for name in names)
    assert required[0] < 0.1 < 1 < preferred[0]
    assert required[1] > 1.02 * preferred[1]
