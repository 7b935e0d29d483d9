"""What a ring waits for its own servers, fitted to jobs alone."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from ddlsched.errors import InputError
from ddlsched.network.weighted_shares import ConnectionShares
from ddlsched.real.calibration.shares import ShareRows, fit_wait, read_alone, wait_text

MODEL = ConnectionShares(per_byte_s=1e-8, step_s=1e-3)


def rings(wait: float, off: float = 0.0) -> ShareRows:
    """Return rings of 2, 3 and 4 servers, each further server of which adds so much; times are off by up to so much."""
    servers, sizes = (axis.ravel().astype(float) for axis in np.meshgrid([2, 3, 4], [0.5e6, 1e6, 2e6]))
    steps = 2 * (servers - 1)
    links_s = sizes * steps / servers * 1e-8 + steps * 1e-3
    none = np.zeros(len(sizes))
    return ShareRows(
        sizes, none, servers, none, links_s * (1 + wait * (servers - 1)) * (1 + off * np.cos(np.arange(9)))
    )


def test_the_wait_that_made_the_times_is_found() -> None:
    found = fit_wait(rings(0.07), MODEL)
    assert [found.value, found.low, found.high] == pytest.approx([0.07] * 3)


def test_what_single_jobs_are_off_makes_the_interval() -> None:
    found = fit_wait(rings(0.07, off=0.05), MODEL)
    assert found.low < found.value < found.high
    assert 0.01 < found.high - found.low < 0.05


def test_rings_that_are_faster_than_their_links_do_not_wait() -> None:
    assert fit_wait(rings(-0.05), MODEL).value == 0


def test_more_than_a_model_takes_is_not_fitted() -> None:
    wait = fit_wait(rings(1.5), MODEL).value
    assert ConnectionShares(wait=wait).wait == 1


def test_the_text_has_the_times_of_a_byte() -> None:
    servers, seconds, none = np.array([2.0, 2.0, 3.0]), np.array([0.01, 0.02, 0.04]), np.zeros(3)
    rows = ShareRows(np.array([1e6] * 3), none, servers, none, seconds)
    told = wait_text(rows, fit_wait(rows, MODEL))
    assert told.startswith("3 jobs alone: each further server of a ring adds ")
    assert told.endswith("ns a byte moved: 15.0 on 2, 30.0 on 3 servers")


def written(path: Path, *rows: str) -> Path:
    path.write_text("\n".join(["servers,message_bytes,compute_s,transfer_s", *rows]) + "\n", encoding="utf-8")
    return path


def test_a_file_is_read(tmp_path: Path) -> None:
    rows = read_alone(written(tmp_path / "a.csv", "2,1e6,0.1,0.01", "3,2e6,0.1,0.02", "4,3e6,0.1,0.03"))
    assert (rows.servers.tolist(), rows.message_bytes.tolist()) == ([2, 3, 4], [1e6, 2e6, 3e6])
    assert rows.seconds.tolist() == [0.01, 0.02, 0.03]


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        (["2,1e6,0.1,0.01"], "holds 1 rows; expected at least 3"),
        (["1,1e6,0.1,0.01"], r"row 1 \(line 2\), column servers: '1' is out of range"),
        (
            ["2,1e6,0.1,0"],
            r"row 1 \(line 2\), column transfer_s: '0' is out of range; expected a finite number > 0, at most 1e\+06",
        ),
    ],
)
def test_a_file_that_cannot_be_used_is_refused(tmp_path: Path, rows: list[str], message: str) -> None:
    with pytest.raises(InputError, match=message):
        read_alone(written(tmp_path / "a.csv", *rows))
