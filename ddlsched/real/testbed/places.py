"""Where a run takes place: namespaces of this machine, or hosts on which agents listen."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path

from ddlsched.cluster.cluster import Cluster
from ddlsched.errors import InputError
from ddlsched.io.tables import read_text, readable
from ddlsched.real.testbed.crews import NamespaceCrew, WorkerCrew, refuse_missing_torch
from ddlsched.real.testbed.hosts import HostCrew
from ddlsched.real.testbed.namespaces import refuse_unable
from ddlsched.real.testbed.registry import Registry
from ddlsched.real.testbed.signals import sigterm_as_ctrl_c
from ddlsched.real.wire.handshake import Address, parse_address, read_token

__all__ = ["crew_of", "namespace_crew", "read_hosts"]


@contextlib.contextmanager
def crew_of(cluster: Cluster, hosts: Path | None, token_file: Path | None, *, realtime: bool) -> Iterator[WorkerCrew]:
    """Give the workers of a cluster: in namespaces that go afterwards, or on hosts. SIGTERM ends this as Ctrl-C does.

    Raises
    ------
    InputError
        No root, no tools, no PyTorch, a testbed in use, or a hosts file that does not fit.
    """
    if (hosts is None) != (token_file is None):
        raise InputError("--hosts and --token-file belong together; expected both or neither")
    if hosts is not None and token_file is not None:
        addresses = read_hosts(hosts, cluster.num_servers)
        with sigterm_as_ctrl_c(), HostCrew(addresses, read_token(token_file), realtime=realtime) as crew:
            yield crew
        return
    with namespace_crew(realtime=realtime) as crew_on, crew_on(cluster) as crew:
        yield crew


@contextlib.contextmanager
def namespace_crew(*, realtime: bool) -> Iterator[Callable[[Cluster], AbstractContextManager[WorkerCrew]]]:
    """Give what makes the network of a cluster and gives its workers, of one cluster after another.

    PyTorch, of which all workers are copies, is loaded once. SIGTERM ends this as Ctrl-C does.

    Raises
    ------
    InputError
        No root, no tools, no PyTorch, or a testbed in use.
    """
    refuse_unable()
    refuse_missing_torch()
    with sigterm_as_ctrl_c(), Registry() as registry, NamespaceCrew(realtime=realtime) as crew:

        @contextlib.contextmanager
        def crew_on(cluster: Cluster) -> Iterator[WorkerCrew]:
            with registry.used(cluster):
                try:
                    yield crew
                finally:
                    crew.dismiss()

        yield crew_on


def read_hosts(path: Path, num_servers: int) -> list[Address]:
    """Return the addresses in a hosts file: one a line, in the order of the servers; ``#`` begins a remark."""
    text = readable(path, "a hosts file", read_text)
    addresses: list[Address] = []
    for number, line in enumerate(text.splitlines(), 1):
        entry = line.partition("#")[0].strip()
        if not entry:
            continue
        try:
            address = parse_address(entry)
        except InputError as error:
            raise InputError(f"{path}, line {number}: {error}") from None
        if address in addresses:
            raise InputError(f"{path}, line {number}: {address} stands there twice; expected each host once")
        addresses.append(address)
    if len(addresses) != num_servers:
        raise InputError(f"{path}: has {len(addresses)} hosts; expected {num_servers}, one a server (--servers)")
    return addresses
