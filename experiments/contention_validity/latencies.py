"""All-reduces on one network at a time: their latency in the simulator against the measured one."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pandas as pd
from simulated import Training, run

from ddlsched.network.contention import ContentionModel, MaxMin
from ddlsched.plugins.names import resolve
from ddlsched.real.calibration.fit import FORMS, errors_on_halves, random_halves
from ddlsched.real.calibration.measurements import Measurements

PRESETS: Mapping[str, ContentionModel] = {
    "linear, preset 1gbe": resolve("contention", "1gbe"),
    "max-min at 1 Gbit/s, 2 servers": MaxMin(per_byte_s=8e-9),
}
"""Nothing of these is fitted here. Two servers because how many there were was not published."""
FITTED_TO_ALL = {"linear, preset 1gbe-measured": resolve("contention", "1gbe-measured")}
"""Not tested, as no row is left that was not fitted: its tested error is that of "linear, b alone, fitted"."""


def simulated_s(rows: Measurements, contention: ContentionModel) -> np.ndarray:
    """Return the simulated time of one of a row's all-reduces, which all start at once."""
    b = contention.alone_per_byte_s
    groups = [
        [Training(0.0, float(size) * b)] * int(count) for count, size in zip(rows.jobs, rows.message_bytes, strict=True)
    ]
    _, finish_s = run(groups, contention, per_byte_s=b, iterations=1)
    ends = np.cumsum([len(group) for group in groups])
    return np.array([part.mean() for part in np.split(finish_s, ends[:-1])])


def errors(rows: Measurements, number: int) -> pd.DataFrame:
    """Return the mean relative error on the tested half by half and model."""
    found: dict[str, np.ndarray] = {}
    drawn = random_halves(rows, number)
    for name, model in PRESETS.items():
        off = np.abs(simulated_s(rows, model) / rows.seconds - 1)
        found[name] = np.array([off[~fitted].mean() for fitted in drawn])
    for form in FORMS:
        if not form.ring_bytes:
            found[f"{form.name}, fitted"] = errors_on_halves(form, rows, halves=number)
    return pd.DataFrame(found)


def alone_table(rows: Measurements) -> pd.DataFrame:
    """Return each preset's mean relative error on all-reduces alone, none of which was fitted, and the largest."""
    models = {**PRESETS, **FITTED_TO_ALL}
    off = {name: np.abs(simulated_s(rows, model) / rows.seconds - 1) for name, model in models.items()}
    return pd.DataFrame([{"model": name, "error": e.mean(), "largest": e.max()} for name, e in off.items()])
