"""The learned orders: what is exported is what was trained, the comparison can be made, and PPO learns."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import numpy as np
import pytest
from command_line import run
from experiment_scripts import EXPERIMENTS, scripts_of

from algorithms.placement.learned_start import read_network, write_network
from ddlsched.results.statistics import paired_change


def test_the_file_of_the_comparison_is_valid() -> None:
    assert run("validate", str(EXPERIMENTS / "learned_order" / "compare.yaml")).exit_code == 0


@pytest.mark.torch
def test_exported_layers_decide_as_the_model_does(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    sb3_contrib = pytest.importorskip("sb3_contrib")
    (train,) = scripts_of("learned_order", "train")
    model = sb3_contrib.MaskablePPO("MlpPolicy", train.made(), seed=3, policy_kwargs={"net_arch": [64, 64]})
    assert train.imitate(model) > 0.9
    write_network(tmp_path / "weights.npz", train.layers_of(model))
    network = read_network(tmp_path / "weights.npz")
    seen, masks, _ = train.shown()
    for observation, mask in zip(seen[:50], masks[:50], strict=True):
        chosen = model.policy.get_distribution(observation[None], action_masks=mask[None]).mode().item()
        outputs = network(observation.numpy() / train.SCALES)
        assert int(np.argmax(np.where(mask, outputs, -np.inf))) == chosen


@pytest.mark.slow
def test_item_20_ppo_learns_to_be_better_than_fifo_and_than_chance_on_seeds_that_it_has_not_seen() -> None:
    pytest.importorskip("gymnasium")
    (ppo,) = scripts_of("learned_order", "ppo")
    learned_s = ppo.average_jcts_s(ppo.learned(8).likeliest)
    assert paired_change(learned_s, ppo.average_jcts_s(ppo.first_allowed)).high < -0.1
    assert paired_change(learned_s, ppo.average_jcts_s(partial(ppo.at_random, np.random.default_rng(1)))).high < -0.2


def test_item_20_its_network_climbs_the_gradient_of_what_it_is_given() -> None:
    pytest.importorskip("gymnasium")
    (ppo,) = scripts_of("learned_order", "ppo")
    rng = np.random.default_rng(1)
    scorer, queues, allowed = ppo.Scorer(rng), rng.random((5, 3, 7)), np.ones((5, 4), bool)
    chances, hidden = scorer.chances(queues, allowed)
    of_scores = -chances / 5  # of the mean logarithm of the first action's chance
    of_scores[:, 0] += 0.2
    found = scorer.gradients(queues, hidden, of_scores)
    for weight, gradient in zip(scorer.weights, found, strict=True):
        for place in np.ndindex(weight.shape):
            values = []
            for off in (1e-6, -2e-6):
                weight[place] += off
                values.append(np.log(scorer.chances(queues, allowed)[0][:, 0]).mean())
            weight[place] += 1e-6
            assert gradient[place] == pytest.approx((values[0] - values[1]) / 2e-6, abs=1e-7)
