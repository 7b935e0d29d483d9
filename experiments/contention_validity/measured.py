"""Readers of the measurements: ratios of job pairs, steps by placement, latencies of concurrent all-reduces."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd

from ddlsched.errors import InputError
from ddlsched.real.calibration.measurements import Measurements, read_measurements

FILES = {
    "latencies": "network/allreduce_contention_1gbe.csv",
    "alone": "network/allreduce_alone_1gbe.csv",
    "pairs": "traces/deepshare/shared_thp_ratio.csv",
    "placements": "traces/pollux-osdi21/placements",
}
APPS = ("bert", "cifar10", "deepspeech2", "imagenet", "ncf", "yolov3")


def missing(data: Path) -> list[Path]:
    """Return which of the measurements are not in a folder."""
    return [data / name for name in FILES.values() if not (data / name).exists()]


def latencies(data: Path) -> Measurements:
    """Return mean latencies of 1 to 16 concurrent all-reduces on 1 Gbit/s Ethernet."""
    return read_measurements(data / FILES["latencies"])


def alone(data: Path) -> Measurements:
    """Return mean latencies of one all-reduce of 10 to 100 MiB on the same network, measured apart from the others."""
    return read_measurements(data / FILES["alone"])


def pairs(data: Path) -> pd.DataFrame:
    """Return throughput beside another job / throughput alone: of the row's job beside the column's.

    Raises
    ------
    InputError
        The matrix is not square, its labels differ, or a ratio is not in (0, 1].
    """
    path = data / FILES["pairs"]
    frame = pd.read_csv(path, index_col=0)
    if list(frame.index) != list(frame.columns):
        raise InputError(f"{path}: rows and columns differ; expected the same jobs in both")
    if not ((frame > 0) & (frame <= 1)).to_numpy(dtype=bool).all():
        raise InputError(f"{path}: holds what is no ratio; expected numbers > 0, at most 1")
    return frame


def placements(data: Path) -> pd.DataFrame:
    """Return a row a measured step of a job alone in the network.

    Columns: app; placement (a digit a server: its GPUs); servers; most_gpus (of a server); batch; step_s; sync_s, what
    was measured of communication in it; compute_s, the step on one GPU with the same batch.

    Raises
    ------
    InputError
        A step was measured with a batch that was not measured on one GPU.
    """
    tables = []
    for app in APPS:
        path = data / FILES["placements"] / f"{app}.csv"
        frame = pd.read_csv(path, dtype={"placement": str})
        frame = frame.rename(columns={"local_bsz": "batch", "step_time": "step_s", "sync_time": "sync_s"})
        alone = frame[frame["placement"] == "1"].groupby("batch")["step_s"].mean()
        frame = frame.assign(app=app, compute_s=frame["batch"].map(alone))
        if frame["compute_s"].isna().any():
            batch = frame.loc[frame["compute_s"].isna(), "batch"].iloc[0]
            raise InputError(f"{path}: batch {batch} was not measured on one GPU; expected placement 1 for every batch")
        tables.append(frame)
    frame = pd.concat(tables, ignore_index=True)
    gpus = [[int(digit) for digit in text] for text in frame["placement"]]
    frame = frame.assign(servers=[len(g) for g in gpus], most_gpus=[max(g) for g in gpus])
    return frame[["app", "placement", "servers", "most_gpus", "batch", "step_s", "sync_s", "compute_s"]]


def halves(count: int, number: int, *, seed: int = 0) -> np.ndarray:
    """Return masks of the fitted half of ``count`` things, a row a random half."""
    rng = np.random.default_rng(seed)
    masks = np.zeros((number, count), dtype=bool)
    for mask in masks:
        mask[rng.permutation(count)[: count // 2]] = True
    return masks
