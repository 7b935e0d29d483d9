"""The stamp of compiled code: a hash of all sources that it is made of."""

from __future__ import annotations

import functools
import hashlib
from pathlib import Path

__all__ = ["sources_stamp", "stamped_sources"]

_PACKAGE = Path(__file__).parents[2]
_OF_THE_LOOP = (
    "engine/records",
    "engine/native",
    "engine/loop",
    "policies/transfer_states.py",
    "policies/job_view.py",
    "policies/queue_features.py",
    "policies/view_parts.py",
)
_OF_POLICIES = *_OF_THE_LOOP, "engine/compiled", "policies/compiling", "network/rates.py"


@functools.cache
def sources_stamp(of_policies: bool = False) -> str:
    """Return the hash of all sources of the loop: compiled code is stale as soon as any of them has changed.

    Parameters
    ----------
    of_policies
        Whether the sources by which policies are compiled belong to it.
    """
    digest = hashlib.sha256()
    for path in stamped_sources(of_policies):
        digest.update(path.relative_to(_PACKAGE).as_posix().encode() + b"\0" + path.read_bytes() + b"\0")
    return digest.hexdigest()


def stamped_sources(of_policies: bool = False) -> list[Path]:
    """Return the files of which :func:`sources_stamp` is made."""
    places = [_PACKAGE / place for place in (_OF_POLICIES if of_policies else _OF_THE_LOOP)]
    return [path for place in places for path in (sorted(place.rglob("*.py")) if place.is_dir() else [place])]
