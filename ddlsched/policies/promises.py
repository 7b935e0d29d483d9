"""What the event loop must know of a compiled policy before it takes a shortcut.

A shortcut (a job that meets nobody skips its iterations; jobs that do meet jump over periods that repeat) is taken only
where it cannot change a result. What that needs is read off the policy's own code, or the class promises it as a class
variable:

``refusal_lasts = True`` (on a class with ``admit``)
    A transfer that meets nobody starts. One that is refused would be refused at any later time, until a transfer leaves
    one of its links. So the answer depends on the transfer, on those that it shares links with, and on nothing else.
``key_falls_while_sending = True`` (with ``transfer_key``)
    The key of a transfer that runs never rises, that of one that waits stays the same, as long as its job computes
    nothing. Needed only by a key that reads bytes.
``key_is_linear = True`` (with ``key`` or ``transfer_key``)
    The first number of the key is whole, and changes by the same amount in every iteration of the job; the others are
    the same in every iteration. All transfers of a job have the same first number.

A promise holds for the class that makes it, and for subclasses without methods and properties of their own.
Without a promise a run is slower, never different. A false one gives wrong results. The conformance classes of
:mod:`ddlsched.testing` find many that are false, not all.
"""

from __future__ import annotations

from functools import cached_property
from types import FunctionType
from typing import Any

from ddlsched.policies.job_view import JobView
from ddlsched.policies.view_parts import changing_fields

PROMISES = ("refusal_lasts", "key_falls_while_sending", "key_is_linear")

PROGRESS = frozenset(name for name in changing_fields(JobView) if not name.startswith("_"))
"""Attributes of a job that change as it trains; the others stay the same from its placement on."""

BYTES = frozenset({"bytes_left", "bytes_sent", "is_active"})
"""Attributes of a transfer that change as it runs."""

CLOCK = frozenset({"now_s", "now_ns"})
"""The simulated time; an order is given it."""

WIDE = frozenset({"active", "waiting", "num_on", "transfers_on"})
"""What shows transfers that a transfer does not meet."""


FULLEST = frozenset({"most_on_links_of", "message_bytes", "per_byte_s", "penalty_per_byte_s"})
"""Of all transfers that a transfer meets, how many there are on the fullest of its links; and what never changes.

An ``admit`` that reads no more, and whose refusals last, refuses at least as long as that link stays as full.
"""


TELLING_APART = WIDE | {"number", "links", "shares", "every met_by", "which one"}
"""What may differ for transfers of a job that send as much, beside as many on their links that send as much.

That is how many they meet, too, as two may share several links, and which one it is, but not whether all of those, or
any, are so or so.
"""


def promises(policy: Any, name: str) -> bool:
    """Return whether a policy's class makes a promise; a subclass with code of its own makes its own."""
    for kind in type(policy).__mro__:
        if name in vars(kind):
            return bool(getattr(policy, name))
        if any(_is_code(*member) for member in vars(kind).items()):
            return False
    return False


def _is_code(name: str, member: object) -> bool:
    """Return whether a class's attribute may change what a method answers that is inherited."""
    kinds = (FunctionType, property, staticmethod, classmethod, cached_property)
    return isinstance(member, kinds) and name != "begin" and not name.startswith("__")
