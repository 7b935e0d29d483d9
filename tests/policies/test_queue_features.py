"""What learned policies see of jobs that wait, worked out by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest

from ddlsched.policies.choosing import job_features, log_share, log_shares


def test_a_share_of_time_goes_from_0_to_1_by_its_logarithm() -> None:
    expected = {
        -1.0: 0.0,
        0.0: 0.0,
        math.e - 1.0: 1 / 25,
        7.0: math.log(8.0) / 25,
        1e10: math.log1p(1e10) / 25,
        1e11: 1.0,
    }
    assert [log_share(value) for value in expected] == pytest.approx([*expected.values()], rel=1e-12)
    assert log_shares(np.array([*expected][1:])) == pytest.approx([*expected.values()][1:], rel=1e-12)


def test_what_is_seen_of_a_job_that_waits() -> None:
    """One of 2 GPUs on 8: 30 s of each are left, 5 MB; one of 8, for which no server of 4 has room: 3 s, 1 MB."""
    needed, eligible, most = np.array([2, 8]), np.array([6, 8]), np.array([4, 4])
    service_ns, message_bytes, waited_ns = np.array([60e9, 24e9]), np.array([5e6, 1e6]), np.array([0.0, 7e9])
    seen = job_features((needed, eligible, most, 8), service_ns, message_bytes, waited_ns, log_shares)
    first = [0.25, 0.75, 1.0, math.log(31.0) / 25, math.log(6.0) / 25, 0.0]
    second = [1.0, 1.0, 0.0, math.log(4.0) / 25, math.log(2.0) / 25, math.log(8.0) / 25]
    assert np.column_stack(seen) == pytest.approx(np.array([first, second]), rel=1e-9)
    alone = job_features((4, 4, 4, 8), 60e9, 5e6, 7e9, log_share)
    assert alone == pytest.approx(
        (0.5, 0.5, 1.0, math.log(16.0) / 25, math.log(6.0) / 25, math.log(8.0) / 25), rel=1e-9
    )
