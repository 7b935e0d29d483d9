"""What measurements reach: the sizes of messages and rings within which constants were fitted."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ddlsched.real.calibration.measurements import Measurements

__all__ = ["Reach"]


@dataclass(frozen=True)
class Reach:
    """The smallest and largest that was measured, of messages (bytes), rings (servers) and all-reduces at a time.

    ``servers`` is None if it was not said.
    """

    message_bytes: tuple[float, float]
    servers: tuple[int, int] | None
    jobs: tuple[int, int]

    @classmethod
    def of(cls, rows: Measurements) -> Reach:
        """Return what measured rows reach."""
        servers = None if rows.servers is None else (int(rows.servers.min()), int(rows.servers.max()))
        sizes = float(rows.message_bytes.min()), float(rows.message_bytes.max())
        return cls(sizes, servers, (int(rows.jobs.min()), int(rows.jobs.max())))

    def __str__(self) -> str:
        """Return it in words."""
        least_mb, most_mb = (size / 1e6 for size in self.message_bytes)
        rings = "" if self.servers is None else f", rings of {_span(*self.servers)} servers"
        return f"messages of {_span(least_mb, most_mb)} MB{rings}, {_span(*self.jobs)} at a time"

    def beyond(self, jobs: Sequence[tuple[Sequence[float], int]]) -> list[str]:
        """Return a line for messages, and one for rings, if some jobs have such as were not measured.

        Parameters
        ----------
        jobs
            Of each the sizes of its messages, bytes, and over how many servers it may reduce them.
        """
        least_mb, most_mb = (size / 1e6 for size in self.message_bytes)
        sizes_mb = [[size / 1e6 for size in sizes] for sizes, _ in jobs]
        others_mb = [own for own in sizes_mb if own and not least_mb <= min(own) <= max(own) <= most_mb]
        lines = []
        if others_mb:
            span = _span(min(map(min, others_mb)), max(map(max, others_mb)))
            measured = _span(least_mb, most_mb)
            lines.append(f"{len(others_mb)} of {len(jobs)} jobs reduce {span} MB; measured were {measured} MB")
        if self.servers is not None:
            wide = [servers for _, servers in jobs if not self.servers[0] <= servers <= self.servers[1]]
            if wide:
                rings = f"rings of {_span(min(wide), max(wide))} servers"
                lines.append(f"{len(wide)} of {len(jobs)} jobs may have {rings}; measured were {_span(*self.servers)}")
        return lines


def _span(least: float, most: float) -> str:
    """Return numbers, or sizes in MB, in words; sizes that are not whole are cut to three digits."""
    ends = [f"{end:.0f}" if end == round(end) else f"{end:.3g}" for end in (least, most)]
    return ends[0] if least == most else " to ".join(ends)
