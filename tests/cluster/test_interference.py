"""Interference between jobs on one GPU: by hand, from tables, from the command line, and what must not pass."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from command_line import run
from jobs_by_hand import data_parallel_job

import ddlsched
from ddlsched.cluster.interference import InterferenceModel, PairwiseInterference, UniformInterference
from ddlsched.comparisons.sweeps.run import fingerprint
from ddlsched.errors import InputError, PluginError, UnknownNameError
from ddlsched.plugins.names import resolve

ONE_GPU = ddlsched.Cluster(num_servers=1, gpus_per_server=1, gpu_memory_mb=1000.0)


def job(job_id: str, iterations: int, arrival_s: float = 0.0, model: str | None = None) -> ddlsched.Job:
    return data_parallel_job(
        job_id, arrival_s=arrival_s, iterations=iterations, forward_s=1.0, memory_mb=100.0, model=model
    )


def finishes(*jobs: ddlsched.Job, interference: InterferenceModel | str | None) -> list[float]:
    result = ddlsched.simulate(
        ddlsched.Workload.of(jobs), ONE_GPU, placement="first-fit", order="fifo", interference=interference
    )
    return [float(finish_s) for finish_s in result.jobs.finish_s]


def test_tasks_take_longer_while_another_job_is_there() -> None:
    # FIFO: "a" computes its three iterations first. "b" is there from 1.5 s on, in the middle of the second, so that
    # only the third takes longer: 1 + 1 + 1.5. Then "b" is alone.
    assert finishes(job("a", 3), job("b", 2, 1.5), interference="uniform:share=0.5") == [3.5, 5.5]
    assert finishes(job("a", 3), job("b", 2, 1.5), interference=None) == [3.0, 5.0]


def test_penalties_of_several_jobs_add_up() -> None:
    ends_s = finishes(job("a", 1), job("b", 1), job("c", 1), interference=UniformInterference(share=0.25))
    assert ends_s == [1.5, 1.5 + 1.25, 1.5 + 1.25 + 1.0]


def test_penalties_counted_once_are_the_largest(tmp_path: Path) -> None:
    many = [job(name, 1) for name in "abc"]
    assert finishes(*many, interference="uniform:share=0.25,once=true") == [1.25, 1.25 + 1.25, 1.25 + 1.25 + 1.0]
    table = tmp_path / "penalties.csv"
    table.write_text("model,other,penalty_share\nx,y,0.5\nx,z,2\n")
    pairs = PairwiseInterference(file=str(table), otherwise_share=0.0, once=True)
    jobs = [job("a", 1, model="x"), job("b", 1, model="y"), job("c", 1, model="z")]
    assert finishes(*jobs, interference=pairs) == [3.0, 4.0, 5.0]


def test_a_table_says_what_each_pair_costs(tmp_path: Path) -> None:
    table = tmp_path / "penalties.csv"
    table.write_text("model,other,penalty_share\nx,y,0.5\ny,x,2\n")
    pairs = resolve("interference", f"pairs:file={table}")
    assert finishes(job("a", 1, model="x"), job("b", 2, model="y"), interference=pairs) == [1.5, 3.5]
    assert finishes(job("b", 1, model="y"), job("a", 2, model="x"), interference=pairs) == [3.0, 5.0]
    with pytest.raises(InputError, match="no row has model 'x' and other 'x'"):
        finishes(job("a", 1, model="x"), job("b", 1, model="x"), interference=pairs)
    otherwise = PairwiseInterference(file=str(table), otherwise_share=0.0)
    assert finishes(job("a", 1), job("b", 1, model="x"), interference=otherwise) == [1.0, 2.0]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("model,other\nx,y\n", "penalty_share"),
        ("model,other,penalty_share\nx,y,-1\n", "row 1 (line 2), column penalty_share"),
        ("model,other,penalty_share\nx,y,much\n", "row 1 (line 2), column penalty_share: 'much' is no number"),
        ("model,other,penalty_share\nx,y,1e9\n", "expected a share of the time alone, from 0 to 1000"),
        ("model,other,penalty_share\nx,,1\n", "row 1 (line 2), column other: is empty"),
        ("model,other,penalty_share\nx,y,1\nx,y,2\n", "row 2 (line 3): model 'x' and other 'y' have a row before"),
    ],
)
def test_a_bad_table_is_refused(tmp_path: Path, text: str, said: str) -> None:
    table = tmp_path / "penalties.csv"
    table.write_text(text)
    with pytest.raises(InputError, match=r"penalties\.csv") as refused:
        PairwiseInterference(file=str(table))
    assert said in str(refused.value)


def test_a_missing_table_is_one_line() -> None:
    with pytest.raises(InputError, match=r"nowhere\.csv: no such file; expected a table of penalties"):
        PairwiseInterference(file="nowhere.csv")


class Answering:
    """A model of a user's that answers what it is told to."""

    def __init__(self, answer: Callable[[], float]) -> None:
        self._answer = answer

    def penalty_share(self, model: str | None, other: str | None) -> float:
        return self._answer()


@pytest.mark.parametrize("answer", [lambda: -0.1, lambda: float("nan"), lambda: 1001.0, lambda: None, lambda: 1 / 0])
def test_what_is_no_penalty_is_refused(answer: Callable[[], float]) -> None:
    with pytest.raises(PluginError, match=r"interference Answering: penalty_share\(None, None\)"):
        finishes(job("a", 1), job("b", 1), interference=Answering(answer))


def test_bad_models_and_names_are_refused() -> None:
    with pytest.raises(InputError, match="share is -1"):
        UniformInterference(share=-1.0)
    with pytest.raises(UnknownNameError, match="no interference is named 'unifrom'"):
        finishes(job("a", 1), interference="unifrom")
    with pytest.raises(InputError, match="has no penalty_share"):
        ddlsched.simulate(ddlsched.Workload.of([job("a", 1)]), interference=object())  # type: ignore[arg-type]
    many = [job(str(number), 1, model=f"m{number}") for number in range(1001)]
    with pytest.raises(InputError, match="1001 models"):
        finishes(*many, interference=UniformInterference())


def test_a_changed_table_is_another_run(tmp_path: Path) -> None:
    table = tmp_path / "penalties.csv"
    table.write_text("model,other,penalty_share\nx,y,0.5\n")
    inputs = {"options": {"interference": f"pairs:file={table}"}}
    before = fingerprint(inputs, "")
    table.write_text("model,other,penalty_share\nx,y,0.6\n")
    assert fingerprint(inputs, "") != before


def test_the_command_line_knows_it(tmp_path: Path) -> None:
    jobs = tmp_path / "jobs.json"
    ddlsched.write_workload(ddlsched.Workload.of([job("a", 3), job("b", 2, 1.5)]), jobs)
    given = ("simulate", jobs, "--servers", 1, "--gpus-per-server", 1, "--placement", "first-fit", "--order", "fifo")
    ended = run(*given, "--interference", "uniform:share=0.5", "--json")
    assert ended.exit_code == 0
    assert json.loads(ended.stdout)["makespan_s"] == 5.5
    refused = run(*given, "--interference", "uniform:share=-2")
    assert refused.exit_code == 2
    assert "share is -2" in refused.stderr
    assert "uniform" in run("list", "interference").stdout
