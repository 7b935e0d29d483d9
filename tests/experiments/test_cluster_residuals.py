"""What is left of the training-time model's errors: the linear programmes, and what they say of the measured rows."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from experiment_scripts import scripts_of
from measurements import DATA, needs_data

from ddlsched.training.estimate.fitting import PRIORS, Fitted
from ddlsched.training.estimate.hardware import Efficiency
from ddlsched.training.estimate.presets import A100_NODE_TIERS, EFFICIENCIES

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


def test_times_of_blocks_and_ends_are_found_in_whole_steps() -> None:
    """Steps that the model made have its block and its ends; a block that takes 1 ms longer is told from them."""
    sizes = {"micro_batch": 1, "hidden": 1024, "heads": 16, "sequence": 1024, "tensor_parallel": 1, "data_parallel": 1}
    layouts = [(layers, batch, stages) for layers in (12, 24) for batch in (4, 8, 16) for stages in (1, 2)]
    rows = pd.DataFrame(layouts, columns=["layers", "global_batch", "pipeline_parallel"]).assign(**sizes)
    rows["gpus"] = rows["pipeline_parallel"]
    longer_ms = 1.0 * residuals.slots(rows) * rows["layers"] / rows["pipeline_parallel"]
    rows["iteration_ms"] = 1e3 * residuals.predicted_s(rows, SHIPPED) + longer_ms
    (found,) = residuals.profiles_table(rows, SHIPPED).to_dict("records")
    assert found["block_ms"] == pytest.approx(found["predicted_block_ms"] + 1.0)
    assert found["ends_ms"] == pytest.approx(found["predicted_ends_ms"])
    assert found["worst_percent"] < 1e-6


def test_a_width_that_is_left_out_is_fitted_to_the_others() -> None:
    """All rows are as the middle of the prior has them, but for one width, whose steps are a quarter longer."""
    values = {name: prior.value for name, prior in PRIORS.items()}
    network = values.pop("network_bytes_per_s")
    rows = pd.concat([rows_of(micro_batches=(1, 2, 4, 8, 16)).assign(hidden=hidden) for hidden in (4096, 8192)] * 2)
    times_ms = 1e3 * residuals.predicted_s(rows, Fitted(Efficiency(**values), network))
    rows["iteration_ms"] = times_ms * np.where(rows["hidden"] == 8192, 1.25, 1.0)
    table = residuals.left_out({"single": rows, "multi": rows[rows["hidden"] == 4096]})
    error = table.set_index(["file", "hidden"])["error_percent"]
    assert error["single", 8192] == pytest.approx(20.0, abs=0.1)
    assert table["rows"].tolist() == [10, 10, 10]


@needs_data("training_times")
def test_only_blocks_and_ends_keep_the_rows_of_few_gpus_from_their_times() -> None:
    """The schedule around them explains every row within 0.8 %."""
    frames = fit.read(DATA)
    table = residuals.profiles_table(frames["single"], SHIPPED)
    assert table["rows"].sum() == 720
    assert table["worst_percent"].max() < 0.8
    alone = table[table["tensor_parallel"] == 1]
    assert (alone["block_ms"] / alone["predicted_block_ms"]).between(0.94, 1.11).all()
    assert (alone["ends_ms"] / alone["predicted_ends_ms"]).between(0.85, 1.05).all()
    again = residuals.recomputation_table(frames["single"], table)
    assert again["none_percent"].max() < 82
    assert again["full_percent"].min() > 100  # of an A100's peak: so nothing was recomputed


@needs_data("training_times")
def test_no_term_brings_the_rows_of_many_gpus_within_5_percent() -> None:
    """Even if the amounts of all terms, and of each part of the model, are fitted to the rows that are tested."""
    multi = fit.read(DATA)["multi"]
    least = residuals.terms_table(multi, SHIPPED).set_index("added to the model").iloc[:, 0]
    assert least["nothing"] == pytest.approx(6.9, abs=0.1)
    assert least.min() == least.iloc[-1] == pytest.approx(5.8, abs=0.1)
    pairs = residuals.contradictions(multi)
    assert (8192, 4, 8, 16, 4, 6) in {tuple(pair[:6]) for pair in pairs.itertuples(index=False)}


@needs_data("training_times")
def test_a_nodes_rows_could_be_met_by_profiles_of_their_own() -> None:
    single = fit.read(DATA)["single"]
    free, rising = (residuals.least_by_profile(single, SHIPPED, rising=which) for which in (False, True))
    assert free < 0.01
    assert free < rising < 0.02


@needs_data("training_times")
def test_only_of_the_39_billion_model_do_fewer_gpus_to_a_matrix_multiply_no_faster() -> None:
    table = residuals.shares_table(fit.read(DATA)["multi"])
    means = table.set_index(["hidden", "tensor_parallel"])["mean_percent"]
    for hidden, own in means.groupby("hidden"):
        assert own.is_monotonic_decreasing == (hidden != 8192)
    assert means[8192, 2] < means[8192, 8]
