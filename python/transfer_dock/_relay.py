"""A program of a run that answers in another process: what arrives at its standard input goes to a Unix socket, and back.

usage: _relay.py SOCKET NAME

Needs nothing but Python. It says NAME first, in a line, by which the other side knows what is asked of it.
"""

import os
import select
import socket
import sys


def _write(file: int, data: bytes) -> None:
    left = memoryview(data)
    while left:
        left = left[os.write(file, left) :]


def _relay(server: socket.socket) -> None:
    other = server.fileno()
    sources = {0: other, other: 1}
    while other in sources:
        for source in select.select(list(sources), [], [])[0]:
            data = os.read(source, 1 << 20)
            if data:
                _write(sources[source], data)
            else:
                del sources[source]
                if source == 0:
                    server.shutdown(socket.SHUT_WR)


def _main(path: str, name: str) -> int:
    with socket.socket(socket.AF_UNIX) as server:
        try:
            server.connect(path)
        except OSError as error:
            print(f"the Python process that has '{name}' is gone: {path}: {error.strerror}", file=sys.stderr)
            return 1
        try:
            server.sendall(name.encode() + b"\n")
            _relay(server)
        except (BrokenPipeError, ConnectionResetError):
            pass  # one side has ended
    return 0


if __name__ == "__main__":
    sys.exit(_main(*sys.argv[1:]))
