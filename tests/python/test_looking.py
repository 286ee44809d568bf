"""Looking at rows, docks and runs: what a REPL and a notebook show, parts of rows, and rows in other libraries."""

from __future__ import annotations

import ast
import html.parser
import inspect
import io
import os
import pathlib
import pickle
import subprocess
import sys
import threading
import types

import numpy as np
import pyarrow
import pytest
import torch
from messages import mentions, raising
from waiting import LONG, until

import transfer_dock as td
from transfer_dock import controller, tables, watching

ROOT = pathlib.Path(os.environ["TDOCK_SOURCE"])


@pytest.fixture
def rows(dock: td.Dock) -> td.Taken:
    columns = {"text": "str", "tokens": td.column("int32", ragged=True), "reward": "float32"}
    columns |= {"hidden": td.column(torch.bfloat16, 2), "pair": td.column("int64", (2,)), "late": "float32"}
    dock.create_partition("p", columns)
    dock.register_consumer("p", "c", reads=["text", "tokens", "reward", "hidden", "pair"], reads_optional=["late"])
    dock.put(
        "p",
        {
            "text": [f"<b>{i}" for i in range(20)],
            "tokens": [list(range(i)) for i in range(20)],
            "reward": np.arange(20, dtype=np.float32),
            "hidden": torch.arange(40, dtype=torch.bfloat16).reshape(20, 2),
            "pair": np.arange(40).reshape(20, 2),
        },
        keys=[f"k{i}" for i in range(20)],
        tags=[{"number": str(i)} for i in range(20)],
        groups=range(20),
        weights_version=3,
    )
    dock.put("p", {"late": [0.5, 1.5]}, rows=[1, 3])
    return dock.take("p", "c", 20)


class _Checked(html.parser.HTMLParser):
    """Fails on elements that are not closed, and keeps the text."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.said = ""
        self.feed(text)
        assert not self.open

    def handle_starttag(self, tag: str, attrs: object) -> None:
        self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.said += data + "|"


def test_rows_are_shown_as_a_table(rows: td.Taken) -> None:
    first, head, *lines = repr(rows).splitlines()
    assert first == f"<Taken: 20 rows, lease {rows.lease}"
    assert head.split("  ")[1] == "row" and "tokens: int32[?]" in head and "hidden: bfloat16[2]" in head
    assert lines[3].split()[:6] == ["3", "'<b>3'", "[0,", "1,", "2]", "3.0"] and lines[8].split()[0] == "…"
    told = _Checked(rows._repr_html_()).said
    assert "'<b>3'|[0, 1, 2]|3.0|" in told and "reward: float32|" in told
    assert repr(rows[:1]).startswith("<Rows: 1 row\n")
    assert repr(rows["late"]) == "<Column 'late': float32, 20 rows: –, 0.5, –, 1.5, –, –, –, –, …>"
    assert "Column 'tokens': int32[?], 20 rows|" in _Checked(rows["tokens"]._repr_html_()).said


def test_docks_servers_and_statuses_are_shown(server: td.Server, rows: td.Taken, dock: td.Dock) -> None:
    assert repr(server) == f"<Server at {server.address} and {server.tcp_address}, process {server.pid}>"
    assert server.address in _Checked(server._repr_html_()).said
    assert repr(dock) in (repr(td.Dock.local()), f"<Dock at {server.address}>", f"<Dock at {server.tcp_address}>")
    mentions(repr(td.Dock.local()), "Dock", "process")
    assert "p|20|c|0|0|20|0|0|" in _Checked(dock._repr_html_()).said
    with td.DockServer(listen="127.0.0.1:0", insecure=True) as inside:
        assert repr(inside).startswith(f"<DockServer at {inside.address}, ")
        _Checked(inside._repr_html_())
    status = dock.status("p")
    assert repr(status).startswith("<PartitionStatus: 20 rows in 20 groups (0 incomplete), ")
    assert ["c", "0", "0", "20", "0", "0>"] == repr(status).splitlines()[-1].split()
    for one in (status, status.consumers["c"], status.columns[0], dock.row_status("p", 3)):
        _Checked(one._repr_html_())
    dead = td.Dock.connect(server.address)
    dead.close()
    told = _Checked(dead._repr_html_()).said
    assert server.address in told and "p|20" not in told and "closed" in told


def test_rows_are_like_a_dict_of_columns_and_a_list_of_rows(rows: td.Taken) -> None:
    names = ["text", "tokens", "reward", "hidden", "pair", "late"]
    assert rows.keys() == rows.columns == names
    assert list(dict(rows)) == names and dict(rows)["reward"].numpy().tolist() == list(range(20))
    assert [name for name, _ in rows.items()] == names and [one.name for one in rows.values()] == names
    assert len(rows) == 20 and "text" in rows and "nothing" not in rows and 3 not in rows and None not in rows
    one = rows[-17]
    assert one["text"] == "<b>3" and one["tokens"].tolist() == [0, 1, 2] and one["late"] == 1.5
    assert one["hidden"].tolist() == [6.0, 7.0] and one["hidden"].dtype == torch.bfloat16
    for three in (3, np.int64(3), np.array(3), torch.tensor(3)):
        assert rows[three]["text"] == rows["text"][three] == "<b>3"
    assert rows[0]["late"] is None and "<b>3" in rows["text"] and 99 not in rows["reward"]
    everything = list(rows)
    assert len(everything) == 20 and everything[3]["pair"].tolist() == [6, 7] and everything[3]["late"] == 1.5


@pytest.mark.parametrize(
    ("key", "expected"),
    [
        (slice(2, 5), [2, 3, 4]),
        (slice(None, None, -9), [19, 10, 1]),
        ([3, -1, 3], [3, 19, 3]),
        (np.array([5, 0]), [5, 0]),
        (np.array([5, 0], np.uint8), [5, 0]),
        (torch.tensor([5, 0]), [5, 0]),
        (np.arange(20) % 7 == 1, [1, 8, 15]),
        ([], []),
        (np.zeros(20, bool), []),
    ],
)
def test_parts_of_rows_are_views(rows: td.Taken, key: object, expected: list[int]) -> None:
    part = rows[key]  # type: ignore[call-overload]
    assert type(part) is td.Rows and len(part) == len(expected)
    assert part.ids.tolist() == rows.ids[expected].tolist() and part.groups.tolist() == expected
    assert part.row_keys == [f"k{i}" for i in expected] and part.tags == [{"number": str(i)} for i in expected]
    assert part["reward"].tolist() == expected and [len(one) for one in part["tokens"]] == expected
    assert part.weights_versions("reward").tolist() == [3] * len(expected)
    assert [one["text"] for one in part] == [f"<b>{i}" for i in expected]
    assert [np.asarray(one).tolist() for one in rows["tokens"][key]] == [list(range(i)) for i in expected]  # type: ignore[call-overload]


def test_a_part_keeps_the_memory_of_its_rows(dock: td.Dock) -> None:
    dock.create_partition("p", {"x": "int64"})
    dock.register_consumer("p", "c", reads=["x"])
    dock.put("p", {"x": list(range(1000))})
    part = dock.take("p", "c", 1000)[500:502]
    dock.drop_partition("p")
    assert part["x"].tolist() == [500, 501]


def test_wrong_keys_are_named(rows: td.Taken) -> None:
    for key, error in [(20, IndexError), ([0, 20], IndexError), ([-21], IndexError), (np.zeros(3, bool), IndexError)]:
        with pytest.raises(error):
            rows[key]  # type: ignore[index]
        with pytest.raises(error):
            rows["text"][key]  # type: ignore[index]
    for wrong in (1.5, [0.5], None, (1, [2]), b"text", [[1]]):
        with raising(td.InvalidArgument, "a column", "a row"):
            rows[wrong]  # type: ignore[index]
    with raising(td.NotFound, "'nothing'", "text, tokens"):
        rows["nothing"]


def test_pickled_rows_are_copies(dock: td.Dock, rows: td.Taken) -> None:
    again = pickle.loads(pickle.dumps(rows))
    part = pickle.loads(pickle.dumps(rows[3:5]))
    column = pickle.loads(pickle.dumps(rows["tokens"]))
    rows.release()
    dock.clear("p", everything=True)
    assert type(again) is td.Rows and again.columns == rows.columns
    for name in ("ids", "groups", "ages", "epochs", "redeliveries"):
        assert getattr(again, name).tolist() == getattr(rows, name).tolist()
    assert again.row_keys == rows.row_keys and again.tags == rows.tags
    assert again["text"].tolist() == rows["text"].tolist() and again["late"].tolist() == rows["late"].tolist()
    assert torch.equal(again["hidden"].torch(), rows["hidden"].torch())
    assert np.array_equal(again["pair"].numpy(), rows["pair"].numpy())
    assert [one.tolist() for one in again["tokens"]] == [one.tolist() for one in column] == [list(range(i)) for i in range(20)]
    assert again.weights_versions("text").tolist() == [3] * 20 and again.pieces("tokens", 4) == rows.pieces("tokens", 4)
    assert part["text"].tolist() == ["<b>3", "<b>4"] and part["late"].tolist() == [1.5, None]


def test_pickled_rows_keep_what_made_which_part(local: td.Dock) -> None:
    local.create_partition("p", {"x": "int64", "y": td.column("int32", ragged=True)})
    local.register_consumer("p", "c", reads=["x"], writes=["y"])
    local.put("p", {"x": [1]})
    local.take("p", "c").put({"y": [np.arange(2, dtype=np.int32)]}, partial=True, weights_version=1)
    local.take("p", "c").put({"y": [np.arange(5, dtype=np.int32)]}, weights_version=2)
    rows = local.fetch("p", [0], ["y"])
    assert pickle.loads(pickle.dumps(rows)).pieces("y", 0) == rows[[0]].pieces("y", 0) == rows.pieces("y", 0) != []


def test_rows_become_arrow_tables(rows: td.Taken) -> None:
    table = rows._select(range(4), ["text", "tokens", "reward", "pair", "late"]).to_arrow()
    assert table.schema.types == [
        pyarrow.large_string(),
        pyarrow.large_list(pyarrow.int32()),
        pyarrow.float32(),
        pyarrow.list_(pyarrow.int64(), 2),
        pyarrow.float32(),
    ]
    assert table.to_pylist()[3] == {"text": "<b>3", "tokens": [0, 1, 2], "reward": 3.0, "pair": [6, 7], "late": 1.5}
    assert table["late"].to_pylist() == [None, 0.5, None, 1.5]
    with pytest.raises(td.InvalidArgument, match="column 'hidden' holds bfloat16"):
        rows.to_arrow()


PANDAS = """
import transfer_dock as td
dock = td.Dock.local()
dock.create_partition("p", {"text": "str", "tokens": td.column("int32", ragged=True), "reward": "float32"})
dock.put("p", {"text": ["a", "b"], "tokens": [[1], [2, 3]], "reward": [0.5, 1.0]})
frame = dock.fetch("p", [1, 0], ["text", "tokens", "reward"]).to_pandas()
print(frame.index.name, frame.index.tolist(), frame["text"].tolist(), [one.tolist() for one in frame["tokens"]])
print(frame["reward"].dtype, frame["reward"].mean())
"""


def test_rows_become_frames_of_pandas() -> None:
    # In the environment of tests that has pandas.
    python = ROOT / ".venv-oracle/bin/python"
    told = subprocess.run([python, "-c", PANDAS], stdout=subprocess.PIPE, text=True, check=True, timeout=LONG).stdout
    assert told.splitlines() == ["row [1, 0] ['b', 'a'] [[2, 3], [1]]", "float32 0.75"]


def test_help_says_what_the_stubs_say() -> None:
    stubs = ast.parse((ROOT / "python/transfer_dock/_native.pyi").read_text())
    checked = 0
    for kind in (td.Column, td.Rows, td.Cancel, controller.Batch, controller.RowsRef):
        (stub,) = (one for one in stubs.body if isinstance(one, ast.ClassDef) and one.name == kind.__name__)
        assert inspect.getdoc(kind) == ast.get_docstring(stub)
        for member in stub.body:
            if isinstance(member, ast.FunctionDef) and (doc := ast.get_docstring(member)):
                there = getattr(kind, member.name).__doc__
                assert there is not None and there.endswith(doc), f"{kind.__name__}.{member.name}"
                checked += 1
    assert checked > 40


class _Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_watching_ends_with_the_work(local: td.Dock) -> None:
    local.create_partition("p", {"x": "int64"})
    local.register_consumer("p", "c", reads=["x"])
    local.put("p", {"x": [1, 2, 3, 4]})
    screen = _Terminal()
    td.watch(local, timeout=0, stream=screen)
    assert screen.getvalue().splitlines()[2].split() == ["p", "4", "c", "0", "4", "0", "0", "0", "░" * 20, "0%"]
    watcher = threading.Thread(target=lambda: td.watch(local, "p", every=0.01, stream=screen))
    before = len(screen.getvalue())
    watcher.start()
    until(lambda: len(screen.getvalue()) > before, "a table")
    local.take("p", "c", 3).complete()
    local.seal("p")
    local.take("p", "c").complete()
    watcher.join(LONG)
    assert not watcher.is_alive()
    assert screen.getvalue().splitlines()[-1].split()[-2:] == ["█" * 20, "100%"]
    # A table takes the place of the last one.
    assert screen.getvalue().count("\x1b[3A\x1b[J") >= 1
    with pytest.raises(td.NotFound):
        td.watch(local, "nothing")


def test_a_run_shows_its_progress(local: td.Dock, capsys: pytest.CaptureFixture[str]) -> None:
    @td.stage(reads=["x"], writes=["y"], batch_size=2)
    def double(rows: td.Taken) -> dict[str, object]:
        return {"y": rows["x"].numpy() * 2}

    local.create_partition("p", {"x": "int64", "y": "int64"})
    local.put("p", {"x": [1, 2, 3, 4]})
    local.seal("p")
    td.run(local, "p", [double], progress=True)
    *_, title, head, line = capsys.readouterr().err.splitlines()  # of the last table
    assert title.startswith("partition 'p' after ") and head.split() == ["stage", "batches", "rows", "rows/s", "done"]
    assert line.split()[:3] == ["double", "2", "4"] and line.split()[-1] == "100%"


def test_a_failing_run_shows_its_progress_and_its_error(local: td.Dock, capsys: pytest.CaptureFixture[str]) -> None:
    @td.stage(reads=["x"])
    def fail(rows: td.Taken) -> None:
        raise ZeroDivisionError("no")

    local.create_partition("p", {"x": "int64"})
    local.put("p", {"x": [1]})
    with pytest.raises(td.StageError, match="ZeroDivisionError: no"):
        td.run(local, "p", [fail], progress=True)
    assert "fail" in capsys.readouterr().err


def test_a_notebook_draws_over_the_last_table(local: td.Dock, monkeypatch: pytest.MonkeyPatch) -> None:
    shown: list[str] = []
    shell = type("ZMQInteractiveShell", (), {})()
    handle = types.SimpleNamespace(update=lambda html: shown.append("update " + html))

    def display(html: str, display_id: bool) -> types.SimpleNamespace:
        shown.append("display " + html)
        return handle

    display_module = types.SimpleNamespace(HTML=str, display=display)
    ipython = types.SimpleNamespace(get_ipython=lambda: shell, display=display_module)
    monkeypatch.setitem(sys.modules, "IPython", ipython)  # type: ignore[arg-type]
    monkeypatch.setitem(sys.modules, "IPython.display", display_module)  # type: ignore[arg-type]
    screen = watching.Screen()
    assert screen.is_live
    for _ in range(2):
        screen.draw(lambda: "text", lambda: watching.html_of("a dock", {}))
    assert [one.split(" ")[0] for one in shown] == ["display", "update"] and "<table>" in shown[1]


def test_a_notebook_gets_tables_of_html(local: td.Dock) -> None:
    local.create_partition("<p>", {"x": "int64"})
    assert "<p>|0|" in _Checked(watching.html_of("a dock", {"<p>": local.status("<p>")})).said


def test_tables_escape_what_would_change_a_terminal() -> None:
    assert tables.shortened("a\x1b[2J\x9b\u202eb\n c é 試 😀") == "a\\x1b[2J\\x9b\\u202eb c é 試 😀"
    shown = tables.as_text(["name"], [["\x1b]0;PWNED\x07\x1b[2J\nFAKE LOG LINE\u202e"]])
    assert shown.replace("\n", "").isprintable()
    assert len(shown.splitlines()) == 2


@pytest.mark.parametrize("name", ["a\x1b[2J", "a\nb", "a\u202eb", "a\u200bb", "\ufeffa"])
def test_names_that_would_change_a_terminal_are_refused_and_quoted(dock: td.Dock, name: str) -> None:
    with pytest.raises(td.InvalidArgument) as refused:
        dock.create_partition(name, {"x": "float32"})
    assert str(refused.value).isprintable()
