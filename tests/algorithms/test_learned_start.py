"""The policy that was learned decides as its network does, in the environment and in a run; bad weights are refused."""

from __future__ import annotations

import pickle
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from algorithms.placement.learned_start import DenseLayer, LearnedStart, read_network, write_network
from ddlsched import Cluster, simulate
from ddlsched.envs import OrderEnv
from ddlsched.errors import InputError
from ddlsched.policies.choosing import JOB_FEATURES

SLOTS = 4
STREAM = "stream:load=1.2,num_jobs=40,scale=0.01"
EXCLUSIVE = Cluster(exclusive=True)


def layer(outputs: int, inputs: int, seed: int = 1) -> DenseLayer:
    rng = np.random.default_rng(seed)
    return DenseLayer(rng.normal(size=(outputs, inputs)), rng.normal(size=outputs))


def written(folder: Path, *layers: DenseLayer) -> Path:
    write_network(folder / "weights.npz", layers)
    return folder / "weights.npz"


@pytest.mark.long
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_a_run_is_the_episode_in_which_the_network_chooses(tmp_path: Path, seed: int) -> None:
    path = written(tmp_path, layer(16, SLOTS * len(JOB_FEATURES), seed), layer(SLOTS + 1, 16, seed))
    network = read_network(path)
    env = OrderEnv(STREAM, cluster=EXCLUSIVE, settings={"order": "srtf"}, slots=SLOTS)
    seen, _ = env.reset(options={"seed": seed})
    ended, chosen = False, set()
    while not ended:
        outputs = network(seen["queue"].ravel())
        action = max(np.flatnonzero(seen["action_mask"]), key=lambda place: outputs[place])
        chosen.add(action)
        seen, _, ended, _, _ = env.step(action)
    assert env.result is not None
    assert len(chosen) > 1
    plain = simulate(STREAM, EXCLUSIVE, order="srtf", placement=LearnedStart(weights=str(path)), seed=seed)
    assert plain.jobs["finish_s"].tolist() == env.result.jobs["finish_s"].tolist()


def test_a_network_is_what_was_written(tmp_path: Path) -> None:
    first, last = layer(3, 2), layer(2, 3)
    network = read_network(written(tmp_path, first, last))
    inputs = np.array([0.3, -0.7])
    expected = last.weight @ np.tanh(first.weight @ inputs + first.bias) + last.bias
    assert network(inputs) == pytest.approx(expected, rel=1e-5)
    assert (network.num_inputs, network.num_outputs) == (2, 2)


def test_the_shipped_weights_are_used_by_default() -> None:
    result = simulate(STREAM, EXCLUSIVE, order="srtf", placement=LearnedStart(), seed=1)
    assert result.summary()["unfinished_jobs"] == 0


class Malicious:
    """Would touch a file if it were unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return Path.touch, (self.path,)


def test_what_a_file_would_execute_is_not_executed(tmp_path: Path) -> None:
    planted = np.array([Malicious(tmp_path / "executed")], dtype=object)
    np.savez(tmp_path / "weights.npz", weight_0=planted, bias_0=planted)
    with pytest.raises(InputError, match="holds no arrays"):
        read_network(tmp_path / "weights.npz")
    (tmp_path / "pickled.npz").write_bytes(pickle.dumps(Malicious(tmp_path / "executed")))
    with pytest.raises(InputError, match="holds no arrays"):
        read_network(tmp_path / "pickled.npz")
    assert not (tmp_path / "executed").exists()


@pytest.mark.long
def test_what_unpacks_to_very_much_is_refused(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "weights.npz", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("weight_0.npy", bytes(65 << 20))
    with pytest.raises(InputError, match="more than 67,108,864 bytes"):
        read_network(tmp_path / "weights.npz")


@pytest.mark.parametrize(
    ("layers", "message"),
    [
        ([layer(3, 2), layer(2, 4)], r"weight_1 has shape \(2, 4\).*expected \(outputs, 3\)"),
        ([DenseLayer(np.ones((2, 2)), np.ones(3))], r"weight_0 has shape \(2, 2\), bias_0 \(3,\)"),
        ([DenseLayer(np.full((2, 2), np.nan), np.ones(2))], "layer 0 is not of finite"),
        ([], r"has the arrays \[\]"),
    ],
)
def test_layers_that_do_not_fit_are_refused(tmp_path: Path, layers: list[DenseLayer], message: str) -> None:
    with pytest.raises(InputError, match=message):
        read_network(written(tmp_path, *layers))


def test_weights_for_other_observations_are_refused(tmp_path: Path) -> None:
    path = written(tmp_path, layer(3, 20))
    with pytest.raises(InputError, match="has 20 inputs and 3 outputs; expected 7 inputs for all outputs but one"):
        simulate(STREAM, EXCLUSIVE, order="srtf", placement=LearnedStart(weights=str(path)), seed=1)


def test_a_file_that_is_not_there_is_refused() -> None:
    with pytest.raises(InputError, match=r"none\.npz: cannot be read"):
        simulate(STREAM, EXCLUSIVE, placement=LearnedStart(weights="none.npz"), seed=1)
