#!/usr/bin/env python3
"""Prints parts of docs/wire-format.md, made from the C++ headers.

usage: scripts/wire_messages.py verbs | messages

`verbs` is a table of TDOCK_VERBS. `messages` is the messages in the language of protocol buffers (proto3).
"""

import pathlib
import re
import sys
import textwrap

ROOT = pathlib.Path(__file__).resolve().parent.parent
WIRE = "src/dock/service/wire/"
# A struct, with its name, its members and its list of fields.
STRUCT = re.compile(r"struct (\w+) \{((?:(?!\nstruct ).)*?)TDOCK_FIELDS\(\1, ([^)]*)\)", re.DOTALL)
MEMBER = re.compile(r"^ +((?:[\w:]+)(?:<[^;=]*>)?) (\w+)(?: = [^;]*)?;", re.MULTILINE)
VERB = re.compile(r"V\((\w+), (\w+), ([\w:<>]+), (\w+), (\d+), (true|false)\)")
NUMBERS = {
    "bool": "bool", "int32_t": "int32", "int64_t": "int64", "uint32_t": "uint32", "uint64_t": "uint64", "RowId": "uint64",
    "LeaseId": "uint64", "GroupId": "uint64", "absl::Time": "int64", "absl::Duration": "int64",
}  # fmt: skip
TEXTS = {"std::string": "bytes"}
# Names of uint64 fields that have many digits (IsFixed of field_codec.cc).
FIXED = {"group", "groups", "instance"}
# Texts that are encoded structs.
ENCODED = {("Rows", "columns"): "ColumnSpec", ("Rows", "tag_sets"): "Tags"}
# The structs that others stand for in messages.
SENT = {"SentTags": "Tags", "SentColumnStatus": "ColumnStatus"}
# Field of Reply -> the type of what a verb returns.
REPLIES = {
    "std::vector<std::string>": "names", "PutResult": "put", "Taken": "taken", "Rows": "rows", "absl::Time": "expires",
    "std::vector<RowId>": "row_ids", "ListResult": "list", "int64_t": "count", "PartitionStatus": "status",
    "ConsumerStatus": "consumer_status", "std::string": "text", "RowStatus": "row_status", "ExportedPartition": "rows",
    "Nothing": "",
}  # fmt: skip


def text(name):
    return (ROOT / name).read_text()


def structs():
    """{name: [(type, field)]} of all that messages consist of."""
    sources = ["include/tdock/rows.h", "include/tdock/options.h", "include/tdock/requests.h", WIRE + "messages.h", WIRE + "field_codec.cc"]
    found = {}
    for source in sources:
        for name, members, fields in STRUCT.findall(text(source)):
            types = {field: kind for kind, field in MEMBER.findall(members)}
            names = [field.strip() for field in fields.split(",")]
            found[SENT.get(name, name)] = [(types[field], field) for field in names]
    return found


def enumerations():
    """{name: its values as "0 row, 1 group"}."""
    found = re.findall(r"NamesOf\((\w+)\) \{\s*return \{([^}]*)\}", text("include/tdock/options.h") + text("include/tdock/requests.h"))
    return {name: ", ".join(f"{number} {value}" for number, value in enumerate(re.findall(r'"(\w+)"', values))) for name, values in found}


def verbs():
    """[(verb, request, reply, name, number, may be repeated)], by number."""
    return sorted(VERB.findall(text("include/tdock/requests.h")), key=lambda verb: int(verb[4]))


def numbers_of(name, fields):
    """The number of each field; 0 for one that is not sent by itself."""
    own = {"PutRequest": (WIRE + "field_codec.h", "kPutNumbers"), "Request": (WIRE + "messages.h", "kNumbers")}
    if name not in own:
        return range(1, len(fields) + 1)
    source, constant = own[name]
    return map(int, re.search(constant + r"\[\] = \{([^}]*)\}", text(source))[1].split(","))


def constant(source, name):
    return re.search(rf"\b{name} = (\d+)", text(source))[1]


class Messages:
    def __init__(self):
        self.structs = structs()
        self.enumerations = enumerations()

    def lines(self, name):
        """The fields of a message, and the messages that they name."""
        lines, used = [], []
        fields = self.structs[name]
        for (kind, field), number in zip(fields, numbers_of(name, fields)):
            if number == 0 or kind == "std::stop_token" or kind == "ReplyBody":
                continue
            if kind == "ConsumerOptions":
                more, inner = self.lines("ConsumerOptions")
                lines += [re.sub(r"= (\d+);", lambda found: f"= {int(found[1]) + number - 1};", line) for line in more]
                used += inner
                continue
            if kind == "ColumnType":
                lines += [f"uint32 kind = {number};", f"uint32 dtype = {number + 1};", f"repeated int64 row_shape = {number + 2};"]
                continue
            sent, comment = self.sent(name, kind, field)
            lines.append(f"{sent} {field} = {number};{comment and '  // ' + comment}")
            used.append(sent.split()[-1])
        return lines, used

    def sent(self, name, kind, field):
        """(the type of a field in a message, a comment)."""
        inner = re.fullmatch(r"std::(vector|optional)<(.*)>", kind)
        if inner:
            sent, comment = self.sent(name, inner[2], field)
            return f"{'repeated' if inner[1] == 'vector' else 'optional'} {sent}", comment
        if (name, field) in ENCODED:
            return ENCODED[name, field], ""
        if kind == "Batch":
            return "bool", "a frame follows the call"
        if kind in self.enumerations:
            return "uint32", self.enumerations[kind]
        if NUMBERS.get(kind) == "uint64" and field in FIXED:
            return "fixed64", ""
        comment = {"absl::Time": "nanoseconds from now", "absl::Duration": "nanoseconds"}.get(kind, "")
        if field == "taken" and kind == "absl::Time":
            comment = "nanoseconds ago"
        if field == "remaining":
            comment = "nanoseconds from now"
        return NUMBERS.get(kind) or TEXTS.get(kind) or kind, comment

    def request_body(self):
        lines = [(int(number), f"{request} {name} = {number};") for _, request, _, name, number, _ in verbs()]
        for kind, name in (("Cancel", "cancel"), ("Release", "acknowledge"), ("Nothing", "ping")):
            number = constant(WIRE + "messages.h", "k" + name.title())
            lines.append((int(number), f"{kind} {name} = {number};"))
        return [line for _, line in sorted(lines)]

    def reply_body(self):
        codec = text(WIRE + "field_codec.cc")
        cases = re.findall(r'case (\d+):\s+return Read\("(\w+)", body.emplace<message::(\w+)>', codec)
        lines = [(int(number), f"{kind} {name} = {number};") for number, name, kind in cases]
        encoded = {"List": "ListResult", "Status": "PartitionStatus", "ConsumerStatus": "ConsumerStatus", "Text": "bytes", "RowStatus": "RowStatus"}
        for name, kind in encoded.items():
            field = re.sub(r"(?<=[a-z])([A-Z])", r"_\1", name).lower()
            lines.append((int(constant(WIRE + "messages.h", "k" + name)), f"{kind} {field} = {constant(WIRE + 'messages.h', 'k' + name)};"))
        number = constant(WIRE + "field_codec.cc", "kCountOfReply")
        lines.append((int(number), f"int64 count = {number};"))
        return [line for _, line in sorted(lines)]

    def message(self, name):
        """The text of a message, and the messages that it names."""
        lines, used = self.lines(name)
        body = {"Request": self.request_body, "Reply": self.reply_body}.get(name)
        if body:
            inner = body()
            used += [line.split()[0] for line in inner]
            lines += ["oneof body {", *(f"  {line}" for line in inner), "}"]
        if name == "PutRequest":
            lines.append(f"int64 step = {constant(WIRE + 'field_codec.h', 'kStepOfPut')};  // always -1")
            lines.append(f"bool reads_range = {constant(WIRE + 'field_codec.h', 'kReadsRange')};  // the reply may have `first` and `count`")
            lines.sort(key=lambda line: int(re.search(r"= (\d+);", line)[1]))
        return "\n".join([f"message {name} {{", *(f"  {line}" for line in lines), "}"]), used

    def text(self):
        """All messages, each after the one that names it first."""
        self.structs["Nothing"] = []
        waiting, written, texts = ["Hello", "Welcome", "Request", "Reply"], set(), []
        while waiting:
            name = waiting.pop(0)
            if name in written or name not in self.structs:
                continue
            written.add(name)
            message, used = self.message(name)
            texts.append(message)
            waiting = used + waiting
        return "\n\n".join(['syntax = "proto3";', *texts]).replace("{\n}", "{}")


def main():
    if sys.argv[1:] == ["verbs"]:
        print("| number | verb | request | field of the reply | a client may repeat it |\n|---|---|---|---|---|")
        for _, request, reply, name, number, again in verbs():
            print(f"| {number} | `{name}` | {request} | {REPLIES[reply] and f'`{REPLIES[reply]}`'} | {'yes' if again == 'true' else 'no'} |")
    elif sys.argv[1:] == ["messages"]:
        print(textwrap.indent(Messages().text(), "    "))
    else:
        sys.exit(__doc__)


if __name__ == "__main__":
    main()
