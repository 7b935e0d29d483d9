"""Train who of the queue starts next, and write the weights that ``--placement learned-start:weights=FILE`` runs with.

    pip install 'ddlsched[learn]'
    python experiments/learned_order/train.py --steps 20000 --out weights.npz

The network first imitates the order that it is shown (shortest remaining time first), then learns with MaskablePPO
of sb3-contrib. Kept is what does best on seeds of its own, neither those of training nor those of the comparison.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from gymnasium.wrappers import FilterObservation, FlattenObservation, TransformObservation
from sb3_contrib import MaskablePPO

from algorithms.placement.learned_start import DenseLayer, write_network
from ddlsched import Cluster
from ddlsched.envs import OrderEnv
from ddlsched.policies.choosing import JOB_FEATURES

JOBS = "stream:load=1.2,num_jobs=100,scale=0.05"
SLOTS = 8
SCALES = np.tile(np.float32([8, 2, 1, 10, 4, 10, 1]), SLOTS)
"""Of each feature, so that what differs from job to job does so by about 1; a part of the first layer once written."""
assert len(SCALES) == SLOTS * len(JOB_FEATURES)
VALIDATION_SEEDS = range(51, 63)
IMITATED_EPISODES = 20
IMITATION_LOSS = 0.4
"""The shown action has a probability of 2 / 3: what is never tried is never found to be better."""
PART_STEPS = 5_000


def made() -> Any:
    """Return the environment with observations as one array."""
    env = OrderEnv(JOBS, cluster=Cluster(exclusive=True), settings={"order": "srtf"}, unit_s=60.0, slots=SLOTS)
    flat = FlattenObservation(FilterObservation(env, ["queue"]))
    return TransformObservation(flat, lambda seen: seen * SCALES, None)


def decided(model: MaskablePPO, env: Any, observation: np.ndarray) -> int:
    """Return the action that a model thinks best."""
    action, _ = model.predict(observation, action_masks=env.unwrapped.action_masks(), deterministic=True)
    return int(action)


def average_jct_s(model: MaskablePPO) -> float:
    """Return the geometric mean over the validation seeds."""
    env, found = made(), []
    for seed in VALIDATION_SEEDS:
        observation, _ = env.reset(options={"seed": seed})
        ended = False
        while not ended:
            observation, _, ended, _, info = env.step(decided(model, env, observation))
        found.append(info["average_jct_s"])
    return float(np.exp(np.log(found).mean()))


def shown() -> tuple[torch.Tensor, np.ndarray, torch.Tensor]:
    """Return observations, masks and actions of starting the first job that has room."""
    env, seen, masks = made(), [], []
    for seed in range(1, IMITATED_EPISODES + 1):
        observation, _ = env.reset(seed=seed)
        ended = False
        while not ended:
            seen.append(observation)
            masks.append(env.unwrapped.action_masks())
            observation, _, ended, _, _ = env.step(int(np.argmax(masks[-1])))
    every_mask = np.array(masks)
    return torch.as_tensor(np.array(seen)), every_mask, torch.as_tensor(every_mask.argmax(axis=1))


def imitate(model: MaskablePPO) -> float:
    """Train the policy to do what it is shown, and not to be too sure of it; return in which share it does."""
    seen, masks, actions = shown()
    optimiser = torch.optim.Adam(model.policy.parameters(), lr=1e-3)
    loss = torch.tensor(torch.inf)
    while loss > IMITATION_LOSS:
        loss = -model.policy.get_distribution(seen, action_masks=masks).log_prob(actions).mean()
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    chosen = model.policy.get_distribution(seen, action_masks=masks).mode()
    return float((chosen == actions).float().mean())


def layers_of(model: MaskablePPO) -> list[DenseLayer]:
    """Return the layers of the policy's network, the scales in the first."""
    dense = [part for part in model.policy.mlp_extractor.policy_net if isinstance(part, torch.nn.Linear)]
    dense.append(model.policy.action_net)
    found = [DenseLayer(part.weight.detach().numpy().copy(), part.bias.detach().numpy().copy()) for part in dense]
    return [found[0]._replace(weight=found[0].weight * SCALES), *found[1:]]


def main() -> None:
    """Train and write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=20_000, help="decisions of MaskablePPO")
    parser.add_argument("--out", type=Path, default=Path("weights.npz"))
    parser.add_argument("--seed", type=int, default=1)
    asked = parser.parse_args()
    torch.set_num_threads(1)
    begin_s = time.process_time()
    settings: dict[str, Any] = {"n_steps": 1000, "batch_size": 250, "gamma": 1.0, "learning_rate": 3e-4, "n_epochs": 5}
    model = MaskablePPO(
        "MlpPolicy", made(), **settings, seed=asked.seed, device="cpu", policy_kwargs={"net_arch": [64, 64]}
    )
    share = imitate(model)
    best_s, best = average_jct_s(model), layers_of(model)
    print(f"imitated in {100 * share:.1f} % of the decisions: {best_s:.3f} s on the validation seeds", flush=True)
    for done in range(PART_STEPS, asked.steps + 1, PART_STEPS):
        model.learn(PART_STEPS, reset_num_timesteps=False)
        found_s = average_jct_s(model)
        print(f"{done} steps, {time.process_time() - begin_s:.0f} CPU s: {found_s:.3f} s", flush=True)
        if found_s < best_s:
            best_s, best = found_s, layers_of(model)
    write_network(asked.out, best)
    print(f"wrote {asked.out}: {best_s:.3f} s")


if __name__ == "__main__":
    main()
