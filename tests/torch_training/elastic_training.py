"""A training script of a user for ``ddlsched live``: DistributedDataParallel on a data set whose samples it counts.

Environment: HIDDEN, the width of its network (default 64); SEED, of its first weights (default 0); PAUSE_S, by which
each step is longer, STEP_S, as long as it is at least, SAVE_S, by which each commit is longer, as that of a larger
state would be, and READY_AT_S, from when on (of the clock that nobody sets) this process takes part (default 0).
"""

from __future__ import annotations

import os
import time

import torch
from torch import distributed
from torch.nn.functional import mse_loss
from torch.nn.parallel import DistributedDataParallel

from ddlsched.real.live.training import Step, train

BATCH = 32
SAMPLES = 1 << 16


class Seen:
    """How often each sample has been trained on, as part of the state that is committed."""

    def __init__(self) -> None:
        self.times = torch.zeros(SAMPLES, dtype=torch.int32)

    def state_dict(self) -> dict[str, torch.Tensor]:
        """Return the counts."""
        time.sleep(given_s("SAVE_S"))
        return {"times": self.times}

    def load_state_dict(self, state: dict[str, torch.Tensor]) -> None:
        """Take counts."""
        self.times = state["times"]


def given_s(name: str) -> float:
    """Return seconds from the environment."""
    return float(os.environ.get(name, "0"))


def sleep_until(time_s: float) -> None:
    """Sleep until a time of the clock that nobody sets."""
    time.sleep(max(time_s - time.monotonic(), 0.0))


def main() -> None:
    torch.set_num_threads(1)
    order = torch.randperm(SAMPLES, generator=torch.Generator().manual_seed(1))
    inputs = torch.randn(SAMPLES, 8, generator=torch.Generator().manual_seed(2))
    targets = inputs.prod(dim=1, keepdim=True).tanh() + inputs.sum(dim=1, keepdim=True)
    torch.manual_seed(int(os.environ.get("SEED", "0")))
    pause_s, step_s = given_s("PAUSE_S"), given_s("STEP_S")
    hidden = int(os.environ.get("HIDDEN", "64"))
    layers = torch.nn.Linear(8, hidden), torch.nn.Tanh(), torch.nn.Linear(hidden, hidden), torch.nn.Linear(hidden, 1)
    model, seen = torch.nn.Sequential(*layers), Seen()
    optimiser = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)

    def begin(rank: int, ranks: int) -> Step:
        parallel = DistributedDataParallel(model)

        def step(number: int) -> float:
            end_s = time.monotonic() + step_s
            time.sleep(pause_s)
            batch = order[number * BATCH : (number + 1) * BATCH]
            mine = batch[rank * BATCH // ranks : (rank + 1) * BATCH // ranks]
            optimiser.zero_grad()
            # DistributedDataParallel averages over ranks; parts of a batch may differ in size.
            loss = mse_loss(parallel(inputs[mine]), targets[mine], reduction="sum") * ranks / BATCH
            loss.backward()
            drawn = torch.zeros(SAMPLES, dtype=torch.int32)
            drawn[mine] = 1
            distributed.all_reduce(drawn)
            mean = loss.detach() / ranks
            distributed.all_reduce(mean)
            optimiser.step()
            seen.times += drawn
            sleep_until(end_s)
            return float(mean)

        return step

    sleep_until(given_s("READY_AT_S"))
    train(begin, state={"model": model, "optimiser": optimiser, "seen": seen}, samples_a_step=BATCH)


if __name__ == "__main__":
    main()
