"""
A timeline asked by SQL
=======================

``result.timeline`` is a table of what every GPU and transfer did. ``ddlsched.write_timeline(result, "run.parquet")``
writes it to a file, which DuckDB can be asked about.
"""

import duckdb

import ddlsched
from ddlsched.comparisons.charts.style import PALETTE, in_style, new_figure

result = ddlsched.simulate("microsoft-160:scale=0.002", scheduler="srsf-2", seed=1, timeline=True)
ddlsched.write_timeline(result, "run.parquet")

# Who computes the most?
most = duckdb.sql("""
    SELECT job_id, sum(end_ns - start_ns) / 1e9 AS gpu_s FROM 'run.parquet'
    WHERE kind = 'compute' GROUP BY job_id ORDER BY gpu_s DESC, job_id LIMIT 5""").df()

# Which part of the time of transfers do they share a link with another?
shared = duckdb.sql("""
    SELECT sum(end_ns - start_ns) FILTER (sharing > 1) / sum(end_ns - start_ns) AS share FROM 'run.parquet'
    WHERE kind = 'transfer'""").fetchall()[0][0]

# For how long do transfers run on each link, those at once counted each?
links = duckdb.sql("""
    SELECT link, sum(end_ns - start_ns) / 1e9 AS transfer_s FROM (
        SELECT DISTINCT unnest(links) AS link, start_ns, end_ns, job_id FROM 'run.parquet' WHERE kind = 'transfer')
    GROUP BY link ORDER BY link""").df()

with in_style():
    figure, axes = new_figure(2.2)
    axes.bar(links["link"].astype(str), links["transfer_s"], color=PALETTE["blue"])
    axes.set(xlabel="Link", ylabel="Transfers (s)", title=f"{100 * shared:.0f} % of the time shared", ylim=(0, None))
    axes.grid(axis="y")
