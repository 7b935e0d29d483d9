"""
How much of the time is the network's
=====================================

The share of JCT that jobs communicated or waited for a link.
"""

import tempfile

import ddlsched

comparison = ddlsched.compare(
    "microsoft-160:scale=0.002",
    [{"name": name, "placement": name} for name in ("first-fit", "lwf", "random")],
    seeds=2,
    folder=tempfile.mkdtemp() + "/comparison",
    processes=1,
)
figure = comparison.plot.network()
