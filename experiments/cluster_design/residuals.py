"""What the rows that the model misses have in common, and what no further term could mend.

    python experiments/cluster_design/residuals.py --data DIR

``DIR`` has ``training_times/single.csv`` and ``training_times/multi.csv``. The constants are those of ``fit.py``, split
0. Everything else here is fitted to *all* rows, also those on which ``fit.py`` tests: what is left then is the least
error that a model with such a term could have, not one that it would have on new rows.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping
from itertools import pairwise
from pathlib import Path

import fit
import numpy as np
import pandas as pd
from scipy.optimize import linprog

from ddlsched.training.estimate.energy_costs import Costs
from ddlsched.training.estimate.fitting import Fitted, fit_rows, mean_error
from ddlsched.training.estimate.presets import GPUS
from ddlsched.training.estimate.rows import plans_of
from ddlsched.training.estimate.step_estimate import estimate

LAYOUT = ["hidden", "tensor_parallel", "data_parallel", "pipeline_parallel"]
PROFILE = ["hidden", "tensor_parallel", "micro_batch"]


def predicted_s(rows: pd.DataFrame, fitted: Fitted) -> np.ndarray:
    """Return the predicted time of each row's step, seconds."""
    model, plan, _ = plans_of(rows)
    found: np.ndarray = np.asarray(estimate(model, plan, fitted.machine(rows["gpus"].to_numpy())).step_s)
    return found


def slots(rows: pd.DataFrame) -> np.ndarray:
    """Return how many micro-batches' time a step takes on a stage, those of filling and draining included."""
    passes = rows["global_batch"] // rows["micro_batch"] // rows["data_parallel"]
    found: np.ndarray = (passes + rows["pipeline_parallel"] - 1).to_numpy()
    return found


def missing_table(rows: pd.DataFrame, fitted: Fitted) -> pd.DataFrame:
    """Return what each row takes longer than predicted: in all, and for each micro-batch on a stage."""
    step_s = predicted_s(rows, fitted)
    missing_s = rows["iteration_ms"] / 1e3 - step_s
    columns = ["hidden", "micro_batch", "tensor_parallel", "data_parallel", "pipeline_parallel"]
    table = rows[columns].assign(
        slots=slots(rows),
        measured_s=rows["iteration_ms"] / 1e3,
        error_percent=100 * (1e3 * step_s / rows["iteration_ms"] - 1),
        missing_s=missing_s,
        missing_ms_a_slot=1e3 * missing_s / slots(rows),
    )
    return table.sort_values([*LAYOUT, "micro_batch"])


def shares_table(rows: pd.DataFrame) -> pd.DataFrame:
    """Return the shares of the GPUs' peak at which blocks were multiplied, by width and tensor parallelism.

    Operations of all slots of a stage, filling and draining and recomputation included, over the measured step.
    """
    plan = plans_of(rows)[1]
    passes = np.where(np.asarray(plan.recompute) == "full", 4, 3)
    blocks = rows["layers"] / rows["pipeline_parallel"]
    flops = passes * _block_flops(rows) * blocks * slots(rows)
    share = 1e5 * flops / rows["iteration_ms"] / GPUS["a100-80"].peak("half")
    groups = rows.assign(share=share).groupby(["hidden", "tensor_parallel"])["share"]
    return groups.agg(rows="size", least_percent="min", mean_percent="mean", most_percent="max").reset_index()


def _block_flops(rows: pd.DataFrame) -> np.ndarray:
    """Return the operations of one block's forward pass on one GPU."""
    model, plan, _ = plans_of(rows)
    operations = [operation for layer in model.layers(plan).block for operation in layer.forward]
    flops: np.ndarray = np.broadcast_to(sum(operation.flops for operation in operations), len(rows))
    return flops


def recomputation_table(rows: pd.DataFrame, profiles: pd.DataFrame) -> pd.DataFrame:
    """Return at what share of the peak a wider block does what it has more to multiply, without recomputation and with.

    Of the rows of 2 to 8 GPUs, without tensor parallelism, and with micro-batches that take longer than their launches.
    What a block does beside products takes no less in the wider one, so products are no slower than this.
    """
    alone = rows[(rows["tensor_parallel"] == 1) & (rows["micro_batch"] >= 4)].groupby(PROFILE, as_index=False).head(1)
    both = alone.assign(flops=_block_flops(alone)).merge(profiles, on=PROFILE)
    found = []
    for micro_batch, own in both.sort_values("hidden").groupby("micro_batch"):
        for (_, less), (_, more) in pairwise(own.iterrows()):
            share = 1e5 * (more["flops"] - less["flops"]) / (more["block_ms"] - less["block_ms"])
            share = share / GPUS["a100-80"].peak("half")
            found.append((micro_batch, less["hidden"], more["hidden"], 3 * share, 4 * share))
    return pd.DataFrame(found, columns=["micro_batch", "hidden", "wider", "none_percent", "full_percent"])


def terms_s(rows: pd.DataFrame, fitted: Fitted) -> dict[str, np.ndarray]:
    """Return, for each thing that could be missing, what it takes in each row, seconds; how much of it is free."""
    model, plan, _ = plans_of(rows)
    machine = fitted.machine(rows["gpus"].to_numpy())
    costs, layers = Costs(parallelism=plan, machine=machine), model.layers(plan)
    found, block = estimate(model, plan, machine), costs.part(layers.block)
    passes, staged = slots(rows), rows["pipeline_parallel"].to_numpy() > 1
    activation_s = layers.block[0].activation_bytes / machine.tiers[1].bytes_per_s
    embedding_bytes = 2 * layers.first[0].parameters
    each = {
        "a constant for each micro-batch on a stage": passes,
        "tensors between stages sent whole by every GPU": passes * 2 * activation_s * staged,
        "tensor-parallel collectives that take longer": passes * block.exposed_s * layers.num_blocks / plan.pipeline,
        "forward passes that take longer": found.forward_s,
        "stages that wait for the pipeline": found.bubble_s,
        "gradients reduced as larger numbers": found.data_s,
        "gradients of the tied embedding": embedding_bytes / machine.tiers[1].bytes_per_s * staged,
        "an optimiser that takes longer": found.optimiser_s,
        "memory that runs short": found.step_s * found.memory.total_bytes / machine.gpu.memory_bytes,
        "a constant for each step": np.ones(len(rows)),
    }
    return {name: np.broadcast_to(np.asarray(seconds, float), len(rows)) for name, seconds in each.items()}


def least_error(step_s: np.ndarray, measured_s: np.ndarray, columns: list[np.ndarray]) -> float:
    """Return the least mean relative error if amounts >= 0 of some columns are added (a linear programme)."""
    design = np.column_stack(columns) / measured_s[:, None] if columns else np.zeros((len(step_s), 0))
    return least_deviation(design, 1 - step_s / measured_s, np.zeros((0, design.shape[1])))


def least_deviation(design: np.ndarray, wanted: np.ndarray, not_above_0: np.ndarray) -> float:
    """Return the least mean of ``|design @ x - wanted|`` for x >= 0 with ``not_above_0 @ x <= 0``."""
    count, unknown = design.shape
    sides = np.vstack(
        [
            np.hstack([design, -np.eye(count)]),
            np.hstack([-design, -np.eye(count)]),
            np.hstack([not_above_0, np.zeros((len(not_above_0), count))]),
        ]
    )
    ends = np.concatenate([wanted, -wanted, np.zeros(len(not_above_0))])
    costs = np.concatenate([np.zeros(unknown), np.full(count, 1 / count)])
    return float(linprog(costs, A_ub=sides, b_ub=ends, method="highs").fun)


def parts_s(rows: pd.DataFrame, fitted: Fitted) -> list[np.ndarray]:
    """Return the parts of each row's predicted step, seconds."""
    model, plan, _ = plans_of(rows)
    found = estimate(model, plan, fitted.machine(rows["gpus"].to_numpy()))
    parts = found.compute_s, found.tensor_s, found.pipeline_s, found.bubble_s, found.data_s, found.optimiser_s
    return [np.broadcast_to(np.asarray(seconds, float), len(rows)) for seconds in parts]


def terms_table(rows: pd.DataFrame, fitted: Fitted) -> pd.DataFrame:
    """Return the least mean error with each term, and with all of them, beside any multiple of the whole step."""
    step_s, measured_s = predicted_s(rows, fitted), rows["iteration_ms"].to_numpy() / 1e3
    terms, none_s = terms_s(rows, fitted), np.zeros(len(rows))
    options = {
        "nothing but the multiple": [],
        **{name: [column] for name, column in terms.items()},
        "all of these": [*terms.values()],
    }
    found = [("nothing", 100 * least_error(step_s, measured_s, []))]
    found += [(name, 100 * least_error(none_s, measured_s, [step_s, *columns])) for name, columns in options.items()]
    free = least_error(none_s, measured_s, [*parts_s(rows, fitted), *terms.values()])
    found.append(("all of these, and each part of the model any multiple of itself", 100 * free))
    return pd.DataFrame(found, columns=["added to the model", "least mean error %"])


def contradictions(rows: pd.DataFrame) -> pd.DataFrame:
    """Return pairs of runs that differ in the micro-batch alone, of which the larger takes longer for a sequence.

    A step takes c + slots x (a + b x micro-batch), whatever a, b and c from 0 are: divided by slots x micro-batch,
    which grows with the micro-batch, it falls.
    """
    each_ms = rows["iteration_ms"] / (slots(rows) * rows["micro_batch"])
    found = []
    for layout, own in rows.assign(each_ms=each_ms).sort_values("micro_batch").groupby(LAYOUT):
        for (_, less), (_, more) in pairwise(own.iterrows()):
            if more["each_ms"] > less["each_ms"]:
                found.append((*layout, less["micro_batch"], more["micro_batch"], more["each_ms"] / less["each_ms"] - 1))
    table = pd.DataFrame(found, columns=[*LAYOUT, "micro_batch", "larger", "longer_percent"])
    return table.assign(longer_percent=100 * table["longer_percent"])


def least_by_profile(rows: pd.DataFrame, fitted: Fitted, *, rising: bool) -> float:
    """Return the least mean error if each width, tensor parallelism and micro-batch has a factor of its own.

    With ``rising`` a block's time may not fall where micro-batch or width grow and the rest is the same.
    """
    step_s, measured_s = predicted_s(rows, fitted), rows["iteration_ms"].to_numpy() / 1e3
    profiles = rows.groupby(PROFILE).ngroup().to_numpy()
    firsts = rows.groupby(PROFILE).head(1).sort_values(PROFILE)
    design = np.zeros((len(rows), profiles.max() + 1))
    design[np.arange(len(rows)), profiles] = step_s / measured_s
    falls = _falls(firsts, fitted) if rising else np.zeros((0, design.shape[1]))
    return least_deviation(design, np.ones(len(rows)), falls)


def _falls(profiles: pd.DataFrame, fitted: Fitted) -> np.ndarray:
    """Return a row for each pair of neighbouring profiles: the block's time of the smaller less that of the larger."""
    model, plan, _ = plans_of(profiles)
    costs = Costs(parallelism=plan, machine=fitted.machine(profiles["gpus"].to_numpy()))
    block = costs.part(model.layers(plan).block)
    block_s = block.compute_s + block.exposed_s
    rows = []
    for same, grows in ((["hidden", "tensor_parallel"], "micro_batch"), (["tensor_parallel", "micro_batch"], "hidden")):
        for _, own in profiles.reset_index(drop=True).groupby(same):
            for smaller, larger in pairwise(own.sort_values(grows).index):
                row = np.zeros(len(profiles))
                row[smaller], row[larger] = block_s[smaller], -block_s[larger]
                rows.append(row)
    return np.array(rows)


def profiles_table(rows: pd.DataFrame, fitted: Fitted) -> pd.DataFrame:
    """Return the time of a block, and of what comes before and after all blocks, as the rows have it and as predicted.

    A step takes slots x (blocks x block + ends) and, in each layout, a constant and so much for each block: solved for
    each profile by least squares. ``worst_percent`` is how far the row is off that follows this least.
    """
    table = pd.DataFrame([_profile(own, fitted) for _, own in rows.groupby(PROFILE)])
    return table.sort_values(PROFILE)


def _profile(rows: pd.DataFrame, fitted: Fitted) -> dict[str, float]:
    blocks = (rows["layers"] / rows["pipeline_parallel"]).to_numpy()
    staged = (rows["pipeline_parallel"] > 1).to_numpy()
    layouts = pd.get_dummies(rows[["pipeline_parallel", "data_parallel"]].apply(tuple, axis=1)).to_numpy(float)
    passes = slots(rows)
    columns = np.column_stack([passes * blocks, passes * ~staged, passes * staged, layouts, blocks])
    design = columns / rows["iteration_ms"].to_numpy()[:, None]
    found, *_ = np.linalg.lstsq(design, np.ones(len(rows)), rcond=None)
    model, plan, _ = plans_of(rows, 0)
    costs, layers = Costs(parallelism=plan, machine=fitted.machine(int(rows["gpus"].iloc[0]))), model.layers(plan)
    parts = [costs.part(layers.block), *(costs.part(part, recomputed=False) for part in (layers.first, layers.last))]
    block_ms, *ends_ms = (1e3 * float(part.compute_s + part.exposed_s) for part in parts)
    return {
        **{name: int(rows[name].iloc[0]) for name in PROFILE},
        "rows": len(rows),
        "block_ms": found[0],
        "predicted_block_ms": block_ms,
        "ends_ms": found[1],
        "predicted_ends_ms": sum(ends_ms),
        "worst_percent": 100 * float(np.abs(design @ found - 1).max()),
    }


def left_out(frames: Mapping[str, pd.DataFrame]) -> pd.DataFrame:
    """Return the mean error of all rows of each width, with constants fitted to the drawn rows of all others."""
    drawn = fit.drawn_rows(frames, fit.SEED)
    found = []
    for name, frame in frames.items():
        for hidden, own in frame.groupby("hidden"):
            others = [fit.Drawn(*(part[each.rows["hidden"] != hidden] for part in each)) for each in drawn.values()]
            constants = fit_rows([each.rows for each in others], [each.weights for each in others])
            found.append((name, hidden, len(own), 100 * mean_error(own, constants)))
    return pd.DataFrame(found, columns=["file", "hidden", "rows", "error_percent"])


def main() -> int:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, metavar="DIR")
    frames = fit.read(parser.parse_args().data)
    fitted, _ = fit.fit(frames, fit.SEED)
    single, multi = frames["single"], frames["multi"]
    print(f"What rows of 64 to 512 GPUs take longer than predicted\n{_text(missing_table(multi, fitted))}\n")
    print(f"Shares of the peak at which blocks are multiplied\n{_text(shares_table(multi))}\n")
    print(f"Larger micro-batches that take longer for a sequence\n{_text(contradictions(multi))}\n")
    print(f"The least mean error of the rows of 64 to 512 GPUs\n{_text(terms_table(multi, fitted))}\n")
    plain = 100 * float(np.abs(1e3 * predicted_s(single, fitted) / single["iteration_ms"] - 1).mean())
    free, rising = (100 * least_by_profile(single, fitted, rising=rising) for rising in (False, True))
    print(f"Rows of 2 to 8 GPUs: {plain:.2f} % off on average; at least {free:.2f} % with a factor for each of their")
    print(
        f"{single.groupby(PROFILE).ngroups} profiles, {rising:.2f} % if a block's time does not fall where it is larger"
    )
    profiles = profiles_table(single, fitted)
    print(f"\nBlocks and ends of rows of 2 to 8 GPUs\n{_text(profiles)}")
    print(f"\nShares of the peak, by recomputation\n{_text(recomputation_table(single, profiles))}")
    print(f"\nEach width, with constants fitted to the others\n{_text(left_out(frames))}")
    return 0


def _text(table: pd.DataFrame) -> str:
    return table.to_string(index=False, float_format="%.2f")


if __name__ == "__main__":
    sys.exit(main())
