"""On which servers: free GPUs for a job, close together."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable

__all__ = ["free_by_server", "take_nearest"]


def free_by_server(gpus: Iterable[int], server_of: Callable[[int], int]) -> dict[int, list[int]]:
    """Return GPUs by their server, ascending."""
    pool: dict[int, list[int]] = {}
    for gpu in sorted(gpus):
        pool.setdefault(server_of(gpu), []).append(gpu)
    return pool


def take_nearest(
    pool: dict[int, list[int]], count: int, mine: Iterable[int], server_of: Callable[[int], int]
) -> list[int]:
    """Take up to ``count`` free GPUs for a job out of the pool, and return them.

    On servers on which the job is, those with most of its GPUs first; then on the server with the fewest free GPUs that
    are enough, or else on the one with the most free. Ties go to lower servers.

    Parameters
    ----------
    pool
        Free GPUs by server, ascending; those taken are removed.
    count
        How many the job needs.
    mine
        Those that it has.
    server_of
        The server of a GPU.
    """
    added: list[int] = []
    on_server = Counter(server_of(gpu) for gpu in mine)
    for server in sorted(on_server, key=lambda server: (-on_server[server], server)):
        added += _take(pool, server, count - len(added))
    while pool and (left := count - len(added)):
        enough = [(len(there), server) for server, there in pool.items() if len(there) >= left]
        _, server = min(enough) if enough else min((-len(there), server) for server, there in pool.items())
        added += _take(pool, server, left)
    return added


def _take(pool: dict[int, list[int]], server: int, count: int) -> list[int]:
    there = pool.get(server, [])
    taken, left = there[:count], there[count:]
    if left:
        pool[server] = left
    else:
        pool.pop(server, None)
    return taken
