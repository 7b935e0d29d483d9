"""``ddlsched testbed``: a real network under the simulator's own policies."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ddlsched.cli.dataclass_options import Given, Panel, like, option
from ddlsched.cli.reporting import emit, notice
from ddlsched.cluster.cluster import Cluster
from ddlsched.engine.run_options import RunOptions
from ddlsched.errors import InputError, need
from ddlsched.options import Option

if TYPE_CHECKING:
    from ddlsched.real.testbed.fidelity import Mix
    from ddlsched.real.testbed.real_run import RealRun


@dataclass(frozen=True, kw_only=True)
class NetworkOfNamespaces:
    """Servers, and the network between them.

    Parameters
    ----------
    servers
        Number of servers.
    scale
        What every rate is multiplied by: 10 Gbit/s become 100 Mbit/s.
    exclusive
        One job a GPU at a time, however little memory it needs.
    """

    servers: int = 4
    gpus_per_server: int = like(Cluster, "gpus_per_server")
    topology: str = like(Cluster, "topology")
    scale: float = option(0.01, metavar="FACTOR")
    exclusive: bool = False

    def cluster(self) -> Cluster:
        """Return the cluster with its scaled network."""
        from ddlsched.real.testbed.cabling import scaled

        plain = Cluster(
            num_servers=self.servers,
            gpus_per_server=self.gpus_per_server,
            topology=self.topology,
            exclusive=self.exclusive,
        )
        return scaled(plain, self.scale)


@dataclass(frozen=True, kw_only=True)
class GateOptions:
    """How transfers are cut, and what else the gate decides on.

    Parameters
    ----------
    contention
        By which model policies count bytes, and the time of an all-reduce alone.
    seed
        Of the policies' randomness.
    chunk_bytes
        Largest part of a message that cannot be paused.
    window
        Chunks of a transfer that are under way at a time.
    train
        Jobs train a model with DDP, of gradients as large as their messages, in place of timed computes.
    slots
        Compute of jobs that share a GPU goes one after the other.
    """

    contention: str = "max-min"
    seed: int = 0
    chunk_bytes: float | None = option(None, shown="400 kB under a policy that pauses transfers, else whole messages")
    window: int = 2
    train: bool = False
    slots: bool = False


@dataclass(frozen=True, kw_only=True)
class RunPlace:
    """Where a run takes place, and what it writes.

    Parameters
    ----------
    hosts
        Hosts, with an agent's HOST:PORT a line.
    token_file
        File with the agents' token.
    no_realtime
        Do not run workers ahead of other processes.
    out
        Folder for jobs.parquet and transfers.parquet.
    as_json
        Print the metrics as one JSON object.
    """

    hosts: Path | None = option(None, metavar="FILE", shown="namespaces of this machine")
    token_file: Path | None = option(None, metavar="FILE")
    no_realtime: bool = False
    out: Path | None = option(None, metavar="DIR")
    as_json: bool = False


_SEVERAL = ("scheduler", "communication", "contention")


@dataclass(frozen=True, kw_only=True)
class ComparedPolicies:
    """What is compared, and how often.

    Parameters
    ----------
    scheduler
        A bundle to compare.
    communication
        A communication policy to compare, with --placement and --order.
    placement
        Placement of those with --communication.
    order
        Order of those with --communication.
    contention
        A contention model to simulate as it is given, beside those that are fitted.
    repeats
        How often each is run for real, in shuffled order.
    seed
        Of that order, and of the policies' randomness.
    """

    scheduler: list[str] | None = option(None, metavar="BUNDLE", shown="none")
    communication: list[str] | None = option(None, metavar="NAME", shown="none")
    placement: str = option("first-fit", metavar="NAME")
    order: str = option("srsf", metavar="NAME")
    contention: list[str] | None = option(None, metavar="NAME", shown="none")
    repeats: int = 3
    seed: int = 0


def compare(
    jobs: Path,
    *,
    out: Annotated[Path, Option(metavar="DIR")],
    network: Annotated[Given[NetworkOfNamespaces], Panel("Network")],
    policies: Annotated[Given[ComparedPolicies], Panel("Policies, the first one is the baseline", several=_SEVERAL)],
    gate: Annotated[Given[GateOptions], Panel("Gate", only=("chunk_bytes", "window"))],
    place: Annotated[Given[RunPlace], Panel("Where", only=("hosts", "token_file", "no_realtime"))],
) -> None:
    """Run a workload for real and simulate it, and say how far the simulated times are off.

    The contention models' constants are first fitted, to measured jobs alone and pairs only. Started again with the
    same DIR it goes on with the runs that are missing.

    Parameters
    ----------
    jobs
        Workload file: .csv, .parquet or .json.
    out
        Folder of the runs, tables and charts.
    """
    from rich.console import Console
    from rich.progress import track

    from ddlsched.real.calibration.measurements import Reach, read_measurements
    from ddlsched.real.calibration.shares import read_alone, read_shares, wait_text
    from ddlsched.real.testbed.crews import crew_of
    from ddlsched.real.testbed.fidelity import Runs, note_settings, plan, report_of, run_planned
    from ddlsched.real.testbed.measuring import alone_jobs, fitted_models, measure_alone, measure_shares, measured_rows
    from ddlsched.real.testbed.real_run import gate_settings
    from ddlsched.real.testbed.run_models import RunModel, run_models, simulated_runs
    from ddlsched.workload.elastic_job import messages_and_workers

    wanted, asked = policies.made(), place.made()
    mix = _mix(jobs, network.made(), wanted, gate.values)
    described = {"jobs": jobs.name, "network": network.values, "policies": mix.policies, "repeats": wanted.repeats}
    note_settings(out, described | {"seed": wanted.seed})
    planned, runs, realtime = plan([mix], wanted.repeats, seed=wanted.seed), Runs(out), not asked.no_realtime
    missing = runs.missing(planned)
    calibration = ("calibration.csv", "shares.csv", "alone.csv")
    if missing or not all((out / name).exists() for name in calibration):
        with crew_of(mix.cluster, asked.hosts, asked.token_file, realtime=realtime) as crew:
            notice("measuring jobs alone and pairs")
            settings = gate_settings(mix.cluster)
            fitted = fitted_models(measured_rows(out / "calibration.csv", settings, crew))
            measure_shares(out / "shares.csv", settings, crew)
            measure_alone(out / "alone.csv", alone_jobs(settings), settings, crew)
            for run in track(missing, "running", console=Console(stderr=True)):
                runs.keep(run, run_planned(run, crew, fitted["max-min"], realtime=realtime))
    rows = read_measurements(out / "calibration.csv")
    alone = read_alone(out / "alone.csv")
    fit = run_models(rows, read_shares(out / "shares.csv"), alone)
    models = {**fit.by_name} | {name: RunModel(contention=name) for name in wanted.contention or ()}
    report = report_of(runs.measured(planned), simulated_runs([mix], models), models, next(iter(mix.policies)))
    report.write(out)
    emit(report.text())
    if fit.wait:
        emit(f"\n{wait_text(alone, fit.wait)}\n")
    for line in Reach.of(rows).beyond(messages_and_workers(mix.workload)):
        notice(line)
    notice(f"tables and charts: {out}")


def _mix(jobs: Path, network: NetworkOfNamespaces, wanted: ComparedPolicies, gate: dict[str, Any]) -> Mix:
    from ddlsched.real.testbed.fidelity import Mix
    from ddlsched.workload.workload_files import read_workload

    policies: dict[str, dict[str, Any]] = {name: {"scheduler": name} for name in wanted.scheduler or ()}
    beside = {"placement": wanted.placement, "order": wanted.order}
    policies |= {name: {"communication": name, **beside} for name in wanted.communication or ()}
    if not policies:
        raise InputError("nothing to compare; expected --scheduler BUNDLE or --communication NAME, perhaps several")
    given = {name: {**chosen, **gate, "seed": wanted.seed} for name, chosen in policies.items()}
    return Mix(name=jobs.stem, workload=read_workload(jobs), cluster=network.cluster(), policies=given)


_POLICIES = ("scheduler", "placement", "order", "communication")

app = typer.Typer(help="Run workloads for real, on a network under the simulator's own policies.", no_args_is_help=True)


app.command("compare")(compare)


@app.command("up")
def up(network: Annotated[Given[NetworkOfNamespaces], Panel("Network", only=("servers", "topology", "scale"))]) -> None:
    """Make the network, as namespaces of this machine, and leave it until `ddlsched testbed down`. Needs root."""
    from ddlsched.real.testbed.machine import sigterm_as_ctrl_c
    from ddlsched.real.testbed.namespaces import Registry

    with sigterm_as_ctrl_c(), Registry() as registry:
        made = registry.make(network.made().cluster(), "up")
    notice(f"made {', '.join(made.namespaces)}; `ddlsched testbed down` removes them")


@app.command("down")
def down() -> None:
    """Remove the network, also what a run left that was killed. Needs root."""
    from ddlsched.real.testbed.namespaces import Registry

    with Registry() as registry:
        gone = registry.remove()
    notice(f"removed {', '.join(gone)}" if gone else "there was nothing to remove")


@app.command("list")
def list_made() -> None:
    """List what there is of the network, one namespace a line."""
    from ddlsched.real.testbed.namespaces import Registry, existing

    with Registry() as registry:
        made = registry.made()
    if made is None:
        notice("there is no testbed")
        return
    notice(f"{made.network}; made by process {made.owner}{' for its run alone' if made.kind == 'run' else ''}")
    there = existing(made.namespaces)
    emit("".join(f"{name}{'' if name in there else ' (gone)'}\n" for name in made.namespaces))


@app.command("run")
def run(
    jobs: Path,
    network: Annotated[Given[NetworkOfNamespaces], Panel("Network")],
    policies: Annotated[Given[RunOptions], Panel("Policies", only=_POLICIES)],
    gate: Annotated[Given[GateOptions], Panel("Gate")],
    place: Annotated[Given[RunPlace], Panel("Where, and what comes out")],
) -> None:
    """Run the jobs of a workload file for real: timed computes, real all-reduces, the simulator's own policies.

    Without --hosts the servers are network namespaces of this machine, made for the run and removed after it; that
    needs root. Both need PyTorch.

    Parameters
    ----------
    jobs
        Workload file: .csv, .parquet or .json.
    """
    from ddlsched.real.testbed.crews import crew_of
    from ddlsched.real.testbed.real_run import gate_settings, run_for_real
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
def agent(address: Annotated[str, Option(metavar="ADDRESS:PORT")], *, token_file: Path) -> None:
    """Be a server of `ddlsched testbed run --hosts` of another host, until Ctrl-C. Needs PyTorch.

    Parameters
    ----------
    address
        Where to listen; nowhere else.
    token_file
        File with a token of at least 16 characters.
    """
    from ddlsched.real.channel import parse_address, read_token
    from ddlsched.real.testbed.crews import WorkerAgent

    token = read_token(token_file)
    need("the testbed", "torch", extra="real")
    listening = WorkerAgent(parse_address(address, any_port=True), token, tell=notice)
    notice(f"listening on {listening.address}")
    listening.serve()


@app.command("gate")
def gate(
    address: Annotated[str, Option(metavar="ADDRESS:PORT")],
    network: Annotated[Given[NetworkOfNamespaces], Panel("Network", only=("servers", "topology"))],
    policies: Annotated[Given[RunOptions], Panel("Policies", only=("scheduler", "order", "communication"))],
    gate: Annotated[Given[GateOptions], Panel("Gate", only=("contention", "seed", "chunk_bytes", "window"))],
    *,
    token_file: Annotated[Path, Option(panel="Who may join")],
) -> None:
    """Let training scripts of your own take part: their ranks call ddlsched.real.torch.scheduled. Until Ctrl-C.

    Prints each all-reduce as a line of JSON when it has ended.

    Parameters
    ----------
    address
        Where to listen; nowhere else.
    token_file
        File with a token of at least 16 characters.
    """
    from ddlsched.real.channel import parse_address, read_token
    from ddlsched.real.gate.service import GateService, Membership
    from ddlsched.real.testbed.real_run import gate_settings

    given = network.made()
    cluster = Cluster(num_servers=given.servers, topology=given.topology)
    settings = gate_settings(cluster, **policies.values, **gate.values)
    members = Membership(settings, lambda row: emit(json.dumps(vars(row)) + "\n"))
    service = GateService(parse_address(address, any_port=True), read_token(token_file), members, tell=notice)
    notice(f"listening on {service.address}")
    service.serve()
