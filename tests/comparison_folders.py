"""A comparison to report on, with a policy whose name is as nasty as can be and some of whose runs fail."""

from __future__ import annotations

from pathlib import Path

import ddlsched

SMALL = "microsoft-160:scale=0.001"
NASTY = '</script><b>bold</b> & "it\'s" ${x} %{y} $1'
"""A label that must come through as it is."""
PREEMPTIVE = "preemptive:by=service-per-gpu"
POLICIES = ("SRSF(1)", NASTY, PREEMPTIVE)
MESSAGE = "the policy raised <i>ValueError</i> & said 'no'"
UNLUCKY = f"""
from algorithms.placement.first_fit import FirstFit

class Unlucky(FirstFit):
    def begin(self, cluster, rng):
        if rng.random() > 0.92:
            raise ValueError({MESSAGE!r})
        return self
"""


def nasty_comparison(folder: Path) -> Path:
    """Compare three policies on seven seeds, on one of which the second fails, and return the folder."""
    unlucky = folder.with_name("unlucky.py")
    unlucky.write_text(UNLUCKY)
    options = (
        {"scheduler": "srsf-1"},
        {"scheduler": "srsf-1", "placement": f"{unlucky}:Unlucky"},
        {"scheduler": "srsf-1", "communication": PREEMPTIVE},
    )
    policies = [{"name": name} | chosen for name, chosen in zip(POLICIES, options, strict=True)]
    comparison = ddlsched.compare(SMALL, policies, seeds=7, timeline=(0.0, 4.0), folder=folder, processes=1)
    assert comparison.failures["seed"].tolist() == [2]
    assert len(comparison.runs) == 3 * 7 - 1
    return folder
