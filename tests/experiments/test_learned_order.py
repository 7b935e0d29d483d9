"""The learned order's training: what is exported is what was trained, and its comparison can be made."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from command_line import run
from experiment_scripts import EXPERIMENTS, scripts_of

from ddlsched.policies.dense_network import read_network, write_network


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
