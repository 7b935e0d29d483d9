"""
Compare policies over seeds
===========================

One run says little. Policies meet on the same job sets, and differences are taken seed by seed.
"""

import tempfile

import ddlsched

comparison = ddlsched.compare(
    "microsoft-160:scale=0.002",
    ["ada-srsf", "srsf-1", "srsf-2"],
    seeds=6,
    folder=tempfile.mkdtemp() + "/comparison",
    processes=1,
)
print(comparison.table().query("metric == 'average_jct_s'")[["policy", "mean", "change", "verdict"]])
figure = comparison.plot.changes()
