"""What somebody writes on the first day, and what they are told."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from command_line import refused, run

import ddlsched
from ddlsched.plugins.names import resolve, resolve_bundle

MINE = """
class Light:
    latency_s = 0.0
    conserves_bytes = True
    alone_per_byte_s = 1e-9
    penalty_per_byte_s = 0.0

    def bound_to(self, network):
        return self

    def wire_bytes(self, message_bytes, num_servers):
        return message_bytes

    def link_rate(self, transfer, link):
        return 1e15
"""


@pytest.mark.long
@pytest.mark.usefixtures("in_a_new_folder")
def test_a_model_faster_than_its_links_is_refused() -> None:
    Path("mine.py").write_text(MINE)
    workload = ddlsched.microsoft_160(seed=1, scale=0.002)
    ddlsched.simulate(workload)  # compiles the loop, which would be told beside the refusal
    ddlsched.write_workload(workload, "small.csv")
    done = run("simulate", "small.csv", "--contention", "mine.py:Light")
    refused(done, "contention Light: link server", "expected at most its 1.25e+09 B/s", exit_code=1)


@pytest.mark.long
def test_constants_that_a_faster_card_allows_are_taken_with_it() -> None:
    workload = ddlsched.microsoft_160(seed=1, scale=0.002)
    fast = ddlsched.Linear(per_byte_s=1e-10, penalty_per_byte_s=0.0)
    with pytest.raises(ddlsched.PluginError, match=r"carried .* expected at most its 1\.25e\+09 B/s"):
        ddlsched.simulate(workload, contention=fast)
    ddlsched.simulate(workload, ddlsched.Cluster(topology="star:nic_gbps=100"), contention=fast)


class NoMembers:
    def link_rate(self, transfer, link):
        return 1.0


def test_all_missing_members_are_told_at_once() -> None:
    missing = "has no alone_per_byte_s, no penalty_per_byte_s, no latency_s, no bound_to, which every"
    with pytest.raises(ddlsched.InputError, match=missing):
        resolve("contention", NoMembers())


class Answers:
    def __init__(self, answer: object) -> None:
        self.answer = answer

    def admit(self, transfer, network):
        return self.answer


@pytest.mark.long
@pytest.mark.parametrize("yes", [1, np.bool_(True), np.int64(1)])
def test_admit_may_answer_1_and_numpys_truth(yes: object) -> None:
    workload = ddlsched.microsoft_160(seed=1, scale=0.002)
    expected = ddlsched.simulate(workload, communication=Answers(True)).jobs
    assert ddlsched.simulate(workload, communication=Answers(yes)).jobs.equals(expected)


@pytest.mark.parametrize("answer", [2, -1, 1.0, None, "yes"])
def test_admit_must_answer_yes_or_no(answer: object) -> None:
    with pytest.raises(ddlsched.PluginError, match="expected True or False"):
        ddlsched.simulate(ddlsched.microsoft_160(seed=1, scale=0.002), communication=Answers(answer))


def test_a_name_of_another_kind_is_pointed_to() -> None:
    with pytest.raises(ddlsched.UnknownNameError, match=r"Did you mean --order tiresias or --allocation tiresias\?"):
        resolve_bundle("tiresias")
    with pytest.raises(ddlsched.UnknownNameError, match=r"Did you mean --scheduler ada-srsf\?"):
        resolve("order", "ada-srsf")


@pytest.mark.parametrize("command", ["simulate", "compare"])
def test_help_names_every_bundle(command: str) -> None:
    said = "".join(run(command, "--help").stdout.replace("│", "").split())
    assert "ada-srsf,block-srtf,srsf-1,srsf-2,srsf-3" in said
