"""The network of namespaces: made, written down before that, and removed by whoever comes later."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import shutil
import subprocess
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Literal, NamedTuple

from ddlsched.cluster.cluster import Cluster
from ddlsched.errors import InputError, TestbedError, label
from ddlsched.io.files import replacing
from ddlsched.real.testbed.cabling import SWITCHES, Cable, Cabling, address_of, cabling, mac_of, server_name
from ddlsched.real.testbed.machine import undisturbed

NAMESPACES = Path("/run/netns")
BURST_BYTES = 3_000
"""What a shaped interface may send at once; ten times as much hides what a chunk costs."""
QUEUE_BYTES = 200_000
"""Of the first-in first-out queue in front of each shaped interface."""
CARD = "net0"
_TOOLS = ("ip", "tc", "bridge")
_TOOL_S = 60.0


def refuse_unable() -> None:
    """Raise InputError where namespaces cannot be made: not root, or no tools."""
    if os.geteuid() != 0:
        raise InputError("a testbed of namespaces needs root; expected: sudo ddlsched testbed ..., or --hosts FILE")
    missing = [tool for tool in _TOOLS if shutil.which(tool) is None]
    if missing:
        raise InputError(f"{', '.join(missing)}: not found; expected iproute2 (apt-get install iproute2)")


def existing(names: Iterable[str]) -> list[str]:
    """Return those of some namespaces that are there."""
    return [name for name in names if (NAMESPACES / name).exists()]


def build(cabling: Cabling) -> None:
    """Make the namespaces, bridges and shaped cables of a network.

    Raises
    ------
    TestbedError
        A tool failed; the message has what it said. What was made until then is left to :func:`remove`.
    """
    for name in cabling.namespaces:
        _tool(["ip", "netns", "add", name])
        _tool(["ip", "-n", name, "link", "set", "lo", "up"])
        _tool(["ip", "netns", "exec", name, "sysctl", "-qw", "net.ipv6.conf.all.disable_ipv6=1"])
    bridges = [f"b{number}" for number in range(cabling.num_switches)]
    links = [f"link add name {bridge} type bridge stp_state 0 mcast_snooping 0" for bridge in bridges]
    for cable in cabling.cables:
        links += _links(cable)
    links += [f"link set {bridge} up" for bridge in bridges]
    _batch("ip", SWITCHES, links)
    for server in range(cabling.num_servers):
        _batch("ip", server_name(server), _card(cabling.num_servers, server))
        _batch("tc", server_name(server), _shaped(CARD, cabling.cables[server].bits_per_s))
    ends = [(end, cable.bits_per_s) for cable in cabling.cables for end in cable.ends]
    _batch("tc", SWITCHES, [line for end, bits_per_s in ends for line in _shaped(end, bits_per_s)])
    fixed = [f"link set dev {end} learning off flood off mcast_flood off bcast_flood off" for end, _ in ends]
    fixed += [f"fdb replace {mac_of(server)} dev {end} master static" for _, server, end in cabling.forwarding]
    _batch("bridge", SWITCHES, fixed)


def _links(cable: Cable) -> list[str]:
    """Return what makes a cable and puts its ends into their bridges."""
    if cable.server is None:
        made = f"link add name {cable.ends[0]} type veth peer name {cable.ends[1]}"
    else:
        card = f"{CARD} address {mac_of(cable.server)} netns {server_name(cable.server)}"
        made = f"link add name {cable.ends[0]} type veth peer name {card}"
    ends = zip(cable.ends, cable.switches, strict=True)
    return [made, *(f"link set {end} master b{switch} up" for end, switch in ends)]


def _card(num_servers: int, server: int) -> list[str]:
    """Return what sets up a server's card: cubic, as the host's default differs, and neighbours that none asks for."""
    others = [other for other in range(num_servers) if other != server]
    return [
        f"link set {CARD} up",
        f"address add {address_of(server)}/32 dev {CARD}",
        f"route add 10.77.0.0/16 dev {CARD} src {address_of(server)} congctl cubic",
        *(f"neigh add {address_of(o)} lladdr {mac_of(o)} dev {CARD} nud permanent" for o in others),
    ]


def _shaped(interface: str, bits_per_s: int) -> list[str]:
    rate = f"rate {bits_per_s}bit ceil {bits_per_s}bit burst {BURST_BYTES} cburst {BURST_BYTES} quantum 1514"
    return [
        f"qdisc add dev {interface} root handle 1: htb default 1",
        f"class add dev {interface} parent 1: classid 1:1 htb {rate}",
        f"qdisc add dev {interface} parent 1:1 handle 10: bfifo limit {QUEUE_BYTES}",
    ]


def remove(names: Iterable[str]) -> list[str]:
    """Remove namespaces and all that is in them; return those that were there."""
    there = existing(names)
    for name in there:
        _tool(["ip", "netns", "del", name])
    return there


def _batch(tool: str, namespace: str, lines: list[str]) -> None:
    _tool([tool, "-n", namespace, "-batch", "-"], "\n".join(lines) + "\n")


def _tool(command: list[str], text: str = "") -> None:
    try:
        done = subprocess.run(command, input=text, capture_output=True, text=True, timeout=_TOOL_S, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise TestbedError(f"{' '.join(command)}: {error}") from None
    if done.returncode != 0:
        said = " ".join((done.stderr or done.stdout).split())[:300]
        raise TestbedError(f"{' '.join(command)}: {said or f'exit code {done.returncode}'}")


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
            owner = self._lock.read().strip() or "?"
            self._lock.close()
            raise InputError(
                f"another testbed is in use (process {owner}); expected it to end: a machine has one"
            ) from None
        self._lock.truncate()
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
        except (OSError, ValueError, TypeError, KeyError, RecursionError) as error:
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
