"""What a comparison may be asked for, and how every fault in it is reported with its place."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import TypeAdapter, ValidationError

from algorithms.placement.first_fit import FirstFit
from ddlsched.comparisons import fields
from ddlsched.comparisons.compare import ComparisonPlan, planned
from ddlsched.comparisons.settings import Settings, checked_settings, read_yaml
from ddlsched.errors import FaultyInputError, InputError, PluginError

SMALL = "microsoft-160:scale=0.002"

pytestmark = pytest.mark.usefixtures("in_a_new_folder")


def plan(**given) -> ComparisonPlan:
    return ComparisonPlan(checked_settings({"workloads": SMALL, "policies": "ada-srsf"} | given, repr))


def of_yaml(text: str) -> Settings:
    Path("compare.yaml").write_text(text, encoding="utf-8")
    return checked_settings(*read_yaml(Path("compare.yaml")))


def faults_of_yaml(text: str) -> list[str]:
    with pytest.raises(InputError) as raised:
        of_yaml(text)
    return list(getattr(raised.value, "faults", [str(raised.value)]))


# ---- Seeds and windows


@pytest.mark.parametrize(
    ("given", "seeds"),
    [
        (3, [1, 2, 3]),
        ("3", [1, 2, 3]),
        ("0-3", [0, 1, 2, 3]),
        ("1,5,9", [1, 5, 9]),
        ("4-5, 1", [4, 5, 1]),
        ([7, 2], [7, 2]),
        ((0,), [0]),
        (range(2, 4), [2, 3]),
    ],
)
def test_seeds(given, seeds):
    assert plan(seeds=given).settings.seeds == seeds


@pytest.mark.parametrize(
    "given",
    [
        *(0, -1, 10**9, 1.5, True, None, {"a": 1}),
        *([], [1, True], [1.0], ["1"], [-1], [1, 1]),
        *("", "-1", "5-", "1-2-3", "5-1", "3,5-1", "x", "1.5", "1,1-2", "0-999999999"),
        *(f"0-1{30 * '0'}", 5000 * "1"),
    ],
)
def test_bad_seeds(given):
    with pytest.raises(FaultyInputError, match=r"\('seeds',\).*expected"):
        plan(seeds=given)


def test_more_draws_than_anybody_waits_for_are_refused():
    with pytest.raises(FaultyInputError, match=r"\('draws',\).*less than or equal to 100000"):
        plan(draws=1 << 63)


@given(st.lists(st.integers(0, 10**6), min_size=2, max_size=20, unique=True))
def test_a_list_of_seeds_may_be_written_as_text(seeds):
    adapter = TypeAdapter(fields.Seeds)
    assert adapter.validate_python(",".join(map(str, seeds))) == adapter.validate_python(seeds) == seeds


@pytest.mark.long
@given(st.text(alphabet="0123456789,- x", max_size=8))
def test_any_text_is_seeds_or_refused(text):
    try:
        seeds = TypeAdapter(fields.Seeds).validate_python(text)
    except ValidationError:
        return
    assert seeds
    assert len(set(seeds)) == len(seeds)


def test_windows():
    assert plan(timeline="10:50").settings.timeline == plan(timeline=[10, 50]).settings.timeline == (10.0, 50.0)
    for bad in ("5:1", "1", "a:b", 650, [1, 2, 3], "nan:1", "-1:1"):
        with pytest.raises(FaultyInputError, match=r"expected \[FROM, TO\]"):
            plan(timeline=bad)


# ---- Policies


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("workloads", ["stream:num_jobs=5", "stream:num_jobs=5"]),
        ("servers", [4, 4]),
        ("topology", ["star", "star"]),
        ("contention", ["linear", "linear"]),
    ],
)
def test_what_runs_differ_in_is_there_once(name, values):
    with pytest.raises(FaultyInputError, match=f"'{values[0]}' is there twice; expected each once"):
        plan(**{name: values})
    assert len(plan(**{name: values[:1]}).runs()) >= 1


def test_a_bundle_is_called_by_its_name():
    doors = {"placement": "lwf:kappa=1", "order": "srsf", "communication": "bounded-overlap:limit=1"}
    assert plan(policies="srsf-1").policies == {"srsf-1": doors}


def test_lists_make_every_combination():
    found = plan(policies=["ada-srsf", {"placement": ["lwf", "first-fit"], "order": ["fifo", "las"]}]).policies
    assert list(found) == ["ada-srsf"] + [f"{p} + {o}" for p in ("lwf", "first-fit") for o in ("fifo", "las")]
    assert found["first-fit + fifo"] == {
        "placement": "first-fit",
        "order": "fifo",
        "communication": "adadual",
    }


def test_a_list_fills_up_from_its_bundle():
    given = {"name": "mine", "scheduler": "srsf-2", "order": "fifo"}
    doors = {"placement": "lwf:kappa=1", "order": "fifo", "communication": "bounded-overlap:limit=2"}
    assert plan(policies=[given]).policies == {"mine": doors}


def test_an_instance_is_called_by_its_own_form():
    assert list(plan(policies=[{"placement": FirstFit()}]).policies) == ["FirstFit() + srsf + adadual"]
    assert plan(policies=[{"placement": FirstFit()}]).as_yaml() is None


@pytest.mark.parametrize(
    ("policies", "parts"),
    [
        (["srsf-1", "srsf-1"], ["('policies',)", "'srsf-1' is there twice"]),
        (["ada-srs"], ["('policies', 0, 'scheduler')", "Did you mean 'ada-srsf'?"]),
        ([{"placement": "lfw"}], ["('policies', 0, 'placement', 0)", "Did you mean 'lwf'?"]),
        ([{"plcement": "lwf"}], ["('policies', 0, 'plcement')", "is no field. Did you mean 'placement'"]),
        ([{"name": "x", "order": ["fifo", "las"]}], ["('policies', 0)", "2 policies have one name, 'x'"]),
        ([{"name": " "}], ["('policies', 0, 'name')", "is ' '; expected a name of printable characters"]),
        ([{"name": "a\nb"}], ["expected a name of printable characters"]),
        ([{"name": "a:b"}, {"name": "a=b", "order": "fifo"}], ["would share the file name 'a-b'"]),
        ([], ["('policies',)", "at least 1"]),
        ([3], ["('policies', 0)"]),
        (["ada-srsf", None], ["('policies', 1)"]),
    ],
)
def test_bad_policies(policies, parts):
    with pytest.raises(FaultyInputError) as raised:
        plan(policies=policies)
    for part in parts:
        assert part in str(raised.value)


def test_a_baseline_is_one_of_the_policies():
    assert plan(policies=["srsf-1", "ada-srsf"]).baseline == "srsf-1"
    assert plan(policies=["srsf-1", "ada-srsf"], baseline="ada-srsf").baseline == "ada-srsf"
    with pytest.raises(FaultyInputError, match=r"no policy is called that. Did you mean 'srsf-1'"):
        plan(policies=["srsf-1", "ada-srsf"], baseline="srsf1")


# ---- Workloads, clusters, options


def test_workloads_are_called_by_their_stem_unless_two_share_it(tmp_path):
    import ddlsched

    for name in ("a/jobs.csv", "b/jobs.csv", "c/more.csv"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        ddlsched.write_workload(ddlsched.microsoft_160(seed=1, scale=0.002), name)
    found = plan(workloads=["a/jobs.csv", Path("b/jobs.csv"), "c/more.csv", SMALL]).workloads
    assert list(found) == ["a/jobs.csv", "b/jobs.csv", "more", SMALL]


def test_clusters_are_called_by_size_and_by_what_is_not_usual():
    found = plan(servers=[16, 8], topology=["star", "fat-tree:k=4"], contention=["linear", "max-min"]).places
    assert list(found) == [
        *("16x4", "16x4 max-min", "16x4 fat-tree:k=4", "16x4 fat-tree:k=4 max-min"),
        *("8x4", "8x4 max-min", "8x4 fat-tree:k=4", "8x4 fat-tree:k=4 max-min"),
    ]
    assert found["8x4 fat-tree:k=4"].cluster.num_gpus == 32


def test_options_are_those_of_simulate():
    assert plan(options={"load_per_byte_s": "7.8e-9"}).settings.given_options == {"load_per_byte_s": 7.8e-9}
    for name in ("seed", "timeline", "placement", "allocation", "scheduler", "contention"):
        with pytest.raises(FaultyInputError, match="is no option, but a field of its own or of a policy"):
            plan(options={name: 1})
    with pytest.raises(FaultyInputError, match="is no field"):
        plan(options={"cluster": 1})
    with pytest.raises(FaultyInputError, match="no interference is named 'foo'"):
        plan(options={"interference": "foo"})
    with pytest.raises(FaultyInputError, match="Did you mean 'load_per_byte_s'"):
        plan(options={"load_per_byte": 1})


@dataclass(frozen=True, kw_only=True)
class Weather:
    wind_m_per_s: float = 0.0


def test_an_option_that_is_an_object_is_made_of_its_fields(monkeypatch):
    from pydantic import ConfigDict, create_model

    from ddlsched.comparisons import settings

    config = ConfigDict(extra="forbid", arbitrary_types_allowed=True)
    options = create_model("Options", __config__=config, weather=(Weather | None, None))
    monkeypatch.setattr(settings, "Options", options)
    assert options(weather={"wind_m_per_s": "3"}).weather == Weather(wind_m_per_s=3.0)
    with pytest.raises(ValidationError) as raised:
        options(weather={"wind": 1})
    (fault,) = raised.value.errors()
    assert "Did you mean 'wind_m_per_s'?" in settings._fault({**fault, "loc": ("options", *fault["loc"])}, repr)


def test_a_wrong_option_is_known_before_anything_runs():
    with pytest.raises(InputError, match=r"^\('options', 'load_per_byte_s'\): load_per_byte_s is -1.0; expected"):
        planned({"workloads": SMALL, "policies": "srsf-1", "options": {"load_per_byte_s": -1}}, repr)


def test_a_topology_that_does_not_fit_is_known_before_anything_runs():
    with pytest.raises(InputError, match="fat-tree"):
        planned({"workloads": SMALL, "policies": "srsf-1", "servers": 17, "topology": "fat-tree:k=4"}, repr)


# ---- Runs


def test_runs_go_seed_by_seed():
    runs = plan(policies=["srsf-1", "ada-srsf"], servers=[8, 16], seeds=2).runs()
    assert [(run.seed, run.labels["cluster"], run.labels["policy"]) for run in runs] == [
        (seed, cluster, policy) for seed in (1, 2) for cluster in ("8x4", "16x4") for policy in ("srsf-1", "ada-srsf")
    ]
    assert [run.placements for run in runs] == [True, True] + [False] * 6


def test_what_is_not_random_is_one_run(tmp_path):
    import ddlsched

    ddlsched.write_workload(ddlsched.microsoft_160(seed=1, scale=0.002), "jobs.csv")
    asked = {"workloads": "jobs.csv", "seeds": 20}
    assert len(plan(**asked, policies=["srsf-1", "ada-srsf"]).runs()) == 2
    runs = plan(**asked, policies=["srsf-1", {"placement": "random"}]).runs()
    assert len(runs) == 40
    keys = {(run.labels["policy"], run.inputs["seed"]) for run in runs}
    assert len(keys) == 21
    assert len(plan(**asked, policies=["srsf-1"], options={"load_per_byte_s": 1e-9}).runs()) == 1


def test_item_22_a_label_leaves_out_what_all_share_and_the_file() -> None:
    orders = ["fifo", "mine.py:Mine", "las"]
    Path("mine.py").write_text(
        "from algorithms.ordering.tiresias import LeastAttainedService\n\n\n"
        "class Mine(LeastAttainedService):\n    pass\n"
    )
    assert list(plan(policies=[{"order": orders}], baseline="Mine").policies) == ["fifo", "Mine", "las"]
    whole = plan(policies=[{"order": orders}], baseline="lwf:kappa=1 + mine.py:Mine + adadual")
    assert whole.baseline == "Mine"
    alone = plan(policies=[{"order": "fifo"}]).policies
    assert list(alone) == ["lwf:kappa=1 + fifo + adadual"]
    mixed = plan(policies=["ada-srsf", {"placement": ["first-fit", "random"]}, {"name": "my own", "order": "fifo"}])
    assert list(mixed.policies) == ["ada-srsf", "first-fit + srsf", "random + srsf", "my own"]


def test_item_22_labels_that_would_be_alike_stay_whole() -> None:
    for folder in ("a", "b"):
        Path(folder).mkdir()
        Path(folder, "p.py").write_text("from algorithms.ordering.fifo import FirstInFirstOut as Mine\n")
    found = list(plan(policies=[{"order": ["a/p.py:Mine", "b/p.py:Mine"]}]).policies)
    assert found == ["lwf:kappa=1 + a/p.py:Mine + adadual", "lwf:kappa=1 + b/p.py:Mine + adadual"]


def test_the_plan_as_yaml_asks_for_the_same():
    asked = plan(
        policies=["srsf-1", {"placement": ["lwf", "random"]}],
        workloads=[SMALL, "microsoft-160"],
        seeds="3-5",
        servers=[8, 16],
        topology=["star", "leaf-spine:servers_per_leaf=4"],
        contention="max-min",
        options={"load_per_byte_s": 7.8125e-9},
        baseline="lwf + srsf + adadual",
        timeline="10:50",
    )
    again = ComparisonPlan(of_yaml(asked.as_yaml()))
    assert again.described() == asked.described()
    assert again.runs() == asked.runs()


# ---- YAML files


GOOD = """
workloads: microsoft-160:scale=0.002
policies: [srsf-1, {name: mine, order: fifo}]
"""


def test_a_yaml_file():
    settings = of_yaml(GOOD + "seeds: 0-3\nservers: [8, 16]\ngpu_memory_mb: 16_000\ntimeline: [1, 2]\n")
    assert (settings.seeds, settings.servers, settings.gpu_memory_mb) == ([0, 1, 2, 3], [8, 16], 16000.0)
    assert list(settings.named_policies) == ["srsf-1", "mine"]


FAULTY = """\
workloads:
  - microsoft-160:scale=0.002
  - microsof-160
policies:
  - ada-srs
  - placment: lwf
  - order:
      - fifo
      - las:x=1
seeds: 0-x
servers: [4, 0, yes]
gpu_memory_mb: .inf
baselin: srsf-1
options:
  load_per_byte: 3
timeline: 10:50
"""


def test_every_fault_of_a_yaml_file_is_reported_with_line_and_field():
    found = {fault.partition(": ")[0]: fault for fault in faults_of_yaml(FAULTY)}
    expected = {
        "line 3, field workloads[1]": "Did you mean 'microsoft-160'?",
        "line 5, field policies[0].scheduler": "Did you mean 'ada-srsf'?",
        "line 6, field policies[1].placment": "Did you mean 'placement'",
        "line 9, field policies[2].order[1]": "no parameter is named 'x'",
        "line 10, field seeds": "is '0-x'; expected how many (20), a range (0-19) or a list (1,5,9)",
        "line 11, field servers[1]": "is 0; input should be greater than 0",
        "line 11, field servers[2]": "is True; input should be a valid integer",
        "line 12, field gpu_memory_mb": "is inf; input should be a finite number",
        "line 13, field baselin": "Did you mean 'baseline'",
        "line 15, field options.load_per_byte": "Did you mean 'load_per_byte_s'?",
        "line 16, field timeline": "expected [FROM, TO] in seconds",
    }
    assert set(found) == {f"compare.yaml, {place}" for place in expected}
    for place, part in expected.items():
        assert part in found[f"compare.yaml, {place}"]


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("", ["compare.yaml: holds no fields"]),
        ("- a\n", ["compare.yaml: holds no fields"]),
        ("seeds: [1\n", ["compare.yaml, line 2: is no YAML"]),
        ("a: b: c\n", ["compare.yaml, line 1: is no YAML"]),
        ("--- a\n--- b\n", ["is no YAML"]),
        ("policies: [srsf-1]\n", ["compare.yaml, line 1, field workloads: is missing"]),
        (GOOD + "seeds: 3\nseeds: 4\n", ["compare.yaml, line 5, field seeds: is there twice"]),
        (GOOD + "options: {a: 1,\n  a: 2}\n", ["compare.yaml, line 5, field a: is there twice"]),
        (GOOD + "options: 3\n", ["line 4, field options: is 3"]),
        (GOOD + "seeds: !!python/object/apply:os.system [ls]\n", ["line 4: is no YAML (could not determine a constr"]),
        (GOOD + "seeds: &a [*a]\n", ["line 4, field seeds"]),
        (GOOD + "seeds:\n", ["line 4, field seeds: is None; expected"]),
        ("\x00", ["is no YAML"]),
    ],
)
def test_bad_yaml(text, parts):
    faults = "\n".join(faults_of_yaml(text))
    for part in parts:
        assert part in faults


def test_a_yaml_file_that_cannot_be_read(tmp_path):
    with pytest.raises(InputError, match=r"nowhere.yaml: no such file; expected "):
        read_yaml(Path("nowhere.yaml"))
    Path("latin.yaml").write_bytes("seeds: é".encode("latin-1"))
    with pytest.raises(InputError, match=r"latin.yaml: is no YAML"):
        read_yaml(Path("latin.yaml"))


def test_a_bomb_of_aliases_is_refused_quickly():
    levels = "\n".join(f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]" for n in range(1, 12))
    faults = faults_of_yaml(f"a0: &a0 [x]\n{levels}\npolicies: *a11\nworkloads: *a11\n")
    assert all(len(fault) < 400 for fault in faults)


def test_a_users_file_that_cannot_be_imported_is_the_files_fault():
    Path("mine.py").write_text("1 / 0")
    with pytest.raises(PluginError, match="ZeroDivisionError"):
        of_yaml("workloads: microsoft-160:scale=0.002\npolicies: [{placement: mine.py:Mine}]\n")


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"workloads": ["elastic-mix"]}, "'ada-srsf' on workload 'elastic-mix': has no allocation"),
        ({"policies": [{"allocation": "elastic-scaling"}]}, "has an allocation, but none of the jobs is elastic"),
        ({"options": {"rescale_cost": "restart_s=-2"}}, r"^\('options', 'rescale_cost'\): rescale cost"),
        (
            {"options": {"capacity": "nowhere.csv", "warmup_s": 1}},
            r"^\('options', 'capacity'\): nowhere.csv: no such file",
        ),
    ],
)
def test_what_no_run_could_do_is_known_before_the_first(given, said):
    with pytest.raises(InputError, match=said):
        plan(**given).try_out(str)


def test_a_table_of_servers_is_read_where_it_is_named() -> None:
    with pytest.raises((InputError, ValidationError), match=r"none\.csv"):
        TypeAdapter(fields.ServerTable).validate_python("none.csv")
