"""Names and layouts of Hugging Face and Megatron-core, translated both ways, against arrays put together by numpy."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from command_line import run
from safetensors.numpy import load_file, save_file

from ddlsched.checkpoints.arrays import Array, whole_tensor
from ddlsched.checkpoints.checkpoint import Checkpoint
from ddlsched.checkpoints.hugging_face import read_hugging_face
from ddlsched.checkpoints.locations import location_of
from ddlsched.checkpoints.reading import PartsReading
from ddlsched.checkpoints.translation import with_hugging_face_names, with_megatron_names

LAYERS, HIDDEN, HEADS, GROUPS, SIZE, INNER, WORDS = 2, 24, 6, 2, 8, 20, 32
LLAMA = {
    "model_type": "llama",
    "hidden_size": HIDDEN,
    "num_attention_heads": HEADS,
    "num_key_value_heads": GROUPS,
    "head_dim": SIZE,
    "vocab_size": WORDS,
}
GPT2 = {"model_type": "gpt2", "n_embd": HIDDEN, "n_head": HEADS, "vocab_size": WORDS}
QKV = "decoder.layers.1.self_attention.linear_qkv"


def llama() -> dict[str, Array]:
    shapes: dict[str, tuple[int, ...]] = {
        "model.embed_tokens.weight": (WORDS, HIDDEN),
        "lm_head.weight": (WORDS, HIDDEN),
        "model.norm.weight": (HIDDEN,),
    }
    for layer in range(LAYERS):
        name = f"model.layers.{layer}"
        for part, heads in {"q": HEADS, "k": GROUPS, "v": GROUPS}.items():
            shapes |= {f"{name}.self_attn.{part}_proj.weight": (heads * SIZE, HIDDEN)}
            shapes |= {f"{name}.self_attn.{part}_proj.bias": (heads * SIZE,)}
        shapes |= {f"{name}.self_attn.{part}_norm.weight": (SIZE,) for part in "qk"}
        shapes |= {f"{name}.self_attn.o_proj.weight": (HIDDEN, HEADS * SIZE)}
        shapes |= {f"{name}.mlp.{part}_proj.weight": (INNER, HIDDEN) for part in ("gate", "up")}
        shapes |= {f"{name}.mlp.down_proj.weight": (HIDDEN, INNER)}
        shapes |= {f"{name}.{part}_layernorm.weight": (HIDDEN,) for part in ("input", "post_attention")}
    return drawn(shapes)


def gpt2() -> dict[str, Array]:
    shapes: dict[str, tuple[int, ...]] = {
        "transformer.wte.weight": (WORDS, HIDDEN),
        "transformer.wpe.weight": (16, HIDDEN),
        "transformer.ln_f.weight": (HIDDEN,),
        "transformer.ln_f.bias": (HIDDEN,),
    }
    for layer in range(LAYERS):
        name = f"transformer.h.{layer}"
        matrices = {
            "attn.c_attn": (HIDDEN, 3 * HIDDEN),
            "attn.c_proj": (HIDDEN, HIDDEN),
            "mlp.c_fc": (HIDDEN, 4 * HIDDEN),
            "mlp.c_proj": (4 * HIDDEN, HIDDEN),
        }
        for part, (rows, columns) in matrices.items():
            shapes |= {f"{name}.{part}.weight": (rows, columns), f"{name}.{part}.bias": (columns,)}
        shapes |= {f"{name}.{norm}.{kind}": (HIDDEN,) for norm in ("ln_1", "ln_2") for kind in ("weight", "bias")}
    return drawn(shapes)


def drawn(shapes: dict[str, tuple[int, ...]]) -> dict[str, Array]:
    rng = np.random.default_rng(0)
    return {name: rng.normal(size=shape).astype("<f4") for name, shape in shapes.items()}


def grouped(q: Array, k: Array, v: Array, groups: int) -> Array:
    """Return queries, keys and values group by group, as Megatron-core's attention takes them apart again."""
    apart = [part.reshape(groups, -1, *part.shape[1:]) for part in (q, k, v)]
    return np.concatenate(apart, axis=1).reshape(-1, *q.shape[1:])


def llama_of_megatron(theirs: dict[str, Array], layer: int) -> dict[str, Array]:
    name, new = f"model.layers.{layer}", f"decoder.layers.{layer}"
    attention = {
        kind: grouped(*(theirs[f"{name}.self_attn.{part}_proj.{kind}"] for part in "qkv"), GROUPS)
        for kind in ("weight", "bias")
    }
    gated = np.concatenate([theirs[f"{name}.mlp.{part}_proj.weight"] for part in ("gate", "up")])
    return {
        f"{new}.self_attention.linear_qkv.weight": attention["weight"],
        f"{new}.self_attention.linear_qkv.bias": attention["bias"],
        f"{new}.self_attention.linear_qkv.layer_norm_weight": theirs[f"{name}.input_layernorm.weight"],
        f"{new}.self_attention.linear_proj.weight": theirs[f"{name}.self_attn.o_proj.weight"],
        f"{new}.self_attention.q_layernorm.weight": theirs[f"{name}.self_attn.q_norm.weight"],
        f"{new}.self_attention.k_layernorm.weight": theirs[f"{name}.self_attn.k_norm.weight"],
        f"{new}.mlp.linear_fc1.weight": gated,
        f"{new}.mlp.linear_fc1.layer_norm_weight": theirs[f"{name}.post_attention_layernorm.weight"],
        f"{new}.mlp.linear_fc2.weight": theirs[f"{name}.mlp.down_proj.weight"],
    }


def saved(folder: Path, tensors: dict[str, Array], config: dict[str, Any]) -> Path:
    """Write a directory of Hugging Face's."""
    folder.mkdir()
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def changed(source: Path, target: Path, *flags: str) -> Path:
    done = run("reshard", source, target, *flags, "--verify")
    assert done.exit_code == 0, done.stderr
    return target


def wholes(folder: Path) -> dict[str, Array]:
    """Return the weights of any checkpoint, by way of one of this package's."""
    checkpoint = Checkpoint.read(changed(folder, folder.with_name(f"{folder.name}-read"), "--to", "tp=1"))
    tensors = (tensor for tensor in checkpoint.collection.tensors if tensor.kind == "values")
    place = location_of(folder.with_name(f"{folder.name}-read"))
    return {tensor.name: whole_tensor(checkpoint, place, tensor.name) for tensor in tensors}


def assert_same(found: dict[str, Array], expected: dict[str, Array]) -> None:
    assert found.keys() == expected.keys()
    for name, array in expected.items():
        np.testing.assert_array_equal(found[name], array, err_msg=name)


@pytest.mark.long
@pytest.mark.parametrize("kind", ["llama", "mistral", "qwen2", "qwen3"])
def test_a_llama_becomes_megatrons_layer_by_layer(tmp_path: Path, kind: str) -> None:
    theirs = llama()
    saved(tmp_path / "a", theirs, LLAMA | {"model_type": kind})
    changed(tmp_path / "a", tmp_path / "b", "--to", "tp=2,pp=2")
    found = wholes(changed(tmp_path / "b", tmp_path / "c", "--to", "tp=3", "--format", "megatron"))
    expected = {
        "embedding.word_embeddings.weight": theirs["model.embed_tokens.weight"],
        "output_layer.weight": theirs["lm_head.weight"],
        "decoder.final_layernorm.weight": theirs["model.norm.weight"],
    }
    for layer in range(LAYERS):
        expected |= llama_of_megatron(theirs, layer)
    assert_same(found, expected)
    changed(tmp_path / "c", tmp_path / "d", "--format", "huggingface")
    assert_same(load_file(tmp_path / "d" / "model.safetensors"), theirs)
    assert json.loads((tmp_path / "d" / "config.json").read_text()) == LLAMA | {"model_type": kind}


@pytest.mark.long
def test_the_transposed_matrices_of_gpt2_are_turned(tmp_path: Path) -> None:
    theirs = gpt2()
    saved(tmp_path / "a", theirs, GPT2)
    found = wholes(changed(tmp_path / "a", tmp_path / "b", "--to", "tp=2", "--format", "megatron"))
    name, new = "transformer.h.1", "decoder.layers.1"
    matrix, bias = theirs[f"{name}.attn.c_attn.weight"].T, theirs[f"{name}.attn.c_attn.bias"]
    np.testing.assert_array_equal(found[f"{QKV}.weight"], grouped(*np.split(matrix, 3), HEADS))
    np.testing.assert_array_equal(found[f"{QKV}.bias"], grouped(*np.split(bias, 3), HEADS))
    for ours, his in {"self_attention.linear_proj": "attn.c_proj", "mlp.linear_fc1": "mlp.c_fc"}.items():
        np.testing.assert_array_equal(found[f"{new}.{ours}.weight"], theirs[f"{name}.{his}.weight"].T)
        np.testing.assert_array_equal(found[f"{new}.{ours}.bias"], theirs[f"{name}.{his}.bias"])
    np.testing.assert_array_equal(found[f"{new}.mlp.linear_fc1.layer_norm_bias"], theirs[f"{name}.ln_2.bias"])
    assert len(found) == len(theirs)
    changed(tmp_path / "b", tmp_path / "c", "--format", "huggingface")
    assert_same(load_file(tmp_path / "c" / "model.safetensors"), theirs)


@pytest.mark.long
def test_layers_are_stacked_in_the_files(tmp_path: Path) -> None:
    from ddlsched.checkpoints.distributed_reading import read_metadata

    saved(tmp_path / "a", llama(), LLAMA)
    changed(tmp_path / "a", tmp_path / "b", "--format", "megatron")
    stored = read_metadata(location_of(tmp_path / "b")).tensors
    rows = (HEADS + 2 * GROUPS) * SIZE
    assert stored["decoder.layers.self_attention.linear_qkv.weight"].shape == (LAYERS, rows, HIDDEN)


@pytest.mark.long
def test_padding_of_the_vocabulary_is_left_out(tmp_path: Path) -> None:
    padded = llama()
    for name in ("model.embed_tokens.weight", "lm_head.weight"):
        padded[name] = np.concatenate([padded[name], np.zeros((4, HIDDEN), "<f4")])
    saved(tmp_path / "a", padded, LLAMA | {"vocab_size": WORDS + 4})
    changed(tmp_path / "a", tmp_path / "b", "--format", "megatron")
    (tmp_path / "b" / "ddlsched.json").unlink()  # Whose description of config.json no longer fits.
    (tmp_path / "b" / "config.json").write_text(json.dumps(LLAMA))
    changed(tmp_path / "b", tmp_path / "c", "--format", "huggingface")
    assert_same(load_file(tmp_path / "c" / "model.safetensors"), llama())


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"num_key_value_heads": 3}, r"linear_qkv.weight: queries, keys and values have \[48, 16, 16\] rows"),
        ({"num_key_value_heads": 4}, "6 heads in 4 groups; expected groups of as many heads"),
        ({"num_attention_heads": "6"}, "field num_attention_heads: '6'; expected a whole number from 1"),
        ({"head_dim": -8}, "field head_dim: -8; expected a whole number from 1"),
        ({"vocab_size": 33}, "word_embeddings.weight: has 32 rows, and config.json says vocab_size 33"),
    ],
)
def test_a_configuration_of_another_model_is_refused(tmp_path: Path, wrong: dict[str, Any], message: str) -> None:
    saved(tmp_path / "a", llama(), LLAMA | wrong)
    done = run("reshard", tmp_path / "a", tmp_path / "b", "--format", "megatron")
    assert done.exit_code == 2
    assert message.replace("\\", "") in done.stderr.replace("\n", " ")


@pytest.mark.long
@pytest.mark.parametrize("config", [{"model_type": "mamba"}, {"model_type": ["llama"]}, {}, [1]])
def test_other_families_keep_their_names(tmp_path: Path, config: Any) -> None:
    saved(tmp_path / "a", llama(), config)
    assert_same(wholes(changed(tmp_path / "a", tmp_path / "b", "--format", "megatron")), llama())


@pytest.mark.long
def test_files_beside_a_model_are_kept_in_the_format_of_pytorch(tmp_path: Path) -> None:
    saved(tmp_path / "a", llama(), LLAMA)
    changed(tmp_path / "a", tmp_path / "b", "--to", "tp=2", "--format", "torch")
    changed(tmp_path / "b", tmp_path / "c", "--format", "huggingface")
    assert_same(load_file(tmp_path / "c" / "model.safetensors"), llama())
    assert json.loads((tmp_path / "c" / "config.json").read_text()) == LLAMA


def test_what_is_translated_has_a_place_in_a_stack_and_the_rest_keeps_its_own(folder: Path) -> None:
    theirs = llama() | {"other": np.zeros(3, "<f4")}
    old = read_hugging_face(saved(folder / "a", theirs, LLAMA))
    known = dataclasses.replace(old.described, paths={name: ("model", *name.split(".")) for name in theirs})
    found = with_megatron_names(PartsReading(known, old.held(), old.place))
    assert isinstance(found, PartsReading)
    names = [tensor.name for tensor in found.job.tensors]
    assert names[-2:] == ["other", "config.json"]
    layers = {name: name.split(".") for name in names if ".layers." in name}
    stacks = {name: (".".join([*parts[:2], *parts[3:]]), int(parts[2])) for name, parts in layers.items()}
    assert len(stacks) == LAYERS * len(llama_of_megatron(theirs, 0))
    assert found.described.paths == {"other": ("model", "other"), **stacks}
    back = with_hugging_face_names(found)
    assert isinstance(back, PartsReading)
    assert back.described.paths == {"other": ("model", "other")}
    assert {tensor.name: tensor.shape for tensor in back.job.tensors} == {
        tensor.name: tensor.shape for tensor in old.job.tensors
    }


@pytest.mark.parametrize("lacking", ["mlp.up_proj", "self_attn.q_proj", "self_attn.v_proj"])
def test_what_one_tensor_of_several_is_missing_of_keeps_its_names(folder: Path, lacking: str) -> None:
    theirs = llama()
    del theirs[f"model.layers.1.{lacking}.weight"]
    found = with_megatron_names(read_hugging_face(saved(folder / "a", theirs, LLAMA)))
    names = {tensor.name for tensor in found.job.tensors}
    beside = ("gate_proj",) if "mlp" in lacking else ("q_proj", "k_proj", "v_proj")
    kept = {f"model.layers.1.{lacking.partition('.')[0]}.{part}.weight" for part in beside} & theirs.keys()
    assert {name for name in names if name.startswith("model.")} == kept
    assert (
        f"decoder.layers.1.{'mlp.linear_fc1' if 'mlp' in lacking else 'self_attention.linear_qkv'}.weight" not in names
    )
