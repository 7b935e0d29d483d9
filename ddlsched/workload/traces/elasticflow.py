"""Microsoft's ITP clusters as released with ElasticFlow, and the traces that ElasticFlow ran."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain, islice

from ddlsched.workload.traces.trace_files import numbered_lines, read_csv
from ddlsched.workload.traces.traced import (
    Cells,
    Refusal,
    Source,
    TracedJob,
    gpus_of,
    number_of,
    optional_text,
    positive_s,
    text_of,
    whole_of,
)

__all__ = ["elasticflow", "microsoft_itp"]


def microsoft_itp(source: Source) -> Iterator[TracedJob | Refusal]:
    """Read the columns job_id, submission_time, duration, num_gpu; a file is a cluster, which stands for the user.

    References
    ----------
    Gu et al., "ElasticFlow: An Elastic Serverless Training Platform for Distributed Deep Learning", ASPLOS 2023.
    """

    def job_of(cells: Cells) -> TracedJob:
        return _job(cells, arrival="submission_time", iterations=None)._replace(user=source.stem)

    return read_csv(source, ("job_id", "submission_time", "duration", "num_gpu"), job_of)


def elasticflow(source: Source) -> Iterator[TracedJob | Refusal]:
    """Read ITP traces with drawn models and iterations, or the older form with submit_time and iteration.

    References
    ----------
    Gu et al., "ElasticFlow: An Elastic Serverless Training Platform for Distributed Deep Learning", ASPLOS 2023.
    """
    lines = numbered_lines(source)
    header = list(islice(lines, 1))
    older = any("submit_time" in text for _, text in header)
    arrival, iterations = ("submit_time", "iteration") if older else ("submission_time", "num_iteration")

    def job_of(cells: Cells) -> TracedJob:
        return _job(cells, arrival=arrival, iterations=iterations)

    return read_csv(
        source, ("job_id", arrival, iterations, "model_name", "num_gpu", "duration"), job_of, chain(header, lines)
    )


def _job(cells: Cells, arrival: str, iterations: str | None) -> TracedJob:
    return TracedJob(
        job_id=text_of(cells, "job_id"),
        arrival_s=number_of(cells, arrival),
        num_gpus=gpus_of(cells, "num_gpu"),
        duration_s=positive_s(cells, "duration"),
        iterations=0 if iterations is None else whole_of(cells, iterations),
        model=optional_text(cells, "model_name"),
    )
