"""What is left of the training-time model's errors: the linear programmes, and what they say of the measured rows."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from experiment_scripts import scripts_of
from measurements import DATA, needs_data

from ddlsched.performance.fitting import Fitted
from ddlsched.performance.presets import A100_NODE_TIERS, EFFICIENCIES

fit, residuals = scripts_of("cluster_design", "fit", "residuals")

SHIPPED = Fitted(EFFICIENCIES["eager"], A100_NODE_TIERS[1].bytes_per_s)
"""What ``fit.py`` finds on split 0, rounded."""


def rows_of(*, micro_batches: tuple[int, ...] = (1, 2, 4)) -> pd.DataFrame:
    """Made-up runs of one layout."""
    rows = pd.DataFrame({"micro_batch": micro_batches})
    sizes = {"gpus": 64, "global_batch": 256, "hidden": 4096, "heads": 32, "layers": 32, "sequence": 2048}
    return rows.assign(**sizes, tensor_parallel=4, data_parallel=4, pipeline_parallel=4)


def test_the_least_deviation_is_that_of_a_median() -> None:
    wanted = np.array([1.0, 2.0, 9.0])
    free = np.zeros((0, 1))
    assert residuals.least_deviation(np.ones((3, 1)), wanted, free) == pytest.approx(8 / 3)
    assert residuals.least_deviation(np.eye(3), wanted, np.zeros((0, 3))) == pytest.approx(0.0)
    first_not_below_last = np.array([[-1.0, 0.0, 1.0]])
    assert residuals.least_deviation(np.eye(3), wanted, first_not_below_last) == pytest.approx(8 / 3)


@pytest.mark.parametrize("name", ["a constant for each step", "an optimiser that takes longer"])
def test_a_term_that_was_left_out_is_found(name: str) -> None:
    rows = rows_of()
    missing_s = 3.0 * residuals.terms_s(rows, SHIPPED)[name]
    rows["iteration_ms"] = 1e3 * (residuals.predicted_s(rows, SHIPPED) + missing_s)
    least = residuals.terms_table(rows, SHIPPED).set_index("added to the model").iloc[:, 0]
    assert least["nothing"] > 0.1
    assert least[name] == pytest.approx(0.0, abs=1e-6)
    assert least["all of these"] == pytest.approx(0.0, abs=1e-6)


def test_slots_count_filling_and_draining() -> None:
    assert residuals.slots(rows_of()).tolist() == [64 + 3, 32 + 3, 16 + 3]


def test_a_larger_micro_batch_that_takes_longer_for_a_sequence_is_named() -> None:
    rows = rows_of()
    sequences = residuals.slots(rows) * rows["micro_batch"]
    assert residuals.contradictions(rows.assign(iteration_ms=sequences * [3.0, 2.0, 1.0])).empty
    (found,) = residuals.contradictions(rows.assign(iteration_ms=sequences * [3.0, 2.0, 2.5])).to_dict("records")
    assert (found["micro_batch"], found["larger"]) == (2, 4)
    assert found["longer_percent"] == pytest.approx(25.0)


@needs_data("training_times")
def test_no_term_brings_the_rows_of_many_gpus_within_5_percent() -> None:
    """Even if the amounts of all terms, and of each part of the model, are fitted to the rows that are tested."""
    multi = fit.read(DATA)["multi"]
    least = residuals.terms_table(multi, SHIPPED).set_index("added to the model").iloc[:, 0]
    assert least["nothing"] == pytest.approx(6.9, abs=0.1)
    assert least.min() == least.iloc[-1] == pytest.approx(5.7, abs=0.1)
    pairs = residuals.contradictions(multi)
    assert (8192, 4, 8, 16, 4, 6) in {tuple(pair[:6]) for pair in pairs.itertuples(index=False)}


@needs_data("training_times")
def test_a_nodes_rows_could_be_met_by_profiles_of_their_own() -> None:
    single = fit.read(DATA)["single"]
    free, rising = (residuals.least_by_profile(single, SHIPPED, rising=which) for which in (False, True))
    assert free < rising < 0.05
