"""What a put takes, and what a take gives."""

from __future__ import annotations

import gc
import math
from typing import Any

import numpy as np
import pytest
import torch

import transfer_dock as td

from messages import mentions, raising
from waiting import LONG

FLOATS = ["float16", "bfloat16", "float32", "float64"]
INTEGERS = ["uint8", "int8", "int16", "int32", "int64"]
ALL = ["bool", *INTEGERS, *FLOATS, "float8_e4m3fn", "float8_e5m2"]
OF_NUMPY = ["bool", *INTEGERS, "float16", "float32", "float64"]


def read(dock: td.Dock, data: dict[str, Any], columns: dict[str, Any] | None = None) -> td.Rows:
    """What comes back of a put."""
    dock.create_partition("p", columns)
    return dock.fetch("p", dock.put("p", data), list(data))


def read_one(dock: td.Dock, data: Any, type_: Any = None) -> td.Column:
    return read(dock, {"x": data}, None if type_ is None else {"x": type_})["x"]


def refusal(dock: td.Dock, data: Any, type_: Any = None) -> str:
    with pytest.raises(td.InvalidArgument) as caught:
        read_one(dock, data, type_)
    return str(caught.value)


# ---- Arrays.


@pytest.mark.parametrize("dtype", OF_NUMPY)
def test_arrays_of_every_element_type_come_back_as_they_were(dock: td.Dock, dtype: str) -> None:
    given = np.arange(24).reshape(4, 3, 2).astype(dtype)
    column = read_one(dock, given, td.column(dtype, (3, 2)))
    assert (column.kind, column.dtype, column.row_shape) == ("dense", dtype, (3, 2))
    assert column.numpy().dtype == given.dtype
    assert np.array_equal(column.numpy(), given)
    assert np.array_equal(column[1], given[1])


@pytest.mark.parametrize("dtype", ALL)
def test_tensors_of_every_element_type_come_back_as_they_were(dock: td.Dock, dtype: str) -> None:
    given = torch.arange(24).reshape(4, 6).to(getattr(torch, dtype))
    back = read_one(dock, given).torch()
    assert back.dtype == given.dtype
    assert torch.equal(back.to(torch.float32), given.to(torch.float32))


def test_an_array_in_any_order_is_read_as_it_looks(local: td.Dock) -> None:
    base = np.arange(60, dtype=np.float32).reshape(5, 4, 3)
    for given in (base.transpose(2, 0, 1), base[::-2], base[:, ::2], np.asfortranarray(base)):
        local.create_partition("q", None)
        ids = local.put("q", {"x": given})
        assert np.array_equal(local.fetch("q", ids, ["x"])["x"].numpy(), given)
        local.drop_partition("q")
    strided = torch.arange(60).reshape(5, 12).t()
    assert torch.equal(read_one(local, strided).torch(), strided)


def test_a_tensor_that_needs_gradients_is_read(local: td.Dock) -> None:
    given = torch.arange(3.0, requires_grad=True)
    assert read_one(local, given * 2).torch().tolist() == [0.0, 2.0, 4.0]


def test_a_tensor_that_is_negated_lazily_is_read_as_it_looks(local: td.Dock) -> None:
    given = torch.tensor([1 + 2j]).conj().imag
    assert given.is_neg() and given.is_contiguous()
    assert read_one(local, given).torch().tolist() == [-2.0]
    assert local.fetch("p", local.put("p", {"y": [given]}), ["y"])["y"][0].tolist() == [-2.0]


def test_an_empty_array_and_rows_without_elements(local: td.Dock) -> None:
    assert read_one(local, np.zeros((3, 0), np.float32)).numpy().shape == (3, 0)
    with pytest.raises(td.InvalidArgument):
        local.put("p", {"x": np.zeros((0, 0), np.float32)})


def test_the_element_type_is_never_changed(dock: td.Dock) -> None:
    mentions(refusal(dock, np.zeros(2), "float32"), "column 'x'", "float32[]", "float64[]")
    with pytest.raises(td.InvalidArgument, match="holds float32.*given int64"):
        dock.put("p", {"x": torch.zeros(2, dtype=torch.int64)})
    with pytest.raises(td.InvalidArgument, match=r"holds float32\[\]; given float32\[3\]"):
        dock.put("p", {"x": np.zeros((2, 3), np.float32)})


@pytest.mark.parametrize(
    "given", [np.zeros(2, np.uint32), np.zeros(2, np.complex64), torch.zeros(2, dtype=torch.complex64)]
)
def test_element_types_that_the_dock_does_not_hold_are_named(local: td.Dock, given: Any) -> None:
    text = refusal(local, given)
    mentions(text, "column 'x'", "bool, uint8", "float8_e5m2", str(given.dtype).removeprefix("torch."))


def test_what_is_no_column_is_refused_with_what_would_be_right(local: td.Dock) -> None:
    mentions(refusal(local, "text"), "'x'", "single str", "a list")
    mentions(refusal(local, np.float32(1)), "'x'", "single value", "first dimension")
    mentions(refusal(local, object()), "'x'", "object", "an array", "a list")
    mentions(refusal(local, [None, None]), "'x'", "row 0", "NoneType")
    mentions(refusal(local, []), "'x'", "empty list", "type")
    mentions(refusal(local, torch.zeros(2, 2).to_sparse()), "'x'", "to_dense")
    with raising(td.InvalidArgument, "column", "must be", "str", "not 1"):
        local.put("p", {1: [1]})  # type: ignore[dict-item]


# ---- Ragged columns.


@pytest.mark.parametrize("make", [np.asarray, torch.asarray])
def test_a_list_of_arrays_is_ragged(dock: td.Dock, make: Any) -> None:
    given = [make([[1.0, 2.0]]), make([[3.0, 4.0], [5.0, 6.0]]), make(np.zeros((0, 2)))]
    column = read_one(dock, given)
    assert (column.kind, column.row_shape) == ("ragged", (2,))
    assert column.lengths().tolist() == [1, 2, 0]
    assert column.values().tolist() == [[1, 2], [3, 4], [5, 6]]
    assert [row.tolist() for row in column] == [row.tolist() for row in given]
    assert [row.tolist() for row in column.tolist()] == [row.tolist() for row in given]
    assert [row.tolist() for row in column.torch_list()] == [row.tolist() for row in given]
    assert not column[0].flags.writeable


def test_rows_of_equal_length_stay_ragged_and_dense_ones_dense(local: td.Dock) -> None:
    columns = {"r": td.column("int64", ragged=True), "d": td.column("int64", (3,))}
    rows = read(local, {"r": np.arange(6).reshape(2, 3), "d": [np.arange(3), np.arange(3)]}, columns)
    assert rows["r"].kind == "ragged" and rows["r"].lengths().tolist() == [3, 3]
    assert rows["d"].kind == "dense" and rows["d"].numpy().tolist() == [[0, 1, 2]] * 2


def test_a_list_of_equal_arrays_is_ragged_without_a_schema(local: td.Dock) -> None:
    assert read_one(local, [np.arange(3), np.arange(3)]).kind == "ragged"


def test_a_list_of_single_values_is_dense(local: td.Dock) -> None:
    column = read_one(local, [torch.tensor(1.5), torch.tensor(2.5)])
    assert (column.kind, column.numpy().tolist()) == ("dense", [1.5, 2.5])
    local.put("p", {"x": [np.float32(3)]})


def test_nested_tensors_are_ragged(dock: td.Dock) -> None:
    parts = [torch.arange(2.0), torch.arange(3.0), torch.arange(1.0)]
    jagged = torch.nested.nested_tensor(parts, layout=torch.jagged)
    rows = read(dock, {"jagged": jagged, "strided": torch.nested.nested_tensor(parts)})
    for name in rows.columns:
        assert [row.tolist() for row in rows[name]] == [part.tolist() for part in parts]
    back = rows["jagged"].torch_nested()
    assert back.is_nested and [row.tolist() for row in back.unbind()] == [part.tolist() for part in parts]


def test_empty_arrays_take_the_type_of_the_others(local: td.Dock) -> None:
    column = read_one(local, [np.array([]), np.arange(3), np.array([])])
    assert (column.dtype, column.lengths().tolist()) == ("int64", [0, 3, 0])
    local.put("p", {"x": [np.array([])]})


def test_rows_that_do_not_fit_together_are_named(local: td.Dock) -> None:
    mentions(refusal(local, [np.arange(2), np.zeros(2)]), "row 1", "float64", "row 0", "int64")
    mentions(refusal(local, [np.zeros((1, 2)), np.zeros((1, 3))]), "row 1", "[1,3]", "row 0", "[1,2]", "first dimension")
    mentions(refusal(local, [np.zeros(1), "x"]), "row 1", "str", "array")


# ---- Python's numbers.


def test_numbers_become_what_the_schema_says(dock: td.Dock) -> None:
    columns = {dtype: dtype for dtype in [*INTEGERS, *FLOATS]} | {"bool": "bool"}
    data = {dtype: [1, 0] for dtype in [*INTEGERS, *FLOATS]} | {"bool": [True, False]}
    rows = read(dock, data, columns)
    for name in columns:
        assert rows[name].dtype == name
        assert rows[name].torch().tolist() == [1, 0]


def test_numbers_without_a_schema(local: td.Dock) -> None:
    rows = read(local, {"i": [1, -2], "f": [1, 2.5], "b": [True, False], "r": [[1, 2], [], [3]][:2]})
    assert [rows[name].dtype for name in rows.columns] == ["int64", "float32", "bool", "int64"]
    assert rows["r"].kind == "ragged" and rows["r"].lengths().tolist() == [2, 0]


def test_bfloat16_and_float16_are_rounded_to_the_nearest(local: td.Dock) -> None:
    given = [1.00390625, 1.01171875, -3.14159, 1e-40, 3.38e38, math.inf, -math.inf, math.nan]
    rows = read(
        local,
        {"bfloat16": given, "float16": given[:3] + given[5:] + [65504.0, 2.0]},
        {n: n for n in ("bfloat16", "float16")},
    )
    assert torch.equal(rows["bfloat16"].torch().nan_to_num(), torch.tensor(given).to(torch.bfloat16).nan_to_num())
    assert math.isnan(rows["bfloat16"].torch()[-1])
    assert rows["float16"].numpy()[2] == np.float16(-3.14159)


def test_every_float16_and_every_number_halfway_between_two_is_rounded_as_by_numpy(local: td.Dock) -> None:
    finite = np.arange(0x7C00, dtype=np.uint16).view(np.float16).astype(np.float64)
    between = (finite[:-1] + finite[1:]) / 2
    sizes = np.concatenate([finite, between, np.nextafter(between, 0), np.nextafter(between, math.inf), [1e-300]])
    numbers = np.concatenate([sizes, -sizes])
    rows = read(local, {"x": numbers.tolist()}, {"x": "float16"})
    expected = numbers.astype(np.float16)
    assert np.array_equal(rows["x"].numpy().view(np.uint16), expected.view(np.uint16))


@pytest.mark.parametrize(
    ("dtype", "number"),
    [("int8", 128), ("int8", -129), ("uint8", -1), ("int64", 2**63), ("int32", 1.0), ("bool", 1), ("float32", True),
     ("float32", "1"), ("float32", 10**400), ("float8_e5m2", 1.0), ("int64", None), ("float32", 1e300),
     ("bfloat16", 1e39), ("bfloat16", 3.4e38), ("float16", 65520.0), ("float64", 10**309), ("float32", 2**24 + 1),
     ("float64", 2**53 + 1), ("float64", 2**63 + 1), ("float16", 2049), ("bfloat16", -257)],
)  # fmt: skip
def test_numbers_that_do_not_fit_are_refused(local: td.Dock, dtype: str, number: Any) -> None:
    local.create_partition("p", {"x": dtype})
    with pytest.raises(td.InvalidArgument, match="column 'x'") as caught:
        local.put("p", {"x": [0 if dtype != "bool" else False, number]})
    assert repr(number)[:50] in str(caught.value) or dtype == "float8_e5m2"
    assert local.status("p").rows == 0


def test_numbers_that_floats_hold_are_taken(local: td.Dock) -> None:
    given = {"float64": [2**53, -(2**63), 2**200], "float32": [2**24, 2**127, -(2**63)], "bfloat16": [256, 2**63, -384],
             "float16": [2048, -65504, 0]}  # fmt: skip
    rows = read(local, given, {name: name for name in given})
    for name, numbers in given.items():
        assert rows[name].torch().tolist() == [float(number) for number in numbers]


def test_nested_lists(local: td.Dock) -> None:
    columns = {"d": td.column("float32", (2,)), "r": td.column("float64", ragged=True)}
    rows = read(local, {"d": [[1, 2], [3, 4]], "r": [[1], [2, 3]]}, columns)
    assert rows["d"].numpy().tolist() == [[1, 2], [3, 4]]
    assert rows["r"].values().dtype == np.float64
    with raising(td.InvalidArgument, "'d'", "row 0", "a list", "an array"):
        local.put("p", {"d": [[[1]], [[2]]], "r": [[1.0], [1.0]]})


def test_a_growing_partition_learns_what_numbers_are(local: td.Dock) -> None:
    local.create_partition("p")
    local.put("p", {"x": np.zeros(1, np.float64), "y": [np.zeros(2)]})
    ids = local.put("p", {"x": [1.5], "y": [[1, 2, 3]]})
    assert local.fetch("p", ids, ["x"])["x"].dtype == "float64"


def test_a_partition_that_was_made_again_has_another_schema(server: td.Server) -> None:
    one, other = td.Dock.connect(server.address), td.Dock.connect(server.address)
    one.create_partition("again", {"x": "float32"})
    one.put("again", {"x": [1.0]})
    other.drop_partition("again")
    other.create_partition("again", {"x": "float64"})
    assert one.fetch("again", one.put("again", {"x": [1.0]}), ["x"])["x"].dtype == "float64"
    other.drop_partition("again")
    other.create_partition("again", {"x": "int64"})
    assert one.put("again", {"x": [1]}).tolist() == [0]
    other.drop_partition("again")
    other.create_partition("again", {"x": "float64"})
    assert one.put("again", {"x": [0.5]}).tolist() == [0], "0.5 is no int64"
    one.drop_partition("again")


def test_what_is_remembered_of_a_partition_does_not_make_columns_in_another(server: td.Server) -> None:
    one, other = td.Dock.connect(server.address), td.Dock.connect(server.address)
    before = {"i": np.ones(2, np.float32), "d": np.ones((2, 3)), "r": [np.ones(1), np.ones(2)], "e": np.ones((2, 1))}
    other.create_partition("anew")
    other.put("anew", before)
    one.put("anew", before)
    other.drop_partition("anew")
    other.create_partition("anew")
    one.put("anew", {"i": [1, 2], "d": [np.ones(3), np.ones(3)], "r": np.ones((2, 3)), "e": [[1], [2]]})
    columns = {column.name: (column.kind, column.dtype) for column in one.status("anew").columns}
    assert columns == {"i": ("dense", "int64"), "d": ("ragged", "float64"), "r": ("dense", "float64"),
                       "e": ("ragged", "int64")}  # fmt: skip
    one.drop_partition("anew")


# ---- Strings and bytes.


def test_strings_and_bytes_come_back_as_what_they_were(dock: td.Dock) -> None:
    texts = ["", "ascii", "déjà", "日本", "🚢" * 1000]
    blobs = [b"", b"\xff\x00", bytearray(b"x"), b"y" * 100_000, b"z"]
    for columns in (None, {"text": "str", "raw": "bytes"}):
        rows = read(dock, {"text": texts, "raw": blobs}, columns)
        assert (rows["text"].kind, rows["raw"].kind) == ("str", "bytes")
        assert rows["text"].tolist() == texts and list(rows["text"]) == texts
        assert rows["raw"].tolist() == [bytes(one) for one in blobs]
        assert (rows["text"][-1], rows["text"][1:3], rows["raw"][1]) == (texts[-1], texts[1:3], blobs[1])
        assert rows["text"].lengths().tolist() == [len(text.encode()) for text in texts]
        dock.drop_partition("p")


def test_arrays_of_strings_are_strings(local: td.Dock) -> None:
    rows = read(
        local, {"u": np.array(["a", "bc"]), "o": np.array(["d", "ef"], dtype=object), "s": np.array([b"g", b"h"])}
    )
    assert [rows[name].tolist() for name in rows.columns] == [["a", "bc"], ["d", "ef"], [b"g", b"h"]]
    assert [rows[name].kind for name in rows.columns] == ["str", "str", "bytes"]


def test_text_that_is_not_utf8_is_refused(local: td.Dock) -> None:
    with raising(td.InvalidArgument, "'x'", "row 1", "byte 0", "UTF-8"):
        read_one(local, [b"good", b"\xff"], "str")
    with raising(td.InvalidArgument, "'x'", "row 0", r"'\ud800'", "UTF-8", "surrogate"):
        local.put("p", {"x": ["\ud800"]})


def test_mixed_lists_are_refused(local: td.Dock) -> None:
    mentions(refusal(local, ["a", b"b"]), "row 1", "a bytes", "a str")
    mentions(refusal(local, [b"a", 1]), "row 1", "a int", "bytes")


# ---- Reading.


def test_rows_that_lie_side_by_side_are_views_and_others_copies(dock: td.Dock) -> None:
    dock.create_partition("p")
    ids = dock.put("p", {"x": np.arange(4000, dtype=np.float32).reshape(4, 1000)})
    row = dock.fetch("p", ids, ["x"])
    addresses = [row["x"].numpy().ctypes.data for _ in range(2)]
    assert addresses[0] == addresses[1], "a view is in one place"
    turned = dock.fetch("p", ids[::-1], ["x"])["x"]
    assert np.array_equal(turned.numpy(), np.arange(4000, dtype=np.float32).reshape(4, 1000)[::-1])
    assert not turned.numpy().flags.writeable


def test_a_copy_is_ones_own(dock: td.Dock) -> None:
    column = read_one(dock, np.zeros((2, 2), np.float32))
    mine = column.numpy(copy=True)
    mine += 1
    tensor = column.torch(copy=True)
    tensor += 2
    assert column.numpy().sum() == 0 and mine.sum() == 4 and tensor.sum() == 8


def test_views_cannot_be_written_to(dock: td.Dock) -> None:
    rows = read(dock, {"d": np.zeros((2, 2)), "r": [np.zeros(2), np.zeros(1)]})
    for view in (rows["d"].numpy(), rows["d"][0], rows["r"][0], rows["r"].values(), rows.cell("r", 1)):
        with pytest.raises(ValueError, match="read-only"):
            view[...] = 1


def test_views_outlive_everything(server: td.Server) -> None:
    for dock in (td.Dock.local(), td.Dock.connect(server.tcp_address), td.Dock.connect(server.address)):
        dock.create_partition("p")
        ids = dock.put("p", {"x": np.arange(100_000, dtype=np.float64).reshape(2, -1)})
        view = dock.fetch("p", ids, ["x"])["x"].numpy()
        dock.clear("p", everything=True)
        dock.put("p", {"x": np.zeros((2, 50_000))})
        gc.collect()
        assert view[1, -1] == 99_999
        dock.drop_partition("p")


def test_dlpack_cannot_be_written_through(dock: td.Dock) -> None:
    column = read_one(dock, np.arange(6, dtype=np.int32).reshape(3, 2))
    view = np.from_dlpack(column)
    assert not view.flags.writeable and view.ctypes.data == column.numpy().ctypes.data
    with pytest.raises(ValueError, match="read-only"):
        view[...] = 7
    own = np.from_dlpack(column, copy=True)
    own[...] = 7

    class Old:
        """Known to NumPy as from before read-only views."""

        def __dlpack__(self, **_: Any) -> Any:
            return column.__dlpack__()

        def __dlpack_device__(self) -> tuple[int, int]:
            return column.__dlpack_device__()

    torch.from_dlpack(Old()).fill_(7)
    with pytest.raises(BufferError, match="read-only"):
        column.__dlpack__(copy=False)
    assert column.numpy().tolist() == [[0, 1], [2, 3], [4, 5]]


def test_the_array_protocols(local: td.Dock) -> None:
    column = read_one(local, np.arange(6, dtype=np.int32).reshape(3, 2))
    assert np.asarray(column).tolist() == [[0, 1], [2, 3], [4, 5]]
    assert np.asarray(column, dtype=np.float64).dtype == np.float64
    assert np.from_dlpack(column).tolist() == torch.from_dlpack(column).tolist() == [[0, 1], [2, 3], [4, 5]]
    assert np.array(column, copy=True).flags.writeable


def test_what_numpy_does_not_have_is_given_as_bits(local: td.Dock) -> None:
    given = torch.tensor([1.0, -2.0], dtype=torch.bfloat16)
    column = read_one(local, given)
    with raising(td.InvalidArgument, "'x'", "bfloat16", "NumPy", "torch()", "bits()"):
        column.numpy()
    assert column.bits().tolist() == given.view(torch.int16).tolist()


def test_asking_a_column_for_what_it_is_not(local: td.Dock) -> None:
    rows = read(local, {"r": [np.zeros(1), np.zeros(2)], "s": ["a", "b"]})
    for ask in (rows["r"].numpy, rows["r"].torch):
        with pytest.raises(td.InvalidArgument, match="'r' is ragged"):
            ask()
    for ask in (rows["s"].numpy, rows["s"].torch_list, rows["s"].values, rows["s"].torch_nested):
        with pytest.raises(td.InvalidArgument, match="'s' holds str"):
            ask()
    with raising(td.NotFound, "'x'", "r, s"):
        rows["x"]
    for wrong in (2, -3):
        with pytest.raises(IndexError, match="of 2"):
            rows["s"][wrong]
    assert "r" in rows and "x" not in rows


def test_optional_columns_that_are_not_there(dock: td.Dock) -> None:
    dock.create_partition("p", {"x": "int64", "hint": "str", "n": "float32"})
    dock.register_consumer("p", "c", reads=["x"], reads_optional=["hint", "n"])
    ids = dock.put("p", {"x": [1, 2]})
    dock.put("p", {"hint": ["h"], "n": [0.5]}, rows=ids[1:])
    with dock.take("p", "c", max=2) as rows:
        assert rows["hint"].tolist() == [None, "h"] and rows["hint"][0] is None and rows["n"][0] is None
        assert [rows["hint"].has(i) for i in (0, 1)] == [False, True] and not rows["hint"].is_whole()
        with raising(td.NotFound, "column 'n'", "row 0"):
            rows["n"].numpy()
        assert list(rows.numpy()) == list(rows.torch()) == ["x"]


def test_all_columns_at_once(local: td.Dock) -> None:
    rows = read(local, {"d": np.zeros((2, 3), np.float32), "r": [np.arange(1), np.arange(2)], "s": ["a", "b"]})
    arrays, tensors = rows.numpy(), rows.torch()
    assert list(arrays) == list(tensors) == ["d", "r", "s"] and arrays["s"] == tensors["s"] == ["a", "b"]
    assert arrays["d"].shape == tuple(tensors["d"].shape) == (2, 3)
    assert [len(row) for row in arrays["r"]] == [len(row) for row in tensors["r"]] == [1, 2]


def test_copies_of_all_columns_are_ones_own(dock: td.Dock) -> None:
    rows = read(dock, {"d": np.zeros((2, 3)), "r": [np.zeros(1), np.zeros(2)], "s": ["a", "b"]})
    for name in ("d", "r"):
        for row in rows.numpy(copy=True)[name]:
            row += 1
        for row in rows.torch(copy=True)[name]:
            row += 1
        assert all((row == 0).all() for row in rows[name])


def test_columns_of_rows_can_be_put_again(dock: td.Dock) -> None:
    given = {"d": np.arange(4.0).reshape(2, 2), "r": [np.arange(1), np.arange(2)], "s": ["a", "b"], "b": [b"c", b"d"]}
    rows = read(dock, given)
    dock.create_partition("q")
    back = dock.fetch("q", dock.put("q", {name: rows[name] for name in rows.columns}), rows.columns)
    assert [back[name].kind for name in back.columns] == ["dense", "ragged", "str", "bytes"]
    assert np.array_equal(back["d"].numpy(), given["d"]) and back["s"].tolist() == ["a", "b"]
    assert [row.tolist() for row in back["r"]] == [[0], [0, 1]]


def test_what_is_put_may_be_changed_afterwards(remote: td.Dock) -> None:
    remote.create_partition("p")
    given = np.ones((64, 4096), np.float32)
    ids = remote.put("p", {"x": given})
    given[:] = 7
    assert remote.fetch("p", ids, ["x"])["x"].numpy().max() == 1


def test_torch_is_not_imported_without_need() -> None:
    import subprocess
    import sys

    program = """
import sys, numpy, transfer_dock as td
dock = td.Dock.local()
dock.create_partition("p")
ids = dock.put("p", {"x": numpy.arange(3), "y": [numpy.arange(2)] * 3, "z": ["a"] * 3})
rows = dock.fetch("p", ids, ["x", "y", "z"])
rows.numpy()
assert "torch" not in sys.modules
rows.torch()
assert "torch" in sys.modules
"""
    subprocess.run([sys.executable, "-c", program], check=True, timeout=LONG)
