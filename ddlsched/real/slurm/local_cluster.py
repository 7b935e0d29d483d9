"""A Slurm of many nodes on one host, in a folder of its own, for trials and tests: no root service is touched.

Its daemons are processes of this one. Debian's packages ``slurmctld slurmd slurm-client munge`` must be there.
"""

from __future__ import annotations

import contextlib
import os
import pwd
import secrets
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Self

from ddlsched.errors import InputError, SimulationError
from ddlsched.real.slurm.commands import SlurmBusyError, SlurmRefusalError, runner

_CPUS = 64
_MEMORY_MB = 64000


def slurm_conf(
    folder: Path,
    user: str,
    host: str,
    ports: range,
    gpus_per_node: int,
    settings: Mapping[str, str],
    gpu_kinds: Sequence[str] = (),
) -> str:
    """Return ``slurm.conf``.

    Parameters
    ----------
    folder
        Where everything lies.
    user, host
        Who runs the daemons, and where.
    ports
        The controller's, then one a node.
    gpus_per_node
        GPUs of each node.
    settings
        Further settings, or other values of those here.
    gpu_kinds
        Of each node's GPUs, if they have kinds.
    """
    own = Path(__file__).with_suffix(".conf").read_text(encoding="utf-8")
    own = own.format(folder=folder, user=user, host=host, port=ports[0])
    lines = dict(line.split("=", 1) for line in own.splitlines()) | dict(settings)
    text = "".join(f"{name}={value}\n" for name, value in lines.items())
    for name, port, kind in _groups(len(ports) - 1, ports, gpu_kinds):
        text += f"NodeName={name} NodeHostname={host} NodeAddr=127.0.0.1 Port={port} "
        text += f"CPUs={_CPUS} RealMemory={_MEMORY_MB} Gres=gpu{kind}:{gpus_per_node} State=UNKNOWN\n"
    text += "PartitionName=main Nodes=ALL Default=YES PriorityTier=10 PreemptMode=OFF State=UP\n"
    return text + "PartitionName=idle Nodes=ALL PriorityTier=1 PreemptMode=REQUEUE State=UP\n"


def _groups(nodes: int, ports: range, gpu_kinds: Sequence[str]) -> list[tuple[str, str, str]]:
    """Return names and ports of nodes with GPUs of a kind, and the kind as ``Gres`` has it; all without kinds."""
    if not gpu_kinds:
        return [(f"n[1-{nodes}]", f"[{ports[1]}-{ports[-1]}]", "")]
    return [
        (f"n{n}", str(port), f":{kind}") for n, (port, kind) in enumerate(zip(ports[1:], gpu_kinds, strict=True), 1)
    ]


def gres_conf(folder: Path, nodes: int, gpus_per_node: int, gpu_kinds: Sequence[str] = ()) -> str:
    """Return ``gres.conf``; Slurm counts GPUs as files."""
    files = f"File={folder}/gpu[0-{gpus_per_node - 1}]\n"
    if not gpu_kinds:
        return f"NodeName=n[1-{nodes}] Name=gpu {files}"
    return "".join(f"NodeName=n{n} Name=gpu Type={kind} {files}" for n, kind in enumerate(gpu_kinds, 1))


_PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "scontrol", "sinfo", "squeue")
_DIES_WITH_US = ("setpriv", "--pdeathsig", "KILL")
"""Before a daemon's command: the kernel ends it with the thread that started it, however that ends."""
_MARK = "DDLSCHED_LOCAL_SLURM"
"""In the environment of daemons and of the steps that they start."""
_START_S = 60.0
_STOP_S = 10.0
_LOOK_S = 0.1


@dataclass
class LocalSlurm:
    """Nodes ``n1``, ``n2``, ... of one host under a Slurm of their own, from entering the context to leaving it.

    Parameters
    ----------
    nodes, gpus_per_node
        How many. GPUs are empty files: Slurm counts them, nobody computes on them.
    settings
        Further lines of ``slurm.conf``, by name.
    gpu_kinds
        Of each node's GPUs; by default they have none.

    Raises
    ------
    InputError
        Slurm is not installed.
    SimulationError
        A daemon does not start.
    """

    nodes: int = 4
    gpus_per_node: int = 4
    settings: Mapping[str, str] = field(default_factory=dict)
    gpu_kinds: Sequence[str] = ()

    def __post_init__(self) -> None:
        missing = [name for name in _PROGRAMS if shutil.which(name, path=_search_path()) is None]
        if missing:
            raise InputError(
                f"{', '.join(missing)}: no such program; expected Slurm here, as Debian's packages "
                "slurmctld slurmd slurm-client munge bring it"
            )
        self._daemons: dict[str, subprocess.Popen[bytes]] = {}

    def __enter__(self) -> Self:
        self.folder = Path(tempfile.mkdtemp(prefix="ddlsched-slurm-"))
        try:
            self._write_files()
            self.start("munged")
            _await(lambda: (self.folder / "munge.socket").exists(), "munged did not start", self.folder)
            self.start("slurmctld")
            for node in self.node_names:
                self.start(node)
            _await(self._all_idle, f"{self.nodes} nodes did not become idle", self.folder)
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def node_names(self) -> list[str]:
        """Return the names of the nodes."""
        return [f"n{number}" for number in range(1, self.nodes + 1)]

    @property
    def environment(self) -> dict[str, str]:
        """Return the environment in which Slurm's commands reach this Slurm."""
        return {**os.environ, "SLURM_CONF": str(self.folder / "slurm.conf"), "PATH": _search_path()}

    def run(self, *command: str) -> str:
        """Run one of Slurm's commands and return what it writes; as :data:`ddlsched.real.slurm.commands.Run`."""
        return runner(self.environment)(command)

    def start(self, name: str) -> None:
        """Start a daemon: ``munged``, ``slurmctld``, or the ``slurmd`` of a node, by the node's name."""
        log = (self.folder / f"{name}.out").open("ab")
        with log:
            self._daemons[name] = subprocess.Popen(
                [*_DIES_WITH_US, *self._command(name)],
                env={**self.environment, _MARK: str(self.folder)},
                stdout=log,
                stderr=log,
                stdin=subprocess.DEVNULL,
            )

    def kill(self, name: str) -> None:
        """Kill a daemon with SIGKILL, as a crash would."""
        daemon = self._daemons.pop(name)
        daemon.kill()
        daemon.wait()

    def close(self) -> None:
        """End all daemons and whatever their jobs left, by process id, and remove the folder."""
        for daemon in self._daemons.values():
            daemon.terminate()
        until_s = time.monotonic() + _STOP_S
        for daemon in self._daemons.values():
            with contextlib.suppress(subprocess.TimeoutExpired):
                daemon.wait(max(until_s - time.monotonic(), 0.1))
        for daemon in self._daemons.values():
            daemon.kill()
            daemon.wait()
        self._daemons.clear()
        for process in self.processes():
            with contextlib.suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)
        shutil.rmtree(self.folder, ignore_errors=True)

    def processes(self) -> list[int]:
        """Return the ids of all processes of this Slurm: daemons, steps and jobs, not who submits or looks."""
        mark, conf = (text.encode() for text in (f"{_MARK}={self.folder}", f"SLURM_CONF={self.folder}/slurm.conf"))
        found = []
        for folder in Path("/proc").iterdir():
            with contextlib.suppress(OSError, ValueError):
                values = (folder / "environ").read_bytes().split(b"\0")
                in_job = conf in values and any(value.startswith(b"SLURM_JOB_ID=") for value in values)
                if mark in values or in_job:
                    found.append(int(folder.name))
        return found

    def _command(self, name: str) -> Sequence[str]:
        folder = self.folder
        if name == "munged":
            files = {"socket": "munge.socket", "key-file": "munge.key", "pid-file": "munge.pid"}
            files |= {"log-file": "munge.log", "seed-file": "munge.seed"}
            return ["munged", "--foreground", "--force", *(f"--{key}={folder / at}" for key, at in files.items())]
        if name == "slurmctld":
            return ["slurmctld", "-D"]
        return ["slurmd", "-D", "-N", name]

    def _write_files(self) -> None:
        for name in ("state", "spool"):
            (self.folder / name).mkdir()
        for gpu in range(self.gpus_per_node):
            (self.folder / f"gpu{gpu}").touch()
        key = self.folder / "munge.key"
        key.touch(0o600)
        key.write_bytes(secrets.token_bytes(128))
        ports = _free_ports(self.nodes + 1)
        host = socket.gethostname().partition(".")[0]
        gpus = self.gpus_per_node, self.settings, self.gpu_kinds
        (self.folder / "slurm.conf").write_text(slurm_conf(self.folder, _user(), host, ports, *gpus))
        gres = gres_conf(self.folder, self.nodes, self.gpus_per_node, self.gpu_kinds)
        (self.folder / "gres.conf").write_text(gres)

    def _all_idle(self) -> bool:
        try:
            states = self.run("sinfo", "--noheader", "--Node", "--partition=main", "--format=%T").split()
        except (SlurmBusyError, SlurmRefusalError):
            return False
        return states == ["idle"] * self.nodes


def _user() -> str:
    return pwd.getpwuid(os.geteuid()).pw_name


def _search_path() -> str:
    """Return where programs are looked for; daemons lie where a user's path may not lead."""
    return f"{os.environ.get('PATH', os.defpath)}:/usr/sbin:/usr/local/sbin"


def _free_ports(count: int) -> range:
    """Return so many neighbouring ports on which nobody listens, below those that the kernel gives away itself."""
    for _ in range(100):
        ports = range(first := 15000 + secrets.randbelow(15000), first + count)
        if all(_is_free(port) for port in ports):
            return ports
    raise SimulationError(f"no {count} neighbouring ports from 15000 to 30000 are free")


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) != 0


def _await(done: object, failure: str, folder: Path) -> None:
    until_s = time.monotonic() + _START_S
    while not done():  # type: ignore[operator]
        if time.monotonic() > until_s:
            raise SimulationError(f"{failure} within {_START_S:g} s; the logs are in {folder}")
        time.sleep(_LOOK_S)
