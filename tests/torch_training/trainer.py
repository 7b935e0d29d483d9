"""One rank of a training run: takes its state from a checkpoint, trains, and writes its part of the next checkpoint."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from gpt import Dropout, Stage
from groups import Groups, PairwiseSum, gathered, summed
from safetensors.torch import load_file, save_file
from torch import Tensor

from ddlsched.checkpoints.checkpoint import Checkpoint
from ddlsched.checkpoints.dataset_files import Samples
from ddlsched.checkpoints.dataset_state import DatasetState
from ddlsched.checkpoints.dataset_views import RankBatches
from ddlsched.checkpoints.tensor_models import StoredTransformer
from ddlsched.errors import InputError

WORDS = "embedding.word.weight"
HEAD = "head"
"""The tied embedding where it is the output layer: its gradient is kept apart also where both are on one stage."""
MOMENTS = ("exp_avg", "exp_avg_sq")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Hyperparameters:
    """What stays the same over a whole run."""

    learning_rate: float = 1e-3
    warmup_steps: int = 100
    weight_decay: float = 0.1
    dropout: float = 0.1

    def rate(self, step: int) -> float:
        """Return the learning rate of a step, counted from 0 over the whole run: linear warm-up, then 1 / sqrt."""
        return self.learning_rate * min((step + 1) / self.warmup_steps, math.sqrt(self.warmup_steps / (step + 1)))


class Trainer:
    """A rank of a run.

    Parameters
    ----------
    directory
        The checkpoint to go on from.
    samples
        The data set.
    rank
        This process's, in the checkpoint's parallelism.
    """

    def __init__(self, directory: Path, samples: Samples, rank: int, fixed: Hyperparameters) -> None:
        self.checkpoint = Checkpoint.read(directory)
        self.collection, self.fixed, self.rank, self.samples = self.checkpoint.collection, fixed, rank, samples
        self.groups = Groups(self.collection.parallelism, rank)
        self.model = StoredTransformer(**self.checkpoint.model)
        self.data = DatasetState.from_json(self.checkpoint.dataset, str(directory))
        self.arrays = load_file(directory / self.checkpoint.files[rank])
        self.step = int(self.arrays["optimiser.step"])
        if self.step != self.checkpoint.iteration:
            raise InputError(f"{directory}: optimiser.step is {self.step}; expected {self.checkpoint.iteration}")
        self.weights = {name: value.requires_grad_() for name, value in self.arrays.items() if not _is_state(name)}
        layers = [layer for layer, stage in enumerate(self.collection.stages) if stage == self.groups.place.stage]
        self.stage = Stage(self.model, self.groups, self.weights, layers)
        self.shares = {name: self._share(name) for name in self.weights}
        self.optimiser, self.masters = self._optimiser()

    def _share(self, name: str) -> tuple[int, ...]:
        """Return where, in a weight's local part as one dimension, each data-parallel rank's optimiser state ends."""
        state, place = f"optimiser.{MOMENTS[0]}.{name}", self.groups.place
        if not self.collection.by_name[state].flat:
            return (self.weights[name].numel(),)
        ranks = [self.groups.parallelism.rank(place.tensor, data, place.stage) for data in range(self.parallel_data)]
        held = [self.collection.arrays[rank].get(state) for rank in ranks]
        counts = [0 if layout is None else layout.num_elements for layout in held]
        return tuple(sum(counts[: data + 1]) for data in range(len(counts)))

    @property
    def parallel_data(self) -> int:
        """Data-parallel ranks."""
        return self.groups.parallelism.dp

    def _own(self, name: str) -> slice:
        ends = self.shares[name]
        data = self.groups.place.data if len(ends) > 1 else 0
        return slice(ends[data - 1] if data else 0, ends[data])

    def _optimiser(self) -> tuple[torch.optim.Optimizer, dict[str, Tensor]]:
        """Return AdamW over what this rank keeps the state of, in fp32, with the checkpoint's state."""
        masters = {}
        for name, weight in self.weights.items():
            own = self.arrays.get(f"optimiser.master.{name}")
            kept = weight.detach().flatten()[self._own(name)] if own is None else own.flatten()
            masters[name] = kept.float().clone()
        decaying = [masters[name] for name in masters if self.weights[name].dim() > 1]
        others = [masters[name] for name in masters if self.weights[name].dim() == 1]
        groups = [
            {"params": decaying, "weight_decay": self.fixed.weight_decay},
            {"params": others, "weight_decay": 0.0},
        ]
        optimiser = torch.optim.AdamW(groups, lr=0.0, foreach=False)
        for name, master in masters.items():
            empty = torch.zeros(0)
            moments = {kind: self.arrays.get(f"optimiser.{kind}.{name}", empty).flatten() for kind in MOMENTS}
            optimiser.state[master] = {"step": torch.tensor(float(self.step)), **moments}
        return optimiser, masters

    def train(self, steps: int) -> list[float]:
        """Train so many steps and return the mean loss of each, before its update; the same on all ranks."""
        batches = RankBatches(self.samples, self.data, rank=self.groups.place.data, ranks=self.parallel_data)
        losses = []
        for ahead in range(steps):
            loss, gradients = self._gradients(torch.from_numpy(batches.batch(ahead)))
            losses.append(loss)
            self._update(gradients)
            self.data = self.data.advanced()
        return losses

    def _gradients(self, samples: Tensor) -> tuple[float, dict[str, Tensor]]:
        """Return the loss and gradients of the mean over the global batch's tokens, of which this rank has some."""
        leaves = dict(self.weights)
        if self.groups.last and self.model.tied:
            leaves[HEAD] = self.weights[WORDS].detach().requires_grad_()
        sums: dict[str, PairwiseSum] = {name: PairwiseSum() for name in leaves}
        losses = PairwiseSum()
        first = self.data.consumed_samples + self.data.rank_slice(self.groups.place.data, self.parallel_data)[0]
        for number, sample in enumerate(samples):
            losses.add(self._run(sample, Dropout(self.fixed.dropout, self.seed, first + number), leaves.get(HEAD)))
            for name, leaf in leaves.items():
                sums[name].add(torch.zeros_like(leaf) if leaf.grad is None else leaf.grad)
                leaf.grad = None
        tokens = self.data.global_batch * (samples.shape[1] - 1)
        totals = {
            name: summed(sums[name].total(torch.zeros_like(leaf)), self.groups.data) for name, leaf in leaves.items()
        }
        loss = summed(losses.total(torch.zeros((), dtype=torch.float64)), self.groups.data)
        dist.broadcast(loss, self.groups.parallelism.num_ranks - 1)
        return float(loss) / tokens, {name: value.float() / tokens for name, value in self._tied(totals).items()}

    @property
    def seed(self) -> int:
        """Of the run's random masks."""
        return int(self.checkpoint.random["seed"])

    def _run(self, sample: Tensor, dropout: Dropout, head: Tensor | None) -> Tensor:
        """Take one sequence forward and back through all stages; returns its loss on the last one, else 0."""
        groups, received = self.groups, None
        if groups.first:
            value = self.stage.embed(sample[:-1], dropout)
        else:
            shape, dtype = (len(sample) - 1, self.model.hidden), next(iter(self.weights.values())).dtype
            received = torch.empty(shape, dtype=dtype)
            dist.recv(received, groups.neighbour(-1))
            value = received.requires_grad_()
        value = self.stage.forward(value, dropout)
        loss = torch.zeros((), dtype=torch.float64)
        if groups.last:
            result = self.stage.loss(value, sample[1:], self.weights["output.weight"] if head is None else head)
            result.backward()
            loss = result.detach()
        else:
            dist.send(value.detach().contiguous(), groups.neighbour(1))
            gradient = torch.empty_like(value)
            dist.recv(gradient, groups.neighbour(1))
            value.backward(gradient)
        if received is not None and received.grad is not None:
            dist.send(received.grad.contiguous(), groups.neighbour(-1))
        return loss

    def _tied(self, totals: dict[str, Tensor]) -> Mapping[str, Tensor]:
        """Return gradients with that of the tied embedding, the input's part first, on both stages that hold it."""
        if not self.model.tied or not (self.groups.first or self.groups.last):
            return totals
        head = totals.pop(HEAD, None)
        if self.groups.ends is not None:
            totals[WORDS] = summed(totals[WORDS] if head is None else head, self.groups.ends)
        elif head is not None:
            totals[WORDS] = totals[WORDS] + head
        return totals

    def _update(self, gradients: Mapping[str, Tensor]) -> None:
        for group in self.optimiser.param_groups:
            group["lr"] = self.fixed.rate(self.step)
        for name, master in self.masters.items():
            master.grad = gradients[name].flatten()[self._own(name)]
        self.optimiser.step()
        self.step += 1
        with torch.no_grad():
            for name, master in self.masters.items():
                self.weights[name].copy_(self._whole(name, master).view_as(self.weights[name]))

    def _whole(self, name: str, master: Tensor) -> Tensor:
        """Return a weight's local part from what the data-parallel ranks have updated."""
        ends = self.shares[name]
        if len(ends) == 1 or self.groups.data is None:
            return master
        begins = (0, *ends[:-1])
        most = max(end - begin for begin, end in zip(begins, ends, strict=True))
        padded = torch.zeros(most).index_copy(0, torch.arange(len(master)), master)
        parts = gathered(padded, self.groups.data)
        return torch.cat([part[: end - begin] for part, begin, end in zip(parts, begins, ends, strict=True)])

    def save(self, directory: Path) -> None:
        """Write this rank's file; when all ranks have, one writes the description."""
        done = dataclasses.replace(
            self.checkpoint, iteration=self.step, dataset=self.data.as_json(), sha256={}, xxh3={}, files=()
        )
        directory.mkdir(parents=True, exist_ok=True)
        layouts = self.collection.arrays[self.rank]
        arrays = {
            name: value.reshape(layouts[name].shape).contiguous() for name, value in self._state() if name in layouts
        }
        save_file(arrays, directory / done.files[self.rank])
        dist.barrier()
        if self.rank == 0:
            done.write_description(directory)
        dist.barrier()

    def _state(self) -> Iterator[tuple[str, Tensor]]:
        yield "optimiser.step", torch.tensor(self.step)
        for name, weight in self.weights.items():
            yield name, weight.detach()
            yield f"optimiser.master.{name}", self.masters[name]
            for kind in MOMENTS:
                yield f"optimiser.{kind}.{name}", self.optimiser.state[self.masters[name]][kind]


def _is_state(name: str) -> bool:
    return name.startswith("optimiser.")


def run(rank: int, task: dict[str, Any]) -> list[float]:
    """Train as one process; see :func:`processes.train`."""
    torch.set_num_threads(1)
    trainer = Trainer(task["source"], task["samples"], rank, task["fixed"])
    losses = trainer.train(task["steps"])
    if task["destination"] is not None:
        trainer.save(task["destination"])
    return losses
