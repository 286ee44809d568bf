"""A client of a dock server in plain Python, written by docs/wire-format.md and docs/frame.md alone.

usage: client.py ADDRESS [TOKEN]     ADDRESS: HOST:PORT or unix:/PATH, as `tdock dock serve` prints them
"""

import array
import mmap
import os
import socket
import struct
import sys

from frame import frame
from xxh3 import xxh3

HELLO, WELCOME, GOODBYE, DATA, CALL, REPLY, SEGMENT, GONE = 1, 2, 3, 4, 32, 34, 36, 37
CREATE_PARTITION, DROP_PARTITION, REGISTER_CONSUMER, PUT, TAKE, COMPLETE = 10, 11, 13, 15, 16, 18
SECOND = 10**9


# ---- Control messages: {number of a field: value}.


def varint(number):
    number &= 2**64 - 1
    digits = bytearray()
    while number >= 0x80:
        digits.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*digits, number])


def encode(fields):
    """A bool or an int is a number, a list of bytes is a field for each; other lists are numbers in one field."""
    message = b""
    for field, value in fields.items():
        if isinstance(value, int):
            message += varint(field << 3) + varint(value)
            continue
        if isinstance(value, list) and not all(isinstance(each, bytes) for each in value):
            value = b"".join(varint(each) for each in value)
        for part in value if isinstance(value, list) else [value]:
            message += varint(field << 3 | 2) + varint(len(part)) + part
    return message


def varints(packed):
    numbers, number, shift = [], 0, 0
    for byte in packed:
        number |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            numbers.append(number)
            number, shift = 0, 0
    return numbers


class Fields:
    """The fields of a message: each number has a list of values."""

    def __init__(self, message):
        self.values = {}
        while message:
            key, message = self.first(message)
            if key & 7 == 0:
                value, message = self.first(message)
            elif key & 7 == 2:
                size, message = self.first(message)
                value, message = message[:size], message[size:]
            else:  # 8 or 4 fixed bytes
                size = 8 if key & 7 == 1 else 4
                value, message = int.from_bytes(message[:size], "little"), message[size:]
            self.values.setdefault(key >> 3, []).append(value)

    @staticmethod
    def first(message):
        end = next(i for i, byte in enumerate(message) if byte < 0x80) + 1
        return varints(message[:end])[0], message[end:]

    def number(self, field):
        return self.values.get(field, [0])[-1]

    def bytes(self, field):
        return self.values.get(field, [b""])[-1]

    def messages(self, field):
        return [Fields(value) for value in self.values.get(field, [])]


# ---- The connection.


class Dock:
    def __init__(self, address, token=""):
        path = address.removeprefix("unix:")
        self.is_local = path != address
        if self.is_local:
            self.socket = socket.socket(socket.AF_UNIX)
            self.socket.connect(path)
        else:
            host, _, port = address.rpartition(":")
            self.socket = socket.create_connection((host.strip("[]"), int(port)))
        self.files, self.segments, self.calls = [], {}, 0
        self.send(HELLO, 0, struct.pack("<IHH", 2, 1, len(token)) + token.encode() + bytes(16) + encode({2: b"plain client"}))
        self.receive(WELCOME, 0)
        if self.is_local:
            os.close(self.files.pop())  # the upload area, which this client does without

    def send(self, kind, tag, body):
        self.socket.sendall(struct.pack("<IB3xQ", len(body), kind, tag) + body)

    def read(self, size):
        data = bytearray()
        while len(data) < size:
            part, files, _, _ = socket.recv_fds(self.socket, size - len(data), 4)
            if not part:
                raise ConnectionError("the server has closed the connection")
            data += part
            self.files += files
        return bytes(data)

    def receive(self, wanted, tag):
        """The body of the next message of this kind and tag."""
        while True:
            length, kind, of = struct.unpack("<IB3xQ", self.read(16))
            body = self.read(length)
            if kind == wanted and of == tag:
                return body
            if kind == GOODBYE:
                raise ConnectionError(body[4:].decode())
            if kind == SEGMENT:
                number, size = struct.unpack("<QQ", body)
                self.segments[number] = mmap.mmap(self.files[0], size, mmap.MAP_SHARED, mmap.PROT_READ)
                os.close(self.files.pop(0))
            elif kind == GONE:
                del self.segments[int.from_bytes(body, "little")]

    def call(self, verb, body, sent=b"", released=()):
        """The reply to a request, and the bytes that follow it. `sent`: the frame."""
        self.calls += 1
        call = self.calls
        self.send(CALL, call, encode({1: call, 2: call, 3: list(released), verb: encode(body)}))
        for at in range(0, len(sent), 256 << 10):
            part = sent[at : at + (256 << 10)]
            self.send(DATA, call, struct.pack("<QQ", at, 0 if self.is_local else xxh3(struct.pack("<Q", at) + part)) + part)
        reply = Fields(self.receive(REPLY, call))
        if reply.number(1):
            raise RuntimeError(f"error {reply.number(1)}: {reply.bytes(2).decode()}")
        return reply

    def take(self, partition, consumer, most):
        """(lease, pin, [(id, {column: bytes})]) of up to so many rows."""
        taken = self.call(TAKE, {1: partition, 2: consumer, 3: 1, 4: most, 7: 10 * SECOND}).messages(12)[0]
        rows = taken.messages(3)[0]
        inline = rows.bytes(14)
        while len(inline) < rows.number(15):
            data = self.receive(DATA, self.calls)
            checksum = int.from_bytes(data[8:16], "little")
            if checksum not in (0, xxh3(data[:8] + data[16:])):
                raise ConnectionError("damaged data")
            inline += data[16:]  # in order, over one socket
        cells = self.cells(rows, inline)
        table = [(row, {}) for row in varints(rows.bytes(1))]
        columns = [column.bytes(1).decode() for column in rows.messages(9)]
        absent = [run.number(4) for run in rows.messages(10) for _ in range(run.number(1))]
        for at, is_absent in enumerate(absent):
            table[at % len(table)][1][columns[at // len(table)]] = None if is_absent else next(cells)
        return taken.number(1), rows.number(13), table

    def cells(self, rows, inline):
        """The bytes of the cells that are there, column after column."""
        for run in rows.messages(12):
            memory = inline if run.number(6) else self.segments.get(run.number(1), b"")
            at = run.number(2)
            for size in varints(run.bytes(5)) or [run.number(4)] * run.number(3):
                yield memory[at : at + size]
                at += size


def main(address, token=""):
    dock = Dock(address, token)
    columns = [encode({1: b"text", 2: 2, 3: 2}), encode({1: b"reward", 2: 0, 3: 8})]  # bytes of UTF-8, dense float32
    dock.call(CREATE_PARTITION, {1: b"plain", 2: columns, 4: 1})
    consumer = {2: b"reader", 3: [b"text", b"reward"], 11: 1, 12: 60 * SECOND, 13: 5, 14: 2**63 - 1}
    dock.call(REGISTER_CONSUMER, {1: b"plain"} | consumer)
    batch = frame({"text": [b"seven", b"", b"11"], "reward": array.array("f", [0.5, -1.0, 2.0])})
    put = dock.call(PUT, {1: b"plain", 3: True, 8: -1, 16: -1, 17: 10 * SECOND}, batch)
    print("put", varints(put.messages(11)[0].bytes(1)))
    lease, pin, rows = dock.take(b"plain", b"reader", 8)
    for row, cells in rows:
        print(row, cells["text"].decode(), *struct.unpack("<f", cells["reward"]))
    dock.call(COMPLETE, {1: b"plain", 2: lease, 4: -1}, released=[pin])
    dock.call(DROP_PARTITION, {1: b"plain"})
    print("done")


if __name__ == "__main__":
    main(*sys.argv[1:])
