"""Models: sizes as published, activations and operations by the literature's formulas, rules."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
import yaml

from ddlsched.errors import InputError, UnknownNameError
from ddlsched.training.estimate import presets
from ddlsched.training.estimate.memory import memory_per_gpu
from ddlsched.training.estimate.models import Transformer, forward_flops_per_sample, parameters
from ddlsched.training.estimate.parallel_layout import Parallelism, refuse_broken
from ddlsched.training.estimate.presets import MODELS, preset
from ddlsched.training.estimate.small_models import LSTM_PTB

PUBLISHED_PARAMETERS = {
    "gpt3-125m": 125e6,
    "gpt3-6.7b": 6.7e9,
    "gpt3-13b": 13e9,
    "gpt3-175b": 174.6e9,
    "megatron-22b": 22e9,
    "megatron-175b": 175e9,
    "megatron-530b": 530e9,
    "megatron-1t": 1.008e12,
    "bert-base": 110e6,
    "bert-large": 335e6,
    "llama-2-7b": 6.738e9,
    "llama-2-13b": 13.016e9,
    "llama-2-70b": 68.977e9,
    "llama-3-8b": 8.030e9,
    "llama-3-70b": 70.554e9,
    "llama-3-405b": 405.85e9,
    "mixtral-8x7b": 46.70e9,
    "transformer-1t": 1e12,
    "dlrm-1.2t": 1.2e12,
    "vgg-16": 138.36e6,
    "resnet-50": 25.557e6,
    "inception-v3": 27.161e6,
    "lstm-ptb": 66.0e6,
}


@pytest.mark.parametrize("name", PUBLISHED_PARAMETERS)
def test_parameters_as_published(name) -> None:
    assert float(parameters(MODELS[name])) == pytest.approx(PUBLISHED_PARAMETERS[name], rel=0.02)


@pytest.mark.parametrize(
    ("name", "multiply_adds"), [("vgg-16", 15.5e9), ("resnet-50", 4.09e9), ("inception-v3", 5.71e9)]
)
def test_operations_of_cnns_as_published(name, multiply_adds) -> None:
    assert forward_flops_per_sample(MODELS[name]) == pytest.approx(2 * multiply_adds, rel=0.01)


def test_operations_of_a_gpt_by_the_formula_of_megatron() -> None:
    """Narayanan et al., SC 2021: 24 s l h^2 (1 + s / 6h + V / 12lh) for a forward pass (a third of 72)."""
    s, layers, h, vocabulary = 2048, 96, 12288, 51200
    expected = 24 * s * layers * h**2 * (1 + s / (6 * h) + vocabulary / (12 * layers * h))
    assert forward_flops_per_sample(MODELS["megatron-175b"]) == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize("tensor", [1, 8])
@pytest.mark.parametrize("sequence_parallel", [False, True])
@pytest.mark.parametrize("recompute", ["none", "selective", "full"])
def test_activations_of_a_layer_by_the_formulas_of_korthikanti(tensor, sequence_parallel, recompute) -> None:
    s, b, h, a = 2048, 4, 6144, 64
    gpt = Transformer(num_layers=1, hidden=h, heads=a, sequence=s, vocabulary=51200)
    plan = Parallelism(tensor=tensor, sequence_parallel=sequence_parallel, micro_batch=b, global_batch=b)
    block = gpt.layers(plan).block
    everything = sum(layer.activation_bytes for layer in block)
    core = sum(layer.activation_bytes for layer in block if layer.role == "attention")
    split = tensor if sequence_parallel else 1
    sbh = s * b * h
    expected = {
        "none": sbh * (10 / split + 24 / tensor + 5 * a * s / (h * tensor)),
        "selective": sbh * (10 / split + 24 / tensor),
        "full": 2 * sbh / split,
    }[recompute]
    found = {"none": everything, "selective": everything - core, "full": block[0].activation_bytes}
    assert found[recompute] == pytest.approx(expected)


def test_grouped_queries_and_gates_change_the_shapes() -> None:
    block = {layer.name: layer for layer in MODELS["llama-3-8b"].layers(Parallelism(tensor=2)).block}
    assert block["qkv"].parameters == 4096 * (4096 + 2 * 1024) / 2
    assert block["feed-forward in"].parameters == 4096 * 2 * 14336 / 2


def test_fused_attention_computes_as_much_and_keeps_no_scores() -> None:
    sizes = {"num_layers": 1, "hidden": 1024, "heads": 16, "sequence": 4096, "vocabulary": 0, "dropout": False}
    plain, fused = (Transformer(**sizes, fused_attention=flag) for flag in (False, True))
    assert forward_flops_per_sample(fused) == pytest.approx(forward_flops_per_sample(plain))
    kept = [sum(layer.activation_bytes for layer in gpt.layers(Parallelism()).block) for gpt in (plain, fused)]
    assert kept[0] - kept[1] == pytest.approx(2 * 16 * 4096**2 - 4 * 4096 * 16)
    moved = [
        [operation.traffic_bytes for layer in gpt.layers(Parallelism()).block for operation in layer.forward]
        for gpt in (plain, fused)
    ]
    assert sum(moved[1]) < sum(moved[0]) / 2
    assert 2 * (4 * 4096 * 1024) in moved[1]  # queries, keys, values and what comes out, of two bytes


def test_experts_are_spread_and_visited() -> None:
    plan = Parallelism(data=8, expert=4, global_batch=8)
    block = {layer.name: layer for layer in MODELS["mixtral-8x7b"].layers(plan).block}
    inwards = block["experts in"]
    assert inwards.parameters == inwards.expert_parameters == 2 * 4096 * 2 * 14336  # 2 of 8 experts
    assert inwards.forward[0].flops == 2 * (2 * 4096) * 4096 * 2 * 14336  # each token visits 2
    assert inwards.forward_collectives[0].kind == "all-to-all"


BROKEN = {
    "heads 96 not divisible by tensor 7": Parallelism(tensor=7),
    "layers 96 not divisible by pipeline x interleave 10": Parallelism(pipeline=5, interleave=2, global_batch=10),
    "key-value heads 96 not divisible by tensor 64": Parallelism(tensor=64),
    "experts 1 not divisible by expert 2": Parallelism(data=2, expert=2, global_batch=2),
}


@pytest.mark.parametrize("text", BROKEN)
def test_what_a_transformer_refuses(text) -> None:
    rules = [rule for rule in MODELS["gpt3-175b"].rules(BROKEN[text]) if not rule.holds]
    assert any(text in rule.text for rule in rules)


def test_sequence_parallelism_divides_the_sequence() -> None:
    odd = Transformer(num_layers=1, hidden=64, heads=8, sequence=100, vocabulary=100)
    with pytest.raises(InputError, match="sequence 100 not divisible by tensor with sequence parallelism 8"):
        refuse_broken(odd.rules(Parallelism(tensor=8, sequence_parallel=True)))


@pytest.mark.parametrize("name", ["resnet-50", "lstm-ptb", "dlrm-1.2t"])
@pytest.mark.parametrize(
    "plan",
    [Parallelism(tensor=2), Parallelism(pipeline=2), Parallelism(recompute="full"), Parallelism(zero=3)],
)
def test_what_models_without_blocks_refuse(name, plan) -> None:
    with pytest.raises(InputError, match="expected"):
        refuse_broken(MODELS[name].rules(plan))


def test_unknown_model() -> None:
    with pytest.raises(UnknownNameError, match=r"no model is named 'gpt3-17b'\. Did you mean 'gpt3-175b'"):
        preset(MODELS, "gpt3-17b", "model")


def test_dlrm_tables_are_spread_over_all_gpus() -> None:
    dlrm = MODELS["dlrm-1.2t"]
    few, many = (memory_per_gpu(dlrm.layers(plan), plan) for plan in (Parallelism(data=16), Parallelism(data=64)))
    tables_bytes = 4 * 64 * 146_500_000 * 128
    assert few.weights_bytes - many.weights_bytes == pytest.approx(tables_bytes / 16 - tables_bytes / 64)
    assert few.optimiser_bytes == many.optimiser_bytes


@pytest.mark.long
def test_presets_say_of_models_only_what_they_are_described_by() -> None:
    text = Path(presets.__file__).with_suffix(".yaml").read_text(encoding="utf-8")
    known = {field.name for field in dataclasses.fields(Transformer)}
    assert {name: set(said) - known for name, said in yaml.safe_load(text)["models"].items() if set(said) - known} == {}


def test_the_penn_treebank_has_10_000_words() -> None:
    assert LSTM_PTB.vocabulary == 10_000
