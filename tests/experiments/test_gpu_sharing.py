"""What a shared GPU keeps of its throughput, from rates that are made up and from those that were measured."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest
from experiment_scripts import scripts_of

import ddlsched
from ddlsched.cluster.interference import PairwiseInterference
from ddlsched.workload.generators.microsoft import microsoft_160

(run,) = scripts_of("gpu_sharing", "run")
EXPECTED = Path(run.HERE) / "expected"
RATES = """repetition,combination,batches,model,batch,others,steps_per_s,memory_mb
0,X,large,X,8,,10,1
0,Y,large,Y,8,,20,1
0,X+X,large,X,8,X,4,1
0,X+X,large,X,8,X,4.5,1
0,X+Y,large,X,8,Y,4,1
0,X+Y,large,Y,8,X,12,1
0,X+X+X,large,X,8,X+X,3,1
0,X+X+X,large,X,8,X+X,,1
"""


def test_throughput_is_each_jobs_share_of_its_own_and_penalties_are_of_half_the_turns(tmp_path: Path) -> None:
    (tmp_path / "rates_1.csv").write_text(RATES)
    rates = run.read(tmp_path)
    found = run.throughput(rates).set_index("combination")["throughput"]
    assert found.to_dict() == pytest.approx({"X": 1.0, "Y": 1.0, "X+X": 0.85, "X+Y": 1.0})  # three were cut off
    penalties = run.penalties(rates).set_index(["model", "other"])["penalty_share"]
    assert penalties.to_dict() == pytest.approx({("X", "X"): 0.5 / 0.425 - 1, ("X", "Y"): 0.25, ("Y", "X"): 0.0})


def test_committed_tables_are_those_of_the_committed_rates() -> None:
    rates = run.read(Path(run.HERE) / "measured" / "h100")
    for name, table in (("throughput", run.throughput(rates)), ("penalties", run.penalties(rates))):
        pd.testing.assert_frame_equal(table, pd.read_csv(EXPECTED / f"{name}.csv"), atol=6e-5)


def test_turns_on_a_full_gpu_cost_a_tenth_however_many_take_them() -> None:
    found = pd.read_csv(EXPECTED / "throughput.csv")
    shared = found[(found["batches"] == "large") & (found["jobs"] > 1)]
    assert set(shared["jobs"]) == {2, 3, 4}
    assert shared["throughput"].between(0.88, 0.93).all()


@pytest.mark.long
def test_penalties_are_read_by_the_simulator_for_all_models_of_the_64_gpu_jobs() -> None:
    file = EXPECTED / "penalties.csv"
    workload = microsoft_160(seed=1, scale=0.01)
    model = PairwiseInterference(file=str(file), once=True)
    names = {job.model for job in workload}
    assert len(names) == 4
    assert all(0.05 < model.penalty_share(one, other) < 0.14 for one in names for other in names)
    plain, priced = (
        ddlsched.simulate(workload, interference=given).summary()["average_jct_s"]
        for given in (None, f"pairs:file={file},once=true")
    )
    assert priced > plain
