"""A Slurm with accounts, QOS and blocks of nodes on this host, for :mod:`slurm_decisions`."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Self

from ddlsched.errors import SimulationError
from ddlsched.real.slurm.local_cluster import LocalSlurm

QOS = {"low": 0, "middle": 50, "high": 100}
"""Their priorities; each preempts those before it."""
_DATABASE = """AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket
DbdHost=localhost
DbdPort={port}
SlurmUser=root
LogFile={folder}/slurmdbd.log
PidFile={folder}/slurmdbd.pid
StorageType=accounting_storage/mysql
StorageLoc=slurm
StorageUser=root
"""


@dataclass
class AccountedSlurm(LocalSlurm):
    """Slurm with a database: ``accounts`` with their shares, :data:`QOS`, and blocks of ``block`` nodes.

    Debian's packages ``slurmdbd mariadb-server`` must be there, too, and Slurm be of 24.05 or later.
    """

    accounts: Mapping[str, int] = ()  # type: ignore[assignment]
    block: int = 4

    def __enter__(self) -> Self:
        self.port = 30000 + os.getpid() % 2000
        settings = {
            "AccountingStorageType": "accounting_storage/slurmdbd",
            "AccountingStorageHost": "localhost",
            "AccountingStoragePort": str(self.port),
            "AccountingStorageEnforce": "associations,qos",
            "PreemptType": "preempt/qos",
            "TopologyPlugin": "topology/block",
        }
        self.settings = settings | dict(self.settings)
        super().__enter__()
        return self

    def start(self, name: str) -> None:
        """Start a daemon; the database before the controller."""
        if name == "slurmctld":
            super().start("mariadbd")
            self._wait_for(lambda: (self.folder / "mysql.socket").exists(), "mariadbd")
            super().start("slurmdbd")
            self._wait_for(self._is_answered, "slurmdbd")
            self._make_accounts()
        super().start(name)

    @staticmethod
    def _wait_for(done: object, name: str) -> None:
        until_s = time.monotonic() + 40
        while not done():  # type: ignore[operator]
            if time.monotonic() > until_s:
                raise SimulationError(f"{name} did not start within 120 s")
            time.sleep(0.5)

    def _is_answered(self) -> bool:
        command = ["sacctmgr", "-n", "list", "cluster"]
        return subprocess.run(command, env=self.environment, capture_output=True, check=False).returncode == 0

    def _make_accounts(self) -> None:
        self.run("sacctmgr", "-i", "add", "cluster", "ddlsched")
        names = list(QOS)
        for place, (name, priority) in enumerate(QOS.items()):
            preempts = [f"preempt={','.join(names[:place])}"] if place else []
            self.run("sacctmgr", "-i", "add", "qos", name, f"priority={priority}", *preempts)
        for account, shares in self.accounts.items():
            self.run("sacctmgr", "-i", "add", "account", account, f"fairshare={shares}")
            self.run("sacctmgr", "-i", "add", "user", "root", f"account={account}", f"qos={','.join(names)}")

    def _command(self, name: str) -> Sequence[str]:
        if name == "mariadbd":
            options = ["--user=root", "--skip-networking", "--skip-grant-tables", "--innodb-buffer-pool-size=64M"]
            return ["mariadbd", "--no-defaults", *options, f"--datadir={self.folder}/db", f"--socket={self.socket}"]
        return ["slurmdbd", "-D"] if name == "slurmdbd" else super()._command(name)

    @property
    def socket(self) -> str:
        """Return where the database listens."""
        return str(self.folder / "mysql.socket")

    @property
    def environment(self) -> dict[str, str]:
        """Return the environment in which Slurm's commands reach this Slurm, and its database."""
        return {**super().environment, "MYSQL_UNIX_PORT": self.socket}

    def _write_files(self) -> None:
        self.settings = {**self.settings, "AccountingStoragePass": str(self.folder / "munge.socket")}
        super()._write_files()
        (self.folder / "cgroup.conf").write_text("CgroupPlugin=disabled\n")
        database = self.folder / "slurmdbd.conf"
        database.write_text(_DATABASE.format(folder=self.folder, port=self.port))
        database.chmod(0o600)
        blocks = range(1, self.nodes + 1, self.block)
        lines = [f"BlockName=b{first} Nodes=n[{first}-{first + self.block - 1}]\n" for first in blocks]
        (self.folder / "topology.conf").write_text("".join(lines) + f"BlockSizes={self.block}\n")
        command = ["mariadb-install-db", "--no-defaults", "--user=root", f"--datadir={self.folder}/db"]
        command.append("--auth-root-authentication-method=normal")
        subprocess.run(command, env=self.environment, capture_output=True, check=True)
