"""Runs with compiled policies: promises, shortcuts, Ctrl-C."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from typing import ClassVar

import pytest

import ddlsched
from ddlsched.errors import PluginError
from ddlsched.testing import python_form
from ddlsched.testing.conformance_runs import long_workload

CLUSTER = ddlsched.Cluster(num_servers=4, gpus_per_server=3)


@dataclass(frozen=True, kw_only=True)
class Bounded:
    refusal_lasts: ClassVar[bool] = True

    def most(self, network):
        return 1

    def admit(self, transfer, network):
        return network.most_on_links_of(transfer) < self.most(network)


@dataclass(frozen=True, kw_only=True)
class BoundedByTheClock(Bounded):
    """Makes another policy of it without a method of the door."""

    def most(self, network):
        return 1 + round(network.now_s * 10) % 2


@dataclass(frozen=True, kw_only=True)
class Meetings:
    def transfer_key(self, transfer, network):
        return len(network.met_by(transfer)), network.most_on_links_of(transfer), -transfer.job.arrival_s


@dataclass(frozen=True, kw_only=True)
class Placed:
    def key(self, job, now_s):
        return job.start_s is None, len(job.gpus), -job.communication_ns


@dataclass(frozen=True, kw_only=True)
class MustCompile:
    compiled: ClassVar[bool] = True

    def key(self, job, now_s):
        return [job.num_gpus]


@pytest.mark.long
@pytest.mark.parametrize(
    ("door", "policy"),
    [("communication", BoundedByTheClock()), ("communication", Meetings()), ("order", Placed())],
)
def test_shortcuts_change_nothing(door, policy):
    for seed in range(3):
        runs = [
            ddlsched.simulate(long_workload(seed), CLUSTER, timeline=timeline, **{door: form})
            for form, timeline in ((policy, False), (policy, True), (python_form(policy), False))
        ]
        finishes = [run.finished.state.jobs.finish_ns.tolist() for run in runs]
        assert finishes[0] == finishes[1] == finishes[2]


def test_compiled_is_true_but_cannot_be():
    with pytest.raises(PluginError, match=r"compiled is True, but .*test_compiled_policies.py, line \d+: \[job"):
        ddlsched.simulate(long_workload(0), CLUSTER, order=MustCompile())


ENDLESS = """
from dataclasses import dataclass
import ddlsched
from ddlsched.testing import example_workload

@dataclass(frozen=True, kw_only=True)
class Until:
    limit: int

    def key(self, job, now_s):
        n = 0
        while n < self.limit:
            n = sum(i for i in range(1000)) % 7 + n % 3
        return n

cluster = ddlsched.Cluster(num_servers=4, gpus_per_server=3)
ddlsched.simulate(example_workload(0), cluster, order=Until(limit=0))  # compiles it
print("runs", flush=True)
ddlsched.simulate(example_workload(0), cluster, order=Until(limit=100))  # which it never is
"""


@pytest.mark.slow
def test_ctrl_c_ends_an_endless_loop(tmp_path):
    script = tmp_path / "endless.py"
    script.write_text(ENDLESS)
    process = subprocess.Popen([sys.executable, script], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        assert process.stdout.readline() == "runs\n"
        time.sleep(1)
        assert process.poll() is None
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=60)
    finally:
        process.kill()
    assert process.returncode != 0
    assert "KeyboardInterrupt" in err
    loops = [number for number, line in enumerate(ENDLESS.splitlines(), 1) if "while" in line or "sum(" in line]
    assert any(f"endless.py, line {line}, key" in err for line in loops)
