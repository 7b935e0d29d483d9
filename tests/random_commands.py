"""Random commands: what they are given is now right, now wrong, and none may end in our traceback or without an end.

    python tests/random_commands.py                    5,000 of seed 1
    python tests/random_commands.py --number 200 --seed 7 simulate compare

Each runs in a folder with good and bad files, in a process that may take so much memory and time. Prints those that
failed, and ends with status 1 if one did. Commands that run until Ctrl-C, or start processes, are left out.
"""

from __future__ import annotations

import argparse
import enum
import io
import json
import multiprocessing
import os
import random
import resource
import shlex
import signal
import sys
import tempfile
import traceback
from collections import Counter
from collections.abc import Iterator
from contextlib import redirect_stderr, redirect_stdout, suppress
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, NamedTuple

from command_line import COMMAND

from ddlsched.plugins.names import names, resolve

LEFT_OUT = {
    "live", "record", "calibrate-gpu", "calibrate-agent", "slurm-agent", "slurm-trial", "testbed agent",
    "testbed gate", "testbed run", "testbed compare",
}  # fmt: skip
SMALL = {
    "tune": ("--trials", "1", "--seeds", "1", "--held-out", "2"),
    "checkpoint make": ("--layers", "1", "--hidden", "64"),
}
"""What keeps a command short that takes long by default; what is drawn comes behind it and counts."""
MOST_S, MOST_BYTES, MOST_TOLD = 600.0, 8 << 30, 20_000
JOBS = """job_id,arrival_s,gpus,iterations,forward_s,backward_s,message_bytes,gpu_memory_mb,model,user
a,0,4,20,0.01,0.02,1e8,1000,r,ann
b,0.1,2,30,0.01,0.02,1e7,1000,s,bob
c,0.2,1,10,0.03,0.02,0,1000,r,ann
"""
KUEUE = """kind: ClusterQueue
apiVersion: kueue.x-k8s.io/v1
metadata: {name: a}
spec: {resourceGroups: [{flavors: [{name: f, resources: [{name: nvidia.com/gpu, nominalQuota: 8}]}]}]}
---
kind: Workload
apiVersion: kueue.x-k8s.io/v1
metadata: {name: w, annotations: {ddlsched.io/duration-s: "80"}}
spec: {podSets: [{count: 2, template: {spec: {containers: [{resources: {limits: {nvidia.com/gpu: 4}}}]}}}]}
status: {admission: {clusterQueue: a}}
"""
ALIASES = "".join(f"a{n}: &a{n} [{','.join([f'*a{n - 1}'] * 9)}]\n" for n in range(1, 9))
ELASTIC = {"kind": "linear", "fixed_s": 0.02, "sample_s": 0.005}
FILES = {
    "jobs.csv": JOBS,
    "bad.csv": JOBS.replace("0.01", "x"),
    "negative.csv": JOBS.replace("0.02", "-1"),
    "empty.csv": "",
    "wide.csv": ",".join(f"c{n}" for n in range(5000)),
    "elastic.json": json.dumps({"jobs": [{"job_id": "a", "arrival_s": 0, "samples": 100, "gpu_batch": 8, "max_gpus": 4,
                                          "curve": ELASTIC}]}),
    "deep.json": "[" * 20_000 + "]" * 20_000,
    "null.json": "null",
    "not_utf8.csv": "\udcff\udcfe,a\n1,2\n",
    "servers.csv": "servers,gpus,gpu_memory_mb,gpu_kind\n3,4,16000,new\n1,4,8000,old\n",
    "speeds.csv": "model,new,old\nr,2,1\ns,1,\n",
    "capacity.csv": "server,from_s,to_s\n0,0,1000\n",
    "outages.csv": "server,from_s,to_s\n0,0,1000\n",
    "compare.yaml": "workloads: [jobs.csv]\nseeds: 2\npolicies:\n  - {scheduler: ada-srsf}\n  - {scheduler: srsf-1}\n",
    "bad.yaml": "seeds: [1, {2: }\n",
    "queued.csv": JOBS.replace("user", "user,queue").replace("ann", "ann,a").replace("bob", "bob,b"),
    "queues.yaml": "queues: [{name: a, gpus: 8}, {name: b, gpus: 8, weight: 2}]\n",
    "bad_queues.yaml": "queues: [{name: a, parent: [x], weight: heavy}]\n",
    "kueue.yaml": KUEUE,
    "bad_kueue.yaml": KUEUE.replace("8", "many"),
    "aliases.yaml": f"kind: Queue\na0: &a0 [x]\n{ALIASES}queues: *a8\nmetadata: *a8\nspec: *a8\n",
    "mine.py": "class Mine:\n    def key(self, job, now_s):\n        return job.num_gpus\n",
    "broken.py": "class Broken(:\n",
}  # fmt: skip
WHOLE = (
    "-1",
    "0",
    "1",
    "2",
    "3",
    "7",
    "64",
    "2147483648",
    "9223372036854775808",
    "1" + "0" * 30,
    "1.5",
    "x",
    "",
    "nan",
)
REAL = ("-1", "0", "0.1", "0.5", "1", "3", "1e-300", "1e300", "nan", "inf", "-inf", "x", "", "1e")
WORDS = ("", "x", "..", "none", "a:b=c", "=", ":", "ü\u202e", "a" * 5000, "0", "-1", "tp=2", "tp=0,dp=-1", "nodes=64")
GIVEN_BY_NAME = {
    name.replace("-", "_"): names(name)
    for name in ("placement", "order", "communication", "allocation", "contention", "topology", "path", "admission")
}
OFTEN = {
    "scheduler": ("kueue", "volcano", "kai", "slurm"),
    "source": ("kueue.yaml", "bad_kueue.yaml", "aliases.yaml", "."),
    "queues": ("queues.yaml", "bad_queues.yaml", "aliases.yaml"),
    "change": ("servers=+1", "quota.a=+4", "queues=bad_queues.yaml", "admission=kai", "seed=x"),
}
"""What parameters without a kind of their own are given."""
OUTPUTS = ("out", "new.csv", "new.json", "new.parquet", "new/deep.csv", "new.html", "new.png")


class Failure(NamedTuple):
    """What went wrong with a command."""

    command: list[str]
    why: str


def leaves(group: Any = COMMAND, before: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Yield every command that ends by itself, by its words."""
    for name in group.list_commands(None):
        command, words = group.get_command(None, name), (*before, name)
        if hasattr(command, "list_commands"):
            yield from leaves(command, words)
        elif " ".join(words) not in LEFT_OUT:
            yield words, command


def drawn(rng: random.Random, words: tuple[str, ...], command: Any) -> list[str]:
    """Return a command with some of its options, and what they are given."""
    said = [*words, *SMALL.get(" ".join(words), ())]
    options = [each for each in command.params if each.param_type_name == "option" and each.name != "help"]
    for argument in (each for each in command.params if each.param_type_name == "argument"):
        if rng.random() < 0.9:
            usual = "jobs.csv" if rng.random() < 0.6 else value_of(rng, argument)
            said.append(usual if words[0] not in ("estimate", "list", "import-cluster") else value_of(rng, argument))
    for option in rng.sample(options, min(len(options), rng.choice((0, 1, 1, 2, 2, 3, 5)))):
        flags = [*option.opts, *option.secondary_opts]
        said.append(rng.choice(flags))
        if not (option.is_flag or option.secondary_opts):
            said.append(value_of(rng, option))
    return said


def value_of(rng: random.Random, parameter: Any) -> str:
    """Return what an option or argument is given: often something of its kind."""
    kind = parameter.type_descriptor.annotation
    if isinstance(kind, type) and issubclass(kind, enum.Enum) and rng.random() < 0.8:
        return str(rng.choice(list(kind)).value)
    if parameter.name in GIVEN_BY_NAME and rng.random() < 0.8:
        return _plug_in(rng, parameter.name)
    if parameter.name in OFTEN and rng.random() < 0.8:
        return rng.choice(OFTEN[parameter.name])
    if parameter.name == "model" and rng.random() < 0.8:
        return rng.choice(("gpt3-175b", "llama-3-70b", "resnet-50", "dlrm-1.2t", "gpt3-"))
    of_its_kind = {int: WHOLE, float: REAL, Path: (*FILES, *OUTPUTS, ".", "missing.csv")}
    if kind in of_its_kind and rng.random() < 0.85:
        return rng.choice(of_its_kind[kind])
    return rng.choice((*WHOLE, *REAL, *WORDS, *FILES, *OUTPUTS))


def _plug_in(rng: random.Random, door: str) -> str:
    """Return a name, perhaps with a parameter of it that has any value, or a class in a file."""
    if rng.random() < 0.15:
        return rng.choice(
            ("mine.py", "mine.py:Mine", "mine.py:Nobody", "broken.py:Broken", "jobs.csv:Mine", "mine.py:Mine:a=1")
        )
    name = rng.choice(list(GIVEN_BY_NAME[door]))
    try:
        fields = [*getattr(type(resolve(door, name)), "__dataclass_fields__", {})]
    except Exception:
        fields = []
    if not fields or rng.random() < 0.4:
        return name
    return f"{name}:{rng.choice(fields)}={rng.choice((*WHOLE, *REAL, 'true', 'jobs.csv'))}"


def commands(seed: int, number: int, only: list[str]) -> list[list[str]]:
    """Return so many commands, the same for the same seed."""
    rng = random.Random(seed)
    known = [(words, command) for words, command in leaves() if not only or words[0] in only]
    return [drawn(rng, *rng.choice(known)) for _ in range(number)]


def written(folder: Path) -> None:
    """Write the files that commands are given."""
    for name, text in FILES.items():
        if not (folder / name).is_dir():
            (folder / name).write_bytes(text.encode("utf-8", "surrogateescape"))


def faults_of(command: list[str]) -> str | None:
    """Run a command in this process; return what is wrong with how it ended."""
    out, err = io.StringIO(), io.StringIO()
    try:
        with redirect_stdout(out), redirect_stderr(err):
            COMMAND.main(command, prog_name="ddlsched")
        code: Any = 0
    except SystemExit as ended:
        code = ended.code or 0
    except BaseException:
        return "".join(traceback.format_exc().splitlines(keepends=True)[-7:])
    said = err.getvalue()
    if code not in (0, 1, 2):
        return f"status {code}: {said[-300:]}"
    if "Traceback" in said and "mine.py" not in said and "broken.py" not in said:
        return said[-1500:]
    if code and "error" not in said.lower():
        return f"status {code} without an error: {said[-300:]!r}"
    return f"{len(said)} characters of errors" if code and len(said) > MOST_TOLD else None


def _run(asked: list[list[str]], folder: str, answers: Connection) -> None:
    os.setsid()
    resource.setrlimit(resource.RLIMIT_AS, (MOST_BYTES, MOST_BYTES))
    os.chdir(folder)
    for command in asked:
        written(Path(folder))
        answers.send(faults_of(command))


def failures(asked: list[list[str]], folder: Path) -> Iterator[Failure | None]:
    """Yield of each command what was wrong, or None; one that does not end is killed, and so is its process."""
    while asked:
        here, there = multiprocessing.Pipe(duplex=False)
        process = multiprocessing.get_context("fork").Process(target=_run, args=(asked, str(folder), there))
        process.start()
        there.close()
        done = 0
        try:
            while done < len(asked):
                why = here.recv() if here.poll(MOST_S) else f"did not end in {MOST_S:g} s"
                yield Failure(asked[done], why) if why else None
                done += 1
                if why and why.startswith("did not end"):
                    break
        except EOFError:
            process.join()
            yield Failure(asked[done], f"its process ended with {process.exitcode}")
            done += 1
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.join()
        asked = asked[done:]


def main(arguments: list[str]) -> int:
    """Run them all; print what failed."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("only", nargs="*", help="first words of commands")
    parser.add_argument("--number", type=int, default=5000)
    parser.add_argument("--seed", type=int, default=1)
    asked = parser.parse_args(arguments)
    told: Counter[str] = Counter()
    with tempfile.TemporaryDirectory() as folder:
        (inside := Path(folder) / "inside").mkdir()
        for found in failures(commands(asked.seed, asked.number, asked.only), inside):
            told["failed" if found else "right"] += 1
            if found:
                print(f"FAILED ddlsched {shlex.join(found.command)[:600]}\n{found.why}", flush=True)
    print(f"{told.total()} commands, {told['failed']} failed")
    return int(bool(told["failed"]))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
