#!/usr/bin/env python3
"""Weights that a program sends to `tdock serve`, and those of folders: tests/integration/update_weights_test.py TDOCK"""

import ctypes
import json
import math
import struct
import subprocess
import sys
import threading
import unittest

from generate_test import model_shapes, write_model, write_tensors
from served_model import NAME, TEMPLATE, Server, WithServer
from waiting import LONG


def xxh3(data):
    checksum = ctypes.CDLL("libxxhash.so.0").XXH3_64bits
    checksum.restype, checksum.argtypes = ctypes.c_uint64, (ctypes.c_char_p, ctypes.c_size_t)
    return f"{checksum(data, len(data)):016x}"


def weights_of(folder):
    """The tensors as an upload names them, and their bytes, from the file of a folder."""
    content = (folder / "model.safetensors").read_bytes()
    size = struct.unpack("<Q", content[:8])[0]
    header = json.loads(content[8 : 8 + size])
    header.pop("__metadata__", None)
    tensors, data = [], []
    for name, entry in reversed(header.items()):  # in another order than that of the file
        begin, end = entry["data_offsets"]
        tensors.append({"name": name, "dtype": entry["dtype"], "shape": entry["shape"]})
        data.append(content[8 + size + begin : 8 + size + end])
    return tensors, b"".join(data)


class Upload:
    """One upload to a server."""

    def __init__(self, server, folder, **fields):
        self.server = server
        self.tensors, self.data = weights_of(folder)
        self.status, self.answer, _ = server.ask("POST", "/update_weights", {"tensors": self.tensors} | fields)
        self.id = self.answer.get("upload")

    def ask(self, query, body=b""):
        headers = {"Content-Type": "application/octet-stream"}
        return self.server.ask("POST", f"/update_weights?upload={self.id}&{query}", body, headers)[:2]

    def send(self, piece=9999):
        for at in range(0, len(self.data), piece):
            status, answer = self.ask(f"offset={at}", self.data[at : at + piece])
            assert status == 200 and answer["received"] == min(at + piece, len(self.data)), answer
        return self

    def end(self, **query):
        query = {"checksum": xxh3(self.data)} | query
        return self.ask("&".join(f"{name}={value}" for name, value in query.items()))


class Uploads(WithServer):
    def greedy(self, server, prompt="hello"):
        answer = server.client.completions.create(
            model=NAME, prompt=prompt, max_tokens=24, temperature=0, logprobs=0,
            extra_body={"return_token_ids": True, "ignore_eos": True},
        ).choices[0]  # fmt: skip
        return answer.token_ids, answer.logprobs.token_logprobs

    def setUp(self):
        self.served = Server(self.model)
        self.addCleanup(self.served.end)

    def test_the_answers_are_those_of_the_folder(self):
        card = self.served.client.models.list().data[0]
        for version, seed in ((1, 5), (2, 6), (3, 7)):  # the third takes the place of the first
            other = write_model(self.folder / f"other{seed}", seed=seed, chat_template=TEMPLATE)
            upload = Upload(self.served, other)
            self.assertEqual((upload.status, upload.answer["weight_version"]), (200, str(version)), upload.answer)
            self.assertGreaterEqual(upload.answer["most_piece_bytes"], 1 << 20)
            before = self.greedy(self.served)
            status, answer = upload.send().end()
            self.assertEqual(status, 200, answer)
            self.assertEqual((answer["weight_version"], answer["instance"]), (str(version), card.instance))
            self.assertIs(answer["success"], True)
            self.assertEqual(upload.end(), (200, answer), "asked again, as where the answer was lost")
            expected = Server(other)
            self.addCleanup(expected.end)
            self.assertEqual(self.greedy(self.served), self.greedy(expected))
            self.assertNotEqual(self.greedy(self.served)[0], before[0])
            self.assertEqual(self.served.client.models.list().data[0].weight_version, version)
        self.assertEqual(self.served.metric("tdock_serve_weight_updates_total"), 3)

    def test_pieces_may_come_again_but_not_before_their_time(self):
        other = write_model(self.folder / "pieces", seed=8, chat_template=TEMPLATE)
        upload = Upload(self.served, other, weight_version="41")
        total, data = len(upload.data), upload.data
        self.assertEqual(upload.ask("offset=0", data[:1001]), (200, {"received": 1001}))
        self.assertEqual(upload.ask("offset=0", data[:1001]), (200, {"received": 1001}))
        self.assertEqual(upload.ask("offset=1000", data[1000:2000]), (200, {"received": 2000}))
        status, answer = upload.ask("offset=2001", data[2001:3000])
        self.assertEqual((status, answer["received"], answer["error"]["code"]), (409, 2000, "conflict"))
        status, answer = upload.end()
        self.assertEqual((status, answer["received"]), (409, 2000), "bytes are missing")
        self.assertEqual(upload.ask("offset=2000", data[2000:] + b"x")[0], 400)
        self.assertEqual(upload.ask("offset=2000", data[2000:]), (200, {"received": total}))
        status, answer = upload.end()
        self.assertEqual((status, answer["weight_version"]), (200, "41"))

    def test_what_cannot_be_served_is_refused_and_nothing_changes(self):
        other = write_model(self.folder / "refused", seed=9, chat_template=TEMPLATE)
        before = self.greedy(self.served)

        def refused(expected, status, answer):
            self.assertEqual(status, expected, answer)
            return answer["error"]["message"]

        def begin(tensors, **fields):
            return self.served.ask("POST", "/update_weights", {"tensors": tensors} | fields)[:2]

        upload = Upload(self.served, other).send()
        refused(400, *upload.end(checksum="0" * 16))
        refused(404, *upload.end())
        upload = Upload(self.served, other)
        self.assertEqual(upload.status, 200)
        refused(409, *begin(upload.tensors))
        refused(404, *self.served.ask("POST", "/update_weights?upload=0&offset=0", b"x")[:2])
        refused(400, *self.served.ask("POST", "/update_weights?offset=0", b"x")[:2])
        upload.send()
        self.assertEqual(self.served.ask("POST", "/update_weights", {"model_path": str(other)})[0], 200)
        refused(409, *upload.end())  # it was to be version 1, which the folder is now
        tensors = upload.tensors
        name = tensors[0]["name"]
        self.assertIn(f"'{name}' is missing", refused(400, *begin(tensors[1:])))
        self.assertIn("twice", refused(400, *begin([*tensors, tensors[0]])))
        self.assertIn("'more' is none", refused(400, *begin([*tensors, tensors[0] | {"name": "more"}])))
        huge = [1 << 52, 1 << 52]
        self.assertIn(str(huge), refused(400, *begin([tensors[0] | {"shape": huge}, *tensors[1:]])))
        refused(400, *begin([tensors[0] | {"dtype": "I64"}, *tensors[1:]]))
        refused(400, *begin([tensors[0]] * (1 << 17) + tensors))
        refused(409, *begin(tensors, weight_version=1))  # which somebody else was quicker with
        refused(400, *begin(tensors, model_path=str(other)))
        self.assertNotEqual(self.greedy(self.served), before, "the folder's")
        again = Server(self.model)
        self.addCleanup(again.end)
        upload.server = again
        refused(404, *upload.end())  # another server in its place does not know of it

    def test_weights_that_are_not_finite_are_refused_and_the_old_ones_stay(self):
        broken = write_model(self.folder / "broken", seed=9, chat_template=TEMPLATE)
        own = {"model.norm.weight": {3: math.nan}}
        write_tensors(broken / "model.safetensors", model_shapes(), seed=9, own=own)
        before = self.greedy(self.served)
        upload = Upload(self.served, broken)
        refusals = [
            self.served.ask("POST", "/update_weights", {"model_path": str(broken)})[:2],
            upload.ask("offset=0", upload.data),
        ]
        for status, answer in refusals:
            self.assertEqual(status, 400, answer)
            for name in ("'model.norm.weight'", "nan", "[3]"):
                self.assertIn(name, answer["error"]["message"])
        self.assertEqual(self.greedy(self.served), before)
        self.assertEqual(self.served.client.models.list().data[0].weight_version, 0)
        self.assertEqual(self.served.ask("GET", "/health")[0], 200)
        command = [Server.tdock, "serve", "--model", broken, "--port", "0"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=LONG)
        self.assertEqual(done.returncode, 2, done.stderr)
        for name in (str(broken / "model.safetensors"), "'model.norm.weight'", "nan", "[3]"):
            self.assertIn(name, done.stderr)

    def test_a_piece_has_its_limit(self):
        server = Server(self.model, "--max-body-mib", "1")
        self.addCleanup(server.end)
        upload = Upload(server, self.model)
        self.assertEqual(upload.answer["most_piece_bytes"], 1 << 20)
        self.assertEqual(upload.ask("offset=0", bytes((1 << 20) + 1))[0], 413)

    def test_keys_are_asked_for(self):
        keys = self.folder / "keys"
        keys.write_text("secret\n")
        server = Server(self.model, "--api-key-file", keys)
        self.addCleanup(server.end)
        self.assertEqual(Upload(server, self.model).status, 401)
        self.assertEqual(server.ask("POST", "/update_weights?upload=0&offset=0", b"x")[0], 401)


class UnderLoad(WithServer):
    """Each token has its version, in order, however often the weights change."""

    positions = 200_000  # long enough that no answer ends by itself

    def stream(self, server, number, begun, found):
        stream = server.client.completions.create(
            model=NAME, prompt=f"stream {number}", max_tokens=190_000, seed=number, stream=True,
            extra_body={"ignore_eos": True, "return_token_ids": True},
        )  # fmt: skip
        pieces = []
        for event in stream:
            for choice in event.choices:
                runs = [run["version"] for run in choice.weight_versions for _ in range(run["tokens"])]
                pieces.append((len(choice.token_ids), runs))
                begun.release()
        found.append(pieces)

    def changes_while_streams_run(self, flush, *options):
        server = Server(self.model, *options)
        self.addCleanup(server.end)
        folders = [self.folder / f"{name}{flush}{len(options)}" for name in ("a", "b")]
        for seed, folder in enumerate(folders):
            write_model(folder, seed=20 + seed, chat_template=TEMPLATE, max_position_embeddings=self.positions)
        found, streams = [], []
        for number in range(8):
            begun = threading.Semaphore(0)
            streams.append(threading.Thread(target=self.stream, args=(server, number, begun, found)))
            streams[-1].start()
            self.assertTrue(begun.acquire(timeout=LONG))
        served = 0
        try:
            for served in range(1, 5):
                folder = folders[served // 2 % 2]
                if served % 2 == 0:
                    status, answer = Upload(server, folder, flush_cache=flush).send(1 << 16).end()
                else:
                    body = {"model_path": str(folder), "flush_cache": flush}
                    status, answer, _ = server.ask("POST", "/update_weights", body)
                self.assertEqual((status, answer.get("weight_version")), (200, str(served)), answer)
        finally:
            server.ask("POST", "/abort_request", {"abort_all": True})
            for stream in streams:
                stream.join(LONG)
        self.assertEqual(len(found), 8)
        for pieces in found:
            self.assertTrue(all(tokens == len(runs) for tokens, runs in pieces), "no token without its version")
            versions = [version for _, runs in pieces for version in runs]
            self.assertEqual(versions, sorted(versions), "in order")
            seen = set(versions)
            self.assertLessEqual(seen, set(range(served + 1)))
            if flush:  # one may be over before all is read again
                self.assertGreater(len(seen), 1)
            else:
                self.assertLessEqual(set(range(served)), seen, "a step with each")
        fresh = Server(folders[served // 2 % 2])
        self.addCleanup(fresh.end)

        def greedy(of):
            params = {"max_new_tokens": 40, "temperature": 0, "ignore_eos": True}
            body = {"text": "stream 0 and then more of it", "sampling_params": params, "return_logprob": True}
            answer = of.ask("POST", "/generate", body)[1]
            return answer["output_ids"], answer["meta_info"]["output_token_logprobs"]

        self.assertEqual(greedy(server), greedy(fresh), "nothing is left of older weights")

    def test_answers_are_read_again(self):
        self.changes_while_streams_run(True)

    def test_answers_go_on(self):
        self.changes_while_streams_run(False)

    def test_replicas_share_what_they_serve(self):
        self.changes_while_streams_run(False, "--replicas", "2")


if __name__ == "__main__":
    Server.tdock = sys.argv.pop(1)
    unittest.main()
