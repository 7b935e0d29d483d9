"""``ddlsched testbed``: a real network under the simulator's own policies."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ddlsched.cli.dataclass_options import Given, Panel, with_options
from ddlsched.cli.output import emit, notice
from ddlsched.cluster.cluster import Cluster
from ddlsched.engine.run_options import RunOptions
from ddlsched.errors import InputError
from ddlsched.real.commands.testbed_compare import compare
from ddlsched.real.commands.testbed_options import Access, GateOptions, NetworkOfNamespaces, Place

if TYPE_CHECKING:
    from ddlsched.real.testbed.real_run import RealRun

__all__ = ["app"]

_POLICIES = ("scheduler", "placement", "order", "communication")

app = typer.Typer(help="Run workloads for real, on a network under the simulator's own policies.", no_args_is_help=True)


app.command("compare")(compare)


@app.callback()
def _group() -> None:
    pass


@app.command("up")
@with_options
def up(network: Annotated[Given[NetworkOfNamespaces], Panel("Network", only=("servers", "topology", "scale"))]) -> None:
    """Make the network, as namespaces of this machine, and leave it until `ddlsched testbed down`. Needs root."""
    from ddlsched.real.testbed.registry import Registry
    from ddlsched.real.testbed.signals import sigterm_as_ctrl_c

    with sigterm_as_ctrl_c(), Registry() as registry:
        made = registry.make(network.made().cluster(), "up")
    notice(f"made {', '.join(made.namespaces)}; `ddlsched testbed down` removes them")


@app.command("down")
def down() -> None:
    """Remove the network, also what a run left that was killed. Needs root."""
    from ddlsched.real.testbed.registry import Registry

    with Registry() as registry:
        gone = registry.remove()
    notice(f"removed {', '.join(gone)}" if gone else "there was nothing to remove")


@app.command("list")
def list_made() -> None:
    """List what there is of the network, one namespace a line."""
    from ddlsched.real.testbed.namespaces import existing
    from ddlsched.real.testbed.registry import Registry

    with Registry() as registry:
        made = registry.made()
    if made is None:
        notice("there is no testbed")
        return
    notice(f"{made.network}; made by process {made.owner}{' for its run alone' if made.kind == 'run' else ''}")
    there = existing(made.namespaces)
    emit("".join(f"{name}{'' if name in there else ' (gone)'}\n" for name in made.namespaces))


@app.command("run")
@with_options
def run(
    jobs: Annotated[
        Path, typer.Argument(metavar="JOBS", help="Workload file: .csv, .parquet or .json.", readable=False)
    ],
    network: Annotated[Given[NetworkOfNamespaces], Panel("Network")],
    policies: Annotated[Given[RunOptions], Panel("Policies", only=_POLICIES)],
    gate: Annotated[Given[GateOptions], Panel("Gate")],
    place: Annotated[Given[Place], Panel("Where, and what comes out")],
) -> None:
    """Run the jobs of a workload file for real: timed computes, real all-reduces, the simulator's own policies.

    Without --hosts the servers are network namespaces of this machine, made for the run and removed after it; that
    needs root. Both need PyTorch.
    """
    from ddlsched.real.testbed.places import crew_of
    from ddlsched.real.testbed.real_run import run_for_real
    from ddlsched.real.testbed.settings import gate_settings
    from ddlsched.workload.workload_files import read_workload

    workload = read_workload(jobs)
    cluster = network.made().cluster()
    settings = gate_settings(cluster, **policies.values, **gate.values)
    asked = place.made()
    realtime = not asked.no_realtime and not settings.train  # real computes ahead of all would starve the gate
    with crew_of(cluster, asked.hosts, asked.token_file, realtime=realtime) as crew:
        result = run_for_real(workload, settings, crew, realtime=realtime)
    if asked.out is not None:
        result.write(asked.out)
    emit(json.dumps(result.summary(), indent=2) + "\n" if asked.as_json else _table(result))
    if result.machine["machine_limited"]:
        notice(
            f"the machine may have been the limit, not the network: processors {result.machine['cpu_busy_share']:.0%} "
            f"busy, computes {result.machine['late_share']:.1%} late in all"
        )


def _table(result: RealRun) -> str:
    lines = [f"  {'job':20}{'arrival_s':>11}{'start_s':>11}{'finish_s':>11}{'jct_s':>11}  servers"]
    for job in result.jobs.to_dict("records"):
        times = "".join(f"{job[name]:11.3f}" for name in ("arrival_s", "start_s", "finish_s", "jct_s"))
        lines.append(f"  {job['job_id']:20}{times}  {job['servers']}")
    summary = result.summary()
    lines.append(f"average JCT {summary['average_jct_s']:.3f} s, makespan {summary['makespan_s']:.3f} s")
    lines.append(
        f"computes ended {summary['mean_late_ms']:.2f} ms late on average, {summary['most_late_ms']:.2f} at most; "
        f"processors {summary['cpu_busy_share']:.0%} busy"
    )
    return "".join(f"{line}\n" for line in lines)


@app.command("agent")
def agent(
    address: Annotated[str, typer.Argument(metavar="ADDRESS:PORT", help="Where to listen; nowhere else.")],
    token_file: Annotated[Path, typer.Option(help="File with a token of at least 16 characters.", metavar="FILE")],
) -> None:
    """Be a server of `ddlsched testbed run --hosts` of another host, until Ctrl-C. Needs PyTorch."""
    from ddlsched.real.testbed.crews import refuse_missing_torch
    from ddlsched.real.testbed.hosts import WorkerAgent
    from ddlsched.real.wire.handshake import parse_address, read_token

    token = read_token(token_file)
    refuse_missing_torch()
    listening = WorkerAgent(parse_address(address, any_port=True), token, tell=notice)
    notice(f"listening on {listening.address}")
    listening.serve()


@app.command("gate")
@with_options
def gate(
    address: Annotated[str, typer.Argument(metavar="ADDRESS:PORT", help="Where to listen; nowhere else.")],
    network: Annotated[Given[NetworkOfNamespaces], Panel("Network", only=("servers", "topology"))],
    policies: Annotated[Given[RunOptions], Panel("Policies", only=("scheduler", "order", "communication"))],
    gate: Annotated[Given[GateOptions], Panel("Gate", only=("contention", "seed", "chunk_bytes", "window"))],
    access: Annotated[Given[Access], Panel("Who may join")],
) -> None:
    """Let training scripts of your own take part: their ranks call ddlsched.real.torch.scheduled. Until Ctrl-C.

    Prints each all-reduce as a line of JSON when it has ended.
    """
    from ddlsched.real.gate.membership import Membership
    from ddlsched.real.gate.service import GateService
    from ddlsched.real.testbed.settings import gate_settings
    from ddlsched.real.wire.handshake import parse_address, read_token

    token_file = access.made().token_file
    if token_file is None:
        raise InputError("the gate needs a token; expected --token-file FILE")
    given = network.made()
    cluster = Cluster(num_servers=given.servers, topology=given.topology)
    settings = gate_settings(cluster, **policies.values, **gate.values)
    members = Membership(settings, lambda row: emit(json.dumps(vars(row)) + "\n"))
    service = GateService(parse_address(address, any_port=True), read_token(token_file), members, tell=notice)
    notice(f"listening on {service.address}")
    service.serve()
