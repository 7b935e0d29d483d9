"""Rows of published tables are read as they are, and predicted with what is known of their programs and GPUs."""

from __future__ import annotations

import dataclasses
import functools
import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import yaml
from command_line import refused, run
from experiment_scripts import scripts_of
from kept_numbers import assert_kept, short
from measurements import DATA
from tiers import tried

from ddlsched.errors import InputError
from ddlsched.training.estimate import presets, published_rows
from ddlsched.training.estimate.clusters import parse_cluster
from ddlsched.training.estimate.hardware import Efficiency, Machine, operations_s
from ddlsched.training.estimate.layers import Operation
from ddlsched.training.estimate.models import Transformer, forward_flops_per_sample, parameters
from ddlsched.training.estimate.parallel_layout import Parallelism
from ddlsched.training.estimate.presets import (
    GPUS,
    MODELS,
    PROGRAMS,
    RELEASE_GAIN,
    read_configuration,
    remark,
    unmodelled,
)
from ddlsched.training.estimate.published_rows import PublishedRun, read_published
from ddlsched.training.estimate.rows import predicted_rows
from ddlsched.training.estimate.step_estimate import Estimate, estimate, estimate_checked

(steps,) = scripts_of("step_times", "run")

FOUNDRY = (
    "section,model,layers,hidden,heads,sequence,vocabulary,gpus,gpu,nic_gbps_a_node,micro_batch,accumulation,"
    "global_batch,precision,sharding,recompute,mfu_percent,tokens_per_s\n"
    "A,mpt-1b,24,2048,16,2048,50368,8,h100-80,,7,4,224,bf16,zero3,none,40,300000\n"
    "A,mpt-1b,24,2048,16,2048,50368,8,h100-80,,7,4,224,int3,zero3,none,40,300000\n"
)
BRIDGE = (
    "release,model,system,gpus,precision,global_batch,micro_batch,sequence,fsdp,tensor,pipeline,context,"
    "virtual_pipeline,expert,tokens_per_s_per_gpu,model_tflops_per_gpu\n"
    "26.06,Qwen3_30B_a3B,DGX-GB300,8,MXFP8,512,8,4096,,1,1,1,,8,45000,1040[^note]\n"
    "26.02,Unheard Of,DGX-GB300,8,MXFP8,512,8,4096,,1,1,1,,8,45000,1040\n"
    "26.06,LLAMA3.1_405B,DGX-GB300,256,NVFP4,1536,1,8192,,4,8,1,4,,1413,3575\n"
)
TITAN = (
    "model,gpu,gpus,precision,compiled,local_batch,global_batch,sequence,fsdp,tensor,pipeline,context,schedule,"
    "recompute,tokens_per_s_per_gpu,memory_gib\n"
    "llama-3.1-8b,h100-96-hbm2e-500w,8,fp8,yes,2,16,8192,8,1,1,1,,selective,8532,76.8\n"
)


def written(folder: Path, text: str) -> Path:
    path = folder / "rows.csv"
    path.write_text(text, encoding="utf-8")
    return path


def test_a_row_that_cannot_be_said_is_kept_with_the_reason(tmp_path: Path) -> None:
    said, unsaid = read_published(written(tmp_path, FOUNDRY))
    assert (said.gpu, said.program, said.precision, said.reason) == ("h100", "fsdp", "half", "")
    assert said.measured_step_s == pytest.approx(224 * 2048 / 300_000)
    assert unsaid.model is None
    assert "int3" in unsaid.reason


def test_a_row_that_is_longer_than_the_header_may_be_shifted(tmp_path: Path) -> None:
    header, row, *_ = FOUNDRY.strip().splitlines()
    (kept,) = read_published(written(tmp_path, f"{header}\n{row},more\n"))
    assert "more fields than the header" in kept.reason


def test_rows_become_a_model_a_plan_and_a_program(tmp_path: Path) -> None:
    small, unknown, large = read_published(written(tmp_path, BRIDGE))
    assert (small.program, small.gpu, small.plan.expert, small.plan.data) == ("megatron-bridge-graphs", "gb300", 8, 8)
    assert small.measured_step_s == pytest.approx(512 * 4096 / 8 / 45_000)
    assert "'Unheard Of'" in unknown.reason
    assert (large.plan.tensor, large.plan.pipeline, large.plan.interleave, large.plan.data) == (4, 8, 4, 8)
    (titan,) = read_published(written(tmp_path, TITAN))
    assert (titan.program, titan.plan.zero, titan.precision) == ("torchtitan", 3, "fp8")


@pytest.mark.parametrize("text", [FOUNDRY, BRIDGE, TITAN])
def test_the_command_writes_every_row_with_its_prediction_or_the_reason(tmp_path: Path, text: str) -> None:
    path, out = written(tmp_path, text), tmp_path / "out.csv"
    assert run("estimate", "--rows", path, "--out", out).exit_code == 0
    table = pd.read_csv(out)
    assert len(table) == len(text.splitlines()) - 1
    assert table["measured_step_s"].notna().sum() >= 1
    told = table["predicted_step_s"].notna()
    assert table.loc[told, "predicted_memory_gb"].gt(0).all()
    assert table.loc[~told, "remark"].str.len().gt(0).all()
    assert table.loc[told, "remark"].str.contains("error").all()


ODD = (
    BRIDGE.splitlines()[0]
    + """
26.06,Llama 3.1 8B,DGX H100,8,FP8-CS,"1,024",1,8192,0,1,1,1,n/a,-,"12,000",
26.06,LLAMA3_70B,GB200 NVL72,72,BF16,1296,1,8192,0,1,4,1,,,1000,
26.06,Kimi K2,DGX-GB300,256,FP8 MX,4096,1,4096,0,1,4,1,4,64,1000,
26.06,LLAMA3_70B,DGX-H100,64,NVFP4,256,1,8192,0,4,8,1,5,,1000,
26.06,LLAMA3_70B,DGX-H100,64,FP8,256,1,8192,0,4,7,1,5,,1000,
26.06,LLAMA3_70B,DGX-H100,64,FP8,many,1,8192,0,4,8,1,5,,1000,
26.06,LLAMA3_70B,MI999X,64,FP8,256,1,8192,0,4,8,1,5,,1000,
26.06,LLAMA3_70B,DGX-H100
"""
)


@pytest.mark.long
def test_rows_are_read_however_they_are_spelt_and_kept_where_they_contradict_themselves(tmp_path: Path) -> None:
    runs = read_published(written(tmp_path, ODD))
    assert [(one.gpu, one.precision) for one in runs[:3]] == [("h100", "fp8"), ("gb200", "half"), ("gb300", "mxfp8")]
    assert all(float(one.estimated().step_s) > 0 for one in runs[:3])
    assert runs[0].plan.global_batch == 1024
    for one, reason in zip(
        runs[3:],
        ("no matrices in nvfp4", "expected their product to be the 64", "global_batch is many", "'MI999X'", ""),
        strict=True,
    ):
        assert reason in one.reason != ""


LIKELY = {
    BRIDGE: """26.02,Kimi_K2,DGX-GB300,256,MXFP8,4096,2,4096,0,1,4,1,4,64,5000,1000
26.04,KimiK2,DGX-H100,1024,FP8,8192,1,4096,0,8,16,1,2,64,1000,300
26.06,DeepSeekV3,DGX-B200,256,MXFP8,4096,1,4096,0,1,16,1,,8,2600,700
26.02,DeepSeekV3,DGX-H100,1024,FP8-SC,16384,1,4096,0,2,8,1,2,64,1400,700
26.06,Qwen3_235B_a22B,DGX-B200,256,MXFP8,8192,1,4096,0,1,8,1,4,8,2600,700
26.02,Qwen3_30B_a3B,DGX-H100,16,FP8,1024,2,4096,0,1,2,1,12,8,5000,100
26.06,GPT OSS 120B,DGX-GB200,64,MXFP8,1280,4,4096,0,1,1,1,,64,18000,100
26.02,LLAMA3.1_405B,DGX-GB200,256,NVFP4,1536,1,8192,0,4,16,1,8,,700,100
26.02,LLAMA3.1_405B,DGX-H100,1024,FP8,1536,1,8192,0,8,8,2,8,,300,100
26.02,LLAMA3_70B,DGX-GB200,64,FP8,256,2,8192,64,1,1,1,,,4000,100
26.02,LLAMA3_8B,DGX-H100,8,BF16,128,1,8192,0,1,1,2,,,9000,100
26.04,Nemotron_3_Super,DGX-H100,256,FP8,512,1,8192,0,4,1,1,,64,1500,100
26.02,NemotronH_56B,DGX-GB300,64,FP8,192,1,8192,0,2,1,1,,,4000,100
26.02,Nemotron_4_340B,DGX-GB200,128,FP8,256,1,4096,0,8,4,1,12,,600,100
26.02,Mixtral_8x7B,DGX-H100,64,FP8,256,1,4096,0,1,4,1,8,8,6000,100
""",
    FOUNDRY: """A,mpt-125m,12,768,12,2048,50368,8,a100-40,1600,32,1,256,bf16,zero3,none,30,800000
A,mpt-70b,80,8192,64,2048,50368,512,h100,3200,8,1,4096,bf16,zero3,full,40,400000
A,mpt-7b,32,4096,32,2048,50368,24,h100,,8,1,192,amp_bf16,hybrid_shard,False,40,40000
A,mpt-7b,32,4096,32,65536,50368,8,A100-80GB SXM,1600,1,8,64,bf16,shard_grad_op,yes,40,8000
A,mpt-13b,40,5120,40,32768,50368,8,a100-40,1600,1,1,8,bf16,zero3,full,40,8000
A,mpt-30b,48,7168,56,65536,50368,64,h100,,1,1,64,amp_fp8,FULL_SHARD,true,40,40000
""",
    TITAN: """llama-3.1-8b,h100-96-hbm2e-500w,128,float8,yes,2,256,8192,128,1,1,1,,selective,7500,76.8
llama-3.1-8b,h100-96-hbm2e-500w,8,fp8,yes,1,1,131072,1,1,1,8,,full,1000,80
llama-3.1-70b,h100-96-hbm2e-500w,256,fp8,yes,16,512,8192,32,8,1,1,,full,800,70
llama-3.1-405b,h100-96-hbm2e-500w,512,fp8,yes,2,128,8192,64,8,1,1,,full,100,72
llama-3.1-8b,h100-96,64,bf16,yes,4,128,8192,32,1,2,1,Interleaved 1F1B,selective,5000,
""",
}


@pytest.mark.long
@pytest.mark.parametrize("header", LIKELY)
def test_rows_of_other_models_systems_and_layouts_are_said_and_not_foretold_out_of_memory(
    tmp_path: Path, header: str
) -> None:
    """Their measurements are made up."""
    path, first = written(tmp_path, f"{header.splitlines()[0]}\n{LIKELY[header]}"), header.partition(",")[0]
    runs, table = read_published(path), predicted_rows(path)
    assert [one.reason for one in runs] == [""] * len(runs)
    assert (table["predicted_step_s"] > 0).all()
    has_gb = [float(one.machine.gpu.memory_bytes) / 1e9 for one in runs]
    assert (table["predicted_memory_gb"] <= has_gb).all()
    kept = {}
    for number, one in enumerate(runs):
        usual = Parallelism()
        plan = {name: value for name, value in vars(one.plan).items() if value != getattr(usual, name)}
        numbers = short(one.step_s(), table["predicted_memory_gb"][number], one.measured_step_s, one.nic_gbps)
        kept[f"{number} {one.gpu} {one.program} {one.precision} {one.earlier}"] = f"{numbers} {plan}"
    assert_kept(f"published-{first}", kept)


@pytest.mark.long
def test_steps_in_one_graph_and_later_releases_are_faster(tmp_path: Path) -> None:
    rows = """26.02,Qwen3_30B_a3B,DGX-GB300,8,MXFP8,512,8,4096,,1,1,1,,8,1,1
26.02.01,Qwen3_30B_a3B,DGX-GB300,8,MXFP8,512,8,4096,,1,1,1,,8,1,1
26.04,Qwen3_30B_a3B,DGX-GB300,8,MXFP8,512,8,4096,,1,1,1,,8,1,1
26.06,Qwen3_30B_a3B,DGX-GB300,8,MXFP8,512,8,4096,,1,1,1,,8,1,1
26.06,Qwen3_30B_a3B,DGX-GB300,8,BF16,512,8,4096,,1,1,1,,8,1,1
26.06,Nemotron_3_Nano,DGX-GB300,8,MXFP8,512,4,8192,,1,1,1,,8,1,1
26.06,DeepSeekV3,DGX-B300,256,MXFP8,4096,2,4096,,1,8,1,,8,1,1
26.06,DeepSeekV3,DGX-GB200,256,MXFP8,4096,1,4096,,1,4,1,4,64,1,1
"""
    runs = read_published(written(tmp_path, f"{BRIDGE.splitlines()[0]}\n{rows}"))
    graphs = [one.program == "megatron-bridge-graphs" for one in runs]
    assert graphs == [False, False, False, True, False, False, False, True]
    first, second, third, fourth = (float(one.step_s()) for one in runs[:4])
    assert first / second == pytest.approx(1 + RELEASE_GAIN)
    assert second / third == pytest.approx(1 + RELEASE_GAIN)
    assert fourth < 0.8 * third


def test_every_constant_of_a_program_is_one_of_efficiencies() -> None:
    said = yaml.safe_load(Path(presets.__file__).with_name("programs.yaml").read_text())["programs"].values()
    names = {name for program in said for constants in program["efficiencies"].values() for name in constants}
    assert names <= {field.name for field in dataclasses.fields(Efficiency)}  # others would be read past


@pytest.mark.parametrize(
    ("spelt", "gpu"),
    [
        ("NVIDIA A100-SXM4-40GB", "a100-40"),
        ("A100-80GB SXM", "a100-80"),
        ("dgxa100", "a100-80"),
        ("H100 96GB", "h100-96"),
        *((name.upper(), name) for name in GPUS),
    ],
)
def test_a_gpu_is_known_however_it_is_spelt(spelt: str, gpu: str) -> None:
    assert published_rows._gpu(spelt) == gpu


def test_gpus_of_a_family_share_constants_at_their_clocks() -> None:
    own = PROGRAMS["megatron-bridge"].efficiencies
    ratio = (GPUS["b200"].power_w / GPUS["gb300"].power_w) ** (1 / 3)
    assert float(own["b200"].matrix) == pytest.approx(ratio * float(own["gb300"].matrix))
    assert own["b200"].memory == own["gb300"].memory


@pytest.mark.slow
def test_constants_are_found_again_and_rows_kept_out_do_not_count(tmp_path: Path) -> None:
    """Steps are made with known constants; then a third of them, kept out, is tenfold."""
    rows = "".join(
        f"A,mpt,{layers},{hidden},16,{sequence},50368,{gpus},h100,,{micro},1,{gpus * micro},bf16,zero3,full,1,1\n"
        for layers, hidden in ((24, 2048), (32, 4096))
        for sequence, micro in ((512, 32), (2048, 8), (16384, 1))
        for gpus in (8, 64)
    )
    runs = read_published(written(tmp_path, f"{FOUNDRY.splitlines()[0]}\n{rows}"))
    true = {name: prior.value for name, prior in steps.PRIORS["fsdp"].items()} | {"matrix": 0.55, "attention": 0.45}
    arrays = {name: np.full(1, value) for name, value in true.items()}
    made = np.exp(steps.log_ratios("fsdp", runs, arrays))[:, 0] * [one.measured_step_s for one in runs]
    out = np.arange(len(runs)) % 3 == 0
    runs = [
        dataclasses.replace(one, measured_step_s=float(seconds) * (10 if is_out else 1))
        for one, seconds, is_out in zip(runs, made, out, strict=True)
    ]
    (found,) = steps.fitted("fsdp", runs, ~out[None, :])
    told = dict(zip(true, found, strict=True))
    assert told["matrix"] == pytest.approx(0.55, rel=0.03)
    assert told["attention"] == pytest.approx(0.45, rel=0.05)
    ratios = steps.log_ratios("fsdp", runs, {name: np.full(1, value) for name, value in told.items()})[:, 0]
    assert np.abs(ratios[~out]).max() < 0.03
    assert np.exp(-ratios[out]) == pytest.approx(10, rel=0.1)


def test_torchtitan_computes_every_second_product_again_and_cuts_a_batch_into_stages(tmp_path: Path) -> None:
    header = TITAN.splitlines()[0]
    text = f"""{header}
llama-3.1-8b,h100-96,8,fp8,yes,2,16,8192,8,1,1,1,,selective,8532,76.8
llama-3.1-8b,h100-96,64,bf16,yes,16,64,8192,4,4,4,1,Interleaved1F1B,full,8532,76.8
"""
    plain, staged = read_published(written(tmp_path, text))
    assert (plain.plan.recompute, plain.plan.zero, plain.plan.widths.gathered) == ("alternate", 3, 1)
    assert (staged.plan.micro_batch, staged.plan.interleave, staged.plan.zero) == (4, 2, 1)
    kept = dataclasses.replace(plain, plan=dataclasses.replace(plain.plan, recompute="none")).estimated()
    found = plain.estimated()
    # Of 4 + 1 + 1 + 4 + 3 x 14 parts of a block's products the key's, the projection's and the up-projection's.
    again = (1 + 4 + 14) / (4 + 1 + 1 + 4 + 42)
    third = float(kept.compute_s) / 3
    assert 0.8 * again * third < float(found.compute_s - kept.compute_s) < 1.6 * again * third
    assert float(found.memory.activations_bytes) < float(kept.memory.activations_bytes)


@pytest.mark.long
def test_no_row_that_ran_is_refused(tmp_path: Path) -> None:
    """70 billion parameters whose states alone exceed a GPU were sharded, of which the table says nothing."""
    row = "26.06,LLAMA3_70B,DGX-GB300,64,NVFP4,256,2,8192,0,1,1,1,,,6000,"
    (one,) = read_published(written(tmp_path, f"{BRIDGE.splitlines()[0]}\n{row}\n"))
    assert one.plan.zero == 3
    assert bool(one.estimated().fits)


def test_the_busiest_experts_hold_up_all_others_and_dropped_tokens_cost_nothing() -> None:
    model, machine = MODELS["qwen3-30b-a3b"], parse_cluster("h100").machine(32)
    plan = Parallelism(data=32, expert=32, global_batch=64)

    def experts_of(**more: float) -> tuple[float, float]:
        """Return operations of the experts' products in a forward pass, and bytes that each GPU sends to them."""
        layers = model.layers(dataclasses.replace(plan, **more)).block  # type: ignore[arg-type]
        (first,) = [layer for layer in layers if layer.name == "experts in"]
        return float(first.forward[0].flops), float(first.forward_collectives[0].message_bytes)

    flops, sent_bytes = experts_of()
    assert experts_of(expert_skew=1.5) == pytest.approx((1.5 * flops, 1.5 * sent_bytes))
    assert experts_of(expert_skew=1.5, expert_capacity=1.25) == pytest.approx((1.25 * flops, 1.25 * sent_bytes))
    assert experts_of(expert_capacity=1.25) == (flops, sent_bytes)
    skewed = estimate(model, dataclasses.replace(plan, expert_skew=1.5), machine)
    assert float(skewed.step_s) > 1.02 * float(estimate(model, plan, machine).step_s)
    for more, said in (({"expert_skew": 33.0}, "from 1 to the 32 GPUs"), ({"expert_capacity": 0.5}, "from 1, or 0")):
        with pytest.raises(InputError, match=said):
            estimate_checked(model, dataclasses.replace(plan, **more), machine)  # type: ignore[arg-type]


def test_keys_and_values_that_go_round_hide_behind_attention_but_for_the_first_part() -> None:
    model = dataclasses.replace(MODELS["llama-3-70b"], sequence=65536)
    plan = Parallelism(context=8, data=8, global_batch=8, zero=1, recompute="full")
    machine = parse_cluster("h100").machine(64)
    whole, ring = (estimate(model, dataclasses.replace(plan, ring_attention=ring), machine) for ring in (False, True))
    assert float(ring.tensor_s) == pytest.approx(float(whole.tensor_s) / 8)
    assert float(ring.step_s) == pytest.approx(float(whole.step_s) - 7 / 8 * float(whole.tensor_s))


def test_offload_zero_bubble_and_asynchronous_collectives_change_what_they_name() -> None:
    model, machine = MODELS["llama-3-8b"], parse_cluster("h100").machine(32)
    plan = Parallelism(tensor=2, pipeline=4, data=4, global_batch=64, sequence_parallel=True)

    def found(**more: object) -> Estimate:
        return estimate(model, dataclasses.replace(plan, **more), machine)  # type: ignore[arg-type]

    usual = found()
    # Two of three passes' bubbles are filled, if all three are as long; the one for weights is the shortest.
    assert 1 / 3 < float(found(zero_bubble=True).bubble_s) / float(usual.bubble_s) < 0.5
    assert float(found(asynchronous=True).tensor_s) < 0.7 * float(usual.tensor_s)
    sharded = [dataclasses.replace(plan, pipeline=1, data=16, zero=3, shards=shards) for shards in (0, 16, 4)]
    whole, same, hybrid = (estimate(model, one, machine) for one in sharded)
    assert float(whole.step_s) == float(same.step_s)
    assert float(hybrid.memory.optimiser_bytes) == pytest.approx(4 * float(whole.memory.optimiser_bytes))
    assert float(hybrid.data_s) < float(whole.data_s)
    halved = found(offload=0.5)
    assert float(halved.memory.activations_bytes) < 0.7 * float(usual.memory.activations_bytes)
    assert float(halved.memory.weights_bytes) == float(usual.memory.weights_bytes)
    slow = dataclasses.replace(machine, gpu=dataclasses.replace(machine.gpu, host_bytes_per_s=1e9))
    assert float(estimate(model, dataclasses.replace(plan, offload=0.5), slow).offload_s) > 0


def test_fused_attention_experts_and_output_have_speeds_of_their_own() -> None:
    gpu = dataclasses.replace(
        GPUS["h100"],
        efficiency=Efficiency(
            matrix=0.5, by_precision={"fp8": 0.25}, attention=0.2, experts=0.8, expert_rows=100.0, memory=1e9
        ),
    )

    def seconds(work: str, precision: str = "fp8") -> float:
        operation = Operation(1e12, 0.0, work=work, rows=300.0)  # type: ignore[arg-type]
        return float(operations_s(operation, gpu, precision=precision))  # type: ignore[arg-type]

    assert seconds("matrix") == pytest.approx(1 / (1979 * 0.25))
    assert seconds("attention") == pytest.approx(1 / (989 * 0.2))
    assert seconds("output") == pytest.approx(1 / (989 * 0.5))
    assert seconds("experts") == pytest.approx(1 / (1979 * 0.25 * 0.8 * 0.75))


PUBLISHED_BILLIONS = {
    "deepseek-v3": (671, 685),
    "kimi-k2": (1000, 1040),
    "qwen3-235b-a22b": (235, 235.5),
    "qwen3-30b-a3b": (30.4, 30.6),
    "gpt-oss-120b": (116, 118),
    "nemotron-3-nano": (31, 32),
    "nemotron-3-super": (120, 124),
    "nemotron-h-56b": (55.5, 57),
    "gpt-oss-20b": (20.5, 21.2),
    "deepseek-v2": (234, 238),
    "glm-4.5": (350, 362),
    "glm-4.5-air": (106, 110),
    "llama-4-scout": (107, 109),
    "llama-4-maverick": (399, 402),
    "minimax-m2": (228, 231),
    "qwen3-coder-480b-a35b": (479, 481),
    "gemma-3-27b": (26.9, 27.1),
    "mixtral-8x22b": (140, 141.5),
    "mixtral-8x7b": (46.5, 47),
    "qwen3-4b": (4.0, 4.1),
    "qwen3-8b": (8.1, 8.3),
    "qwen3-14b": (14.7, 14.9),
    "qwen3-32b": (32.6, 33),
    "qwen2.5-7b": (7.5, 7.7),
    "qwen2.5-72b": (72.5, 73),
    "llama-2-7b": (6.7, 6.8),
    "llama-2-13b": (12.9, 13.1),
    "llama-2-70b": (68.8, 69.2),
    "llama-3-8b": (8.0, 8.1),
    "llama-3-70b": (70.4, 70.7),
    "llama-3-405b": (405, 406.5),
    "llama-3.2-1b": (1.2, 1.25),
    "llama-3.2-3b": (3.2, 3.22),
    "mistral-7b": (7.2, 7.3),
    "phi-4": (14.5, 14.8),
    "gemma-2-27b": (27, 27.4),
    "nemotron-4-340b": (339, 342),
}


@pytest.mark.parametrize("name", PUBLISHED_BILLIONS)
def test_models_have_the_published_parameters(name: str) -> None:
    least, most = PUBLISHED_BILLIONS[name]
    assert least <= float(parameters(MODELS[name])) / 1e9 <= most


def test_operations_of_a_dense_model_are_those_of_its_products_by_hand() -> None:
    model = dataclasses.replace(MODELS["llama-3-70b"], sequence=8192)  # type: ignore[type-var]
    block = 2 * 8192 * (8192 + 2 * 1024) + 2 * 8192 * 8192 + 3 * 2 * 8192 * 28672 + 4 * 8192 * 8192
    assert float(forward_flops_per_sample(model)) / 8192 == pytest.approx(80 * block + 2 * 8192 * 128256)


def test_a_window_and_a_context_take_their_share_of_attention() -> None:
    model = MODELS["gpt-oss-120b"]
    whole = dataclasses.replace(model, windowed_share=0.0)  # type: ignore[type-var]
    pairs = 4 * 36 * 4096 * 4096 * 4096.0
    left_out = 0.5 * pairs * (1 - 2 * (128 + 2 * 128) / 4096)
    assert float(forward_flops_per_sample(whole) - forward_flops_per_sample(model)) == pytest.approx(left_out)
    narrow = dataclasses.replace(machine_of("h100", 1).gpu, efficiency=Efficiency(attention=1.0, narrow=0.5))
    works = [Operation(1e12, 0.0, work="attention", rows=width) for width in (64, 96, 128)]
    seconds = [float(operations_s(work, narrow)) for work in works]
    assert seconds[0] / seconds[2] == pytest.approx(2)
    assert seconds[1] / seconds[2] == pytest.approx(1 / 0.75)
    machine = machine_of("h100", 16)
    one = estimate(MODELS["llama-3-8b"], Parallelism(data=16, global_batch=32), machine)
    two = estimate(MODELS["llama-3-8b"], Parallelism(data=8, context=2, global_batch=32), machine)
    assert float(two.num_gpus) == 16
    assert float(two.memory.activations_bytes) < 0.6 * float(one.memory.activations_bytes)


def machine_of(gpu: str, gpus: int) -> Machine:
    return parse_cluster(gpu, efficiency="megatron-bridge").machine(gpus)


def test_an_all_to_all_between_nodes_costs_more_than_within_one() -> None:
    plan = Parallelism(data=64, expert=64, own_experts=True, micro_batch=4, global_batch=1280)
    within, between = machine_of("gb300", 64), machine_of("b300", 64)
    model = MODELS["gpt-oss-120b"]
    assert float(estimate(model, plan, between).tensor_s) > 3 * float(estimate(model, plan, within).tensor_s)


def test_a_power_limit_lowers_the_clock() -> None:
    usual, limited = (parse_cluster(text, efficiency="fsdp").machine(8) for text in ("h100", "h100:power_w=350"))
    ratio = float(limited.gpu.efficiency.matrix) / float(usual.gpu.efficiency.matrix)
    assert ratio == pytest.approx(0.5 ** (1 / 3))
    carried = parse_cluster("h200", efficiency="torchtitan").machine(8).gpu.efficiency
    own = PROGRAMS["torchtitan"].efficiencies["h100-96"]
    assert float(carried.matrix) == pytest.approx(float(own.matrix) * (700 / 500) ** (1 / 3))
    assert carried.attention == pytest.approx(own.attention * (700 / 500) ** (1 / 3))


@functools.cache
def published(name: str) -> list[PublishedRun]:
    """Return the rows of a shared table that can be said, read once."""
    path = DATA / "training_times" / name
    if not path.is_file():
        pytest.skip("needs the published step times")
    return [one for one in read_published(path) if not one.reason]


LIMITS = {"mpt.csv": 0.06, "torchtitan.csv": 0.08, "megatron_bridge.csv": 0.06}


@pytest.mark.long
@pytest.mark.parametrize("name", tried(LIMITS, lambda place: place < 2))  # the third is long
def test_models_with_measured_steps_are_those_of_the_tables(name: str) -> None:
    runs = published(name)
    shapes = {(run.model.num_layers, run.model.hidden, run.model.experts) for run in runs if run.model}
    assert shapes == {*PROGRAMS[runs[0].program].models}


def test_what_is_carried_over_says_so() -> None:
    assert "constants of h100" in remark("megatron-bridge", "h200", "fp8", MODELS["llama-3-70b"])
    assert "no measured steps of mixtures" in remark("fsdp", "h100", "half", MODELS["qwen3-30b-a3b"])
    assert "typical error" in remark("fsdp", "h100", "half", MODELS["llama-3-8b"])
    assert remark("fsdp", "mi300x", "half", MODELS["llama-3-8b"]).endswith("constants of h100, error unknown")
    assert "no measured steps" in remark("megatron", "v100", "half", MODELS["gpt3-13b"])
    assert remark("eager", "a100-80", "half", MODELS["gpt3-13b"]) == "4 % typical error of GPT models on a100-80"
    assert "no measured steps of mixtures" in remark("eager", "a100-80", "half", MODELS["qwen3-30b-a3b"])


def test_a_single_estimate_says_how_far_off_it_may_be() -> None:
    arguments = ("estimate", "llama-3-70b", "--cluster", "gb300", "--pipeline", "4", "--data", "16")
    done = run(*arguments, "--precision", "mxfp8", "--global-batch", "256", "--json")
    told = json.loads(done.stdout)
    assert told["efficiency"] == "megatron-bridge"
    assert "typical error of dense models in mxfp8 on gb300" in told["remark"]


CONFIG = {
    "num_hidden_layers": 48,
    "hidden_size": 2048,
    "num_attention_heads": 32,
    "num_key_value_heads": 4,
    "head_dim": 128,
    "intermediate_size": 6144,
    "moe_intermediate_size": 768,
    "num_experts": 128,
    "num_experts_per_tok": 8,
    "vocab_size": 151936,
    "sliding_window": None,
}


def test_a_configuration_of_hugging_face_is_the_preset(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_text(json.dumps(CONFIG))
    model = read_configuration(path)
    assert float(parameters(model)) == pytest.approx(float(parameters(MODELS["qwen3-30b-a3b"])))
    assert float(forward_flops_per_sample(model)) == float(forward_flops_per_sample(MODELS["qwen3-30b-a3b"]))
    plan = ["--cluster", "gb300", "--data", "8", "--expert", "8", "--json"]
    found, preset = (run("estimate", *of, *plan) for of in (["--hf-config", path], ["qwen3-30b-a3b"]))
    assert json.loads(found.stdout)["step_s"] == json.loads(preset.stdout)["step_s"]


def test_a_configuration_of_llama_4_is_the_preset(tmp_path: Path) -> None:
    config = {"num_hidden_layers": 48, "hidden_size": 5120, "num_attention_heads": 40, "num_key_value_heads": 8}
    config |= {"head_dim": 128, "vocab_size": 202048, "intermediate_size": 8192, "intermediate_size_mlp": 16384}
    config |= {"num_local_experts": 128, "num_experts_per_tok": 1, "interleave_moe_layer_step": 2}
    path = tmp_path / "config.json"
    path.write_text(json.dumps({"text_config": {**config, "attention_chunk_size": 8192}}))
    found, preset = read_configuration(path), MODELS["llama-4-maverick"]
    assert float(parameters(found)) == float(parameters(preset))
    assert float(forward_flops_per_sample(found)) == float(forward_flops_per_sample(preset))


PUBLISHED = {
    "llama-3.2-1b": {
        "num_hidden_layers": 16, "hidden_size": 2048, "num_attention_heads": 32, "num_key_value_heads": 8,
        "intermediate_size": 8192, "vocab_size": 128256, "tie_word_embeddings": True,
    },
    "llama-3-70b": {
        "num_hidden_layers": 80, "hidden_size": 8192, "num_attention_heads": 64, "num_key_value_heads": 8,
        "intermediate_size": 28672, "vocab_size": 128256, "attention_bias": False,
    },
    "deepseek-v3": {
        "num_hidden_layers": 61, "hidden_size": 7168, "num_attention_heads": 128, "num_key_value_heads": 128,
        "intermediate_size": 18432, "moe_intermediate_size": 2048, "n_routed_experts": 256, "n_shared_experts": 1,
        "num_experts_per_tok": 8, "first_k_dense_replace": 3, "num_nextn_predict_layers": 1, "vocab_size": 129280,
        "q_lora_rank": 1536, "kv_lora_rank": 512, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128,
    },
}  # fmt: skip
"""What their publishers' files say."""


@pytest.mark.parametrize("name", PUBLISHED)
def test_a_published_configuration_is_read_as_its_preset_field_by_field(tmp_path: Path, name: str) -> None:
    path, preset = tmp_path / "config.json", MODELS[name]
    path.write_text(json.dumps(PUBLISHED[name]))
    assert isinstance(preset, Transformer)
    whole = dataclasses.replace(preset, key_value_heads=preset.key_value_heads or preset.heads)
    assert read_configuration(path, sequence=int(preset.sequence)) == whole


def test_a_model_with_the_sizes_of_an_earlier_one_is_known_by_its_own_name() -> None:
    for name, earlier in (("llama-3.3-70b", "llama-3-70b"), ("deepseek-r1", "deepseek-v3"), ("glm-4.6", "glm-4.5")):
        assert MODELS[name] is MODELS[earlier]


@pytest.mark.parametrize("name", ["Qwen3-Next-80B-A3B", "glm-5", "deepseek-v3.2", "deepseek-v4-flash"])
def test_a_model_with_layers_that_are_not_modelled_says_which(name: str) -> None:
    refused(run("estimate", name, "--cluster", "h100", "--data", "8"), f"no model is named '{name}': ")
    assert unmodelled(name).endswith("not modelled")


BAD = {
    "[]": "is no configuration",
    "{": "is no JSON",
    json.dumps({**CONFIG, "hidden_size": "x"}): "hidden_size is 'x'",
    json.dumps({key: value for key, value in CONFIG.items() if key != "vocab_size"}): "has no vocab_size",
    json.dumps({**CONFIG, "mamba_num_heads": 4}): "layers of state spaces",
    json.dumps({**CONFIG, "index_topk": 2048}): "sparse attention with an indexer, which is not modelled",
}


@pytest.mark.parametrize("text", BAD)
def test_a_bad_configuration_is_one_line(tmp_path: Path, text: str) -> None:
    path = tmp_path / "config.json"
    path.write_text(text)
    refused(run("estimate", "--hf-config", path), BAD[text])


@pytest.mark.long
@pytest.mark.parametrize("name", tried(LIMITS, lambda place: place < 2))  # the third is long
def test_published_tables_are_met_with_the_shipped_constants(name: str) -> None:
    runs = published(name)
    found = [one.estimated() for one in runs]
    errors = [abs(float(one.step_s()) / one.measured_step_s - 1) for one in runs]
    assert np.mean(errors) < LIMITS[name]
    assert all(bool(step.fits) for step in found)
    for step, one in zip(found, runs, strict=True):
        if one.row.get("memory_gib"):
            near = 0.1 if one.plan.pipeline == 1 else 0.15
            assert float(step.memory.total_bytes) / 2**30 == pytest.approx(float(one.row["memory_gib"]), rel=near)
    assert {one.program for one in runs} <= set(PROGRAMS)


def test_a_stage_of_zero_is_the_number_in_its_name() -> None:
    named = {name: stage for name, stage in published_rows._SHARDINGS.items() if name.startswith("zero")}
    assert named == {f"zero{stage}": stage for stage in range(3)}


def test_gradients_hide_behind_what_recomputation_adds_to_backward() -> None:
    model, machine = dataclasses.replace(MODELS["llama-3-8b"], sequence=64), parse_cluster("h100").machine(32)
    plan = Parallelism(data=32, global_batch=32, overlap=True)
    plain, again = (estimate(model, dataclasses.replace(plan, recompute=how), machine) for how in ("none", "full"))
    assert float(again.data_s) < float(plain.data_s)
