"""
Who gains: small jobs or large ones
===================================

The same comparison, by the number of GPUs of a job.
"""

import tempfile

import ddlsched

comparison = ddlsched.compare(
    "microsoft-160:scale=0.002",
    ["srsf-1", {"name": "FIFO", "order": "fifo"}],
    seeds=6,
    folder=tempfile.mkdtemp() + "/comparison",
    processes=1,
)
figure = comparison.plot.jct_by_size()
