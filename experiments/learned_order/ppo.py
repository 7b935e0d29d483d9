"""PPO in numpy that visibly learns in seconds: who of a burst of jobs starts next.

    pip install 'ddlsched[envs]'
    python experiments/learned_order/ppo.py

30 jobs of 1 to 8 GPUs and of 5 to 1,000 iterations arrive together at 16 GPUs. One small network scores each job that
waits by its features, whatever its place; softmax makes a policy of the scores. No order is shown to it: jobs are seen
as they arrived. Prints the average JCT on seeds that it has not seen, beside decisions at random, FIFO that skips, and
shortest remaining time first.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import numpy as np

from ddlsched import Cluster, DataParallelIteration, Job, Workload
from ddlsched.envs import OrderVectorEnv
from ddlsched.results.statistics import paired_change

NUM_JOBS, RUNS, STEPS = 30, 32, 32
HIDDEN, RATE, CLIP, EPOCHS, PARTS, LAMBDA = 16, 0.01, 0.2, 4, 4, 0.95
SCALES = np.array([2, 1, 1, 10, 1, 10, 1])
"""Of each feature of a job, so that what differs from job to job does so by about 1."""
HELD_OUT = range(1_000, 1_064)

Choose = Callable[[np.ndarray, np.ndarray], np.ndarray]
"""From queues (runs, slots, 7) and what is allowed (runs, slots + 1) to actions (runs,)."""


def burst(*, seed: int) -> Workload:
    """Return jobs that arrive together and are as unlike as can be in length."""
    rng = np.random.default_rng(seed)
    iteration = DataParallelIteration(forward_s=0.1, backward_s=0.2, message_bytes=1e7)
    return Workload.of(
        Job(
            job_id=f"j{number}",
            arrival_s=0.0,
            num_gpus=int(rng.choice([1, 2, 4, 8])),
            iterations=round(5 * 200 ** rng.random()),
            iteration=iteration,
            gpu_memory_mb=1e3,
        )
        for number in range(NUM_JOBS)
    )


def made(order: str = "fifo") -> OrderVectorEnv:
    """Return the environment: all that wait are seen."""
    cluster = Cluster(num_servers=4, exclusive=True)
    return OrderVectorEnv(RUNS, f"{__file__}:burst", cluster=cluster, slots=NUM_JOBS, settings={"order": order})


class Scorer:
    """Scores jobs by one hidden layer, the same for each, and waiting by a number; Adam moves its weights."""

    def __init__(self, rng: np.random.Generator) -> None:
        inputs = len(SCALES)
        self.weights = rng.normal(0, inputs**-0.5, (inputs, HIDDEN)), rng.normal(0, 0.01, HIDDEN), np.full(1, -2.0)
        self._moments = [(np.zeros_like(weight), np.zeros_like(weight)) for weight in self.weights]
        self._steps = 0

    def chances(self, queues: np.ndarray, allowed: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return how likely each action is (runs, slots + 1), and the hidden layer of each job."""
        hidden = np.tanh(queues * SCALES @ self.weights[0])
        waiting = np.broadcast_to(self.weights[2], (len(queues), 1))
        scores = np.where(allowed, np.concatenate([hidden @ self.weights[1], waiting], axis=1), -np.inf)
        powers = np.exp(scores - scores.max(axis=1, keepdims=True))
        return powers / powers.sum(axis=1, keepdims=True), hidden

    def likeliest(self, queues: np.ndarray, allowed: np.ndarray) -> np.ndarray:
        """Return the likeliest actions."""
        best: np.ndarray = self.chances(queues, allowed)[0].argmax(axis=1)
        return best

    def gradients(self, queues: np.ndarray, hidden: np.ndarray, of_scores: np.ndarray) -> tuple[np.ndarray, ...]:
        """Return those of the weights, given that of the scores (runs, slots + 1)."""
        of_jobs = of_scores[:, :-1]
        of_hidden = of_jobs[..., None] * self.weights[1] * (1 - hidden**2)
        first = np.einsum("rsf,rsh->fh", queues * SCALES, of_hidden)
        return first, np.einsum("rs,rsh->h", of_jobs, hidden), of_scores[:, -1:].sum(axis=0)

    def climb(self, gradients: tuple[np.ndarray, ...]) -> None:
        """Take a step up."""
        self._steps += 1
        for weight, (mean, square), gradient in zip(self.weights, self._moments, gradients, strict=True):
            mean += 0.1 * (gradient - mean)
            square += 0.001 * (gradient**2 - square)
            scale = np.sqrt(square / (1 - 0.999**self._steps)) + 1e-8
            weight += RATE * mean / (1 - 0.9**self._steps) / scale


class Tried(NamedTuple):
    """What steps of all runs saw, did and earned, each (steps, runs, ...); ``begun`` is True where one began anew."""

    queues: np.ndarray
    allowed: np.ndarray
    actions: np.ndarray
    chances: np.ndarray
    rewards: np.ndarray
    ended: np.ndarray
    begun: np.ndarray


def tried(env: OrderVectorEnv, seen: dict[str, np.ndarray], scorer: Scorer, rng: np.random.Generator) -> Tried:
    """Return steps with actions drawn from the policy; ``seen`` is then what is seen after them."""
    steps, begun = [], np.zeros(RUNS, bool)
    for _ in range(STEPS):
        queues, allowed = seen["queue"], seen["action_mask"].astype(bool)
        chances, _ = scorer.chances(queues, allowed)
        actions = (chances.cumsum(axis=1) > rng.random((RUNS, 1))).argmax(axis=1)
        after, rewards, ended, _, _ = env.step(actions)
        steps.append((queues, allowed, actions, chances[np.arange(RUNS), actions], rewards, ended, begun))
        seen.update(after)
        begun = ended
    return Tried(*map(np.array, zip(*steps, strict=True)))


def summed(queues: np.ndarray) -> np.ndarray:
    """Return what the critic goes by: sums over the jobs that wait, and those times how many wait."""
    left = np.expm1(queues[..., 3:4] * 25.0) / 100.0  # the feature is the logarithm of the time left
    sums = np.concatenate([queues * SCALES, left, left * queues[..., :1]], axis=-1).sum(axis=-2)
    return np.concatenate([sums, sums * sums[..., 6:7] / NUM_JOBS], axis=-1)


def advantages(steps: Tried, values: np.ndarray) -> np.ndarray:
    """Return how much better each action was than its values (steps + 1, runs) had it, by GAE."""
    found = np.zeros((STEPS + 1, RUNS))
    for step in reversed(range(STEPS)):
        follow = values[step + 1] + LAMBDA * found[step + 1]
        gained = steps.rewards[step] + follow * ~steps.ended[step] - values[step]
        found[step] = np.where(steps.begun[step], 0.0, gained)
    return found[:-1]


def improve(scorer: Scorer, steps: Tried, better: np.ndarray, rng: np.random.Generator) -> None:
    """Climb the clipped objective of Schulman et al., "Proximal policy optimization algorithms" (2017)."""
    known = ~steps.begun
    better = (better - better[known].mean()) / better[known].std()
    every = [array[known] for array in (steps.queues, steps.allowed, steps.actions, steps.chances, better)]
    for _ in range(EPOCHS):
        for part in np.array_split(rng.permutation(len(every[0])), PARTS):
            queues, allowed, actions, before, gain = (array[part] for array in every)
            chances, hidden = scorer.chances(queues, allowed)
            rows = np.arange(len(part))
            ratio = chances[rows, actions] / before
            weight = np.where(gain > 0, ratio < 1 + CLIP, ratio > 1 - CLIP) * ratio * gain / len(part)
            of_scores = -weight[:, None] * chances
            of_scores[rows, actions] += weight
            scorer.climb(scorer.gradients(queues, hidden, of_scores))


def learned(rounds: int, *, seed: int = 1) -> Scorer:
    """Return what was learned in some rounds of 1,024 decisions."""
    rng, env = np.random.default_rng(seed), made()
    scorer, critic = Scorer(rng), np.zeros(18)
    seen, _ = env.reset(seed=seed)
    for _ in range(rounds):
        steps = tried(env, seen, scorer, rng)
        inputs = summed(np.concatenate([steps.queues, seen["queue"][None]]))
        better = advantages(steps, inputs @ critic)
        inputs, targets = inputs[:-1][~steps.begun], (better + inputs[:-1] @ critic)[~steps.begun]
        fitted = np.linalg.solve(inputs.T @ inputs + 0.1 * np.eye(18), inputs.T @ targets)
        critic += 0.5 * (fitted - critic)
        improve(scorer, steps, better, rng)
    return scorer


def average_jcts_s(choose: Choose, order: str = "fifo") -> np.ndarray:
    """Return the average JCT on each seed that is held out."""
    env, found = made(order), np.full(len(HELD_OUT), np.nan)
    for first in range(0, len(HELD_OUT), RUNS):
        part = found[first : first + RUNS]
        seen, _ = env.reset(seed=HELD_OUT[first])
        while np.isnan(part).any():
            seen, _, ended, _, infos = env.step(choose(seen["queue"], seen["action_mask"].astype(bool)))
            new = ended & np.isnan(part)
            if new.any():
                part[new] = infos["average_jct_s"][new]
    return found


def first_allowed(queues: np.ndarray, allowed: np.ndarray) -> np.ndarray:
    """Return the first that may start."""
    found: np.ndarray = allowed[: len(queues)].argmax(axis=1)
    return found


def at_random(rng: np.random.Generator, queues: np.ndarray, allowed: np.ndarray) -> np.ndarray:
    """Return any that is allowed."""
    found: np.ndarray = (allowed * rng.random((len(queues), allowed.shape[1]))).argmax(axis=1)
    return found


def change(values: np.ndarray, baseline: np.ndarray) -> str:
    """Return a paired change with its 95 % interval, per cent."""
    found = paired_change(values, baseline).scaled(100)
    return f"{found.mean:+.1f} [{found.low:+.1f}, {found.high:+.1f}]"


def main() -> None:
    """Learn and compare."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=20, help="of 1,024 decisions")
    parser.add_argument("--seeds", type=int, default=3, help="how often it learns anew")
    asked = parser.parse_args()
    fifo_s, srtf_s = average_jcts_s(first_allowed), average_jcts_s(first_allowed, "srtf")
    random_s = average_jcts_s(partial(at_random, np.random.default_rng(0)))
    print("| policy | average JCT (s) | against FIFO that skips, % | against SRTF, % |\n|---|---|---|---|")

    def told(name: str, found_s: np.ndarray) -> None:
        changes = f"{change(found_s, fifo_s)} | {change(found_s, srtf_s)}"
        print(f"| {name} | {found_s.mean():.1f} | {changes} |", flush=True)

    told("at random", random_s)
    told("FIFO that skips", fifo_s)
    told("SRTF", srtf_s)
    begin_s = time.process_time()
    for seed in range(1, asked.seeds + 1):
        told(f"PPO, seed {seed}", average_jcts_s(learned(asked.rounds, seed=seed).likeliest))
    print(f"{(time.process_time() - begin_s) / asked.seeds:.0f} s of CPU a seed")


if __name__ == "__main__":
    main()
