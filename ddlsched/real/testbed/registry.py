"""What the testbed has made on this machine, written down before it is made, so that any later run can remove it."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal, NamedTuple

from ddlsched.cluster.cluster import Cluster
from ddlsched.errors import InputError, label
from ddlsched.io.files import replacing
from ddlsched.real.testbed.cabling import Cabling, cabling
from ddlsched.real.testbed.namespaces import build, existing, refuse_unable, remove
from ddlsched.real.testbed.signals import undisturbed

__all__ = ["FOLDER", "Made", "Registry"]

FOLDER = Path("/run/ddlsched-testbed")
_FILE = "made.json"


class Made(NamedTuple):
    """What is written down.

    Attributes
    ----------
    kind
        "up" stays until ``testbed down``; "run" goes with its run.
    owner
        The process that made it.
    network
        Its description, by which a run knows whether it is the one it needs.
    namespaces
        Names of all.
    """

    kind: Literal["up", "run"]
    owner: int
    network: str
    namespaces: tuple[str, ...]


class Registry:
    """The one testbed of a machine; holding it, a process may change it.

    Parameters
    ----------
    folder
        Where it is written down.

    Raises
    ------
    InputError
        Another process holds it.
    """

    def __init__(self, folder: Path = FOLDER) -> None:
        self._path = folder / _FILE
        try:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            descriptor = os.open(folder / "lock", os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise InputError(f"{folder}: cannot be used ({error.strerror}); expected a folder of root's") from None
        self._lock = os.fdopen(descriptor, "r+")
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            owner = self._lock.read(20).strip() or "?"
            self._lock.close()
            raise InputError(
                f"another testbed is in use (process {owner}); expected it to end first: a machine has one testbed"
            ) from None
        self._lock.truncate(0)
        self._lock.write(str(os.getpid()))
        self._lock.flush()

    def __enter__(self) -> Registry:
        """Return itself."""
        return self

    def __exit__(self, *_: object) -> None:
        """Give it up."""
        self._lock.close()

    def made(self) -> Made | None:
        """Return what is written down, None if nothing is."""
        try:
            found: dict[str, Any] = json.loads(self._path.read_text(encoding="utf-8"))
            return Made(**{**found, "namespaces": tuple(found["namespaces"])})
        except FileNotFoundError:
            return None
        except (OSError, ValueError, TypeError, KeyError) as error:
            raise InputError(f"{self._path}: is no list of namespaces ({error}); expected one that run wrote") from None

    def make(self, cluster: Cluster, kind: Literal["up", "run"]) -> Made:
        """Make the network of a cluster, having removed what a run that was killed has left.

        Raises
        ------
        InputError
            No root, no tools, another one is up, or a namespace of its names is somebody else's.
        TestbedError
            A tool failed; nothing is left.
        """
        refuse_unable()
        plan = cabling(cluster)
        self.remove_dead()
        before = self.made()
        if before is not None:
            raise InputError(f"a testbed is up ({before.network}); expected `ddlsched testbed down` first")
        _refuse_foreign(plan)
        made = Made(kind, os.getpid(), described(cluster), plan.namespaces)
        with replacing(self._path, "the list of namespaces") as file:
            file.write_text(json.dumps(made._asdict()), encoding="utf-8")
        try:
            build(plan)
        except BaseException:
            self.remove()
            raise
        return made

    def remove_dead(self) -> list[str]:
        """Remove what a run has left that was killed; return the names."""
        made = self.made()
        return self.remove() if made is not None and made.kind == "run" else []

    def remove(self) -> list[str]:
        """Remove everything that is written down, whatever signal comes; return the names of what was there."""
        made = self.made()
        if made is None:
            return []
        refuse_unable()
        with undisturbed():
            gone = remove(made.namespaces)
            self._path.unlink()
        return gone

    @contextlib.contextmanager
    def used(self, cluster: Cluster) -> Iterator[Made]:
        """Give the network of a cluster: the one that is up if it is that, else one that goes at the end."""
        made = self.made()
        if made is not None and made.kind == "up" and made.network == described(cluster):
            if missing := set(made.namespaces) - set(existing(made.namespaces)):
                raise InputError(f"{min(missing)} is gone; expected `ddlsched testbed down`, which removes the rest")
            yield made
            return
        made = self.make(cluster, "run")
        try:
            yield made
        finally:
            self.remove()


def described(cluster: Cluster) -> str:
    """Return what tells a network from another."""
    topology = cluster.topology if isinstance(cluster.topology, str) else label(cluster.topology)
    cards = "".join(f", card {s} {rate:g} B/s" for s, rate in sorted(cluster.network_cards.items()))
    return f"{cluster.num_servers} servers, {topology}{cards}"


def _refuse_foreign(plan: Cabling) -> None:
    foreign = existing(plan.namespaces)
    if foreign:
        raise InputError(
            f"the namespace {foreign[0]} exists and is not the testbed's; expected none of its names "
            f"(ip netns del {foreign[0]}, if nobody needs it)"
        )
