"""DDP jobs before a gate: gradients are plain DDP's to the bit, other jobs go on, and what fails is said."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

pytestmark = pytest.mark.torch
torch = pytest.importorskip("torch")

ROOT = Path(__file__).parents[3]
ENVIRONMENT = os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
TOKEN = "0123456789abcdef0123456789abcdef"

RANK = """
import json, sys, time
import torch, torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from ddlsched.real.torch import scheduled
rank, size, store, gate, token, job, steps, pause_s, device = json.loads(sys.argv[1])
torch.set_default_device(device)
dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=size)

def gradients(view, wrap):
    torch.manual_seed(1)
    layers = []
    for sizes in ((97, 301), (301, 203), (203, 150), (150, 99), (99, 7)):
        layers += [torch.nn.Linear(*sizes), torch.nn.ReLU()]
    plain = DistributedDataParallel(torch.nn.Sequential(*layers[:-1]), bucket_cap_mb=0.1, gradient_as_bucket_view=view)
    model = wrap(plain)
    torch.manual_seed(100 + rank)
    found = []
    for step in range(steps):
        model.zero_grad()
        loss = (model(torch.randn(33, 97)) + 1).square().sum()
        loss.backward()
        found.append([p.grad.clone() for p in model.parameters()])
        with torch.no_grad():
            for p in model.parameters():
                p -= 1e-5 * p.grad
        time.sleep(pause_s)
        if step == 0:
            print("stepped", flush=True)
    return found

def ours(view):
    name = f"{job}-{int(view)}"
    return gradients(view, lambda model: scheduled(model, gate, token_file=token, job_id=name, iterations=steps))

same = nonzero = True
for view in (False, True):
    mine, plain = ours(view), gradients(view, lambda model: model)
    same &= all(torch.equal(a, b) for one, other in zip(mine, plain) for a, b in zip(one, other))
    nonzero &= all(bool(a.abs().sum() > 0) for one in mine for a in one)
print(json.dumps({"same": same, "nonzero": nonzero, "tensors": len(plain[0])}), flush=True)
"""


@pytest.fixture
def token(tmp_path: Path) -> Path:
    path = tmp_path / "token"
    path.write_text(TOKEN)
    path.chmod(0o600)
    return path


class Gate:
    """``ddlsched testbed gate`` as a process."""

    def __init__(self, token: Path, *arguments: str) -> None:
        command = [sys.executable, "-c", "from ddlsched.cli import main; main()", "testbed", "gate", "127.0.0.1:0"]
        self.log = token.with_name("gate.jsonl")
        with self.log.open("w") as log:
            self.process = subprocess.Popen(
                [*command, "--token-file", str(token), *arguments], env=ENVIRONMENT, stdout=log, stderr=subprocess.PIPE
            )
        assert self.process.stderr is not None
        self.address = self.process.stderr.readline().decode().split()[-1]

    def rows(self) -> list[dict[str, object]]:
        return [json.loads(line) for line in self.log.read_text().splitlines()]

    def close(self) -> None:
        self.process.kill()
        self.process.communicate()


@pytest.fixture
def gates(token: Path) -> Iterator[list[Gate]]:
    made: list[Gate] = []
    yield made
    for gate in made:
        gate.close()


def start(
    gate: Gate, token: Path, job: str, size: int, *, steps: int = 3, pause_s: float = 0.0, device: str = "cpu"
) -> list[subprocess.Popen[str]]:
    store = token.with_name(f"store-{job}")
    return [
        subprocess.Popen(
            [
                sys.executable,
                "-c",
                RANK,
                json.dumps([rank, size, str(store), gate.address, str(token), job, steps, pause_s, device]),
            ],
            env=ENVIRONMENT,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(size)
    ]


def results(ranks: list[subprocess.Popen[str]]) -> list[dict[str, object]]:
    found = []
    for rank in ranks:
        out, err = rank.communicate(timeout=120)
        assert rank.returncode == 0, err[-2000:]
        found.append(json.loads(out.splitlines()[-1]))
    return found


@pytest.mark.parametrize("size", [2, 3, 4])
@pytest.mark.parametrize("chunking", [[], ["--chunk-bytes", "30000", "--window", "3"]])
def test_gradients_are_plain_ddps_to_the_bit(gates: list[Gate], token: Path, size: int, chunking: list[str]) -> None:
    gates.append(Gate(token, "--communication", "bounded-overlap:limit=9", *chunking))
    found = results(start(gates[0], token, "a", size))
    assert found == [{"same": True, "nonzero": True, "tensors": 10}] * size
    rows = gates[0].rows()
    assert {row["iteration"] for row in rows} == {0, 1, 2}
    assert len({row["task"] for row in rows}) >= 3  # several buckets
    assert max(int(str(row["chunks"])) for row in rows) > 1 or not chunking


@pytest.mark.skipif(not torch.cuda.is_available(), reason="PyTorch finds no GPU")
@pytest.mark.parametrize("chunking", [[], ["--chunk-bytes", "30000", "--window", "3"]])
def test_gradients_on_a_gpu_are_plain_ddps_to_the_bit(gates: list[Gate], token: Path, chunking: list[str]) -> None:
    gates.append(Gate(token, "--communication", "bounded-overlap:limit=9", *chunking))
    found = results(start(gates[0], token, "a", 2, steps=20, device="cuda"))
    assert found == [{"same": True, "nonzero": True, "tensors": 10}] * 2
    assert {row["iteration"] for row in gates[0].rows()} == set(range(20))


def test_two_jobs_take_turns_and_stay_exact_under_a_policy_that_pauses(gates: list[Gate], token: Path) -> None:
    gates.append(Gate(token, "--communication", "preemptive:by=bytes", "--chunk-bytes", "20000"))
    jobs = [start(gates[0], token, name, 2, steps=5) for name in ("a", "b")]
    for ranks in jobs:
        assert all(one["same"] for one in results(ranks))
    assert {row["job_id"] for row in gates[0].rows()} == {"a-0", "a-1", "b-0", "b-1"}


def test_a_gate_that_is_killed_lets_backward_raise(gates: list[Gate], token: Path) -> None:
    gates.append(Gate(token))
    ranks = start(gates[0], token, "a", 2, steps=10_000, pause_s=0.01)
    for rank in ranks:
        assert rank.stdout is not None
        assert rank.stdout.readline() == "stepped\n"
    gates[0].process.send_signal(signal.SIGKILL)
    begin = time.monotonic()
    for rank in ranks:
        _, err = rank.communicate(timeout=10)
        assert rank.returncode != 0
        assert "the gate is gone" in err
    assert time.monotonic() - begin < 10


def test_a_rank_that_is_killed_ends_its_job_and_no_other(gates: list[Gate], token: Path) -> None:
    gates.append(Gate(token, "--communication", "bounded-overlap:limit=1"))
    dying = start(gates[0], token, "dying", 2, steps=10_000)
    assert dying[0].stdout is not None
    dying[0].stdout.readline()
    other = start(gates[0], token, "other", 2, steps=20)
    dying[1].kill()
    dying[1].communicate()
    _, err = dying[0].communicate(timeout=60)  # most of which a busy machine needs to end a process
    assert dying[0].returncode != 0
    assert "rank 1" in err or "by peer" in err, err[-500:]
    assert all(one["same"] for one in results(other))


def test_two_jobs_of_one_name_are_refused(gates: list[Gate], token: Path) -> None:
    gates.append(Gate(token))
    first = start(gates[0], token, "a", 2, steps=200, pause_s=0.02)
    assert first[0].stdout is not None
    first[0].stdout.readline()
    token.with_name("store-a").unlink()
    second = start(gates[0], token, "a", 2)
    for rank in second:
        _, err = rank.communicate(timeout=60)
        assert "has joined already; expected a job_id of its own" in err
    for rank in first:
        rank.kill()
        rank.communicate()


def test_a_model_that_is_not_wrapped_is_refused(token: Path) -> None:
    from ddlsched.errors import InputError
    from ddlsched.real.torch import scheduled

    with pytest.raises(InputError, match="model is a Linear; expected a DistributedDataParallel"):
        scheduled(torch.nn.Linear(2, 2), "127.0.0.1:1", token_file=token, job_id="a")
