"""``ddlsched testbed``: a real network under the simulator's own policies."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import typer

from ddlsched.cli.dataclass_options import Given, Panel, like, option, with_options
from ddlsched.cli.output import emit, notice
from ddlsched.cluster.cluster import Cluster

__all__ = ["NetworkOfNamespaces", "app"]

app = typer.Typer(help="Run workloads for real, on a network under the simulator's own policies.", no_args_is_help=True)


@dataclass(frozen=True, kw_only=True)
class NetworkOfNamespaces:
    """Servers, and the network between them."""

    servers: int = option(4, "Number of servers.")
    gpus_per_server: int = like(Cluster, "gpus_per_server")
    topology: str = like(Cluster, "topology")
    scale: float = option(0.01, "What every rate is multiplied by: 10 Gbit/s become 100 Mbit/s.", metavar="FACTOR")
    exclusive: bool = option(False, "One job a GPU at a time, however little memory it needs.", flag="--exclusive")

    def cluster(self) -> Cluster:
        """Return the cluster with its scaled network."""
        from ddlsched.testbed.scaling import scaled

        plain = Cluster(
            num_servers=self.servers,
            gpus_per_server=self.gpus_per_server,
            topology=self.topology,
            exclusive=self.exclusive,
        )
        return scaled(plain, self.scale)


@app.callback()
def _group() -> None:
    pass


@app.command("up")
@with_options
def up(network: Annotated[Given[NetworkOfNamespaces], Panel("Network", only=("servers", "topology", "scale"))]) -> None:
    """Make the network, as namespaces of this machine, and leave it until `ddlsched testbed down`. Needs root."""
    from ddlsched.testbed.registry import Registry

    with Registry() as registry:
        made = registry.make(network.made().cluster(), "up")
    notice(f"made {', '.join(made.namespaces)}; `ddlsched testbed down` removes them")


@app.command("down")
def down() -> None:
    """Remove the network, also what a run left that was killed. Needs root."""
    from ddlsched.testbed.registry import Registry

    with Registry() as registry:
        gone = registry.remove()
    notice(f"removed {', '.join(gone)}" if gone else "there was nothing to remove")


@app.command("list")
def list_made() -> None:
    """List what there is of the network, one namespace a line."""
    from ddlsched.testbed.namespaces import existing
    from ddlsched.testbed.registry import Registry

    with Registry() as registry:
        made = registry.made()
    if made is None:
        notice("there is no testbed")
        return
    notice(f"{made.network}; made by process {made.owner}{' for its run alone' if made.kind == 'run' else ''}")
    there = existing(made.namespaces)
    emit("".join(f"{name}{'' if name in there else ' (gone)'}\n" for name in made.namespaces))
