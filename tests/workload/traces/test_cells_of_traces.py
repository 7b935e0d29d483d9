"""What cells of traces mean, at the ends of what is allowed; rows of the formats that are no plain table."""

from __future__ import annotations

import io
import json
import math
from typing import Any

import pandas as pd
import pytest

from ddlsched.errors import InputError, UnknownNameError
from ddlsched.workload.traces import text_formats, traced
from ddlsched.workload.traces.columns import TraceColumns, own_table, reader_of, table
from ddlsched.workload.traces.text_formats import APPLICATIONS, STEPS_PER_S
from ddlsched.workload.traces.trace_files import JsonScanner, json_elements
from ddlsched.workload.traces.traced import BadRowError, Refusal, Selection, TracedJob, TraceSource

SECONDS = "expected a number of seconds > 0"
FINITE = "expected a finite number >= 0"
WHOLE = "expected a whole number from 0 to 2**53"
MOMENT = "expected a date and time"
EXAMPLE = f"{MOMENT} such as 2017-10-09 07:01:55"


def source(text: str) -> TraceSource:
    return TraceSource("a.txt", "a", "folder", io.StringIO(text))


@pytest.mark.parametrize(
    ("read", "cell", "value"),
    [
        (traced.number_of, " 0 ", 0.0),
        (traced.number_of, "1e3", 1000.0),
        (traced.positive_s, "1e-9", 1e-9),
        (traced.optional_s, "  ", math.nan),
        (traced.optional_s, "2.5", 2.5),
        (traced.whole_of, "4.0", 4),
        (traced.whole_of, str(2**53), 2**53),
        (traced.gpus_of, "1", 1),
        (traced.text_of, " a b ", "a b"),
        (traced.optional_text, " ", None),
        (traced.optional_text, " a ", "a"),
        (traced.instant_s, "7.5", 7.5),
        (traced.instant_s, "1970-01-01 00:01:00", 60.0),
        (traced.moment_s, "1970-01-02", 86400.0),
        (traced.moment_s, "1970-01-01 08:00:01.5+08:00", 1.5),
        (traced.moment_s, "1969-12-31 23:59:59Z", -1.0),
    ],
)
def test_a_cell_means(read: Any, cell: str, value: Any) -> None:
    assert (
        read({"x": cell}, "x") == pytest.approx(value, nan_ok=True, rel=0, abs=0)
        if isinstance(value, float)
        else (read({"x": cell}, "x") == value)
    )


@pytest.mark.parametrize(
    ("read", "cell", "reason", "detail"),
    [
        (traced.number_of, None, "x is missing", f"x is ''; {FINITE}"),
        (traced.number_of, "a", "x is no finite number", f"x is 'a'; {FINITE}"),
        (traced.number_of, "1_0", "x is no finite number", f"x is '1_0'; {FINITE}"),
        (traced.number_of, "inf", "x is no finite number", f"x is 'inf'; {FINITE}"),
        (traced.number_of, "a" * 60, "x is no finite number", f"x is '{'a' * 60}'; {FINITE}"),
        (traced.number_of, "a" * 61, "x is no finite number", f"x is '{'a' * 60}...'; {FINITE}"),
        (traced.number_of, "-1", "x is negative", f"x is -1; {FINITE}"),
        (traced.positive_s, "0", "x is 0", f"x is 0; {SECONDS}"),
        (traced.optional_s, "0.0", "x is 0", f"x is 0.0; {SECONDS}"),
        (traced.whole_of, "1.5", "x is not whole", f"x is 1.5; {WHOLE}"),
        (traced.whole_of, str(2**53 + 2), "x is not whole", f"x is {2**53 + 2}; {WHOLE}"),
        (traced.gpus_of, "0", "0 GPUs", "x is 0; expected at least 1 GPU"),
        (traced.text_of, None, "x is missing", "x is ''; expected a text"),
        (traced.text_of, "a\tb", "x is no plain text", r"x is 'a\tb'; expected a text"),
        (traced.optional_text, "a\x7fb", "x is no plain text", r"x is 'a\x7fb'; expected a text"),
        (traced.moment_s, None, "x is missing", f"x is ''; {MOMENT}"),
        (traced.moment_s, "None", "x is missing", f"x is 'None'; {MOMENT}"),
        (traced.moment_s, "noon", "x is no date and time", f"x is 'noon'; {EXAMPLE}"),
        (traced.instant_s, "noon", "x is no date and time", f"x is 'noon'; {EXAMPLE}"),
        (traced.instant_s, "-1", "x is negative", f"x is -1; {FINITE}"),
        (traced.instant_s, "", "x is missing", f"x is ''; {MOMENT}"),
    ],
)
def test_a_cell_is_refused(read: Any, cell: str | None, reason: str, detail: str) -> None:
    with pytest.raises(BadRowError) as refused:
        read({} if cell is None else {"x": cell}, "x")
    assert refused.value.args == (reason, detail)


def test_an_empty_cell_that_has_a_meaning_is_refused_by_it() -> None:
    for read in (traced.moment_s, traced.instant_s):
        with pytest.raises(BadRowError) as refused:
            read({}, "x", "never ended")
        assert refused.value.args[0] == "never ended"


FRAME = pd.DataFrame(
    {
        "arrival_s": [13.0, 10.0, 12.0, 12.0, 15.0],
        "num_gpus": [1, 2, 4, 1, 8],
        "duration_s": [5.0, 6.0, 7.0, 8.0, 9.0],
        "iterations": [10, 20, 30, 40, 50],
        "time_limit_s": [math.nan, 1.0, 2.0, 3.0, 4.0],
    }
)


@pytest.mark.parametrize(
    ("asked", "arrivals_s", "durations_s", "left_out"),
    [
        ({}, [0, 2, 2, 3, 5], [6, 7, 8, 5, 9], {}),
        ({"from_s": 2.0}, [0, 0, 1, 3], [7, 8, 5, 9], {"outside the window of arrivals": 1}),
        ({"to_s": 2.0}, [0], [6], {"outside the window of arrivals": 4}),
        ({"from_s": 2.0, "to_s": 3.0}, [0, 0], [7, 8], {"outside the window of arrivals": 3}),
        ({"gpus_at_most": 2}, [0, 2, 3], [6, 8, 5], {"more than 2 GPUs": 2}),
        ({"limit": 2}, [0, 2], [6, 7], {"after the limit": 3}),
        ({"limit": 5}, [0, 2, 2, 3, 5], [6, 7, 8, 5, 9], {}),
        ({"limit": 1, "from_s": 3.0}, [0], [5], {"outside the window of arrivals": 3, "after the limit": 1}),
        ({"scale": 0.5, "from_s": 2.0}, [0, 0, 0.5, 1.5], [3.5, 4, 2.5, 4.5], {"outside the window of arrivals": 1}),
    ],
)
def test_which_jobs_are_wanted(
    asked: dict[str, Any], arrivals_s: list[float], durations_s: list[float], left_out: dict[str, int]
) -> None:
    wanted, without = Selection(**asked).apply(FRAME)
    assert wanted["arrival_s"].tolist() == arrivals_s
    assert wanted["duration_s"].tolist() == durations_s
    assert without == left_out
    scale = asked.get("scale", 1.0)
    assert sorted(wanted["iterations"]) == sorted(
        scale * FRAME["iterations"][FRAME["duration_s"] == duration_s / scale].item() for duration_s in durations_s
    )


def test_arrivals_are_rounded_to_nanoseconds_and_limits_scaled() -> None:
    wanted, _ = Selection(scale=1 / 3).apply(FRAME)
    assert wanted["arrival_s"].tolist() == [0.0, 0.666666667, 0.666666667, 1.0, 1.666666667]
    assert wanted["time_limit_s"].tolist() == pytest.approx([1 / 3, 2 / 3, 1, math.nan, 4 / 3], nan_ok=True)


def test_a_window_that_ends_where_it_begins_is_refused() -> None:
    with pytest.raises(InputError, match=r"^to_s is 3\.0; expected more than from_s, which is 3\.0$"):
        Selection(from_s=3.0, to_s=3.0)


def batsim_job(delays: dict[str, Any], /, **job: Any) -> TracedJob | Refusal:
    given = {"id": "j", "subtime": 1, "res": 2, "profile": "p"} | job
    [found] = text_formats.batsim(source(json.dumps({"jobs": [given], "profiles": {"p": delays}})))
    return found


@pytest.mark.parametrize(
    ("walltime", "duration_s", "limit_s", "note"),
    [
        ({}, 20.0, math.nan, None),
        ({"walltime": -1}, 20.0, math.nan, None),
        ({"walltime": 20}, 20.0, 20.0, None),
        ({"walltime": 30}, 20.0, 30.0, None),
        ({"walltime": 19.5}, 19.5, 19.5, "cut off at its walltime"),
    ],
)
def test_a_walltime_cuts_a_job_off(
    walltime: dict[str, Any], duration_s: float, limit_s: float, note: str | None
) -> None:
    job = batsim_job({"type": "delay", "delay": 20}, **walltime)
    assert isinstance(job, TracedJob)
    assert (job.job_id, job.arrival_s, job.num_gpus, job.duration_s, job.note, job.line) == (
        "j", 1.0, 2, duration_s, note, 1,
    )  # fmt: skip
    assert job.time_limit_s == pytest.approx(limit_s, nan_ok=True)


@pytest.mark.parametrize(
    ("profile", "job", "refusal"),
    [
        ({"delay": 1}, {"walltime": 0}, ("walltime is 0", f"walltime is 0; {SECONDS}")),
        ({"delay": 0}, {}, ("delay is 0", f"delay is 0; {SECONDS}")),
        ({"type": "cpu"}, {}, ("profile without a delay", "profile 'p' is a 'cpu'; expected a delay")),
        (
            {"delay": 1},
            {"profile": "q"},
            ("unknown profile", "profile 'q' is not among profiles; expected one that is"),
        ),
        ({"delay": 1}, {"res": [1]}, ("res is missing", f"res is ''; {FINITE}")),
    ],
)
def test_a_batsim_job_is_refused(profile: dict[str, Any], job: dict[str, Any], refusal: tuple[str, str]) -> None:
    assert batsim_job(profile, **job) == Refusal(1, *refusal)


@pytest.mark.parametrize("text", ["[]", "{}", '{"jobs": {}, "profiles": {}}', '{"jobs": [], "profiles": []}'])
def test_a_batsim_workload_without_its_parts_is_refused(text: str) -> None:
    with pytest.raises(InputError, match=r"^a\.txt: lacks jobs or profiles; expected \{'jobs': \[...\], 'profiles'"):
        text_formats.batsim(source(text))


def test_a_whole_document_may_have_so_many_characters(monkeypatch: pytest.MonkeyPatch) -> None:
    text = '{"jobs": [], "profiles": {}}'
    monkeypatch.setattr(text_formats, "MOST_BYTES", len(text))
    assert list(text_formats.batsim(source(text))) == []
    with pytest.raises(InputError, match=r"^a\.txt: has more than 28 characters; expected at most that many$"):
        text_formats.batsim(source(text + " "))


def philly(*attempts: Any, **others: Any) -> TracedJob | Refusal:
    entry = {"jobid": "j", "submitted_time": "1970-01-01 00:00:09", "status": "Pass", "attempts": [*attempts]}
    [found] = text_formats.philly(source(json.dumps([entry | others])))
    return found


def attempt(start_s: int, end_s: int, *gpus: int) -> dict[str, Any]:
    detail = [{"ip": "m", "gpus": [f"gpu{n}" for n in range(count)]} for count in gpus]
    times = {"start_time": start_s, "end_time": end_s}
    return {name: f"1970-01-01 00:00:{time_s:02}" for name, time_s in times.items()} | {"detail": detail}


def test_a_job_of_several_attempts_lasts_as_long_as_all_and_has_the_most_gpus() -> None:
    job = philly(attempt(10, 20, 2, 1), attempt(20, 20, 4), attempt(30, 35, 1), user="u", vc="v")
    assert isinstance(job, TracedJob)
    assert (job.num_gpus, job.duration_s, job.arrival_s, job.user, job.queue, job.note, job.line) == (
        4, 15.0, 9.0, "u", "v", "state Pass", 1,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("found", "reason", "detail"),
    [
        (philly(), "never started", "has no attempts; expected at least one"),
        (philly(attempt(1, 2)), "0 GPUs", "no attempt names a GPU; expected at least 1"),
        (philly(attempt(1, 1, 1)), "duration is 0", "its attempts last 0 s in all; expected more"),
        (philly(attempt(5, 2, 1)), "negative duration", "an attempt ends 3 s before it starts"),
        (philly({"detail": [{"gpus": 1}]}), "not a job",
         "is no object with a list of attempts, each with a list of detail"),
        (philly({"detail": []}), "an attempt has no start", f"start_time is ''; {MOMENT}"),
        (philly({"detail": [], "start_time": "1970-01-01"}), "an attempt has no end", f"end_time is ''; {MOMENT}"),
    ],
)  # fmt: skip
def test_a_philly_job_is_refused(found: TracedJob | Refusal, reason: str, detail: str) -> None:
    assert found == Refusal(1, reason, detail)


def gavel_line(job_type: str, steps: Any, gpus: Any) -> TracedJob | Refusal:
    [found] = text_formats.gavel(source(f"{job_type}\tcommand\t-n\t0\t{steps}\t3.5\t{gpus}\n"))
    return found


@pytest.mark.parametrize(
    ("gpus", "place", "note"),
    [
        (1, 0, None),
        (2, 1, None),
        (3, 1, "throughput of fewer GPUs"),
        (4, 2, None),
        (7, 2, "throughput of fewer GPUs"),
        (8, 3, None),
        (9, 3, "throughput of fewer GPUs"),
        (16, 3, "throughput of fewer GPUs"),
    ],
)
def test_gavel_throughputs_are_of_the_most_gpus_measured(gpus: int, place: int, note: str | None) -> None:
    name = next(name for name, measured in STEPS_PER_S.items() if len(measured) == 4 and "batch size" in name)
    job = gavel_line(name, 100, gpus)
    assert isinstance(job, TracedJob)
    assert (job.duration_s, job.note, job.num_gpus, job.iterations, job.arrival_s, job.job_id) == (
        100 / STEPS_PER_S[name][place], note, gpus, 100, 3.5, "1",
    )  # fmt: skip
    assert job.model == name.partition(" (batch size")[0]


@pytest.mark.parametrize("gpus", [1, 2, 8])
def test_what_gavel_measured_on_one_gpu_alone_is_taken_for_all(gpus: int) -> None:
    name, [rate] = next((name, measured) for name, measured in STEPS_PER_S.items() if len(measured) == 1)
    job = gavel_line(name, 10, gpus)
    assert isinstance(job, TracedJob)
    assert (job.duration_s, job.note) == (10 / rate, None if gpus == 1 else "throughput of fewer GPUs")


def test_gavel_lines_of_ten_values() -> None:
    name, rates = next(iter(STEPS_PER_S.items()))
    [job] = text_formats.gavel(source(f"{name}\tcommand\tfolder\t-n\t1\t77\t1\t5\t-1\t8.25\n"))
    assert isinstance(job, TracedJob)
    assert (job.iterations, job.num_gpus, job.arrival_s, job.duration_s) == (77, 1, 8.25, 77 / rates[0])


@pytest.mark.parametrize(
    ("found", "reason", "detail"),
    [
        (gavel_line("x", 1, 1), "unknown job type", "job type is 'x'; expected one whose throughput Gavel measured"),
        (gavel_line(next(iter(STEPS_PER_S)), 0, 1), "0 steps", "steps is 0; expected at least 1"),
        (gavel_line("x", "1\t2", 1), "wrong number of values", "has 8 values separated by tabs; expected 7 or 10"),
    ],
)
def test_a_gavel_line_is_refused(found: TracedJob | Refusal, reason: str, detail: str) -> None:
    assert found == Refusal(1, reason, detail)


@pytest.mark.parametrize("name", APPLICATIONS)
@pytest.mark.parametrize(("gpus", "batch"), [(1, 128), (3, 100), (4, 10**9)])
def test_iterations_of_pollux_are_samples_over_the_batch(name: str, gpus: int, batch: int) -> None:
    text = f"name,time,application,num_replicas,batch_size\nj,7,{name},{gpus},{batch}\n"
    [job] = text_formats.pollux(source(text))
    assert isinstance(job, TracedJob)
    app = APPLICATIONS[name]
    assert job.iterations == max(1, round(app.epochs * app.samples / batch))
    assert job.compute_s == pytest.approx(app.step_s + app.step_per_sample_s * batch / gpus, rel=1e-15)
    assert (job.job_id, job.arrival_s, job.num_gpus, job.model, job.line) == ("j", 7.0, gpus, app.model, 2)


@pytest.mark.parametrize(
    ("row", "reason", "detail"),
    [
        ("j,7,bort,1,1", "unknown application",
         f"application is 'bort'; expected one of {', '.join(APPLICATIONS)}"),
        ("j,7,bert,1,0", "batch_size is 0", "batch_size is 0; expected at least 1"),
    ],
)  # fmt: skip
def test_a_pollux_row_is_refused(row: str, reason: str, detail: str) -> None:
    [found] = text_formats.pollux(source(f"name,time,application,num_replicas,batch_size\n{row}\n"))
    assert found == Refusal(2, reason, detail)


def swf_line(**changed: str) -> TracedJob | Refusal:
    places = {"number": 0, "submit": 1, "run": 3, "used": 4, "asked": 7, "limit": 8, "status": 10, "user": 11}
    fields = ["-1"] * 18
    for name, value in ({"number": "5", "submit": "3", "run": "60", "used": "4", "asked": "9"} | changed).items():
        fields[places[name]] = value
    [found] = text_formats.swf(source("; a comment\n  ; another\n" + " ".join(fields) + "\n"))
    return found


@pytest.mark.parametrize(
    ("changed", "field", "value"),
    [
        ({}, "num_gpus", 4),
        ({"used": "-1"}, "num_gpus", 9),
        ({"used": "0"}, "num_gpus", 9),
        ({}, "job_id", "5"),
        ({}, "arrival_s", 3.0),
        ({}, "duration_s", 60.0),
        ({}, "time_limit_s", math.nan),
        ({"limit": "0"}, "time_limit_s", math.nan),
        ({"limit": "90"}, "time_limit_s", 90.0),
        ({}, "user", None),
        ({"user": "8"}, "user", "8"),
        ({}, "note", "state unknown"),
        ({"status": "0"}, "note", "state failed"),
        ({"status": "1"}, "note", "state completed"),
        ({"status": "5"}, "note", "state cancelled"),
        ({"status": "6"}, "note", "state 6"),
        ({}, "line", 3),
    ],
)
def test_a_line_of_swf_says(changed: dict[str, str], field: str, value: Any) -> None:
    job = swf_line(**changed)
    found = getattr(job, field)
    assert found == value or (value is math.nan and math.isnan(found))


@pytest.mark.parametrize("status", ["2", "3", "4"])
def test_lines_of_parts_of_jobs_are_refused(status: str) -> None:
    assert swf_line(status=status) == Refusal(
        3, "part of a job", f"status is {status}; expected a line of the whole job"
    )


COLUMNS = TraceColumns(
    job_id="id", arrival_s="at", gpus="gpus", start_s="from", end_s="to", fail_s="failed", priority="class",
    state="state", workers="workers", gpu_milli="milli", unit_s=2.0, user_is_file=True, model="model", queue="queue",
)  # fmt: skip
HEADER = "id,at,gpus,from,to,failed,class,state,workers,milli,model,queue"


def row(cells: str) -> TracedJob | Refusal:
    [found] = table([COLUMNS], source(f"{HEADER}\n{cells}\n"))
    return found


def test_columns_of_a_table_tell_a_job() -> None:
    assert row("a,5,2,10,30,25,BE,done,3,1000,m,q") == TracedJob(
        job_id="a", arrival_s=10.0, num_gpus=6, duration_s=20.0, time_limit_s=pytest.approx(math.nan, nan_ok=True),
        compute_s=pytest.approx(math.nan, nan_ok=True), model="m", user="a", queue="q", priority=0,
        note="state done", failed_after_s=15.0, line=2,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("text", "priority"),
    [("HP", 1), ("ls", 2), (" Burstable ", 1), ("BE", 0), ("spot", 0), ("", 0), ("none such", 0), ("7", 7), ("-7", -7),
     ("999999999", 999_999_999), ("1000000000", 0), ("--7", 0)],
)  # fmt: skip
def test_a_class_of_service_is_a_priority(text: str, priority: int) -> None:
    job = row(f"a,5,2,10,30,,{text},done,3,1000,m,q")
    assert isinstance(job, TracedJob)
    assert job.priority == priority
    assert math.isnan(job.failed_after_s)


@pytest.mark.parametrize(
    ("milli", "note"), [("999", "state s, share of a GPU counted as a whole one"), ("1000", "state s")]
)
def test_a_share_of_a_gpu_is_noted(milli: str, note: str) -> None:
    job = row(f"a,5,2,10,30,,0,s,3,{milli},m,q")
    assert isinstance(job, TracedJob)
    assert job.note == note


@pytest.mark.parametrize(
    ("cells", "reason", "detail"),
    [
        ("a,5,2,10,10,,0,s,3,9,m,q", "duration is 0 or less", "to is 0 s after from; expected more than 0"),
        ("a,5,2,10,7,,0,s,3,9,m,q", "duration is 0 or less", "to is -3 s after from; expected more than 0"),
        ("a,5,2,,7,,0,s,3,9,m,q", "never started", f"from is ''; {MOMENT}"),
        ("a,5,2,1,,,0,s,3,9,m,q", "never ended", f"to is ''; {MOMENT}"),
        ("a,5,2,1,2", "wrong number of values", "has 5 values; expected 12"),
    ],
)
def test_a_row_of_a_table_is_refused(cells: str, reason: str, detail: str) -> None:
    assert row(cells) == Refusal(2, reason, detail)


def test_a_duration_of_its_own_column_counts_in_units_whatever_it_was_held_for() -> None:
    columns = TraceColumns(arrival_s="at", gpus="n", duration_s="for", start_s="from", end_s="to", unit_s=60.0)
    jobs = [*table([columns], source("at,n,for,from,to\n1,1,3,9,9\n2,1,4,9,8\n"))]
    assert [(job.job_id, job.arrival_s, job.duration_s) for job in jobs if isinstance(job, TracedJob)] == [
        ("2", 60.0, 180.0),
        ("3", 120.0, 240.0),
    ]


@pytest.mark.parametrize(
    ("header", "said"),
    [
        ("gpus,duration_s", "arrival_s"),
        ("arrival_s,duration_s", "gpus"),
        ("arrival_s,gpus", "duration_s"),
        ("gpus", "arrival_s"),
    ],
)
def test_a_table_of_ones_own_says_what_no_column_tells(header: str, said: str) -> None:
    with pytest.raises(InputError, match=rf"^a\.txt: no column tells {said}; expected --column {said}=COLUMN$"):
        list(own_table({})(source(f"{header}\n")))


@pytest.mark.parametrize("length", ["iterations", "start_s,end_s", "duration_s"])
def test_what_tells_a_length_is_enough_for_a_table_of_ones_own(length: str) -> None:
    assert list(own_table({})(source(f"arrival_s,gpus,{length}\n"))) == []


def test_columns_of_a_format_that_has_its_own_are_refused() -> None:
    with pytest.raises(UnknownNameError, match=r"^unknown trace format 'heliso'. Did you mean 'helios'\?"):
        reader_of("heliso")
    with pytest.raises(UnknownNameError, match=r"^--column colour: nothing is told by it\."):
        reader_of("csv", {"colour": "x"})
    with pytest.raises(InputError, match=r"^--column is given for swf, which has columns of its own; expected the for"):
        reader_of("swf", {"gpus": "x"})
    assert reader_of("swf", {}) is text_formats.swf


@pytest.mark.parametrize("text", ["[1, {}]", " [ 1 ,\n {} ] \n", "[1,{}]"])
def test_elements_of_an_array_come_with_their_lines(text: str) -> None:
    line = 2 if "\n {" in text else 1
    assert [*json_elements(source(text))] == [(1, 1), (line, {})]


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("{}", "line 1: expected a JSON array"),
        ("[1\n2]", "line 2: expected , or ] here"),
        ("[1, 2] 3", "line 1: expected nothing after the array"),
        ("[1, \n", "line 2: is no JSON"),
        ("[1", "line 1: expected , or ] here"),
    ],
)
def test_a_text_that_is_no_array_is_refused_with_its_line(text: str, why: str) -> None:
    with pytest.raises(InputError) as refused:
        list(json_elements(source(text)))
    assert str(refused.value).startswith(f"a.txt, {why}")


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("[]", "line 1: expected a JSON object"),
        ('{"a": 1 "b": 2}', "line 1: expected , or } here"),
        ('{"a" 1}', "line 1: expected a name and : before each value of an object"),
        ("{1: 1}", "line 1: expected a name and : before each value of an object"),
    ],
)
def test_a_text_that_is_no_object_is_refused_with_its_line(text: str, why: str) -> None:
    scanner = JsonScanner("a.txt", io.StringIO(text))
    with pytest.raises(InputError) as refused:
        [(key, scanner.next_character(), scanner.value()) for key in scanner.members()]
    assert str(refused.value) == f"a.txt, {why}"


def test_members_of_an_object_are_read_one_by_one() -> None:
    scanner = JsonScanner("a.txt", io.StringIO('{"a": 1, "b": [2]}'))
    found = [(key, scanner.next_character(), scanner.value()) for key in scanner.members()]
    assert found == [("a", "1", 1), ("b", "[", [2])]
    assert scanner.next_character() == ""
