"""Conformance of admission policies: what holds of each, whatever it prefers."""

from __future__ import annotations

import numpy as np
import pytest

from ddlsched.policies.tenants_view import AdmissionPolicy
from ddlsched.testing.admission_play import play, random_case
from ddlsched.testing.conformance_runs import Conformance

__all__ = ["AdmissionConformance"]

_CASES = 60


class AdmissionConformance(Conformance):
    """Checks of an admission policy; give the class a ``make()``."""

    def make(self) -> AdmissionPolicy:
        """Return the policy to test."""
        raise NotImplementedError("give the conformance class a make() that returns the policy")

    @pytest.mark.parametrize("seed", range(3))
    def test_keeps_limits(self, seed: int) -> None:
        """No queue borrows more than it may, nothing is used that nobody lends, and victims ran before."""
        rng = np.random.default_rng(seed)
        for _ in range(_CASES // 3):
            case = random_case(rng)
            faults, _ = play(case, self.make())
            broken = [fault for fault in faults if fault.startswith(("limit", "lending", "victims"))]
            assert not broken, f"{broken} in\n{case}"

    def test_decides_alike_each_time(self) -> None:
        """The same jobs, the same answers."""
        rng = np.random.default_rng(9)
        for _ in range(10):
            case = random_case(rng)
            assert play(case, self.make()) == play(case, self.make())
