"""Measures what training jobs cost each other on one GPU: ``measure.py --out DIR [--repetitions 1]``; needs a GPU.

Every job is a process of its own that trains on random data; processes take turns on the GPU as its driver has it
(time-slicing, nothing set). All of a combination train at once for a few seconds, and each counts its steps: alone, in
pairs of models, and three and four of one model; with the batch of the 64-GPU workload's paper, which fills a small
part of a GPU of today, and with one eight times as large. Writes ``rates.csv``, a row a job of a combination, and
``gpu.csv``, what was measured on. Takes about 8 minutes a repetition.

``--restarts`` measures instead what a stop costs: saving model and optimiser, then a new process up to the end of its
first step; it writes ``restarts.csv``.
"""

from __future__ import annotations

import argparse
import csv
import itertools
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from models import MODELS, SIZES, Training
from torch import multiprocessing

MOST = 4
"""Jobs on the GPU at once."""
WARM_S, WINDOW_S = 1.0, 3.0
"""For how long a combination trains before and while steps are counted; twice that for three and four jobs."""
Job = tuple[str, int]
"""A model, and which of its processes."""
RATE_FIELDS = ("repetition", "combination", "batches", "model", "batch", "others", "steps_per_s", "memory_mb")


def trains(model: str, connection: Any) -> None:
    """Train when told, in a process of its own."""
    training = Training(model)
    for command in iter(connection.recv, None):
        size, begin_s, window_s = command
        connection.send(steps_per_s(training, size, begin_s, window_s))


def steps_per_s(training: Training, size: str, begin_s: float, window_s: float) -> tuple[float, float]:
    """Train until a window of the host's clock is over; return its steps a second and the peak of memory, MB.

    The host is at most two steps ahead of the GPU, as a loop that reads its loss is about one.
    """
    torch.cuda.reset_peak_memory_stats()
    ended_s: list[float] = []
    ahead: list[torch.cuda.Event] = []
    while not ended_s or ended_s[-1] < begin_s + window_s:
        training.step(size)
        event = torch.cuda.Event()
        event.record()
        ahead.append(event)
        if len(ahead) > 2:
            ahead.pop(0).synchronize()
            ended_s.append(time.monotonic())
    torch.cuda.synchronize()
    peak_mb = torch.cuda.max_memory_allocated() / 1e6
    training.free(size)
    inside = [end_s for end_s in ended_s if begin_s <= end_s <= begin_s + window_s]
    return (len(inside) - 1) / (inside[-1] - inside[0]) if len(inside) > 1 else float("nan"), peak_mb


@contextmanager
def workers(models: Sequence[str], count: int) -> Iterator[dict[Job, Any]]:
    """Start so many processes of each model, and yield the end of each one's pipe."""
    context = multiprocessing.get_context("spawn")
    pipes = {(model, number): context.Pipe() for model in models for number in range(count)}
    processes = [context.Process(target=trains, args=(model, there)) for (model, _), (_, there) in pipes.items()]
    for process in processes:
        process.start()
    ends = {job: here for job, (here, _) in pipes.items()}
    for size, job in itertools.product(SIZES, ends):  # cuDNN chooses its kernels while nobody else computes
        run(ends, [job], size, warm_s=0.0, window_s=0.0)
    yield ends
    for end in ends.values():
        end.send(None)
    for process in processes:
        process.join()


def run(ends: dict[Job, Any], jobs: Sequence[Job], size: str, *, warm_s: float, window_s: float) -> list[Any]:
    """Have jobs train at once and return what each found."""
    begin_s = time.monotonic() + warm_s
    for job in jobs:
        ends[job].send((size, begin_s, window_s))
    return [ends[job].recv() for job in jobs]


def measured(out: Path, repetitions: int) -> None:
    """Measure all combinations and write the rates."""
    with (out / "rates.csv").open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(RATE_FIELDS)
        for repetition in range(repetitions):
            with workers(list(MODELS), 2) as ends:
                pairs = itertools.combinations_with_replacement(MODELS, 2)
                for size, models in itertools.product(SIZES, [*((model,) for model in MODELS), *pairs]):
                    writer.writerows(rows(repetition, ends, models, size))
                    file.flush()
            for model in MODELS:
                with workers([model], MOST) as ends:
                    for size, count in itertools.product(SIZES, range(3, MOST + 1)):
                        writer.writerows(rows(repetition, ends, (model,) * count, size))
                        file.flush()


def rows(repetition: int, ends: dict[Job, Any], models: Sequence[str], size: str) -> list[tuple[Any, ...]]:
    """Measure a combination and return a row a job."""
    jobs = [(model, models[:place].count(model)) for place, model in enumerate(models)]
    found = run(ends, jobs, size, warm_s=WARM_S, window_s=WINDOW_S * (1 if len(jobs) < 3 else 2))
    print(size, *models, *(f"{rate:.2f}" for rate, _ in found), flush=True)
    made: list[tuple[Any, ...]] = []
    for place, (rate, memory_mb) in enumerate(found):
        batch, others = SIZES[size] * MODELS[models[place]].batch, "+".join((*models[:place], *models[place + 1 :]))
        row = (repetition, "+".join(models), size, models[place], batch, others, f"{rate:.4f}", f"{memory_mb:.0f}")
        made.append(row)
    return made


def saves(model: str, path: str, connection: Any) -> None:
    """Train a little, save the state, and tell how long that took, seconds, and its bytes."""
    training = Training(model)
    for _ in range(5):
        training.step("paper")
    torch.cuda.synchronize()
    begin_s = time.monotonic()
    torch.save(training.state(), path)
    connection.send((time.monotonic() - begin_s, Path(path).stat().st_size))


def starts(model: str, path: str, connection: Any) -> None:
    """Load the state in a new process and train a step; tell when each was done."""
    imported_s = time.monotonic()
    torch.cuda.init()
    torch.zeros(1, device="cuda")
    context_s = time.monotonic()
    training = Training(model)
    training.load(torch.load(path, map_location="cuda"))
    torch.cuda.synchronize()
    loaded_s = time.monotonic()
    training.step("paper")
    torch.cuda.synchronize()
    connection.send((imported_s, context_s, loaded_s, time.monotonic()))


def restarts(out: Path, repetitions: int) -> None:
    """Measure what a stop costs each model."""
    context = multiprocessing.get_context("spawn")

    def told(target: Any, *given: str) -> Any:
        here, there = context.Pipe()
        process = context.Process(target=target, args=(*given, there))
        process.start()
        found = here.recv()
        process.join()
        return found

    fields = ("repetition", "model", "state_mb", "save_s", "process_and_import_s", "cuda_s", "load_s", "first_step_s")
    with tempfile.TemporaryDirectory() as folder, (out / "restarts.csv").open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(fields)
        for repetition, model in itertools.product(range(repetitions), MODELS):
            path = str(Path(folder) / "state.pt")
            save_s, state_bytes = told(saves, model, path)
            began_s = time.monotonic()
            moments_s = (began_s, *told(starts, model, path))
            parts_s = (after - before for before, after in itertools.pairwise(moments_s))
            row = (repetition, model, f"{state_bytes / 1e6:.1f}", f"{save_s:.3f}", *(f"{part:.3f}" for part in parts_s))
            writer.writerow(row)
            file.flush()
            print(*row, flush=True)


def main() -> None:
    """Measure, and write what was measured on."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, metavar="DIR")
    parser.add_argument("--repetitions", type=int, default=1, metavar="N")
    parser.add_argument("--restarts", action="store_true", help="what a stop costs")
    given = parser.parse_args()
    given.out.mkdir(parents=True, exist_ok=True)
    (restarts if given.restarts else measured)(given.out, given.repetitions)
    device = torch.cuda.get_device_properties(0)
    about = {"gpu": device.name, "memory_mb": round(device.total_memory / 1e6)}
    about |= {"pytorch": torch.__version__, "cuda": torch.version.cuda, "cudnn": torch.backends.cudnn.version()}
    with (given.out / "gpu.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, list(about))
        writer.writeheader()
        writer.writerow(about)


if __name__ == "__main__":
    main()
