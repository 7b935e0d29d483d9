"""Runs made again beside the first ones."""

from __future__ import annotations

import pandas as pd
import pytest
from experiment_scripts import scripts_of

from ddlsched.errors import InputError

(again,) = scripts_of("fidelity", "again")


def runs(*rows: tuple[str, str, int, float]) -> pd.DataFrame:
    return pd.DataFrame(rows, columns=["mix", "job_id", "repeat", "jct_s"]).assign(policy="free overlap")


FIRST = runs(("seed-0", "a", 0, 10.0), ("seed-0", "a", 1, 99.0), ("seed-0", "b", 0, 10.0), ("seed-1", "a", 0, 20.0))


def test_a_job_is_held_against_its_own_first_run() -> None:
    found = again.ratios(FIRST, runs(("seed-1", "a", 0, 19.0), ("seed-0", "a", 0, 11.0)))
    assert found.set_index("mix").ratio.to_dict() == pytest.approx({"seed-0": 1.1, "seed-1": 0.95})


def test_a_mix_counts_once() -> None:
    found = again.ratios(FIRST, runs(("seed-0", "a", 0, 11.0), ("seed-0", "b", 0, 11.0), ("seed-1", "a", 0, 20.0)))
    assert again.text(found).startswith("3 jobs of 2 mixes take +4.9 [")
    assert again.text(found).endswith("a job's JCT differs by 6.7 % in the mean, 10 at most")


def test_other_mixes_are_refused() -> None:
    with pytest.raises(InputError, match="--again: holds no run of a mix that was measured before"):
        again.ratios(FIRST, runs(("seed-7", "a", 0, 11.0)))
