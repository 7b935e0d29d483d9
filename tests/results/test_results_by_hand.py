"""How a result is shown, and that no link carries more than it may unless the model is meant to exceed it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from ddlsched.errors import PluginError
from ddlsched.results.result import Result, refuse_faster_than_links


class Links(list[Any]):
    """Two links of 100 and 10 B/s."""

    bytes_per_s = np.array([100.0, 10.0])


def carried(first: float, second: float, *, leapt: int = 0, events: int = 0, **contention: bool) -> Any:
    """Return a run whose links were busy for 2 s."""
    links = Links(SimpleNamespace(name=name, bandwidth_bytes_per_s=rate) for name, rate in (("a", 100.0), ("b", 10.0)))
    records = SimpleNamespace(busy_ns=np.array([2 * 10**9] * 2), bytes=np.array([first, second]))
    state = SimpleNamespace(links=records, run=[SimpleNamespace(events=events)])
    finished = SimpleNamespace(network=SimpleNamespace(links=links), state=state)
    return SimpleNamespace(contention=SimpleNamespace(**contention), finished=finished, leapt_iterations=leapt)


@pytest.mark.parametrize(
    ("run", "link"),
    [
        (carried(202.0, 20.2), None),  # a hundredth more, for what is rounded
        (carried(202.1, 20.0), "a"),
        (carried(0.0, 20.3), "b"),
        (carried(300.0, 20.3), "a"),
        (carried(220.0, 22.0, leapt=1), None),  # a tenth more at measured rates
        (carried(220.1, 0.0, leapt=1), "a"),
        (carried(0.0, 30.1, events=10**9), None),  # a nanosecond an event
        (carried(0.0, 30.3, events=10**9), "b"),
        (carried(300.0, 0.0, exceeds_links=True), None),
        (carried(300.0, 0.0, exceeds_links=False), "a"),
        (carried(300.0, 0.0, conserves_bytes=False), None),
        (carried(300.0, 0.0, conserves_bytes=True), "a"),
    ],
)
def test_a_run_that_was_faster_than_its_links_is_refused(run: Any, link: str | None) -> None:
    if link is None:
        refuse_faster_than_links(run)
        return
    with pytest.raises(
        PluginError, match=rf"link {link} carried .* bytes in the 2 s in which it was busy; expected at"
    ):
        refuse_faster_than_links(run)


@pytest.mark.parametrize(("jobs", "said"), [(1, "1 job"), (2, "2 jobs")])
def test_a_result_in_a_line(jobs: int, said: str) -> None:
    run: Any = SimpleNamespace(
        workload=range(jobs), cluster=SimpleNamespace(num_gpus=8), summary=lambda: {"average_jct_s": 2.5}
    )
    assert Result.__repr__(run) == f"<result: {said} on 8 GPUs, average JCT 2.500 s>"
