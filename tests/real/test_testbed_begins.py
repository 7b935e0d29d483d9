"""What the testbed's commands do with what is asked, on stand-ins for what they begin."""

from __future__ import annotations

import json
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pandas as pd
import pyarrow.parquet as pq
import pytest
from command_line import refused, run

from ddlsched.cluster.cluster import Cluster
from ddlsched.real.calibration import measurements, shares
from ddlsched.real.gate import service
from ddlsched.real.testbed import cabling, crews, fidelity, measuring, namespaces, real_run, run_models
from ddlsched.real.testbed.namespaces import Made
from ddlsched.real.testbed.real_run import RealRun

HEADER = "job_id,arrival_s,gpus,iterations,forward_s,backward_s,message_bytes,gpu_memory_mb\n"


@pytest.fixture
def jobs(tmp_path: Path) -> Path:
    path = tmp_path / "jobs.csv"
    path.write_text(HEADER + "a,0,2,3,0.01,0.01,1000,10\nb,1,1,3,0.01,0.01,1000,10\n")
    return path


TABLE = pd.DataFrame(
    {
        "job_id": ["a", "b"],
        "arrival_s": [0.0, 1.0],
        "start_s": [0.25, 1.5],
        "finish_s": [3.0, 4.5],
        "jct_s": [2.75, 3.0],
        "servers": ["0,1", "2"],
    }
)


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What is asked of crews and of runs, in order."""
    told: list[Any] = []

    @contextmanager
    def crew_of(cluster: Cluster, hosts: Any, token_file: Any, *, realtime: bool) -> Any:
        told.append(("crew", cluster, hosts, token_file, realtime))
        yield "the crew"
        told.append("gone")

    def run_for_real(workload: Any, settings: Any, crew: str, *, realtime: bool) -> RealRun:
        told.append(("run", len(workload), settings, crew, realtime))
        machine = {"mean_late_ms": 0.125, "most_late_ms": 2.5, "late_share": 0.035, "cpu_busy_share": 0.5}
        return RealRun(TABLE, TABLE[:1], machine | {"machine_limited": settings.seed == 7})

    monkeypatch.setattr(crews, "crew_of", crew_of)
    monkeypatch.setattr(real_run, "run_for_real", run_for_real)
    return told


def test_a_run_is_that_of_the_settings_and_its_jobs_are_shown(jobs: Path, asked: list[Any]) -> None:
    done = run("testbed", "run", jobs)
    assert (done.exit_code, done.stderr) == (0, "")
    assert done.stdout.splitlines() == [
        "  job                   arrival_s    start_s   finish_s      jct_s  servers",
        "  a                         0.000      0.250      3.000      2.750  0,1",
        "  b                         1.000      1.500      4.500      3.000  2",
        "average JCT 2.875 s, makespan 4.500 s",
        "computes ended 0.12 ms late on average, 2.50 at most; processors 50% busy",
    ]
    (_, cluster, hosts, token, realtime), (_, count, settings, crew, run_realtime), gone = asked
    assert cluster == cabling.scaled(Cluster(num_servers=4), 0.01)
    assert (hosts, token, realtime, run_realtime) == (None, None, True, True)
    assert (count, crew, gone) == (2, "the crew", "gone")
    assert settings.cluster == cluster
    given = (settings.seed, settings.window, settings.slots, settings.train)
    assert given == (0, 2, False, False)


def test_a_run_takes_all_that_is_given(jobs: Path, asked: list[Any], tmp_path: Path) -> None:
    network = "--servers 3 --gpus-per-server 2 --topology star:nic_gbps=20 --scale 0.5 --exclusive"
    gate = "--seed 7 --chunk-bytes 1000 --window 5 --slots --contention equal-share"
    place = ["--hosts", "h", "--token-file", "t", "--no-realtime", "--out", tmp_path / "out", "--json"]
    done = run("testbed", "run", jobs, *network.split(), *gate.split(), *place)
    told = json.loads(done.stdout)
    assert (told["jobs"], told["average_jct_s"], told["makespan_s"], told["transfers"]) == (2, 2.875, 4.5, 1)
    assert done.stderr.endswith(
        "the machine may have been the limit, not the network: processors 50% busy, computes 3.5% late in all\n"
    )
    assert len(pd.read_parquet(tmp_path / "out" / "jobs.parquet")) == 2
    assert "__index_level_0__" not in pq.read_schema(tmp_path / "out" / "jobs.parquet").names
    assert len(pd.read_parquet(tmp_path / "out" / "transfers.parquet")) == 1
    cluster = Cluster(num_servers=3, gpus_per_server=2, topology="star:nic_gbps=20", exclusive=True)
    (_, made, hosts, token, realtime), (_, _, settings, _, run_realtime), _ = asked
    assert made == cabling.scaled(cluster, 0.5)
    assert (hosts, token, realtime, run_realtime) == (Path("h"), Path("t"), False, False)
    assert (settings.chunk_bytes, settings.window, settings.slots) == (1000.0, 5, True)
    asked.clear()
    assert run("testbed", "run", jobs, "--train").exit_code == 0
    assert (asked[0][-1], asked[1][-1], asked[1][2].train) == (False, False, True)


class Registry:
    """A registry whose network each test says."""

    network: Made | None = None
    told: list[Any] = []  # noqa: RUF012

    def __enter__(self) -> Registry:
        return self

    def __exit__(self, *_: object) -> None:
        self.told.append("given up")

    def make(self, cluster: Cluster, kind: str) -> Made:
        self.told.append((cluster, kind))
        return Made("up", 1, "", ("ddlsched-net", "ddlsched-0"))

    def remove(self) -> list[str]:
        return list(self.network.namespaces) if self.network else []

    def made(self) -> Made | None:
        return self.network


def test_a_network_is_made_listed_and_removed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(namespaces, "Registry", Registry)
    monkeypatch.setattr(Registry, "told", [])
    monkeypatch.setattr(namespaces, "existing", lambda names: [name for name in names if name != "n2"])
    done = run("testbed", "up", "--servers", 3, "--scale", 0.1)
    assert done.stderr == "ddlsched: made ddlsched-net, ddlsched-0; `ddlsched testbed down` removes them\n"
    assert Registry.told == [(cabling.scaled(Cluster(num_servers=3), 0.1), "up"), "given up"]
    assert run("testbed", "down").stderr == "ddlsched: there was nothing to remove\n"
    assert run("testbed", "list").stderr == "ddlsched: there is no testbed\n"
    for kind, more in (("up", ""), ("run", " for its run alone")):
        monkeypatch.setattr(Registry, "network", Made(kind, 17, "2 servers, star", ("n1", "n2")))  # type: ignore[arg-type]
        done = run("testbed", "list")
        assert done.stderr == f"ddlsched: 2 servers, star; made by process 17{more}\n"
        assert done.stdout == "n1\nn2 (gone)\n"
    assert run("testbed", "down").stderr == "ddlsched: removed n1, n2\n"


def test_an_agent_and_a_gate_serve_where_they_are_told(monkeypatch: pytest.MonkeyPatch, token: Path) -> None:
    told: list[Any] = []

    class Service:
        def __init__(self, address: Any, token: bytes, members: Any = None, *, tell: Any) -> None:
            self.address = address
            told.append((str(address), token))
            tell("told")
            self.members = members

        def serve(self) -> None:
            told.append("serves")
            if self.members is not None:
                settings, note = self.members
                told.append((settings.cluster, settings.seed, settings.window, settings.chunk_bytes))
                note(SimpleNamespace(job_id="a", ended_ns=5))

    monkeypatch.setattr(crews, "WorkerAgent", Service)
    monkeypatch.setattr(service, "GateService", Service)
    monkeypatch.setattr(service, "Membership", lambda settings, note: (settings, note))
    monkeypatch.setattr("ddlsched.real.testbed_command.need", lambda *given, **how: told.append((given, how)))
    done = run("testbed", "agent", "127.0.0.1:0", "--token-file", token)
    assert done.stderr == "ddlsched: told\nddlsched: listening on 127.0.0.1:0\n"
    torch = (("the testbed", "torch"), {"extra": "real"})
    assert told == [torch, ("127.0.0.1:0", b"0123456789abcdef"), "serves"]
    told.clear()
    options = "--servers 5 --topology star:nic_gbps=3 --seed 4 --window 3 --chunk-bytes 1900"
    done = run("testbed", "gate", "127.0.0.1:9", "--token-file", token, *options.split())
    assert done.stderr == "ddlsched: told\nddlsched: listening on 127.0.0.1:9\n"
    assert done.stdout == '{"job_id": "a", "ended_ns": 5}\n'
    cluster = Cluster(num_servers=5, topology="star:nic_gbps=3")
    assert told == [("127.0.0.1:9", b"0123456789abcdef"), "serves", (cluster, 4, 3, 1900.0)]


class Compared:
    """Stands for all that a comparison is made of, and notes it."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, missing: list[str], waits: bool) -> None:
        self.told: list[Any] = []
        self.settings: list[Any] = []
        told, own = self.told, self

        class Runs:
            def __init__(self, folder: Path) -> None:
                told.append(f"runs in {folder.name}")

            def missing(self, planned: list[str]) -> list[str]:
                assert planned == ["r1", "r2"]
                return missing

            def keep(self, run: str, found: Any) -> None:
                told.append(f"keeps {run}: {found}")

            def measured(self, planned: list[str]) -> str:
                return f"measured {planned}"

        def plan(mixes: list[Any], repeats: int, *, seed: int) -> list[str]:
            own.mixes = mixes
            told.append(f"plan {repeats} {seed}")
            return ["r1", "r2"]

        def measure(name: str) -> Any:
            def measured(path: Path, *given: Any) -> str:
                told.append(f"{name} {path.name} {given[-1]}")
                path.touch()
                return "rows"

            return measured

        fit = SimpleNamespace(by_name={"fitted": "model"}, wait="wait" if waits else None)
        monkeypatch.setattr(fidelity, "Runs", Runs)
        monkeypatch.setattr(fidelity, "plan", plan)
        monkeypatch.setattr(fidelity, "note_settings", lambda folder, given: self.settings.append((folder, given)))
        monkeypatch.setattr(fidelity, "run_planned", lambda *given, realtime: (*given, realtime))
        monkeypatch.setattr(fidelity, "report_of", self.report_of)
        for name in ("measured_rows", "measure_shares", "measure_alone"):
            monkeypatch.setattr(measuring, name, measure(name))
        monkeypatch.setattr(measuring, "fitted_models", lambda rows: {"max-min": f"fitted to {rows}"})
        monkeypatch.setattr(measuring, "alone_jobs", lambda settings: f"jobs of {settings.cluster.num_servers}")
        monkeypatch.setattr(measurements, "read_measurements", lambda path: path.name)
        monkeypatch.setattr(measurements, "Reach", SimpleNamespace(of=lambda rows: SimpleNamespace(beyond=self.beyond)))
        for name in ("read_shares", "read_alone"):
            monkeypatch.setattr(shares, name, lambda path: path.name)
        monkeypatch.setattr(shares, "wait_text", lambda alone, wait: f"{alone} {wait}")
        monkeypatch.setattr(run_models, "run_models", lambda *given: told.append(given) or fit)
        monkeypatch.setattr(run_models, "simulated_runs", lambda mixes, models: f"simulated {len(mixes)}")

    def beyond(self, messages: Any) -> list[str]:
        self.told.append(f"beyond {list(messages)}")
        return ["far"]

    def report_of(self, measured: str, simulated: str, models: dict[str, Any], baseline: str) -> Any:
        contention = {name: getattr(model, "contention", model) for name, model in models.items()}
        self.told.append((measured, simulated, contention, baseline))
        return SimpleNamespace(
            write=lambda folder: self.told.append(f"written to {folder.name}"), text=lambda: "text\n"
        )


def test_a_comparison_measures_what_is_missing_and_reports(
    jobs: Path, tmp_path: Path, asked: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "out"
    out.mkdir()
    compared = Compared(monkeypatch, ["r2"], waits=True)
    options = "--scheduler srsf-1 --communication adadual --placement lwf --order las --contention linear --window 4"
    done = run("testbed", "compare", jobs, "--out", out, *options.split(), "--repeats", 2, "--seed", 9, "--no-realtime")
    assert done.exit_code == 0, done.stderr
    assert done.stdout == "text\n\nalone.csv wait\n"
    assert "ddlsched: measuring jobs alone and pairs\n" in done.stderr
    assert done.stderr.endswith(f"ddlsched: far\nddlsched: tables and charts: {out}\n")
    [mix] = compared.mixes
    beside = {"placement": "lwf", "order": "las"}
    gate = {"window": 4, "seed": 9}
    assert mix.policies == {
        "srsf-1": {"scheduler": "srsf-1", **gate},
        "adadual": {"communication": "adadual", **beside, **gate},
    }
    assert (mix.name, len(mix.workload), mix.cluster) == ("jobs", 2, cabling.scaled(Cluster(num_servers=4), 0.01))
    [(folder, noted)] = compared.settings
    assert (folder, noted["jobs"], noted["repeats"], noted["seed"]) == (out, "jobs.csv", 2, 9)
    assert noted["policies"] == mix.policies
    assert compared.told == [
        "plan 2 9",
        "runs in out",
        "measured_rows calibration.csv the crew",
        "measure_shares shares.csv the crew",
        "measure_alone alone.csv the crew",
        "keeps r2: ('r2', 'the crew', 'fitted to rows', False)",
        ("calibration.csv", "shares.csv", "alone.csv"),
        ("measured ['r1', 'r2']", "simulated 1", {"fitted": "model", "linear": "linear"}, "srsf-1"),
        "written to out",
        compared.told[-1],
    ]
    assert compared.told[-1].startswith("beyond [")
    assert [each[0] if isinstance(each, tuple) else each for each in asked] == ["crew", "gone"]
    assert asked[0][-1] is False
    # Once all is there nobody is asked; one file that is gone is measured again.
    for gone in (None, "shares.csv"):
        asked.clear()
        again = Compared(monkeypatch, [], waits=False)
        if gone:
            (out / gone).unlink()
        done = run("testbed", "compare", jobs, "--out", out, "--communication", "adadual")
        assert done.stdout == "text\n"
        assert len(asked) == (2 if gone else 0)
        assert again.told[0] == "plan 3 0"
        policy = {"communication": "adadual", "placement": "first-fit", "order": "srsf"}
        assert again.mixes[0].policies == {"adadual": {**policy, "seed": 0, "window": 2}}
        assert all(each[-1] is True for each in asked[:1])
    refused(run("testbed", "compare", jobs, "--out", out), "nothing to compare; expected --scheduler BUNDLE or")
