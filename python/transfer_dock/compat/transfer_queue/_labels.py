"""What the dock's tags of a row say: the shapes of its fields, and what users noted on it.

    ~<field>,<field>,…      : <shape>;<shape>;…       of the fields that the row came with
    ~<field>                : <shape>                 of a field that was put to it later: this holds
    =, =/1, =/2, …          : <count><kind><round>:<text>   what users noted (`custom_meta`), in pieces that fit a tag
    =<digest>, =<digest>/1  : the same                of one note that was added later: it holds if its round is that of `=`

A shape is the sizes with `x` between them, with a `*` if the row came in a nested tensor; `$` is that of an object, whose
cell is one of _fields.encode_object, and `@` that of one whose cell is in the column beside that of the field (_puts.py).

Tags are made by whoever puts, without a look at those that there are. The dock merges them by their names in the order of
the puts, along with the cells: so writers of other fields and other notes of a row do not disturb each other, and of two
writers of one field the label is that of whose cell it is. Who replaces all notes starts a new round.
"""

from __future__ import annotations

import base64
import functools
import hashlib
import json
import pickle
import secrets
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple, cast

Tags = dict[str, str]
Shape = tuple[int, ...]

# What a dock takes as the name and as the value of a tag.
_MAX_NAME_BYTES = 255
_MAX_VALUE_CHARS = 980
_MAX_FIELDS = 24
_ESCAPES = str.maketrans({"%": "%0", ",": "%1"})


class FieldLabel(NamedTuple):
    """How a field of one row was put."""

    # None for an object.
    shape: Shape | None
    nested: bool
    # The object is in the column beside that of the field.
    aside: bool = False


class PutField(NamedTuple):
    """A field of a put."""

    name: str
    # The shape of every row, or one for each; None for a field without tensors.
    shapes: Shape | Sequence[Shape] | None
    nested: bool
    aside: bool = False

    def at(self, positions: Sequence[int]) -> PutField:
        """Of the rows at these positions."""
        if _is_one_shape(self):
            return self
        shapes = cast("Sequence[Shape]", self.shapes)
        return self._replace(shapes=[shapes[i] for i in positions])


def _escape(name: str) -> str:
    return name.translate(_ESCAPES)


def _unescape(text: str) -> str:
    for code, char in (("%1", ","), ("%0", "%")):
        text = text.replace(code, char)
    return text


def _text(shape: Shape | None, field: PutField) -> str:
    if shape is None:
        return "@" if field.aside else "$"
    return "x".join(map(str, shape)) + ("*" if field.nested else "")


def shapes_of(field: PutField, rows: int) -> list[Shape]:
    """The shape of each row of a field of tensors."""
    if _is_one_shape(field):
        return [cast("Shape", field.shapes)] * rows
    return list(cast("Sequence[Shape]", field.shapes))


def _texts(field: PutField, rows: int) -> list[str]:
    """The shape of each row."""
    if _is_one_shape(field):
        return [_text(cast("Shape | None", field.shapes), field)] * rows
    return [_text(shape, field) for shape in shapes_of(field, rows)]


def _is_one_shape(field: PutField) -> bool:
    return field.shapes is None or not field.shapes or isinstance(field.shapes[0], int)


@functools.lru_cache(maxsize=1024)
def _names(fields: tuple[str, ...], together: bool) -> list[tuple[str, range]]:
    """The names of the tags that tell of so many fields, and which of the fields each tells of."""
    names: list[tuple[str, range]] = []
    begin, text = 0, ""
    for i, name in enumerate(fields):
        one = _escape(name)
        if i > begin and (not together or len(f"~{text},{one}".encode()) > _MAX_NAME_BYTES or i - begin == _MAX_FIELDS):
            names.append(("~" + text, range(begin, i)))
            begin, text = i, one
        else:
            text = f"{text},{one}" if i > begin else one
    names.append(("~" + text, range(begin, len(fields))))
    return names


def label_put(fields: Sequence[PutField], rows: int, new: bool) -> Tags | list[Tags]:
    """The tags of a put to ``new`` rows or others: of each row, or one set for all where the rows are alike."""
    ordered = sorted(fields)
    names = _names(tuple(field.name for field in ordered), new)
    if all(map(_is_one_shape, ordered)):
        return {name: ";".join(_texts(ordered[i], 1)[0] for i in span) for name, span in names}
    texts = [_texts(field, rows) for field in ordered]
    columns = [[";".join(of_row) for of_row in zip(*(texts[i] for i in span))] for _, span in names]
    return [dict(zip((name for name, _ in names), of_row)) for of_row in zip(*columns)]


@functools.lru_cache(maxsize=4096)
def _parse(name: str, value: str) -> list[tuple[str, FieldLabel]]:
    labels = []
    for text, told in zip(name[1:].split(","), value.split(";"), strict=True):
        shape = told.removesuffix("*")
        dimensions = None if told in ("$", "@") else tuple(map(int, shape.split("x"))) if shape else ()
        labels.append((_unescape(text), FieldLabel(dimensions, told.endswith("*"), told == "@")))
    return labels


def fields_of(tags: Mapping[str, str]) -> dict[str, FieldLabel]:
    """The labels of a row, by their fields."""
    labels: dict[str, FieldLabel] = {}
    later: dict[str, FieldLabel] = {}
    for name, value in tags.items():
        if name.startswith("~"):
            (labels if "," in name else later).update(_parse(name, value))
    labels.update(later)
    return labels


def fields_of_rows(tags: Sequence[Mapping[str, str]]) -> list[dict[str, FieldLabel]]:
    """``fields_of`` each row. Neighbours with the same tags, as one put makes them, have one dictionary together."""
    labels: list[dict[str, FieldLabel]] = []
    before, found = None, {}
    for of_row in tags:
        if of_row != before:
            before, found = of_row, fields_of(of_row)
        labels.append(found)
    return labels


def _is_json(value: Any) -> bool:
    """Whether JSON gives it back as it is."""
    if value is None or type(value) in (str, int, float, bool):
        return True
    if type(value) is list:
        return all(map(_is_json, value))
    return type(value) is dict and all(type(key) is str and _is_json(one) for key, one in value.items())


def _pieces(prefix: str, mark: str, notes: Mapping[str, Any]) -> Tags:
    """The tags that hold notes: any dictionary that can be pickled."""
    plain = dict(notes)
    if _is_json(plain):
        kind, text = "j", json.dumps(plain)
    else:
        kind, text = "p", base64.b85encode(pickle.dumps(plain)).decode()
    pieces = [text[i : i + _MAX_VALUE_CHARS] for i in range(0, len(text), _MAX_VALUE_CHARS)]
    tags = {f"{prefix}/{i}": piece for i, piece in enumerate(pieces) if i > 0}
    tags[prefix] = f"{len(pieces)}{kind}{mark}:{pieces[0]}"
    return tags


def _head(tags: Mapping[str, str], prefix: str) -> tuple[int, str, str]:
    """The number of pieces, the kind, and the round; of notes that are not there the round of those added to none."""
    head = tags.get(prefix, "0j:").partition(":")[0]
    kind = "j" if "j" in head else "p"
    count, _, mark = head.partition(kind)
    return int(count), kind, mark


def _joined(tags: Mapping[str, str], prefix: str) -> dict[str, Any]:
    count, kind, _ = _head(tags, prefix)
    text = tags[prefix].partition(":")[2] + "".join(tags[f"{prefix}/{i}"] for i in range(1, count))
    notes = json.loads(text) if kind == "j" else pickle.loads(base64.b85decode(text))
    return dict(notes)


def note_tags(notes: Mapping[str, Any]) -> Tags:
    """The tags that hold what users noted on a row, in the place of what they noted before."""
    return _pieces("=", secrets.token_hex(4), notes)


def added_tags(before: Mapping[str, str], notes: Mapping[str, Any]) -> Tags:
    """The tags that add notes to those of a row that has the tags ``before``."""
    mark = _head(before, "=")[2]
    tags: Tags = {}
    for name, value in notes.items():
        digest = hashlib.blake2b(repr(name).encode(), digest_size=12).hexdigest()
        tags.update(_pieces("=" + digest, mark, {name: value}))
    return tags


def notes_of(tags: Mapping[str, str]) -> dict[str, Any]:
    """What users noted on a row."""
    notes = _joined(tags, "=") if "=" in tags else {}
    mark = _head(tags, "=")[2]
    for name in tags:
        if name.startswith("=") and name != "=" and "/" not in name and _head(tags, name)[2] == mark:
            notes.update(_joined(tags, name))
    return notes


def merge(tags: Tags | list[Tags], more: Iterable[Tags]) -> list[Tags]:
    """The tags of each row with others of each row."""
    if isinstance(tags, dict):
        return [{**tags, **of_row} for of_row in more]
    return [{**of_row, **added} for of_row, added in zip(tags, more, strict=True)]
