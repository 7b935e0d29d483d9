"""Ranks of a script that are recorded: started on this machine, as torchrun does it, and what runs in each of them.

``python -m ddlsched.training.recording.rank_process FOLDER SKIP STEPS SCRIPT [ARGUMENTS]`` is one. ``ddlsched record``
starts one a rank; ``torchrun -m`` can, too.
"""

from __future__ import annotations

import atexit
import os
import runpy
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ddlsched.errors import DdlschedError, InputError, need
from ddlsched.io.child_processes import follow_parent
from ddlsched.training.recorded.recordings import SUFFIX

if TYPE_CHECKING:
    from torch import distributed

    from ddlsched.training.recording.recorder import Recorder

PARENT = "DDLSCHED_RECORDED_BY"
"""Variable with the number of the process that a rank ends with."""
_PAUSE_S = 0.05
_PATIENCE_S = 20.0


def run_recorded(
    script: Path,
    arguments: Sequence[str],
    folder: Path,
    *,
    ranks: int,
    skip: int,
    most_steps: int,
    address: str = "127.0.0.1",
    within: Callable[[int], Sequence[str]] = lambda _: (),
) -> list[Path]:
    """Run a script in so many processes and return their recordings.

    What the script prints goes to stderr. Ctrl-C ends it, and what was recorded by then is kept; the ranks end with
    this process, however that ends.

    Parameters
    ----------
    script, arguments
        What each rank runs.
    folder
        Where the recordings go.
    ranks, skip, most_steps
        Processes; steps that are not kept at the start; steps that are kept at most.
    address
        Of the first rank, for the others.
    within
        From the number of a rank to the command that its process is started by, such as ``ip netns exec NAME``.

    Raises
    ------
    InputError
        PyTorch or the script is not there, a rank fails, or one records nothing.
    """
    need("record", "torch", extra="training")
    if not script.is_file():
        raise InputError(f"{script}: no such file; expected a training script")
    processes: list[subprocess.Popen[bytes]] = []
    paths = [folder / f"{rank}{SUFFIX}" for rank in range(ranks)]
    for path in paths:
        path.unlink(missing_ok=True)  # Of an earlier run.
    port = _free_port()
    try:
        for rank in range(ranks):
            numbers = (str(folder), str(skip), str(most_steps), str(script))
            program = [sys.executable, "-m", "ddlsched.training.recording.rank_process", *numbers, *arguments]
            environment = _environment(rank, ranks, address, port)
            processes.append(subprocess.Popen([*within(rank), *program], env=environment, stdout=2))
        _wait(script, processes, paths)
    except KeyboardInterrupt:
        _stop(processes)
        if not all(path.exists() for path in paths):
            raise
        print("ddlsched: interrupted; the steps recorded by now are kept", file=sys.stderr)
    finally:
        for process in processes:
            if process.poll() is None:
                process.kill()
            process.wait()
    return paths


def _stop(processes: Sequence[subprocess.Popen[bytes]]) -> None:
    """Let each rank write what it has recorded, and end."""
    for process in processes:
        process.terminate()
    deadline_s = time.monotonic() + _PATIENCE_S
    for process in processes:
        with suppress(subprocess.TimeoutExpired):
            process.wait(max(deadline_s - time.monotonic(), 0))


def _wait(script: Path, processes: Sequence[subprocess.Popen[bytes]], paths: Sequence[Path]) -> None:
    """Wait for all ranks, or for one that fails: the others would wait for it in vain."""
    while any(process.poll() is None for process in processes):
        _refuse_failures(script, processes, paths)
        time.sleep(_PAUSE_S)
    _refuse_failures(script, processes, paths)


def _refuse_failures(script: Path, processes: Sequence[subprocess.Popen[bytes]], paths: Sequence[Path]) -> None:
    """Refuse a rank that failed; one that has written its recording was done, though threads of gloo may abort it."""
    for rank, (process, path) in enumerate(zip(processes, paths, strict=True)):
        if process.poll() and not path.exists():
            raise InputError(
                f"{script}: rank {rank} ended with status {process.returncode}, see above; expected a script that ends"
            )


def _environment(rank: int, ranks: int, address: str, port: int) -> dict[str, str]:
    own = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": ranks, "LOCAL_WORLD_SIZE": ranks, "MASTER_PORT": port}
    texts = {name: str(value) for name, value in own.items()} | {"MASTER_ADDR": address, PARENT: str(os.getpid())}
    # gloo listens where the machine's name leads, to anybody, unless it is told an interface.
    on_loopback = {"GLOO_SOCKET_IFNAME": "lo"} if address == "127.0.0.1" and sys.platform == "linux" else {}
    return {"OMP_NUM_THREADS": "1"} | on_loopback | os.environ | texts


def _free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


class _Enough(BaseException):
    """All steps that are to be kept have ended, or somebody wants no more of them."""


def main(arguments: Sequence[str]) -> None:
    """Run a script as if it were started itself, until enough is recorded, and write that."""
    from ddlsched.training.recording.recorder import record

    folder, skip, steps, script, *rest = arguments
    if PARENT in os.environ:
        follow_parent(int(os.environ[PARENT]))
        if os.environ["RANK"] == "0":
            _store = _store_of_ranks()  # which ends with its last tenant
    recorder = record(folder, skip=int(skip), most_steps=int(steps))
    atexit.unregister(recorder.end_at_exit)
    recorder.when_full = lambda: _leave_together(recorder)
    signal.signal(signal.SIGTERM, _enough)
    sys.argv = [script, *rest]
    sys.path[0] = str(Path(script).resolve().parent)
    try:
        try:
            runpy.run_path(script, run_name="__main__")
        except _Enough:
            recorder.when_full = None
        recorder.end()
    except DdlschedError as error:
        sys.exit(f"ddlsched: error: {error}")
    finally:
        recorder.stop()


def _store_of_ranks() -> distributed.Store:
    """Return the store by which the ranks find each other, at their address alone: PyTorch's own listens to anybody."""
    from torch import distributed

    address, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    listener = socket.create_server((address, port)).detach()
    # One of several tenants: the script's own store of that port is then this one.
    return distributed.TCPStore(
        address, port, is_master=True, wait_for_workers=False, multi_tenant=True, master_listen_fd=listener
    )


def _enough(*_: Any) -> None:
    raise _Enough


def _leave_together(recorder: Recorder) -> None:
    """End the script once every rank has come so far: one that leaves earlier would break the others' collectives."""
    from torch import distributed

    recorder.stop()
    if distributed.is_initialized():
        distributed.barrier()
    raise _Enough


if __name__ == "__main__":
    main(sys.argv[1:])
