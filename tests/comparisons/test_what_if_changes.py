"""What a change of a run makes of its options, and what two runs say of tenants: by hand."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pytest

from ddlsched import Cluster, Queue, Quota, Server, Tenants
from ddlsched.cluster.disturbances import Disturbances
from ddlsched.comparisons import what_if
from ddlsched.comparisons.what_if import WhatIf, changed
from ddlsched.errors import DdlschedError, InputError
from ddlsched.results.statistics import NO_SEED

SERVERS = tuple(Server(gpus=gpus) for gpus in (1, 2, 4))


@pytest.mark.parametrize(
    ("value", "count"), [("+4", 7), ("+0", 3), ("-2", 1), ("5", 5), ("3", 3), ("1", 1), ("-3", 0), ("0", 0), ("-4", -1)]
)
def test_servers_are_added_like_the_last_one_and_taken_from_the_end(value: str, count: int) -> None:
    equal, table = Cluster(num_servers=3, gpus_per_server=2), Cluster(servers=SERVERS)
    text = f"servers={value}"
    if count < 1:
        for cluster in (equal, table):
            with pytest.raises(
                InputError, match=rf"^--change {text}: leaves {count} servers; expected 1 or more".replace("+", r"\+")
            ):
                changed({"cluster": cluster}, [text])
        return
    options: dict[str, Any] = {"cluster": equal, "seed": 3}
    assert changed(options, [text]) == {"cluster": Cluster(num_servers=count, gpus_per_server=2), "seed": 3}
    assert options == {"cluster": equal, "seed": 3}
    gpus = [server.gpus for server in changed({"cluster": table}, [text])["cluster"].servers]
    assert gpus == ([1, 2, 4] + [4] * 9)[:count]


def test_a_run_without_a_cluster_has_the_usual_one() -> None:
    assert changed({}, ["servers=+1"]) == {"cluster": Cluster(num_servers=Cluster.num_servers + 1)}
    assert changed({}, ["topology=ring"])["cluster"] == Cluster(topology="ring")


QUEUES = (Queue(name="a", quotas={"any": Quota(gpus=8, borrowing_limit=2)}, weight=3.0), Queue(name="b"))
KINDS = (Queue(name="a", quotas={"k80": Quota(gpus=1)}), Queue(name="b"))
BOTH = (Queue(name="a", quotas={"k80": Quota(gpus=1), "v100": Quota(gpus=2)}),)


@pytest.mark.parametrize(
    ("queues", "change", "name", "quotas"),
    [
        (QUEUES, "quota.a=+3", "a", {"any": Quota(gpus=11, borrowing_limit=2)}),
        (QUEUES, "quota.a=-8", "a", {"any": Quota(gpus=0, borrowing_limit=2)}),
        (QUEUES, "quota.a=5", "a", {"any": Quota(gpus=5, borrowing_limit=2)}),
        (QUEUES, "quota.b=+2", "b", {"any": Quota(gpus=2)}),
        (KINDS, "quota.a=+2", "a", {"k80": Quota(gpus=3)}),
        (KINDS, "quota.b=7", "b", {"k80": Quota(gpus=7)}),
    ],
)
def test_a_quota_is_of_the_queues_kind_or_of_the_first_there_is(
    queues: tuple[Queue, ...], change: str, name: str, quotas: dict[str, Quota]
) -> None:
    found = changed({"queues": Tenants(queues=queues)}, [change])["queues"]
    assert [queue.name for queue in found.queues] == ["a", "b"]
    assert dict(found.by_name[name].quotas) == quotas
    assert found.by_name["a"].weight == queues[0].weight
    (other,) = {"a", "b"} - {name}
    assert found.by_name[other] is Tenants(queues=queues).by_name[other] or found.by_name[other] in queues


@pytest.mark.parametrize(
    ("given", "change", "said"),
    [
        ({}, "servers", "--change servers: expected NAME=VALUE, such as servers=+4 or quota.team-a=32"),
        ({}, "servers=", "--change servers=: expected NAME=VALUE, such as servers=+4 or quota.team-a=32"),
        ({}, "servers=many", "--change servers=many: 'many' is no number; expected such as 16, +4 or -4"),
        ({}, "servers=+x", "--change servers=+x: '+x' is no number; expected such as 16, +4 or -4"),
        ({}, "quota.a=1", "--change quota.a=1: the run has no queues; expected --queues as well"),
        ({"queues": Tenants(queues=QUEUES)}, "quota.c=1", "--change quota.c=1: no queue is named 'c'."),
        (
            {"queues": Tenants(queues=BOTH)},
            "quota.a=1",
            "--change quota.a=1: a has quotas of several kinds; expected queues=FILE with others",
        ),
        ({}, "sevrers=1", "--change sevrers=1: nothing is called so. Did you mean 'servers'"),
        *(({}, f"{name}=1", f"--change {name}=1: nothing is called so.") for name in what_if._REFUSED),
        (
            {"cluster": Cluster(servers=SERVERS)},
            "gpus-per-server=8",
            "--change gpus-per-server=8: the servers are those of a table; expected server_table=FILE.csv",
        ),
    ],
)
def test_a_change_that_is_none_is_refused(given: dict[str, Any], change: str, said: str) -> None:
    with pytest.raises(DdlschedError) as error:
        changed(given, [change])
    assert str(error.value).startswith(said)


def test_changes_are_made_one_after_the_other() -> None:
    given = {"cluster": Cluster(num_servers=2), "disturbances": Disturbances(restart_s=3.0)}
    changes = ["servers=+2", "exclusive=true", "gpus-per-server=8", "gpu_memory_mb=5.5", "servers=-1", "jitter-cv=0.5"]
    found = changed(given, [*changes, "order=fifo", "warmup-s=7"])
    assert found == {
        "cluster": Cluster(num_servers=3, gpus_per_server=8, gpu_memory_mb=5.5, exclusive=True),
        "disturbances": Disturbances(restart_s=3.0, jitter_cv=0.5),
        "order": "fifo",
        "warmup_s": 7.0,
    }
    assert changed({}, ["restart-s=2"]) == {"disturbances": Disturbances(restart_s=2.0)}


def test_draws_of_no_run_and_jobs_without_queues_are_refused() -> None:
    jobs: Any = [SimpleNamespace(queue=None), SimpleNamespace(queue="a")]
    with pytest.raises(InputError, match=r"^--draws 0: is no number of runs; expected 1 or more"):
        what_if.what_if(jobs, {}, [], draws=0)
    with pytest.raises(
        InputError, match=r"^no job has a queue; expected a workload with the column queue, to say which"
    ):
        what_if.what_if(jobs[:1], {}, [])


def test_each_draw_is_run_before_and_after(monkeypatch: pytest.MonkeyPatch) -> None:
    jobs: Any = [SimpleNamespace(queue="a")]
    monkeypatch.setattr(what_if, "simulate", lambda workload, **given: (workload is jobs, given))
    found: Any = what_if.what_if(jobs, {"order": "srsf"}, ["order=fifo"], draws=2).pairs
    assert found == tuple(
        tuple((True, {"order": order, "draw": draw}) for order in ("srsf", "fifo")) for draw in range(2)
    )
    assert len(what_if.what_if(jobs, {}, ["order=fifo"]).pairs) == 1


def _run(states: str, waits_s: list[float], jct_s: list[float], counted: str = "1111") -> Any:
    """Return a run of four jobs, two of q, one of r and one without a queue: f finished, r runs still."""
    jobs = pd.DataFrame(
        {
            "job_id": list("abcd"),
            "state": [{"f": "finished", "r": "running"}[state] for state in states],
            "counted": [each == "1" for each in counted],
            "queueing_s": waits_s,
            "jct_s": jct_s,
        }
    )
    return SimpleNamespace(jobs=jobs, workload=[SimpleNamespace(queue=queue) for queue in ("q", "q", "r", None)])


def test_what_tenants_had_before_and_after_by_hand(monkeypatch: pytest.MonkeyPatch) -> None:
    before = _run("ffff", [1.0, 3.0, 5.0, 7.0], [10.0, 20.0, 30.0, 40.0])
    after = _run("ffrf", [0.0, 2.0, 0.0, 9.0], [5.0, 10.0, 1.0, 80.0])
    stops = {id(before): [1, 2, 4], id(after): [0, 8, 16]}
    monkeypatch.setattr(
        what_if, "tenant_table", lambda run: pd.DataFrame({"preemptions": stops[id(run)]}, index=["-", "q", "r"])
    )
    table = WhatIf(pairs=((before, after),)).tenants()
    assert table.index.tolist() == ["-", "q", "r", "all"]
    assert table.index.name == "queue"
    nan = np.nan
    expected = {
        "jobs": [1, 2, 0, 3],
        "wait_before_s": [7.0, 2.0, nan, 11 / 3],
        "wait_after_s": [9.0, 1.0, nan, 11 / 3],
        "jct_before_s": [40.0, 15.0, nan, 70 / 3],
        "jct_after_s": [80.0, 7.5, nan, 95 / 3],
        "preemptions_before": [1, 2, 4, 7],
        "preemptions_after": [0, 8, 16, 24],
        "jct_change": [1.0, -0.5, nan, 95 / 70 - 1],
    }
    assert table.columns.tolist() == list(expected)
    for name, values in expected.items():
        np.testing.assert_allclose(table[name], values, rtol=1e-12, err_msg=name)


def test_who_gains_most_stands_first() -> None:
    pairs = [
        (_run("ffff", [0.0] * 4, [10.0, 20.0, 30.0, 40.0]), _run("ffff", [0.0] * 4, [9.0, 24.0, 20.0, 40.0])),
        (_run("ffff", [0.0] * 4, [12.0, 20.0, 30.0, 40.0]), _run("ffff", [0.0] * 4, [9.0, 26.0, 20.0, 40.0])),
    ]
    table = WhatIf(pairs=tuple(pairs)).jobs()
    assert table.to_dict("list") == {
        "job_id": ["c", "a", "d", "b"],
        "queue": ["r", "q", "-", "q"],
        "jct_before_s": [30.0, 11.0, 40.0, 20.0],
        "jct_after_s": [20.0, 9.0, 40.0, 25.0],
        "gain_s": [10.0, 2.0, 0.0, -5.0],
    }


@pytest.mark.parametrize(
    ("first", "second", "counts", "kept"),
    [
        ("ffff", "ffff", ("1111", "1111"), "abcd"),
        ("rfff", "frff", ("1111", "1111"), "cd"),
        ("ffff", "ffff", ("0111", "1011"), "cd"),
        ("rrrr", "ffff", ("1111", "1111"), ""),
        ("ffff", "ffff", ("1111", "0000"), ""),
    ],
)
def test_jobs_count_that_both_runs_count_and_finish(
    first: str, second: str, counts: tuple[str, str], kept: str
) -> None:
    before, after = (_run(s, [0.0] * 4, [1.0] * 4, c) for s, c in zip((first, second), counts, strict=True))
    if not kept:
        with pytest.raises(InputError, match=r"^no job that counts finished in both runs; expected one"):
            what_if._finished_in_both(before, after)
    else:
        assert "".join(what_if._finished_in_both(before, after)["job_id"]) == kept


def test_a_change_is_over_the_draws_in_which_a_job_finished() -> None:
    nan = np.nan
    draws = pd.DataFrame({"jobs": [2, 0, 1], "jct_before_s": [2.0, nan, 8.0], "jct_after_s": [4.0, nan, 4.0]})
    found = what_if._change(draws)
    assert (found.mean, found.seeds) == (pytest.approx(0.0), 2)
    assert what_if._change(draws.iloc[1:2]) is NO_SEED
