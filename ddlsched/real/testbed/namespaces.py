"""Makes and removes network namespaces with iproute2: ``ip``, ``tc`` and ``bridge``."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterable
from pathlib import Path

from ddlsched.errors import InputError, TestbedError
from ddlsched.real.testbed.cabling import SWITCHES, Cable, Cabling, address_of, mac_of, server_name

__all__ = ["BURST_BYTES", "CARD", "NAMESPACES", "QUEUE_BYTES", "build", "existing", "refuse_unable", "remove"]

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
