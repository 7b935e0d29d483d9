"""``ddlsched record`` and ``import-training``: a training script that runs, or traces of one, become a job."""

from __future__ import annotations

import json
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from ddlsched.cli.dataclass_options import Given, Panel, option
from ddlsched.cli.reporting import emit, notice, one_line, write_told
from ddlsched.cluster.cluster import Server
from ddlsched.errors import InputError
from ddlsched.io.files import made_folder, refuse_unwritable
from ddlsched.options import Option

if TYPE_CHECKING:
    from ddlsched.training.recorded.alone import Card
    from ddlsched.training.recorded.merging import RecordedIteration
    from ddlsched.workload.dag import DataParallelIteration, IterationDag
    from ddlsched.workload.job import Job


@dataclass(frozen=True, kw_only=True)
class MadeJob:
    """What is made of a recorded iteration: a job in a workload file, a summary, a picture.

    Parameters
    ----------
    iterations
        Of the job.
    job_id
        Of the job.
    gpu_memory_mb
        The job's on each GPU, MB; no trace tells it.
    gbps
        Network card of each rank, for the summary.
    latency_us
        Of a step from rank to rank, for the summary.
    chart
        Draw the iteration into STEM.png and STEM.svg.
    as_json
        Print the summary as one JSON object.
    """

    iterations: int = 1000
    job_id: str = option("recorded", metavar="TEXT")
    gpu_memory_mb: float = option(Server.gpu_memory_mb, metavar="MB")
    gbps: float = option(10.0, metavar="GBIT/S")
    latency_us: float = option(0.0, metavar="US")
    chart: Path | None = option(None, metavar="STEM")
    as_json: bool = False

    def checked_card(self, out: Path) -> Card:
        """Return the ranks' network card; raise InputError now about all that could not be written or made later."""
        from ddlsched.training.recorded.alone import Card
        from ddlsched.workload.dag import DataParallelIteration
        from ddlsched.workload.workload_files import refuse_suffix

        refuse_unwritable(out, "--out", (".json",))  # which holds any graph of tasks
        refuse_suffix(out)  # of a device, too
        if self.chart is not None:
            made_folder(self.chart.parent, "--chart")
        self._job(1, DataParallelIteration(forward_s=0.0, backward_s=0.0, message_bytes=0.0))
        return Card(gbps=self.gbps, latency_us=self.latency_us)

    def report(self, recorded: RecordedIteration, out: Path, card: Card) -> None:
        """Write the job that is made of what was recorded, and its picture, and say what is in it."""
        from ddlsched.training.recorded.alone import summary, timed_alone
        from ddlsched.workload.job import Workload
        from ddlsched.workload.workload_files import write_workload

        job = self._job(recorded.num_ranks, recorded.dag)
        what = f"a job of {job.num_gpus} GPUs and {job.iterations:,} iterations"
        write_told(out, "--out", what, write_workload, Workload.of([job]))
        if self.chart is not None:
            from ddlsched.comparisons.charts.style import save
            from ddlsched.training.recorded.recorded_chart import recorded_chart

            picture = recorded_chart(timed_alone(recorded.dag, recorded.num_ranks, card), recorded.last)
            notice(f"drew {', '.join(map(str, save(picture, self.chart)))}")
        found = summary(recorded, card)
        longer = found["variation"]["lengthening"]
        if longer is not None and longer > _MUCH:
            notice(
                f"recorded steps took {100 * longer:.0f} % longer than unrecorded ones before, so the job is, roughly"
            )
        for what, count in recorded.notes.items():
            notice(f"{count:,} {one_line(what)}")
        emit(json.dumps(found, indent=2) + "\n" if self.as_json else _text(found, card))

    def _job(self, num_ranks: int, iteration: DataParallelIteration | IterationDag) -> Job:
        from ddlsched.workload.job import Job

        made = {name: getattr(self, name) for name in ("job_id", "iterations", "gpu_memory_mb")}
        return Job(arrival_s=0.0, num_gpus=num_ranks, iteration=iteration, **made)


_SHOWN = 12
"""Of the collectives of a step."""
_MUCH = 0.1
"""Share by which recorded steps may be longer without a word."""


def import_training(
    files: Annotated[list[Path], Option(metavar="FILE...")],
    *,
    out: Annotated[Path, Option(metavar="FILE.json")],
    gpus: Annotated[int | None, Option(shown="what the traces tell")] = None,
    groups: Annotated[Path | None, Option(metavar="FILE.json")] = None,
    options: Annotated[Given[MadeJob], Panel()],
) -> None:
    """Make a job of the traces of a training run.

    Sizes, order and compute times are the traces'; the time of a collective is left to the network of the simulation.
    How ranks are merged and what is refused: docs/recorded_jobs.md.

    Parameters
    ----------
    files
        Chakra (.et) or Kineto (.json) traces, also .gz: a file a rank, or one that stands for all.
    out
        Workload file of the job to write.
    gpus
        Ranks of the job, one a GPU, if a single trace does not tell.
    groups
        Ranks of process groups, as ASTRA-sim reads them.
    """
    from ddlsched.training.recorded.reading import read_iteration

    made = options.made()
    card = made.checked_card(out)
    made.report(read_iteration(files, num_ranks=gpus, groups=groups), out, card)


def _spread(times: dict[str, float]) -> str:
    return f"{times['mean']:>12.6f} s on average, 5 to 95 %: {times['p5']:.6f} to {times['p95']:.6f} s"


def _text(found: dict[str, Any], card: Card) -> str:
    """Return the summary for a reader."""
    classes = f"in {len(found['classes'])} classes" if len(found["classes"]) > 1 else "all alike"
    lines = [
        f"{found['ranks']} ranks, {classes}; {found['steps']} steps of {found['nodes']:,} nodes in all",
        f"  tasks of an iteration         {found['tasks']:>12,}   {found['compute_tasks']:,} of them compute",
    ]
    for each in found["collectives"]:
        name = f"{each['kind']}, {each['group']}"
        lines.append(f"  {name:<30}{each['count']:>12,}   {each['bytes'] / 1e6:,.3f} MB")
    lines.append(f"  {'computation':<30}{found['compute_s']:>12.6f} s")
    if step_s := found["variation"]["step_s"]:
        lines.append(f"  {'recorded step':<30}{_spread(step_s)}")
        if unrecorded_s := found["variation"]["unrecorded_step_s"]:
            lines.append(f"  {'step before, unrecorded':<30}{_spread(unrecorded_s)}")
        lines.append(f"  {'its computation':<30}{_spread(found['variation']['compute_s'])}")
        lines += [
            f"  {each['name'] + ' ready at':<30}{_spread(each['ready_s'])}, {each['input_bytes']:,} B"
            for each in found["variation"]["collectives"][:_SHOWN]
        ]
    lines += [
        f"alone, on cards of {card.gbps:g} Gbit/s, {card.latency_us:g} us a step:",
        f"  {'communication':<30}{found['communication_alone_s']:>12.6f} s",
        f"  {'iteration (critical path)':<30}{found['iteration_alone_s']:>12.6f} s   "
        f"{found['critical_path_tasks']} tasks, {found['critical_path_communication_s']:.6f} s of communication",
        f"  {'exposed communication':<30}{100 * found['exposed_share_of_iteration']:>12.1f} % of the iteration, "
        f"{100 * found['exposed_share_of_communication']:.1f} % of the communication",
    ]
    return "".join(f"{line}\n" for line in lines)


SETTINGS = {"record": {"allow_interspersed_args": False}}
"""What follows the script is the script's."""


def record(
    script: Path,
    arguments: Annotated[list[str] | None, Option(metavar="[ARGUMENTS]...")] = None,
    *,
    out: Annotated[Path, Option(metavar="FILE.json")],
    ranks: int = 2,
    keep: Annotated[Path | None, Option(metavar="DIR")] = None,
    skip: int = 11,
    steps: int = 1000,
    options: Annotated[Given[MadeJob], Panel()],
) -> None:
    """Run a training script on several processes and make a job of its steps.

    The script is started as by torchrun; a step ends with optimizer.step(). Recorded are the buckets of
    DistributedDataParallel, FSDP's all-gathers and reduce-scatters, and what the script itself calls of
    torch.distributed (docs/recorded_jobs.md).

    Parameters
    ----------
    script
        A PyTorch training script.
    arguments
        The script's own.
    out
        Workload file of the job to write.
    ranks
        Processes to train with, on this machine.
    keep
        Folder in which each rank's recording is kept.
    skip
        Steps at the beginning not to record.
    steps
        Steps to record, behind which the script ends.
    """
    from ddlsched.training.recorded.reading import read_iteration
    from ddlsched.training.recording.rank_process import run_recorded

    made = options.made()
    card = made.checked_card(out)
    for name, value, least in (("--ranks", ranks, 2), ("--skip", skip, 1), ("--steps", steps, 1)):
        if value < least:
            raise InputError(f"{name} {value}: expected a whole number from {least}")
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary) if keep is None else made_folder(keep, "--keep")
        files = run_recorded(script, arguments or [], folder, ranks=ranks, skip=skip, most_steps=steps)
        recorded = read_iteration(files)
    if keep is not None:
        notice(f"kept {len(files)} recordings in {keep}")
    made.report(recorded, out, card)
