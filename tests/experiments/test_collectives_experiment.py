"""The experiment: its committed table can be repeated, and its README holds it."""

from __future__ import annotations

import pandas as pd
import pytest
from experiment_scripts import EXPERIMENTS, scripts_of

from algorithms.collective.in_network import InNetwork
from algorithms.collective.nccl import Nccl

FOLDER = EXPERIMENTS / "collectives"
README = (FOLDER / "README.md").read_text(encoding="utf-8")
bus_bandwidth, llm_step = scripts_of("collectives", "bus_bandwidth", "llm_step")


@pytest.mark.long
def test_the_committed_table_is_that_of_the_run() -> None:
    table = bus_bandwidth.table()
    pd.testing.assert_frame_equal(table, pd.read_csv(FOLDER / "expected" / "bus_bandwidth.csv"))
    for row in table.itertuples():
        start = f"| {row.hosts} | {row.simulated_gb_per_s} | {row.measured_gb_per_s} | {row.difference_percent} % |"
        assert start in README


def test_the_share_of_a_port_is_the_fitted_one() -> None:
    fitted = round(sum(bus_bandwidth.port_shares().values()) / 4, 3)
    assert InNetwork().port_share == Nccl().port_share == fitted
    blackwells = round(fitted * bus_bandwidth.BLACKWELLS_PART, 3)
    hosts = pd.read_csv(FOLDER / "measured.csv").set_index("hosts")["algorithm"]
    assert hosts["8 B200, NVLS"] == f"nccl:switches=inside,port_share={blackwells}"
    for gpus, measured in bus_bandwidth.NVLS_GB_PER_S.items():
        seconds = bus_bandwidth.all_reduce_s(1e9, 1, "star:nvlink_gbps=3600", "in-network", gpus)
        assert 1 / seconds == pytest.approx(measured, rel=0.006)


@pytest.mark.long
def test_the_command_prints_the_table_with_its_condition(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.argv", ["bus_bandwidth.py"])
    assert bus_bandwidth.main() == 0
    printed = capsys.readouterr().out
    assert printed.startswith("All-reduces of 1 GB alone, max-min sharing, links as the data sheets say, no latency;")
    assert "8 A100, NVSwitch               300.0              229.3" in printed
    assert "port_share of NVLS, fitted: 0.686 (0.688 on 5," in printed
    assert "on 8 H100); Blackwell's: 0.597" in printed
    assert "2 (n - 1) / n of the message over the time" in README


def test_the_readme_holds_the_times_by_size() -> None:
    """The measurements are not part of the project; what was simulated beside them is repeated here."""
    table = pd.read_csv(FOLDER / "expected" / "a100_by_size.csv")
    fitted = f"rail-optimised:nvlink_gbps={228.4 * 8},nvlink_latency_s=6.42e-6"
    for row in table[table["mib"].isin([1, 4, 16, 1024])].itertuples():
        assert f"| {row.mib:.0f} | {row.measured_us:.0f} | {row.data_sheet_us:.0f} | {row.fitted_us:.0f} |" in README
        again_us = 1e6 * bus_bandwidth.all_reduce_s(row.mib * 2**20, 1, fitted)
        assert again_us == pytest.approx(row.fitted_us, rel=1e-3)


@pytest.mark.long
def test_the_step_takes_what_the_readme_says() -> None:
    result, estimated_s = llm_step.run()
    assert f"{result.jobs['jct_s'].item():.4f} s simulated, {estimated_s:.4f} s by the closed form" in README
