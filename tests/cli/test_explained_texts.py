"""What ``ddlsched explain`` says of a job, word by word, from tables made by hand."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from ddlsched.cli import explain_command as told
from ddlsched.engine.outcome import Window
from ddlsched.errors import UnknownNameError

NAN = float("nan")


def _stay(from_s: float, to_s: float, gpus: list[int], **others: Any) -> dict[str, Any]:
    return {"from_s": from_s, "to_s": to_s, "gpus": gpus, "state_bytes": 0, "ended_by": "", "paths": []} | others


def _sent(task: str, kind: str, seconds: float, tuples: int = 1) -> dict[str, Any]:
    return {"task": task, "kind": kind, "seconds": seconds, "tuples": tuples}


TWO_STAYS = """
On GPUs 2 times:
  1.000 to 2.500 s on GPUs 0, 1, ended by a failure
  3.000 s on GPUs 2, 3, 4, 5, 6, 7 and 1 more, 1.500 GB of state over the network
"""
MANY_STAYS = """
On GPUs 7 times, the last 6:
""" + "".join(f"  {n}.000 to {n}.500 s on GPUs {n}\n" for n in range(1, 7))
SIX_STAYS = """
On GPUs 6 times:
""" + "".join(f"  {n}.000 to {n}.500 s on GPUs {n}\n" for n in range(6))
TWO_KINDS = """
On the network (collectives may overlap):
         4.000 s  b (all-reduce, 2 tuples)
         4.000 s  c (all-gather)
         0.500 s  state
"""


@pytest.mark.parametrize(
    ("stays", "sent", "text"),
    [
        ([], [], ""),
        ([_stay(0.0, 1.0, [0])], [_sent("a", "a", 1.0)], ""),
        ([_stay(0.0, 1.0, [0], paths=["x 1", "x 2"])], [], "\nPaths between switches: x 1, x 2\n"),
        (
            [_stay(1.0, 2.5, [0, 1], ended_by="ended by a failure"),
             _stay(3.0, NAN, [*range(2, 9)], state_bytes=1.5e9)],
            [], TWO_STAYS,
        ),
        ([_stay(n, n + 0.5, [n], paths=["y"] if n < 6 else []) for n in range(7)], [], MANY_STAYS),
        ([_stay(n, n + 0.5, [n]) for n in range(6)], [], SIX_STAYS),
        (
            [], [_sent("state", "state", 0.5), _sent("b", "all-reduce", 4.0, 2), _sent("c", "all-gather", 4.0)],
            TWO_KINDS,
        ),
    ],
)  # fmt: skip
def test_where_a_job_was_and_what_it_sent(stays: list[Any], sent: list[Any], text: str) -> None:
    assert told.itinerary_text(pd.DataFrame(stays), pd.DataFrame(sent)) == text


@pytest.mark.parametrize(
    ("count", "end"), [(6, "s  5\n"), (7, "  and 1 shorter ones\n"), (9, "  and 3 shorter ones\n")]
)
def test_of_what_was_sent_the_six_longest_are_told(count: int, end: str) -> None:
    sent = [_sent(str(number), str(number), 100.0 - number) for number in range(count)]
    text = told.itinerary_text(pd.DataFrame(), pd.DataFrame(sent))
    assert text.count(" s  ") == 6
    assert text.endswith(end)


@pytest.mark.parametrize(
    ("restarts", "moved", "text"),
    [
        (1, [], "Stopped by failures 1 time"),
        (2, [False], "Stopped by failures 1 time, Stopped by a policy 1 time"),
        (3, [True, False, True], "Stopped by a policy 1 time, Moved 2 times"),
        (2, [True, True], "Moved 2 times"),
    ],
)
def test_who_took_a_job_off_its_gpus(restarts: int, moved: list[bool], text: str) -> None:
    assert told._stops(restarts, moved) == text


def _cost(cause: str, *seconds: float) -> dict[str, Any]:
    names = ("detection_s", "lost_s", "without_gpus_s", "starting_s")
    return {"cause": cause, **dict(zip(names, seconds, strict=True))}


def test_what_failures_cost_the_dearest_first() -> None:
    assert told._failures(pd.DataFrame()) == ""
    costs = [
        _cost("disk", 1, 2, 3, 4),
        _cost("gpu", 0, 30, 0.5, 0),
        _cost("disk", 1, 0, 0, 0),
        _cost("net", 0, 11, 0, 0),
    ]
    assert told._failures(pd.DataFrame(costs)) == (
        "\nFailures: until they were noticed, work lost, without GPUs, to start again (s)\n"
        "         0.000        30.000         0.500         0.000  gpu, 1 time\n"
        "         2.000         2.000         3.000         4.000  disk, 2 times\n"
        "         0.000        11.000         0.000         0.000  net, 1 time\n"
    )


@pytest.mark.parametrize(
    ("reserved", "text"),
    [
        ([], ""),
        ([(5.0, 1.0)], "\nReserved from 5.000 s, as was said at 1.000 s\n"),
        (
            [(5.0, 1.0), (6.0, 2.0), (7.0, 3.0)],
            "\nReserved from 5.000 s, as was said at 1.000 s\n  in the end from 7.000 s, as was said at 3.000 s\n",
        ),
    ],
)
def test_what_was_reserved_first_and_last(reserved: list[tuple[float, float]], text: str) -> None:
    assert told._reserved(pd.DataFrame(reserved, columns=["start_s", "made_s"])) == text


def test_a_job_is_found_by_its_name_or_the_nearest_is_said() -> None:
    jobs = pd.DataFrame({"job_id": [11, 12], "start_s": [1.0, 2.0]})
    assert told._row(Path("r"), jobs, "12")["start_s"] == 2.0
    with pytest.raises(UnknownNameError, match=r"^r: no job is named '13'\. Did you mean '12' or '11'\?$"):
        told._row(Path("r"), jobs, "13")


@pytest.mark.parametrize(
    ("start_s", "finish_s", "window"),
    [(NAN, NAN, (0.0, 1e-9)), (2.0, 5.0, (2.0, 5.0)), (2.0, 2.0, (2.0, 2.0 + 1e-9)), (2.0, NAN, (2.0, None))],
)
def test_of_the_run_what_the_job_was_placed_for_is_recorded(
    start_s: float, finish_s: float, window: tuple[float, float | None]
) -> None:
    found = told._window(pd.Series({"start_s": start_s, "finish_s": finish_s}), "j")
    begin_s, end_s = window
    assert found == (Window(begin_s, job_id="j") if end_s is None else Window(begin_s, end_s, "j"))


def _blocker(phase: str, held_by: str | None, waited_for: str, seconds: float) -> dict[str, Any]:
    return {"phase": phase, "held_by": held_by, "waited_for": waited_for, "seconds": seconds}


FINISHED = """job a, 2 GPUs on 1 server: JCT 10.000 s

  queueing                 2.500 s  25.0 %
  gpu wait                 0.000 s   0.0 %
  computing                7.500 s  75.0 %

In the queue: 2.500 s
         2.500 s  100.0 %  job b  (GPUs 0, 1)
"""
STOPPED = """job a, 1 GPU: waiting, so far 0.000 s

  queueing                 0.000 s       -

Stopped by a policy 2 times: 1.250 s on its GPUs were for nothing
"""


@pytest.mark.parametrize(
    ("row", "phases", "blockers", "departures", "text"),
    [
        (
            {"state": "finished", "gpus": 2, "servers": 1, "restarts": 0},
            {"queueing": 2.5, "gpu_wait": 0.0, "computing": 7.5},
            [_blocker("queueing", "b", "GPU 0", 1.5), _blocker("queueing", "b", "GPU 1", 1.0)], [], FINISHED,
        ),
        (
            {"state": "waiting", "gpus": 1, "servers": 0, "restarts": 2, "lost_s": 1.25},
            {"queueing": 0.0}, [], [False, False], STOPPED,
        ),
    ],
)  # fmt: skip
def test_what_a_job_waited_for(row: Any, phases: Any, blockers: Any, departures: list[bool], text: str) -> None:
    table = pd.DataFrame(blockers, columns=["phase", "held_by", "waited_for", "seconds"])
    assert told._text(pd.Series({"job_id": "a"} | row), phases, table, departures) == text


def test_who_held_most_comes_first_and_of_more_than_five_the_rest_is_summed() -> None:
    held = [(None, "its turn", 1.0), ("a", "state", 3.0), *((f"j{n}", f"link {n}", 4.0 + n) for n in range(5))]
    rows = [_blocker("network_wait", *each) for each in held]
    assert told._holders(pd.DataFrame(rows), "a") == [
        "         8.000 s  23.5 %  job j4  (link 4)",
        "         7.000 s  20.6 %  job j3  (link 3)",
        "         6.000 s  17.6 %  job j2  (link 2)",
        "         5.000 s  14.7 %  job j1  (link 1)",
        "         4.000 s  11.8 %  job j0  (link 0)",
        "         4.000 s  11.8 %  2 others",
    ]
    assert told._holders(pd.DataFrame(rows[:2]), "a") == [
        "         3.000 s  75.0 %  its own checkpoint  (state)",
        "         1.000 s  25.0 %  its turn",
    ]
    assert told._holders(pd.DataFrame(rows[1:]), "a")[5] == "         3.000 s   9.1 %  1 other"


@pytest.mark.parametrize(
    ("names", "text"),
    [
        (["GPU 3"], "(GPU 3)"),
        (["GPU 3", "GPU 4"], "(GPUs 3, 4)"),
        (["GPU 3", "link 4"], "(GPU 3, link 4)"),
        ([f"GPU {n}" for n in range(6)], "(GPUs 0, 1, 2, 3, 4, 5)"),
        ([f"GPU {n}" for n in range(8)], "(GPUs 0, 1, 2, 3, 4, 5 and 2 more)"),
        (["link a", *(f"GPU {n}" for n in range(6))], "(link a, GPU 0, GPU 1, GPU 2, GPU 3, GPU 4 and 1 more)"),
    ],
)
def test_things_of_a_kind_are_named_once(names: list[str], text: str) -> None:
    assert told._places(names) == text
