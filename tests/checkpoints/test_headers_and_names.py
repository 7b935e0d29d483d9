"""Headers of safetensors files, files of Hugging Face's form, and translated names and rows, by hand."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file

from ddlsched.checkpoints import hugging_face, megatron, translation
from ddlsched.checkpoints.arrays import part_of, view_of, whole_tensor, write_checkpoint, write_rank
from ddlsched.checkpoints.checkpoint import Checkpoint
from ddlsched.checkpoints.collection import StoredParallelism, TensorCollection
from ddlsched.checkpoints.file_forms import FilePlan, files_beside, has_file, held_bytes, refuse_bad_file_name
from ddlsched.checkpoints.hugging_face import HUGGING_FACE, read_hugging_face
from ddlsched.checkpoints.locations import location_of
from ddlsched.checkpoints.reading import PartsReading, Reading, Replicas, whole_parts
from ddlsched.checkpoints.safetensors_files import Entry, header_bytes, read_header
from ddlsched.checkpoints.tensors import Cut, CutPart, Kind, Layout, Piece, Tensor, dense_layout
from ddlsched.checkpoints.translation import Rows, Weight, _Model, megatron_name
from ddlsched.errors import InputError


def header_of(described: object, *, length: int | None = None) -> bytes:
    text = json.dumps(described).encode()
    return (len(text) if length is None else length).to_bytes(8, "little") + text


def read(content: bytes) -> dict[str, Entry]:
    return read_header(lambda low, high: memoryview(content)[low:high], len(content), "file")


def test_a_header_says_where_arrays_are_one_behind_the_other() -> None:
    arrays: dict[str, tuple[str, tuple[int, ...]]] = {"a": ("F32", (2, 3)), "none": ("F64", (0, 4)), "b": ("U8", ())}
    content, entries = header_bytes(arrays, {"format": "pt"})
    begin = len(content)
    assert entries == {
        "a": Entry("F32", (2, 3), begin), "none": Entry("F64", (0, 4), begin + 24), "b": Entry("U8", (), begin + 24),
    }  # fmt: skip
    assert json.loads(content[8:]) == {
        "__metadata__": {"format": "pt"},
        "a": {"dtype": "F32", "shape": [2, 3], "data_offsets": [0, 24]},
        "none": {"dtype": "F64", "shape": [0, 4], "data_offsets": [24, 24]},
        "b": {"dtype": "U8", "shape": [], "data_offsets": [24, 25]},
    }
    assert read(content + bytes(25)) == entries
    assert json.loads(header_bytes({})[0][8:]) == {}


def test_headers_are_padded_to_eight_bytes_and_long_ones_to_a_page() -> None:
    least = len(json.dumps({"": {"dtype": "U8", "shape": [1], "data_offsets": [0, 1]}}, separators=(",", ":")))
    for name_bytes in (*range(9), 4096 - least - 1, 4096 - least, 4096 - least + 1, 5000):
        content, _ = header_bytes({"x" * name_bytes: ("U8", (1,))})
        text_bytes = least + name_bytes
        unit = 8 if text_bytes <= 4096 else 4096
        assert len(content) == 8 + -(-text_bytes // unit) * unit
        assert int.from_bytes(content[:8], "little") == len(content) - 8
        assert set(content[8 + text_bytes :]) <= {ord(" ")}


ONE = {"dtype": "U8", "shape": [3], "data_offsets": [0, 3]}


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"1234567", "is truncated or no safetensors file (of 7 bytes); expected a whole one"),
        (b"", "is truncated or no safetensors file (of 0 bytes); expected a whole one"),
        (bytes(7), "is truncated or no safetensors file (of 7 bytes); expected a whole one"),
        (bytes(8), "its header: is no JSON (Expecting value: line 1 column 1"),
        (header_of({}, length=3), "is truncated or no safetensors file (of 10 bytes)"),
        (header_of({"a": ONE | {"dtype": "U9"}}) + b"123", "tensor a: header {"),
        (header_of({"a": ONE | {"shape": [True, 3]}}) + b"123", "expected dtype, shape and offsets that agree"),
        (header_of({"a": ONE | {"shape": [4]}}) + b"123", "expected dtype, shape and offsets that agree"),
        (header_of({"a": ONE | {"data_offsets": [0, 3, 4]}}) + b"123", "expected dtype, shape and offsets that agree"),
        (header_of({"a": {"dtype": "U8", "shape": [3]}}) + b"123", "expected dtype, shape and offsets that agree"),
        (header_of({"a": ONE, "b": ONE | {"data_offsets": [4, 7]}}) + b"1234567", "tensor b: begins at byte"),
        (header_of({"a": ONE, "b": ONE | {"data_offsets": [2, 5]}}) + b"12345", "expected 1"),
        (header_of({"a": ONE}) + b"12", "tensor a: ends at byte"),
        (header_of({"a": ONE}) + b"1234", "has 1 bytes behind its last tensor; expected none"),
        (header_of({}) + b"1", "has 1 bytes behind its last tensor; expected none"),
        (header_of([1]) + b"1", "its header is no JSON object; expected a safetensors file"),
    ],
)  # fmt: skip
def test_headers_that_cannot_be(content: bytes, message: str) -> None:
    with pytest.raises(InputError, match=r"^file: ") as raised:
        read(content)
    assert message in str(raised.value)


@pytest.mark.parametrize(
    ("length", "message"), [(10**8, "its header is no JSON object"), (10**8 + 1, "is truncated or")]
)
def test_a_header_has_at_most_a_hundred_million_bytes(length: int, message: str) -> None:
    """As in the safetensors library; none of them is read before that is known."""

    def begun(low: int, high: int) -> memoryview:
        assert (low, high) in ((0, 8), (8, 8 + 10**8))
        return memoryview(b"[]" if low else length.to_bytes(8, "little"))

    with pytest.raises(InputError, match=f"file: {message}"):
        read_header(begun, 10**9, "file")


def test_arrays_may_be_listed_in_any_order_and_have_no_elements() -> None:
    none = {"dtype": "F32", "shape": [0], "data_offsets": [3, 3]}
    found = read(
        header_of({"b": ONE | {"data_offsets": [3, 6]}, "none": none, "a": ONE, "__metadata__": {}}) + b"123456"
    )
    first = found["a"].begin
    assert {name: entry.begin - first for name, entry in found.items()} == {"a": 0, "none": 3, "b": 3}
    assert read(header_of({})) == {}


def test_a_header_is_shown_in_part_only() -> None:
    with pytest.raises(InputError) as raised:
        read(header_of({"a": {"dtype": "x" * 500}}))
    assert str(raised.value) == (
        f'file: tensor a: header {{"dtype": "{"x" * 109}; expected dtype, shape and offsets that agree'
    )


@pytest.mark.parametrize(
    "name", ["", "a/b", ".hidden", "__x", "a.safetensors", "checkpoint.json", "journal", "taken"]
)  # fmt: skip
def test_files_with_names_of_the_format_are_not_carried_along(name: str) -> None:
    with pytest.raises(InputError, match="cannot be beside tensors; expected the name of another file"):
        refuse_bad_file_name(Tensor(name=name, shape=(3,), dtype="U8", kind="file"), ("taken",))
    fine = Tensor(name=f"x{name}x".replace("/", "-"), shape=(3,), dtype="U8", kind="file")
    assert refuse_bad_file_name(fine, ("taken",)) == fine.name


def test_files_beside_tensors_are_there_may_be_empty_and_are_no_links_to_elsewhere(folder: Path) -> None:
    (folder / "of another").mkdir()
    (folder / "of another" / "vocab.json").write_bytes(b"{}")
    (folder / "a").mkdir()
    (folder / "a" / "config.json").write_bytes(b"")
    (folder / "a" / "README.md").write_bytes(b"text")
    (folder / "a" / "vocab.json").symlink_to(folder / "of another" / "vocab.json")
    names = ("README.md", "vocab.json", "config.json", "merges.txt")
    place = location_of(folder / "a")
    assert [has_file(place, name) for name in names] == [True, False, True, False]
    found = {tensor.name: (tensor.kind, tensor.shape, tensor.dtype) for tensor, _ in files_beside(place, names)}
    assert found == {"README.md": ("file", (4,), "U8"), "config.json": ("file", (0,), "U8")}
    (tensor, (part,)) = held_bytes("object", "o", 2, place, "README.md", 1)
    assert (tensor.name, tensor.kind, bytes(part.sources[0].data(part.layout.pieces[0]))) == ("o", "object", b"ex")


def test_a_file_ends_behind_its_last_array_or_piece() -> None:
    entries = {"a": Entry("F32", (2,), 8), "b": Entry("U8", (3,), 16)}
    assert FilePlan(entries, {0: b"12345678"}).num_bytes == 19
    assert FilePlan(entries, {0: b"12345678", 19: b"12"}).num_bytes == 21
    assert FilePlan({}, {0: b"123"}).num_bytes == 3


def weights(*sizes: int) -> TensorCollection:
    tensors = [Tensor(name=f"t{number}", shape=(size,), dtype="U8") for number, size in enumerate(sizes)]
    return TensorCollection(tensors=tuple(tensors), parallelism=StoredParallelism())


def groups(*sizes: int) -> list[list[int]]:
    """Return the sizes of the tensors in each file."""
    return [[tensor.shape[0] for tensor in group] for group in hugging_face._groups(weights(*sizes))]


def test_files_of_hugging_face_are_filled_to_the_last_byte(monkeypatch: pytest.MonkeyPatch) -> None:
    half = 2_500_000_000
    assert [groups(half, half), groups(half, half + 1)] == [[[half, half]], [[half], [half + 1]]]
    monkeypatch.setattr(hugging_face, "_FILE_BYTES", 10)

    assert groups(4, 6, 1) == [[4, 6], [1]]
    assert groups(4, 7, 3) == [[4], [7, 3]]
    assert groups(11, 1, 12) == [[11], [1], [12]]
    assert groups() == []


def test_files_of_hugging_face_are_numbered_and_listed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hugging_face, "_FILE_BYTES", 10)
    beside = Tensor(name="config.json", shape=(2,), dtype="U8", kind="file")
    empty = Tensor(name="README.md", shape=(0,), dtype="U8", kind="file")
    job = TensorCollection(
        tensors=(beside, *weights(4, 7, 3).tensors, empty), parallelism=StoredParallelism(dp=2)
    )  # fmt: skip
    held = HUGGING_FACE.held(Checkpoint(collection=job))
    names = [f"model-0000{number}-of-00002.safetensors" for number in (1, 2)]
    assert held.files == (*names, "config.json")
    assert held.collection.allocation.hosts == (0, 0, 0)  # one host writes them all
    assert [sorted(arrays) for arrays in held.collection.arrays] == [["t0"], ["t1", "t2"], ["config.json"]]
    assert HUGGING_FACE.describe(Checkpoint(collection=job), held, tmp_path) == [
        tmp_path / "model.safetensors.index.json"
    ]
    index = (tmp_path / "model.safetensors.index.json").read_text()
    assert json.loads(index) == {
        "metadata": {"total_size": 14}, "weight_map": {"t0": names[0], "t1": names[1], "t2": names[1]},
    }  # fmt: skip
    assert index.startswith('{\n  "metadata": {\n    "total_size": 14\n')
    assert HUGGING_FACE.held(Checkpoint(collection=weights(4, 6))).files == ("model.safetensors",)


def test_a_model_of_hugging_face_has_weights(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    content, _ = header_bytes({"optimizer.w": ("U8", (3,))})
    (tmp_path / "a" / "model.safetensors").write_bytes(content + b"123")
    (tmp_path / "a" / "config.json").write_text("{}")
    with pytest.raises(InputError, match=r"/a/?: has no weights of a model; expected some beside \('optim', "):
        hugging_face.weights_of(read_hugging_face(tmp_path / "a"))


@pytest.mark.parametrize(
    ("paths", "kept"),
    [
        ({}, {"a.w": "a.w", "model": "model", "optimizers.w": "optimizers.w", "config.json": "config.json"}),
        ({"model": ("model",), "a.w": ("a", "w")},
         {"a.w": "a.w", "model": "model", "optimizers.w": "optimizers.w", "config.json": "config.json"}),
        ({"a.w": ("model", "layers", 0, "w"), "optimizers.w": ("optim", "model"), "model": ("model",)},
         {"a.w": "layers.0.w", "config.json": "config.json"}),
        ({"optim.w": ("model", "optim"), "vocab.txt": ("model", "v")},
         {"optim.w": "optim", "config.json": "config.json"}),
    ],
)  # fmt: skip
def test_weights_are_what_lies_under_model_and_else_all_but_the_optimisers(
    paths: dict[str, tuple[str | int, ...]], kept: dict[str, str]
) -> None:
    kinds = {
        "a.w": "values", "model": "values", "optimizers.w": "values", "config.json": "file", "notes.txt": "file",
        "vocab.json": "object", "vocab.txt": "object",
        "optim.w": "values", "optimizer.w": "values", "optimiser": "values", "lr_scheduler.w": "values",
        "dataloader": "values", "train_state.w": "values",
    }  # fmt: skip
    tensors = tuple(Tensor(name=name, shape=(2,), dtype="U8", kind=kind) for name, kind in kinds.items())
    job = TensorCollection(tensors=tensors, parallelism=StoredParallelism())
    assert hugging_face._weight_names(Checkpoint(collection=job, paths=paths)) == kept


def test_of_several_tensors_that_a_file_lacks_the_first_by_name_is_told(folder: Path) -> None:
    (folder / "model.safetensors").write_bytes(header_bytes({"m": ("U8", (0,))})[0])
    where = dict.fromkeys(("z", "m", "c", "b", "y"), "model.safetensors")
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": where}))
    with pytest.raises(InputError) as raised:
        read_hugging_face(folder)
    text = "tensor b is missing; expected what model.safetensors.index.json says"
    assert str(raised.value) == f"{folder}/model.safetensors: {text}"


def test_a_weight_of_hugging_face_is_in_no_flat_buffer(folder: Path) -> None:
    names = {"w": ("model", "v"), "optim.w": ("optim", "w")}
    tensors = tuple(Tensor(name=name, shape=(2,), dtype="U8", flat="f") for name in names)
    known = Checkpoint(
        collection=TensorCollection(tensors=tensors, parallelism=StoredParallelism(dp=2)),
        iteration=4, sha256={"w": "1", "optim.w": "2"}, paths=names,
    )  # fmt: skip
    held = [(tensor, whole_parts("U8", (2,), location_of(folder), tensor.name, 0)) for tensor in tensors]
    found = hugging_face.weights_of(PartsReading(known, held, location_of(folder)))
    assert found.held() == [(Tensor(name="v", shape=(2,), dtype="U8"), held[0][1])]
    assert (found.described.sha256, found.described.paths, found.described.iteration) == ({"v": "1"}, {}, 4)


MODEL = _Model(heads=4, groups=2, head_size=3, vocabulary=10)
QKV = Weight("qkv", ("q", "k", "v"), Rows.groups)
PACKED = Weight("qkv", ("c_attn",), Rows.groups)


def test_rows_of_queries_keys_and_values_are_group_by_group() -> None:
    assert translation._sizes(QKV, MODEL, 24) == [12, 6, 6]
    apart = [(0, 0, 0, 6), (1, 0, 6, 3), (2, 0, 9, 3), (0, 6, 12, 6), (1, 3, 18, 3), (2, 3, 21, 3)]
    assert list(map(tuple, translation._runs(QKV, MODEL, [12, 6, 6], 24))) == apart
    packed = [(0, 0, 0, 6), (0, 12, 6, 3), (0, 18, 9, 3), (0, 6, 12, 6), (0, 15, 18, 3), (0, 21, 21, 3)]
    assert list(map(tuple, translation._runs(PACKED, MODEL, [24], 24))) == packed
    assert translation._sizes(PACKED, MODEL, 24) == [24]
    for weight, sizes, rows in ((QKV, [12, 6, 5], 23), (QKV, [6, 12, 6], 24), (PACKED, [23], 23)):
        with pytest.raises(InputError, match=r"have \[.*\] rows, and config.json says \[12, 6, 6\]; expected the same"):
            translation._runs(weight, MODEL, sizes, rows)


def test_rows_of_other_weights() -> None:
    gated = Weight("fc1", ("gate", "up"), Rows.behind)
    assert translation._sizes(gated, MODEL, 8) == [4, 4]
    assert list(map(tuple, translation._runs(gated, MODEL, [4, 4], 8))) == [(0, 0, 0, 4), (1, 0, 4, 4)]
    with pytest.raises(InputError, match="tensor fc1: has 7 rows; expected a multiple of 2"):
        translation._sizes(gated, MODEL, 7)
    words = Weight("words", ("embed",), Rows.vocabulary)
    assert [translation._sizes(words, MODEL, rows) for rows in (9, 10, 12)] == [[9], [10], [10]]
    assert list(map(tuple, translation._runs(words, MODEL, [10], 12))) == [(0, 0, 0, 10)]
    with pytest.raises(InputError, match=r"words: has 9 rows, and config.json says vocab_size 10; expected as many"):
        translation._runs(words, MODEL, [9], 9)


def test_rows_move_with_their_places() -> None:
    part = Replicas(Layout((4, 2), (Piece((3, 0), (4, 2), 5, (2, 1)),)), ())
    places = [(0, 100, 3), (2, 20, 3), (5, 0, 1), (6, 50, 9), (7, 90, 1)]
    runs = [*(translation._Run(4, *place) for place in places), translation._Run(3, 3, 0, 4)]
    ((moved, _),) = translation._moved(part, runs, 4)
    assert moved.pieces == (
        Piece((21, 0), (2, 2), 5, (2, 1)), Piece((0, 0), (1, 2), 9, (2, 1)), Piece((50, 0), (1, 2), 11, (2, 1)),
    )  # fmt: skip
    beside = [translation._Run(4, 0, 0, 3), translation._Run(4, 7, 7, 1), translation._Run(5, 3, 3, 4)]
    assert list(translation._moved(part, beside, 4)) == []
    (turned, _) = translation._turned_part(part, Weight("w", ("t",), transposed=True))
    assert turned.pieces == (Piece((0, 3), (2, 4), 5, (1, 2)),)
    assert translation._turned_part(part, Weight("w", ("t",))) is part


@pytest.mark.parametrize(("dtype", "shape"), [("BF16", (4, 6)), ("F32", (4, 5)), ("F32", (4,))])
@pytest.mark.parametrize("transposed", [False, True])
def test_tensors_that_become_one_are_of_one_kind(dtype: str, shape: tuple[int, ...], transposed: bool) -> None:
    weight = Weight("fc1", ("gate", "up"), Rows.behind, transposed)

    def held(name: str, dtype: str, shape: tuple[int, ...]) -> tuple[Tensor, list[Replicas]]:
        return Tensor(name=name, shape=shape[::-1] if transposed else shape, dtype=dtype), []

    with pytest.raises(InputError) as raised:
        translation._to_megatron(weight, MODEL, [held("gate", "F32", (4, 6)), held("up", dtype, shape)])
    assert str(raised.value) == "tensor fc1: gate, up differ; expected one dtype and width"
    ((tensor, _),) = translation._to_megatron(weight, MODEL, [held("gate", "F32", (4, 6)), held("up", "F32", (4, 6))])
    assert (tensor.name, tensor.shape, tensor.dtype) == ("fc1", (8, 6), "F32")


@pytest.mark.parametrize(
    ("kind", "text", "found"),
    [
        ("file", '{"vocab_size": 3}', {"vocab_size": 3}), ("object", '{"vocab_size": 3}', {}),
        ("values", '{"vocab_size": 3}', {}), ("file", "", {}), ("file", "[1]", {}), ("file", '{"a": ', {}),
        ("file", "[" * 100_000, {}),
    ],
)  # fmt: skip
def test_a_configuration_is_a_file_that_holds_an_object(folder: Path, kind: Kind, text: str, found: object) -> None:
    (folder / "file").write_text(text)
    tensor = Tensor(name="config.json", shape=(len(text),), dtype="U8", kind=kind)
    held = [(tensor, whole_parts("U8", tensor.shape, location_of(folder), "file", 0))]
    assert translation._config(PartsReading.undivided(held, location_of(folder))) == found
    assert translation._config(PartsReading.undivided([], location_of(folder))) == {}


CONFIG = {"num_attention_heads": 4, "hidden_size": 12, "vocab_size": 10}


@pytest.mark.parametrize(
    ("config", "model"),
    [
        (CONFIG, (4, 4, 3, 10)),
        (CONFIG | {"num_key_value_heads": 2, "head_dim": 5}, (4, 2, 5, 10)),
        (CONFIG | {"num_key_value_heads": None, "head_dim": None}, (4, 4, 3, 10)),
        ({"n_head": 1, "n_embd": 1, "vocab_size": 1}, (1, 1, 1, 1)),
        ({"n_head": 2, "n_embd": 7, "vocab_size": 1}, (2, 2, 3, 1)),
    ],
)
def test_a_configuration_says_the_sizes(config: dict[str, Any], model: tuple[int, ...]) -> None:
    assert tuple(translation._model(config, "w")) == model


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (CONFIG | {"vocab_size": 0}, "w, field vocab_size: 0; expected a whole number from 1, to translate names"),
        ({"hidden_size": 3, "vocab_size": 1}, "w, field num_attention_heads: None; expected"),
        (CONFIG | {"num_key_value_heads": 3}, "w: 4 heads in 3 groups; expected groups of as many heads"),
        (CONFIG | {"num_key_value_heads": True}, "field num_key_value_heads: True"),
    ],
)
def test_a_configuration_that_lacks_a_number_is_refused(config: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError) as raised:
        translation._model(config, "w")
    assert message in str(raised.value)


def test_our_names_become_those_of_megatron() -> None:
    def name(text: str, **more: Any) -> str:
        return megatron_name(Tensor(name=text, shape=(4,), dtype="F32", **more))

    assert name("layers.3.attention.qkv.weight") == "decoder.layers.3.self_attention.linear_qkv.weight"
    assert name("optimiser.master.output.weight") == "optimizer.state.fp32_param.output_layer.weight"
    assert name("optimiser.exp_avg.final_norm.bias") == "optimizer.state.exp_avg.decoder.final_layernorm.bias"
    for other in ("optimiser.step", "layers.3.mlp.router.weight", "output.weights", "x.output.weight"):
        assert name(other) == other
    apart = (Cut(dim=0, parts=(CutPart(2), CutPart(2))),)
    with pytest.raises(InputError, match="queries, keys and values lie one behind the other; expected those of each"):
        name("layers.3.attention.qkv.weight", cuts=apart)
    assert name("layers.3.mlp.h_to_4h.weight", cuts=apart) == "decoder.layers.3.mlp.linear_fc1.weight"


def test_layers_are_stacked_and_taken_apart() -> None:
    one = Tensor(name="d.layers.0.w", shape=(4, 6), dtype="F32", places=(0,), cuts=(Cut(dim=1),), flat="f")
    stack = megatron._stack("d.layers.w", {1: one, 0: one})
    assert (stack.name, stack.shape, stack.places, stack.flat) == ("d.layers.w", (2, 4, 6), (0, 1), "")
    assert [cut.dim for cut in stack.cuts] == [2]
    single = megatron._layer_of(stack, 1)
    assert (single.name, single.shape, single.places) == ("d.layers.1.w", (4, 6), (1,))
    assert [cut.dim for cut in single.cuts] == [1]
    inner = Tensor(name="d.layers.e.layers.w", shape=(2, 3), dtype="F32")
    assert megatron._layer_of(inner, 1).name == "d.layers.1.e.layers.w"  # the outer layers are stacked
    others = (Tensor(name="w", shape=(4, 5), dtype="F32"), Tensor(name="w", shape=(4, 6), dtype="BF16"))
    for layers in ({2: one, 0: one}, {1: one}, *({0: one, 1: other} for other in others)):
        with pytest.raises(InputError) as raised:
            megatron._stack("d", layers)
        text = f"its layers are {sorted(layers)}; expected all from 0, of one dtype and shape"
        assert str(raised.value) == f"tensor d: {text}"
    part = Replicas(dense_layout((4, 6), (), ()), ())
    stacked = megatron._stacked_part(part, 3)
    assert stacked.layout == Layout((1, 4, 6), (Piece((3, 0, 0), (1, 4, 6), 0, (24, 6, 1)),))
    assert list(megatron._part_of_layer(stacked, 3)) == [part]
    assert [list(megatron._part_of_layer(stacked, layer)) for layer in (2, 4)] == [[], []]
    names = ("layers.w", "d.layers.w", "layers.0.w", "xlayers.w", "d.layers.", "layer.w")
    shaped = [Tensor(name=name, shape=(2, 3), dtype="F32") for name in names]
    assert [megatron._is_stacked(tensor) for tensor in shaped] == [True, True, False, False, True, False]
    assert not megatron._is_stacked(Tensor(name="layers.w", shape=(), dtype="F32"))


def test_parts_of_arrays_and_wholes(folder: Path) -> None:
    tensors = (Tensor(name="w", shape=(3, 4), dtype="U16", cuts=(Cut(dim=0, pad_multiple=2),)),)
    job = TensorCollection(tensors=tensors, parallelism=StoredParallelism(tp=2))
    whole = np.arange(12, dtype="<u2").reshape(3, 4)
    checkpoint = Checkpoint(collection=job)
    new = folder / "of this" / "week"
    for content in (np.zeros_like(whole), whole):  # again, in the place of an earlier one
        write_checkpoint(new, checkpoint, {"w": content})
    assert load_file(new / "rank_00001.safetensors")["w"].tolist() == [[8, 9, 10, 11], [0] * 4]
    np.testing.assert_array_equal(whole_tensor(checkpoint, location_of(new), "w"), whole)
    assert view_of(whole.reshape(-1), Piece((0,), (2, 2), 5, (4, 1))).tolist() == [[5, 6], [9, 10]]
    assert part_of(whole, Layout((3,), (Piece((1, 2), (1, 2), 1, (2, 1)),))).tolist() == [0, 6, 7]
    with pytest.raises(InputError, match="has no tensor 'x'"):
        whole_tensor(checkpoint, location_of(new), "x")
    for wrong in (np.zeros((2, 3), "<u2"), np.zeros((2, 4), "<i2")):
        with pytest.raises(InputError, match=r"rank 1, tensor w: is .*; expected uint16 \[2, 4\]"):
            write_rank(new, checkpoint, 1, lambda *_, wrong=wrong: wrong)
    assert Reading.at(new).survivors == [0, 1]
