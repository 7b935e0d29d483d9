"""What traces took in ASTRA-sim's back ends, as ``expected/`` has it, beside what they take here."""

from __future__ import annotations

from pathlib import Path

import astra_sim_backends
import pandas as pd
import pytest
from astra_sim_backends import GB, LATENCY_NS, MOST_OFF, cases, here_ns

from ddlsched.errors import InputError

EXPECTED = pd.read_csv(Path(__file__).parent / "expected" / "astra_sim_backends.csv")
CASES = {(case.name, f"{case.network} {' x '.join(map(str, case.sizes))}"): case for case in cases()}
ROWS = [tuple(row) for row in EXPECTED.to_numpy().tolist()]


def test_item_18_every_case_was_run_there() -> None:
    assert [(name, network) for name, network, *_ in ROWS] == list(CASES)


@pytest.mark.parametrize("row", ROWS, ids=[f"{row[0]}, {row[1]}" for row in ROWS])
def test_item_18_a_trace_takes_what_it_does_in_astra_sim(row: tuple, tmp_path: Path) -> None:
    name, network, there, aware, written, _ = row
    found = here_ns(CASES[name, network], tmp_path)
    assert found == pytest.approx(written, abs=1.0)
    ranks = CASES[name, network].num_ranks
    if not name.startswith("all-to-all"):
        assert found == pytest.approx(there, rel=MOST_OFF)
    elif network.startswith("Ring"):
        # There one step after the other, n (n - 1) / 2 of them; here all set out at once, the last n - 1 cables far.
        steps = ranks * (ranks - 1) / 2 - (ranks - 1)
        assert there - found == pytest.approx(steps * LATENCY_NS, rel=0.01)
    else:
        # There the switch has the whole last message before it sends it on.
        part_ns = float(name.split()[1]) * 2**20 / ranks / (GB * 2**30) * 1e9
        assert aware - found == pytest.approx(part_ns, rel=0.01)


def test_a_clone_that_is_not_built_is_told(tmp_path: Path) -> None:
    case = next(cases())
    with pytest.raises(InputError, match=r"there is no .*Unaware; expected a clone that build/astra_analytical"):
        astra_sim_backends.there_ns(tmp_path, case, tmp_path, "Unaware")
