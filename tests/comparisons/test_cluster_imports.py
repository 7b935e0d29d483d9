"""Files of Kueue, Volcano, KAI and Slurm become queues, servers and jobs; what-if says who gains."""

from __future__ import annotations

import copy
import json
import math
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import yaml
from command_line import refused, run

from ddlsched import (
    Cluster,
    Quota,
    Tenants,
    Workload,
    microsoft_160,
    read_cluster,
    read_tenants,
    read_workload,
    simulate,
)
from ddlsched.cluster.cluster import Server, Throughputs
from ddlsched.cluster.tenants import Queue
from ddlsched.comparisons.cluster_imports import ImportedCluster, kueue, slurm, write_imported
from ddlsched.comparisons.cluster_imports.kubernetes import ObjectFields
from ddlsched.comparisons.cluster_imports.kueue import read_kueue
from ddlsched.comparisons.cluster_imports.volcano_kai import read_kai, read_volcano
from ddlsched.comparisons.what_if import changed, what_if
from ddlsched.errors import InputError
from ddlsched.workload import workload_files
from ddlsched.workload.traces.traced import TracedJob
from ddlsched.workload.workload_files import write_workload

EXAMPLE = Path(__file__).parents[2] / "docs" / "examples" / "kueue_cluster"


@pytest.fixture(autouse=True)
def _in_a_new_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def imported(scheduler: str, source: Path, *flags: str) -> str:
    said = run("import-cluster", scheduler, str(source), "--out", "o", *flags)
    return said.stdout


def test_kueue() -> None:
    said = imported("kueue", EXAMPLE)
    assert "3 queues, 4 servers, 12 jobs" in said
    tenants = read_tenants("o/queues.yaml")
    assert tenants.leaves == ("team-a", "team-b")
    team_b = tenants.by_name["team-b"]
    assert team_b.quotas == {"any": Quota(gpus=24, borrowing_limit=8, lending_limit=16)}
    assert (team_b.preemption.borrow, team_b.preemption.borrow_max_priority) == ("lower-priority", 5)
    cluster, jobs = read_cluster("o/servers.csv"), read_workload("o/jobs.csv")
    assert (cluster.num_gpus, cluster.exclusive) == (32, True)
    second = jobs[1]
    assert (second.job_id, second.num_gpus, second.priority) == ("team-b/train-1", 16, 1)
    assert (second.arrival_s, second.queue, second.user) == (300.0, "team-b", "bob")


def test_several_flavors_are_kinds_of_gpu() -> None:
    flavors = [{"name": n, "resources": [{"name": "nvidia.com/gpu", "nominalQuota": 8}]} for n in ("old", "new")]
    api = "kueue.x-k8s.io/v1beta2"
    objects = [
        *(
            {"kind": "ResourceFlavor", "apiVersion": api, "metadata": {"name": n}, "spec": {"nodeLabels": {"gen": n}}}
            for n in ("old", "new")
        ),
        {
            "kind": "ClusterQueue",
            "apiVersion": api,
            "metadata": {"name": "q"},
            "spec": {"resourceGroups": [{"flavors": flavors}], "cohortName": "q", "fairSharing": {"weight": "500m"}},
        },
        *(
            {
                "kind": "Node",
                "metadata": {"name": n, "labels": {"gen": n}},
                "status": {"allocatable": {"nvidia.com/gpu": "8"}},
            }
            for n in ("new", "old")
        ),
        {
            "kind": "Workload",
            "apiVersion": api,
            "metadata": {"name": "w", "annotations": {"ddlsched.io/duration-s": "100"}},
            "spec": {
                "queueName": "l",
                "podSets": [
                    {
                        "count": 2,
                        "template": {"spec": {"containers": [{"resources": {"limits": {"nvidia.com/gpu": 4}}}]}},
                    }
                ],
            },
            "status": {"admission": {"clusterQueue": "q"}},
        },
    ]
    Path("all.json").write_text(json.dumps({"kind": "List", "items": objects}))
    assert "kueue:fair_sharing=true" in imported("kueue", Path("all.json"))
    tenants = read_tenants("o/queues.yaml")
    assert (tenants.leaves, tenants.by_name["q"].parent) == (("q",), "cohort q")
    assert (list(tenants.by_name["q"].quotas), tenants.by_name["q"].weight) == (["old", "new"], 0.5)
    assert pd.read_csv("o/servers.csv")["gpu_kind"].tolist() == ["new", "old"]
    (job,) = read_workload("o/jobs.csv")
    assert job.num_gpus == 8


TOPOLOGY = """
kind: Topology
apiVersion: kueue.x-k8s.io/v1beta1
metadata: {name: t}
spec: {levels: [{nodeLabel: cloud/block}, {nodeLabel: cloud/rack}, {nodeLabel: kubernetes.io/hostname}]}
---
kind: ClusterQueue
apiVersion: kueue.x-k8s.io/v1beta1
metadata: {name: q}
spec: {resourceGroups: [{flavors: [{name: f, resources: [{name: nvidia.com/gpu, nominalQuota: 40}]}]}]}
"""
NODE = """
---
kind: Node
metadata: {{name: n{number}, labels: {labels}}}
status: {{allocatable: {{nvidia.com/gpu: "8"}}}}
"""
WORKLOAD = """
---
kind: Workload
apiVersion: kueue.x-k8s.io/v1beta1
metadata: {{name: w{number}, annotations: {{ddlsched.io/duration-s: "100"}}}}
spec:
  podSets:
  - count: 4
    {request}
    template:
      metadata: {{annotations: {annotations}}}
      spec: {{containers: [{{resources: {{limits: {{nvidia.com/gpu: 4}}}}}}]}}
status: {{admission: {{clusterQueue: q}}}}
"""


def test_topologies_of_kueue_are_levels_and_pods_ask_for_them() -> None:
    labels = [
        "{cloud/block: b1, cloud/rack: r1}",
        "{cloud/block: b2, cloud/rack: r1}",
        "{cloud/block: b1, cloud/rack: r1}",
        "{cloud/block: b1, cloud/rack: r2}",
        "{}",
    ]
    kueue = "kueue.x-k8s.io/podset-"
    asked = [
        ("topologyRequest: {required: cloud/rack}", "{}"),
        (
            "",
            f"{{{kueue}preferred-topology: cloud/block, {kueue}slice-required-topology: kubernetes.io/hostname, "
            f"{kueue}slice-size: '2'}}",
        ),
        ("topologyRequest: {unconstrained: true}", "{}"),
    ]
    nodes = "".join(NODE.format(number=number, labels=of) for number, of in enumerate(labels))
    workloads = "".join(
        WORKLOAD.format(number=number, request=request, annotations=notes)
        for number, (request, notes) in enumerate(asked)
    )
    Path("all.yaml").write_text(TOPOLOGY + nodes + workloads)
    assert "--placement kueue-topology" in imported("kueue", Path("all.yaml"))
    cluster, jobs = read_cluster("o/servers.csv"), read_workload("o/jobs.csv")
    assert cluster.levels == {"cloud/rack": (0, 1, 1, 2, 3), "cloud/block": (0, 1, 1, 1, 2)}, "n4, n0, n2, n3, n1"
    assert [(job.required_levels, job.preferred_levels) for job in jobs] == [
        ("cloud/rack", None),
        ("8:server", "cloud/block"),
        (None, None),
    ]
    result = simulate(jobs, cluster, placement="kueue-topology", queues="o/queues.yaml", admission="kueue")
    assert {gpu // 8 for gpu in result.gpus_of("w0")} == {1, 2}, "the only rack with 16 GPUs"
    workloads = WORKLOAD.format(number=0, request="topologyRequest: {required: cloud/zone}", annotations="{}")
    Path("all.yaml").write_text(TOPOLOGY + nodes + workloads)
    refused(
        run("import-cluster", "kueue", "all.yaml"),
        "required: is 'cloud/zone'; expected a level of the topology: cloud/block, cloud/rack",
    )


VOLCANO = """
kind: Queue
apiVersion: scheduling.volcano.sh/v1beta1
metadata: {name: dev}
spec: {weight: 2, capability: {nvidia.com/gpu: 12}, deserved: {nvidia.com/gpu: 8},
  guarantee: {resource: {nvidia.com/gpu: 2}}}
---
kind: PriorityClass
metadata: {name: high}
value: 7
---
kind: Job
apiVersion: batch.volcano.sh/v1alpha1
metadata: {name: j, namespace: ann, creationTimestamp: "2025-05-01T10:00:00Z"}
spec:
  queue: dev
  priorityClassName: high
  tasks: [{replicas: 2, template: {spec: {containers: [{resources: {limits: {nvidia.com/gpu: 4}}}]}}}]
status:
  conditions:
  - {status: Running, lastTransitionTime: "2025-05-01T10:10:00Z"}
  - {status: Completed, lastTransitionTime: "2025-05-01T11:10:00Z"}
"""
KAI = """
kind: Queue
apiVersion: scheduling.run.ai/v2
metadata: {name: department}
spec: {resources: {gpu: {quota: 12, limit: -1, overQuotaWeight: 1}}}
---
kind: Queue
apiVersion: scheduling.run.ai/v2
metadata: {name: team}
spec: {parentQueue: department, resources: {gpu: {quota: 8, limit: 10, overQuotaWeight: 3}}}
---
kind: PodGroup
apiVersion: scheduling.run.ai/v2alpha2
metadata: {name: g, annotations: {ddlsched.io/gpus: "4", ddlsched.io/duration-s: "60"}}
spec: {queue: team, minMember: 4}
"""
KAI_PODS = """
---
kind: PodGroup
apiVersion: scheduling.run.ai/v2alpha2
metadata: {name: h, annotations: {ddlsched.io/duration-s: "60"}}
spec: {queue: team}
""" + "".join(
    f"""
---
kind: Pod
apiVersion: v1
metadata: {{name: pod-{number}, annotations: {{pod-group-name: {group}}}}}
spec: {{containers: [{{resources: {{limits: {{nvidia.com/gpu: "{gpus}"}}}}}}]}}
"""
    for number, (group, gpus) in enumerate([("h", 2), ("h", 3), ("g", 1), ("other", 1)])
)


def test_volcano() -> None:
    Path("v.yaml").write_text(VOLCANO)
    assert "volcano:plugin=capacity" in imported("volcano", Path("v.yaml"))
    queue = read_tenants("o/queues.yaml").by_name["dev"]
    assert queue.quotas == {"any": Quota(gpus=8, borrowing_limit=4, lending_limit=6)}
    (job,) = read_workload("o/jobs.csv")
    assert (job.num_gpus, job.priority, job.queue, job.user) == (8, 7, "dev", "ann")
    Path("v.yaml").write_text(VOLCANO.replace("weight: 2, ", ""))
    imported("volcano", Path("v.yaml"))
    assert (queue.weight, read_tenants("o/queues.yaml").by_name["dev"].weight) == (2.0, 1.0)


def test_kai() -> None:
    Path("k.yaml").write_text(KAI)
    imported("kai", Path("k.yaml"))
    tenants = read_tenants("o/queues.yaml")
    assert tenants.by_name["department"].quotas["any"].gpus == 4  # beyond its team's 8
    assert tenants.by_name["team"].quotas["any"] == Quota(gpus=8, borrowing_limit=2)
    assert tenants.by_name["team"].weight == 3
    assert [job.num_gpus for job in read_workload("o/jobs.csv")] == [4]


def test_nodes_of_kubernetes_that_take_no_pods_are_left_out() -> None:
    states = "Ready", "cordoned", "Ready", "Unknown", "False"
    Path("k.yaml").write_text("\n---\n".join((KAI, *map(node_of_kubernetes, states))))
    for read in (read_kai, read_volcano, read_kueue):
        found = read(Path("k.yaml"))
        assert [server.gpus for server in found.servers] == [8, 8]
        assert "3 nodes left out, which take no pods: unschedulable, or not ready" in found.notes


def node_of_kubernetes(state: str) -> str:
    """Return a node of 8 GPUs that is ready, perhaps cordoned, or of whose condition "Ready" a state is told."""
    ready = "True" if state in ("Ready", "cordoned") else state
    node = {
        "kind": "Node",
        "metadata": {"name": "n"},
        "spec": {"unschedulable": True} if state == "cordoned" else {},
        "status": {"allocatable": {"nvidia.com/gpu": "8"}, "conditions": [{"type": "Ready", "status": ready}]},
    }
    return yaml.safe_dump(node)


def test_a_group_of_kai_has_the_gpus_of_its_pods_unless_told() -> None:
    Path("k.yaml").write_text(KAI + KAI_PODS)
    imported("kai", Path("k.yaml"))
    assert sorted(job.num_gpus for job in read_workload("o/jobs.csv")) == [4, 2 + 3]


def test_slurm() -> None:
    Path("s").mkdir()
    Path("s/assoc").write_text(
        "Account|User|ParentName|Share|GrpTRES\nroot|||1|\nbio||root|3|gres/gpu=12\nbio|eve||1|\n"
    )
    Path("s/jobs").write_text(
        "JobID|User|Account|Submit|Start|End|AllocTRES|Timelimit\n"
        "7|eve|bio|2025-05-01T10:00:00|2025-05-01T10:01:00|2025-05-01T12:01:00|cpu=8,gres/gpu=4|1-00:00:00\n"
        "7.batch||bio|2025-05-01T10:00:00|2025-05-01T10:01:00|2025-05-01T12:01:00|cpu=8|\n"
        "8|eve|bio|2025-05-01T10:00:00|Unknown|Unknown|cpu=8,gres/gpu=4|UNLIMITED\n"
    )
    Path("s/nodes").write_text("NodeName=n1 Arch=x\n   Gres=gpu:h100:8(S:0-1)\n\nNodeName=n2\n   Gres=(null)\n")
    said = imported("slurm", Path("s"))
    assert "1 servers, 1 jobs" in said
    assert "--admission slurm-multifactor:backfill=slurm-backfill:placement=whole-servers " in said
    queue = read_tenants("o/queues.yaml").by_name["bio"]
    assert (queue.weight, queue.quotas["any"].borrowing_limit) == (3.0, 12)
    (job,) = read_workload("o/jobs.csv")
    assert (job.num_gpus, job.time_limit_s) == (4, 86_400.0)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("1-02:03:04", 93_784.0), ("00:00:07", 7.0), ("0:01:00", 60.0), ("10:00:00", 36_000.0), ("2-00:00:01", 172_801.0)],
)
def test_a_limit_of_slurm_is_days_hours_minutes_and_seconds(text: str, seconds: float) -> None:
    assert slurm._limit_s(text) == seconds


@pytest.mark.parametrize("text", ["UNLIMITED", "", "1:2", "1-2:3:456", "Partition_Limit"])
def test_what_is_no_limit_of_slurm_is_none(text: str) -> None:
    assert math.isnan(slurm._limit_s(text))


def test_accounts_of_slurm_without_a_limit_use_what_is_free_and_those_with_one_wait_for_it() -> None:
    Path("s").mkdir()
    Path("s/assoc").write_text("Account|User|Par Name|Share|GrpTRES\nroot|||1|\nlab||root|1|gres/gpu=8\nbio||lab|1|\n")
    day = "2025-05-01T1"
    Path("s/jobs").write_text(
        "JobID|User|Account|Submit|Start|End|AllocTRES|Timelimit\n"
        f"1|eve|bio|{day}0:00:00|{day}0:00:00|{day}0:10:00|gres/gpu:a100-sxm=8|\n"
        f"2|eve|bio|{day}0:00:00|{day}0:10:00|{day}0:20:00|gres/gpu=8|\n"
        f"3|eve|bio|{day}0:00:00|{day}0:10:00|Unknown|gres/gpu=8|\n"
        f"4|eve|lab|{day}0:00:00|{day}0:00:00|{day}0:10:00|gres/gpu=8|\n"
    )
    Path("s/nodes").write_text("NodeName=n1 Gres=gpu:8\n\nNodeName=n2 Gres=gpu:8\n")
    said = run("import-cluster", "slurm", "s", "--out", "o")
    assert "--admission slurm-multifactor --server-table" in said.stdout  # no backfill: jobs without limits
    assert said.stdout.endswith(" --placement whole-servers\n")
    assert "3 queues, 2 servers, 2 jobs in o" in said.stdout  # of job 3 no end is known, job 4 is of no lowest account
    assert "1 rows of jobs left out" in said.stderr
    assert "1 jobs left out, of which no duration is known; give --default-s" in said.stderr
    queues = read_tenants("o/queues.yaml")
    given = {"queues": queues, "admission": "slurm-multifactor"}
    found = simulate(read_workload("o/jobs.csv"), read_cluster("o/servers.csv"), **given)
    assert found.jobs["queueing_s"].round().tolist() == [0, 600]
    free = tuple(replace(queue, quotas={}) if queue.name == "lab" else queue for queue in queues.queues)
    given["queues"] = Tenants(queues=free)
    found = simulate(read_workload("o/jobs.csv"), read_cluster("o/servers.csv"), **given)
    assert found.jobs["queueing_s"].tolist() == [0, 0]


def test_names_of_slurm_jobs_are_any_bytes_and_gpus_of_all_kinds_count() -> None:
    Path("s").mkdir()
    Path("s/assoc").write_text("Account|Share|GrpTRES\n bio|1|gres/gpu:a100=4,gres/gpu:h100=8\n")
    when = b"2025-05-01T10:00:00|2025-05-01T10:00:00|2025-05-01T10:10:00"
    rows = [
        b"JobID|JobName|Account|Submit|Start|End|AllocTRES",
        b"1|caf\xe9|bio|%b|gres/gpu:a100=3,gres/gpu:h100=2,gres/gpu=5" % when,
        b"2|a|b|bio|%b|gres/gpu=4" % when,
        b"3|c|bio|%b|gres/gpu:a100=3,gres/gpu:h100=1" % when,
    ]
    Path("s/jobs").write_bytes(b"\n".join(rows))
    said = run("import-cluster", "slurm", "s", "--out", "o")
    assert "1 rows of jobs left out" in said.stderr
    assert [job.num_gpus for job in read_workload("o/jobs.csv")] == [5, 4]
    assert read_tenants("o/queues.yaml").by_name["bio"].quotas["any"].borrowing_limit == 12
    Path("s/jobs").write_bytes(b"\n".join(rows[::2]))
    refused(run("import-cluster", "slurm", "s"), "no job whose duration is known", "1 rows of jobs left out")
    Path("s/jobs").write_bytes(b"\n".join(rows).replace(b"2025-05-01T10:10:00", b"10:10"))
    refused(run("import-cluster", "slurm", "s"), "job 1: End: time '10:10': is none")


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("kind: [", "is no YAML"),
        ("kind: ClusterQueue\napiVersion: kueue.x-k8s.io/v1\nspec: {}", "metadata.name: is None; expected a text"),
        ("kind: Node\nmetadata: {name: n}", "hold no queues"),
        (
            "kind: ClusterQueue\napiVersion: kueue.x-k8s.io/v1\nmetadata: {name: q}\n"
            "spec: {preemption: {withinClusterQueue: Sometimes}}",
            "bad.yaml: ClusterQueue 'q': spec.preemption.withinClusterQueue: is 'Sometimes'; expected one of",
        ),
    ],
)
def test_bad_files_are_one_line(text: str, part: str) -> None:
    Path("bad.yaml").write_text(text)
    refused(run("import-cluster", "kueue", "bad.yaml"), part)


@pytest.mark.parametrize("taken", ["o", "o/servers.csv", "o/queues.yaml", "o/jobs.csv"])
def test_a_folder_that_cannot_be_written_is_one_line(taken: str) -> None:
    if taken == "o":
        Path(taken).touch()
    else:
        Path(taken).mkdir(parents=True)
    refused(run("import-cluster", "kueue", str(EXAMPLE), "--out", "o"), f"{taken}: ", "expected a ")


@pytest.mark.long
def test_compare_holds_admissions_against_each_other_and_stops_are_not_said_to_be_by_the_order() -> None:
    imported("kueue", EXAMPLE)
    flags = ["--server-table", "o/servers.csv", "--restart-s", "30", "--admission", "kueue"]
    given = ["o/jobs.csv", "--queues", "o/queues.yaml", *flags]
    found = run("compare", *given, "--admission", "kai", "--processes", "1", "--json").stdout
    assert {row["policy"] for row in json.loads(found)["comparison"]} == {"kueue", "kai"}
    refused(run("compare", "o/jobs.csv", "--queues", "nowhere.yaml", *flags), "--queues: nowhere.yaml: no such file")
    said = run("simulate", *given).stdout
    assert "stops by a policy" in said
    assert "by the order" not in said


@pytest.mark.long
def test_what_if_says_who_gains() -> None:
    imported("kueue", EXAMPLE)
    flags = ["--queues", "o/queues.yaml", "--server-table", "o/servers.csv"]
    said = run("what-if", "o/jobs.csv", *flags, "--change", "servers=+2", "--change", "quota.team-a=+16").stdout
    assert "gain: team-a" in said
    refused(run("what-if", "o/jobs.csv", *flags, "--change", "seed-not=1"), "nothing is called so")
    same = json.loads(run("what-if", "o/jobs.csv", *flags, "--change", "until_s=1e9", "--json").stdout)
    assert {row["jct_change"] for row in same["tenants"]} == {0.0}
    assert [row["queue"] for row in same["tenants"]] == ["team-a", "team-b", "all"]
    refused(run("what-if", "o/jobs.csv", *flags, "--change", "servers=+2", "--draws", "0"), "expected 1 or more")


def test_what_if_draws_jobs_by_the_seed_of_the_run_which_is_0_unless_told(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []
    monkeypatch.setattr(workload_files, "workload_of", lambda jobs, seed: asked.append((jobs, seed)) or Workload.of([]))
    for flags in ([], ["--seed", "3"]):
        run("what-if", "microsoft-160:scale=0.01", *flags, "--change", "servers=+2")
    assert asked == [("microsoft-160:scale=0.01", 0), ("microsoft-160:scale=0.01", 3)]


def test_what_if_runs_once_unless_told() -> None:
    jobs = Workload.of([replace(microsoft_160(seed=1, scale=0.01)[4], queue="a")])
    assert len(what_if(jobs, {}, ["until_s=1e9"]).pairs) == 1
    with pytest.raises(InputError, match="no job has a queue"):
        what_if(microsoft_160(seed=1, scale=0.01), {}, ["until_s=1e9"])


@pytest.mark.long
def test_what_if_of_several_draws_has_intervals_and_leaves_undecided_what_they_do_not_tell() -> None:
    imported("kueue", EXAMPLE)
    flags = ["--queues", "o/queues.yaml", "--server-table", "o/servers.csv", "--change", "quota.team-a=+16", "--json"]
    rows = {
        row["queue"]: row for row in json.loads(run("what-if", "o/jobs.csv", *flags, "--draws", "6").stdout)["tenants"]
    }
    few = json.loads(run("what-if", "o/jobs.csv", *flags, "--draws", "2").stdout)["tenants"]
    assert (rows["team-a"]["verdict"], rows["team-b"]["verdict"]) == ("better", "worse")
    assert all(row["jct_change_low"] < row["jct_change"] < row["jct_change_high"] for row in rows.values())
    assert {row["verdict"] for row in few} == {"undecided"}


def test_changes() -> None:
    imported("kueue", EXAMPLE)
    given = {"queues": "o/queues.yaml", "cluster": read_cluster("o/servers.csv")}
    assert changed(given, ["servers=+2"])["cluster"].num_servers == 6
    assert changed(given, ["servers=3"])["cluster"].num_gpus == 24
    assert changed(given, ["quota.team-a=-3"])["queues"].by_name["team-a"].quotas["any"].gpus == 5
    assert changed(given, ["exclusive=false", "seed-s=1"][:1])["cluster"].exclusive is False
    assert changed(given, ["admission=kai"])["admission"] == "kai"
    with pytest.raises(InputError, match="the run has no queues"):
        changed({}, ["quota.team-a=1"])
    assert changed(given, ["restart-s=5"])["disturbances"].restart_s == 5.0
    for bad in ("servers", "servers=many", "quota.x=1", "nothing=1", "until_s=soon", "restart_s=soon", "draw=1"):
        with pytest.raises(InputError):
            changed(given, [bad])


def test_a_change_that_leaves_no_server_or_that_a_table_of_servers_makes_void_is_refused() -> None:
    imported("kueue", EXAMPLE)
    table = {"cluster": read_cluster("o/servers.csv")}
    for given in (table, {}):
        for none in ("servers=0", "servers=-16"):
            with pytest.raises(InputError, match=rf"--change {none}: leaves -?\d+ servers; expected 1 or more"):
                changed(given, [none])
    for void in ("gpus_per_server=16", "gpu-memory-mb=1"):
        with pytest.raises(InputError, match=f"--change {void}: the servers are those of a table"):
            changed(table, [void])
    assert changed({}, ["gpus_per_server=16"])["cluster"].gpus_per_server == 16


def test_another_table_of_servers_keeps_the_throughputs() -> None:
    Path("kinds.csv").write_text("gpus,gpu_memory_mb,gpu_kind\n8,80000,k80\n")
    throughputs = Throughputs(values=(("lstm", "v100", 30.0), ("lstm", "k80", 15.0)), reference_kind="v100")
    before = Cluster(servers=[Server(gpus=8, gpu_memory_mb=80_000, gpu_kind="v100")], throughputs=throughputs)
    assert changed({"cluster": before}, ["server_table=kinds.csv"])["cluster"].throughputs == throughputs


@pytest.mark.long
def test_what_if_counts_the_jobs_that_a_run_counts() -> None:
    jobs = Workload.of([replace(job, queue="a") for job in microsoft_160(seed=1, scale=0.005)])
    rows = what_if(jobs, {"warmup_s": 5.0}, ["servers=+1"]).tenants()
    counted = sum(job.arrival_s >= 5.0 for job in jobs)
    assert rows["jobs"].tolist() == [counted, counted]
    with pytest.raises(InputError, match="no job that counts finished in both runs"):
        what_if(jobs, {}, ["until_s=0.02"]).tenants()


@pytest.mark.long
def test_every_queue_has_a_row_also_one_named_all_and_one_that_finishes_nothing() -> None:
    one, other, never = list(microsoft_160(seed=1, scale=0.05))[:3]
    late = replace(never, queue="late", arrival_s=1e6)
    jobs = Workload.of([replace(one, queue="all"), replace(other, queue="b"), late])
    for draws in (1, 2):
        rows = what_if(jobs, {"until_s": 1e6}, ["servers=+1"], draws=draws).tenants()
        assert list(zip(rows.index, rows["jobs"], strict=True)) == [("all", 1), ("b", 1), ("late", 0), ("all", 2)]
        assert rows["jct_change"].isna().tolist() == [False, False, True, False]
    write_workload(jobs, Path("jobs.csv"))
    said = run("what-if", "jobs.csv", "--until-s", "1e6", "--change", "servers=+1").stdout
    assert [line.split()[0] for line in said.splitlines()[3:7]] == ["all", "b", "late", "all"]
    assert " nan" not in said


@pytest.mark.long
def test_a_queue_that_finishes_nothing_in_some_draws_has_the_mean_of_the_others() -> None:
    one, other = list(microsoft_160(seed=1, scale=0.05))[:2]
    jobs = Workload.of([replace(one, queue="a"), replace(other, queue="b")])
    ends = pd.DataFrame([simulate(jobs, draw=draw).jobs["finish_s"] for draw in range(6)])
    late = int(ends.mean().argmax())
    rows = what_if(jobs, {}, [f"until_s={ends[late].median()}"], draws=6).tenants()
    assert rows.loc["ab"[late], ["jct_change", "verdict"]].tolist() == [0.0, "undecided"]
    assert rows["jct_change"].tolist() == [0.0, 0.0, 0.0]


def test_an_object_whose_fields_are_none_is_named() -> None:
    Path("v.yaml").write_text(VOLCANO.partition("spec:")[0] + "spec: 3\n")
    refused(run("import-cluster", "volcano", "v.yaml"), "Queue 'dev': spec: is 3; expected fields")


ASKED = "topologyRequest: {required: cloud/rack}"
WHOLE = (
    TOPOLOGY
    + NODE.format(number=0, labels="{nvidia.com/gpu.memory: 9}")
    + WORKLOAD.format(number=0, request=ASKED, annotations="{}")
)
WRONG = (10**5000, [[1]], float("nan"), {1: 2}, "x", -1, True, None, 1e300)


def _places(value: Any, at: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    inside = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for name, each in inside:
        yield (*at, name)
        yield from _places(each, (*at, name))


@pytest.mark.parametrize(("read", "text"), [(read_kueue, WHOLE), (read_volcano, VOLCANO), (read_kai, KAI)])
def test_a_field_that_is_anything_else_is_refused_with_file_and_field_or_of_no_matter(
    read: Any, text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    refusals, told = set(), list(yaml.safe_load_all(text))
    for number, at in enumerate(_places(told)):
        documents = inside = copy.deepcopy(told)
        for name in at[:-1]:
            inside = inside[name]
        inside[at[-1]] = WRONG[number % len(WRONG)]
        monkeypatch.setattr(yaml, "load_all", lambda *_, held=documents, **__: held)
        try:
            read(Path(__file__))
        except InputError as error:
            refusals.add(str(error))
    assert len(refusals) > 8
    assert all(len(line) < 300 and line.startswith(f"{__file__}: ") and "; expected " in line for line in refusals)


@pytest.mark.parametrize(
    "text",
    ["!!bool x", "!!timestamp x", "!!int ''", "a: [b", "0x: !!python/object:os.system 1", "a: 1:" + "1:" * 190 + "1.5"],
)
def test_what_yaml_itself_stumbles_over_is_one_line(text: str) -> None:
    Path("bad.yaml").write_text(text)
    refused(run("import-cluster", "kueue", "bad.yaml"), "bad.yaml", "is no YAML")
    with pytest.raises(InputError, match="is no YAML"):
        read_tenants("bad.yaml")


def test_a_time_has_no_unit() -> None:
    """``4m`` are four thousandths of a GPU, but ``10m`` is no time."""
    Path("k.yaml").write_text(KAI.replace('duration-s: "60"', "duration-s: 10m"))
    refused(run("import-cluster", "kai", "k.yaml"), "ddlsched.io/duration-s", "10m", "expected a number without a unit")


def test_aliases_do_not_make_an_error_long() -> None:
    lists = "".join(f"- &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]\n" for n in range(1, 8))
    head = f"kind: ClusterQueue\napiVersion: kueue.x-k8s.io/v1\nb:\n- &a0 [x]\n{lists}"
    for metadata in ("*a7", "{name: *a7}"):
        Path("bad.yaml").write_text(f"{head}metadata: {metadata}\n")
        said = run("import-cluster", "kueue", "bad.yaml")
        refused(said, "metadata")
        assert len(said.stderr) < 400
    for queue in ("{name: a, weight: *a7}", "{name: a, order: *a7}", "{name: a, parent: *a7}", "*a7"):
        Path("bad.yaml").write_text(f"queues:\n- {{name: b, gpus: &a0 [x]}}\n{lists}- {queue}\n")
        with pytest.raises(InputError) as refusal:
            read_tenants("bad.yaml")
        assert len(str(refusal.value)) < 400


def test_nodes_of_slurm_that_take_no_jobs_are_left_out_and_jobs_told_twice_count_once() -> None:
    Path("s").mkdir()
    Path("s/assoc").write_text("Account|Share|GrpTRES\nbio|1|\n")
    when = "2025-05-01T10:00:00|2025-05-01T10:00:00|"
    header = "JobID|Account|Submit|Start|End|AllocTRES\n"
    Path("s/april").write_text(f"{header}1|bio|{when}Unknown|gres/gpu=4\n")
    Path("s/may").write_text(f"{header}1|bio|{when}2025-05-01T10:10:00|gres/gpu=4\n")
    states = "IDLE", "MIXED+DRAIN", "DOWN*", "IDLE+POWERED_DOWN", "ALLOCATED+FAILING", "FUTURE", "MIXED*+PLANNED"
    Path("s/nodes").write_text("\n".join(f"NodeName=n Gres=gpu:8\n   State={s} Threads=1\n" for s in states))
    Path("s/sinfo").write_text("PARTITION AVAIL\ngpu up\n")
    said = run("import-cluster", "slurm", "s", "--out", "o")
    assert "2 queues, 3 servers, 1 jobs in o" in said.stdout
    assert said.stderr.splitlines() == [
        "ddlsched: s/sinfo: left out: holds no nodes with GPUs and no table, as -P prints it",
        "ddlsched: 1 rows of jobs left out: steps, without GPUs, never started, of no lowest account, told twice, or "
        "with | in a name",
        "ddlsched: 4 nodes left out, which take no jobs: DOWN, DRAIN, FAIL or FUTURE",
        "ddlsched: no ParentName is told: all accounts are below root",
    ]
    Path("s/assoc").write_text("Account  Share\nbio  1\n")
    refused(run("import-cluster", "slurm", "s"), "the files hold no queues", "s/assoc: left out: holds no nodes")


def test_a_row_of_slurm_that_lacks_columns_or_has_huge_numbers_is_left_out() -> None:
    Path("s").mkdir()
    Path("s/assoc").write_text("Share|Account|GrpTRES|ParentName\n1|bio||root\n9\n")
    Path("s/jobs").write_text(
        "AllocTRES|JobID|Account|Submit|Start|End|Timelimit\n"
        "gres/gpu=4|7|bio|2025-05-01T10:00:00|2025-05-01T10:01:00|2025-05-01T12:01:00|\n"
        f"gres/gpu={'9' * 5000}|8|bio|2025-05-01T10:00:00|2025-05-01T10:01:00|2025-05-01T12:01:00|\ncpu=8\n"
    )
    assert "2 queues, 0 servers, 1 jobs" in imported("slurm", Path("s"))


@pytest.mark.parametrize(
    ("known_s", "default_s", "notes"),
    [
        ([9.0, math.nan, math.nan], None, ["2 jobs left out, of which no duration is known; give --default-s"]),
        ([9.0, math.nan], 60.0, []),
        ([9.0], None, []),
        ([math.nan], None, None),
    ],
)
def test_jobs_of_no_known_duration_are_told_and_left_out_unless_one_is_given(
    known_s: list[float], default_s: float | None, notes: list[str] | None
) -> None:
    jobs = tuple(TracedJob(f"j{n}", float(n), 1, known, queue="q") for n, known in enumerate(known_s))
    servers = (Server(gpus=2, gpu_memory_mb=1.0),)
    found = ImportedCluster(queues=(Queue(name="q"),), servers=servers, jobs=jobs, admission="kueue")
    if notes is None:
        with pytest.raises(InputError, match="the files hold no job whose duration is known; expected finished ones"):
            write_imported(found, Path("o"), default_s)
        return
    write_imported(found, Path("o"), default_s)
    assert found.notes == notes
    assert len(pd.read_csv("o/jobs.csv")) == sum(default_s is not None or not math.isnan(known) for known in known_s)


def test_a_cluster_without_servers_says_which_flags_give_them() -> None:
    jobs = (TracedJob("j", 0.0, 1, 9.0, queue="q"),)
    found = ImportedCluster(queues=(Queue(name="q"),), servers=(), jobs=jobs, admission="kueue")
    assert write_imported(found, Path("o"), None) == (1, ["o/jobs.csv", "--queues o/queues.yaml", "--admission kueue"])
    assert found.notes == ["no servers with GPUs are told; give --servers and --gpus-per-server"]


def workload_of_kueue(name: str, queue: str, gpus: int, **spec: Any) -> ObjectFields:
    """Return a workload whose first pods have no GPUs."""

    def pods(count: int, each: int) -> dict[str, Any]:
        requests = {"nvidia.com/gpu": str(each)} if each else {}
        return {"count": count, "template": {"spec": {"containers": [{"resources": {"requests": requests}}]}}}

    told = {"queueName": queue, "podSets": [pods(1, 0), pods(2, gpus)]} | spec
    metadata = {"name": name, "namespace": "ns", "creationTimestamp": "2025-05-01T10:00:00Z"}
    return of_kueue("Workload", metadata, told)


def of_kueue(kind: str, metadata: dict[str, Any], spec: dict[str, Any]) -> ObjectFields:
    return ObjectFields("", {"kind": kind, "apiVersion": f"{kueue._GROUP}/v1beta1", "metadata": metadata, "spec": spec})


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ([], []),
        ([("c", "lost", 1)], ["1 workloads left out, of queues that are not told"]),
        ([("c", "local", 0)], ["1 workloads left out, without GPUs"]),
        (
            [("c", "lost", 1), ("d", "other", 1), ("e", "lost", 0)],
            ["3 workloads left out, of queues that are not told", "1 workloads left out, without GPUs"],
        ),
    ],
)
def test_workloads_of_kueue_without_gpus_or_a_queue_are_counted(
    more: list[tuple[str, str, int]], said: list[str]
) -> None:
    """The local queue leads to the cluster's, the one called lost to none that is told."""
    objects = [
        of_kueue("ClusterQueue", {"name": "team"}, {}),
        of_kueue("LocalQueue", {"name": "local", "namespace": "ns"}, {"clusterQueue": "team"}),
        of_kueue("LocalQueue", {"name": "lost", "namespace": "ns"}, {"clusterQueue": "gone"}),
        workload_of_kueue("a", "local", 3, priority=-5),
        *(workload_of_kueue(*each) for each in more),
    ]
    notes: list[str] = []
    (job,) = kueue._jobs(objects, (), notes)
    assert (job.num_gpus, job.queue, job.priority, job.user) == (6, "team", -5, "local")
    assert (job.required_levels, job.preferred_levels) == (None, None)
    assert notes == said
