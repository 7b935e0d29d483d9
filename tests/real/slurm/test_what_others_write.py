"""What anybody on the cluster may write, and nodes that users or Slurm choose themselves (items 7, 11 and 17)."""

from __future__ import annotations

import json
import random
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from fake_slurm import FakeSlurm
from test_slurm_agent import Bench, starts_of

from ddlsched.real.slurm.commands import SlurmRefusalError, jobs_of_squeue, runner
from ddlsched.real.slurm.local_cluster import slurm_conf

USERS_WRITE = ("name", "comment", "dependency", "tres_per_job", "tres_per_node", "array_task_string", "required_nodes")


def program(folder: Path, name: str, written: bytes, code: int = 0) -> None:
    """Put a command into a folder that writes something."""
    (folder / f"{name}.out").write_bytes(written)
    (folder / name).write_text(
        f"#!/bin/sh\ncat {folder}/{name}.out\n[ {code} = 0 ] || cat {folder}/{name}.out >&2\nexit {code}\n"
    )
    (folder / name).chmod(0o755)


def test_item_7_a_name_that_is_not_utf_8_ends_no_agent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    slurm = FakeSlurm()
    job = slurm.submit(1)
    slurm.submit(1, name="evil")
    bench = Bench(tmp_path, slurm)
    run = runner()

    def through_programs(command: Sequence[str]) -> str:
        text = slurm(command)
        if command[0] not in ("squeue", "sinfo"):
            return text
        program(tmp_path, command[0], text.encode().replace(b"evil", b"\xff\xfe\x80 evil"))
        return run(command)

    bench.agent._run = through_programs
    bench.turns(2)
    assert slurm.states()[job] == "RUNNING"


def test_item_7_a_refusal_that_is_not_utf_8_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    program(tmp_path, "scontrol", b"job \xff is gone", code=1)
    with pytest.raises(Exception, match="job \ufffd is gone"):
        runner()(["scontrol", "release", "1"])


def noise(rng: random.Random) -> str:
    """Return what a user may write: any characters, or something that looks like what Slurm expects."""
    kinds = [
        "gres:gpu",
        "gpu:a100:",
        "1-",
        "99999999999",
        "%4",
        "ddlsched:iterations=",
        "1e999",
        ",",
        "(",
        "\x00",
        "=",
        "n[1-",
    ]
    parts = [
        rng.choice(kinds) if rng.random() < 0.5 else chr(rng.randrange(0x110000)) for _ in range(rng.randrange(12))
    ]
    return "".join(parts)


@pytest.mark.long
def test_item_7_nothing_that_users_write_ends_the_agent_or_keeps_others_back(tmp_path: Path) -> None:
    rng = random.Random(7)
    slurm = FakeSlurm(nodes=2)
    bench = Bench(tmp_path, slurm, facts={})
    told: list[str] = []

    def fuzzed(command: Sequence[str]) -> str:
        text = slurm(command)
        if command[0] != "squeue":
            return text
        answer = json.loads(text)
        for number in range(5):
            row = dict(answer["jobs"][0]) | {"job_id": 1000 + number, "array_job_id": rng.choice([0, 1000 + number])}
            row |= {name: noise(rng) for name in USERS_WRITE if rng.random() < 0.7} | {"job_state": "PENDING"}
            answer["jobs"].append(row | {"priority": rng.choice([0, 5]), "state_reason": "JobHeldUser"})
        return json.dumps(answer, ensure_ascii=rng.random() < 0.5)

    bench.agent._run = lambda command: (
        fuzzed(command) if command[0] in ("squeue", "sinfo") else tolerant(slurm, command)
    )
    bench.agent._tell = lambda event: told.append(json.dumps(vars(event)))
    job = slurm.submit(1)
    for _ in range(200):
        bench.turns()
    later = slurm.submit(8)
    slurm.end(job)
    for _ in range(100):
        bench.turns()
    assert slurm.states()[job] == "COMPLETED"
    assert slurm.states()[later] in ("HELD", "RUNNING")
    assert told


def tolerant(slurm: FakeSlurm, command: Sequence[str]) -> str:
    """Carry out a command about a job that is there; others are refused, as Slurm does."""
    try:
        return slurm(command)
    except (KeyError, ValueError) as error:
        raise SlurmRefusalError(f"{command[1]}: Invalid job id specified ({error})") from None


def test_item_7_an_array_of_more_tasks_than_slurm_has_takes_no_memory() -> None:
    slurm = FakeSlurm()
    slurm.submit_array([1], 1)
    answer = json.loads(slurm(["squeue"]))
    answer["jobs"][0]["array_task_string"] = "0-99999999999:1000"
    [job] = jobs_of_squeue(json.dumps(answer))
    assert len(job.array_tasks) < 5_000


# ---- Nodes


def test_item_11_a_job_gets_as_many_nodes_as_the_policy_chose_and_no_more(tmp_path: Path) -> None:
    slurm = FakeSlurm(nodes=3)
    bench = Bench(tmp_path, slurm)
    slurm.submit(3, user="somebody", state="RUNNING", held=False, given={"n2": 3})
    job = slurm.submit(5)
    bench.turns(2)
    assert set(slurm.jobs[job].given) == set(slurm.jobs[job].wanted)
    [update] = [command for command in slurm.commands if command[1] == "update"]
    assert "NumNodes=2-2" in update


def test_item_11_a_job_that_slurm_started_elsewhere_is_taken_back_and_given_up_after_three_times(
    tmp_path: Path,
) -> None:
    slurm = FakeSlurm(nodes=3)
    bench = Bench(tmp_path, slurm)
    job = slurm.submit(2)
    for _ in range(12):
        bench.turns(start=False)
        if slurm.states()[job] == "PENDING":
            slurm.jobs[job].state, slurm.jobs[job].given = "RUNNING", {"n1": 1, "n3": 1}
    assert starts_of(slurm) == [job] * 3
    assert slurm.states() == {job: "HELD"}
    assert bench.said("take back") == [(job, "started on n1,n3, not on n1")] * 3
    assert bench.said("refuse") == [(job, "could not be started 3 times; it stays held")]


def test_item_11_a_stray_that_is_taken_back_once_starts_where_it_should(tmp_path: Path) -> None:
    slurm = FakeSlurm(nodes=3)
    bench = Bench(tmp_path, slurm)
    job, other = slurm.submit(2), slurm.submit(4)
    bench.turns(start=False)
    slurm.jobs[job].state, slurm.jobs[job].given = "RUNNING", {"n3": 2}
    bench.turns(4)
    assert set(slurm.jobs[job].given) == set(slurm.jobs[job].wanted)
    assert slurm.states()[other] == "RUNNING"
    bench.again()
    bench.turns()
    assert slurm.states() == {job: "RUNNING", other: "RUNNING"}


def test_item_11_a_job_whose_user_chose_its_nodes_is_left_alone(tmp_path: Path) -> None:
    slurm = FakeSlurm()
    bench = Bench(tmp_path, slurm)
    own, other = slurm.submit(1, own_nodes="n[3-4]"), slurm.submit(1)
    bench.turns(2)
    assert slurm.states() == {own: "HELD", other: "RUNNING"}
    assert not [command for command in slurm.commands if f"JobId={own}" in command]
    assert bench.said("refuse") == [
        (own, "it asks for the nodes n[3-4]; expected none, as the policies choose them; it stays held")
    ]


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ({"not_on": "n[1-2]"}, "--exclude=n[1-2]"),
        ({"features": "h100&nvlink", "most_nodes": 2}, "--constraint=h100&nvlink --nodes=2"),
    ],
)
def test_a_job_whose_user_chose_its_nodes_in_another_way_is_left_alone(
    tmp_path: Path, asked: dict[str, Any], said: str
) -> None:
    slurm = FakeSlurm()
    bench = Bench(tmp_path, slurm)
    own, other = slurm.submit(2, **asked), slurm.submit(4, on_each=2, most_nodes=2)
    bench.turns(2)
    assert slurm.states() == {own: "HELD", other: "RUNNING"}, "GPUs on each of so many nodes are a number of GPUs"
    assert not [command for command in slurm.commands if f"JobId={own}" in command]
    bench.again()
    bench.turns()
    assert slurm.states()[other] == "RUNNING"
    why = f"it asks for {said}; expected none of it, as the policies choose the nodes; it stays held"
    assert set(bench.said("refuse")) == {(own, why)}


def test_item_17_a_slurm_for_trials_listens_on_the_loopback_only(tmp_path: Path) -> None:
    conf = slurm_conf(tmp_path, "me", "here", range(15000, 15003), 4, {})
    lines = dict(line.split("=", 1) for line in conf.splitlines())
    assert lines["CommunicationParameters"] == "NoInAddrAny,NoCtldInAddrAny"
    assert lines["SlurmctldHost"] == "here(127.0.0.1)"


@pytest.mark.slurm
def test_item_17_a_slurm_for_trials_listens_on_the_loopback_only_for_real() -> None:
    from ddlsched.real.slurm.local_cluster import LocalSlurm

    with LocalSlurm(nodes=2) as slurm:
        listening = subprocess.run(["ss", "-Hltnp"], capture_output=True, text=True, check=True).stdout.splitlines()
        own = {f"pid={process}," for process in slurm.processes()}
        addresses = [line.split()[3] for line in listening if any(pid in line for pid in own)]
    assert len(addresses) >= 3
    assert all(address.startswith("127.0.0.1:") for address in addresses)
