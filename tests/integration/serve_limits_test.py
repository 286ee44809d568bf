#!/usr/bin/env python3
"""`tdock serve` where clients ask for what it cannot give, leave, or are too many: serve_limits_test.py TDOCK"""

import contextlib
import json
import pathlib
import re
import signal
import socket
import subprocess
import sys
import tempfile
import unittest

import openai
from generate_test import POSITIONS, VOCABULARY
from served_model import NAME, Server, WithServer
from waiting import LONG, NEVER, until


class BadRequests(WithServer):
    def refused(self, status, code, body, path="/v1/completions"):
        given, answer, _ = self.server.ask("POST", path, body)
        self.assertEqual(given, status, answer)
        self.assertEqual(set(answer), {"error"})
        self.assertEqual(set(answer["error"]), {"message", "type", "param", "code"})
        self.assertEqual(answer["error"]["code"], code, answer)
        return answer["error"]["message"]

    def tearDown(self):
        self.assertTrue(self.complete(max_tokens=1).choices[0].finish_reason, "others are served as before")

    def test_what_is_no_json_object(self):
        for body in (b"", b"{", b"[]", b"7", b'{"a":1,"a":2}', b"\xff\xfe", b'{"prompt": "\xff"}', b'{"n": 1e999}'):
            self.refused(400, "invalid_json", body)
        self.refused(400, "invalid_json", b'{"prompt":' + b"[" * 100_000)

    def test_what_is_too_large(self):
        status, answer, _ = self.server.ask("POST", "/v1/completions", headers={"Content-Length": str(1 << 40)})
        self.assertEqual(status, 413, answer)
        self.assertIn("error", answer)

    def test_fields_out_of_their_range(self):
        bad = {
            "max_tokens": [-1, 0, 1.5, "7", 1 << 70], "n": [0, -3, 1 << 40], "temperature": [-0.1, "hot", True],
            "top_p": [0, 1.1], "logprobs": [-1, 21, True], "stop": [[1], "", [""], ["a"] * 17],
            "logit_bias": [{"-1": 1}, {"1": 101}, {"x": 1}, []], "seed": [0.5], "stream": ["yes"],
            "prompt": [{}, [1.5], [-1], ["a", {}], [], [[True]]], "model": [7], "stream_options": [{"include_usage": True}],
        }  # fmt: skip
        for name, values in bad.items():
            for value in values:
                with self.subTest(name=name, value=value):
                    self.assertIn(name, self.refused(400, "invalid_value", {"prompt": "a", name: value}))

    def test_tokens_that_the_model_does_not_have(self):
        message = self.refused(400, "invalid_value", {"prompt": [1, VOCABULARY]})
        self.assertIn(str(VOCABULARY), message)
        self.refused(400, "invalid_value", {"prompt": "a", "logit_bias": {str(VOCABULARY): 1}})
        self.refused(400, "invalid_value", {"prompt": "a", "stop_token_ids": [VOCABULARY]})

    def test_prompts_beyond_the_context(self):
        message = self.refused(400, "context_length_exceeded", {"prompt": "a" * POSITIONS, "max_tokens": 1})
        self.assertIn(str(POSITIONS), message)
        self.refused(400, "context_length_exceeded", {"prompt": "a", "max_tokens": POSITIONS})
        chat = {"messages": [{"role": "user", "content": "a" * POSITIONS}]}
        self.refused(400, "context_length_exceeded", chat, "/v1/chat/completions")

    def test_other_models_and_places(self):
        with self.assertRaises(openai.NotFoundError):
            self.client.completions.create(model="another", prompt="a")
        self.refused(404, "not_found", {}, "/v2/completions")
        self.assertEqual(self.server.ask("GET", "/v1/completions")[0], 405)

    def test_what_is_not_supported_is_refused_by_name(self):
        for field in ({"suffix": "a"}, {"best_of": 2}, {"use_beam_search": True}, {"response_format": {"type": "xml"}}):
            message = self.refused(400, "unsupported_value", {"prompt": "a"} | field)
            self.assertIn(next(iter(field)), message)
        self.assertIn("nonsense", self.refused(400, "unknown_parameter", {"prompt": "a", "nonsense": 1}))

    def test_objects_that_could_not_end(self):
        for field in ({"min_tokens": 50}, {"ignore_eos": True}):
            body = {"prompt": "a", "response_format": {"type": "json_object"}} | field
            self.assertIn(next(iter(field)), self.refused(400, "invalid_value", body))

    def test_names_the_field_of_a_token_that_is_none(self):
        for name, value in (("stop_token_ids", [VOCABULARY]), ("logit_bias", {str(VOCABULARY): 1})):
            answer = self.server.ask("POST", "/v1/completions", {"prompt": "a", name: value})[1]
            self.assertEqual(answer["error"]["param"], name)

    def test_a_temperature_that_is_almost_none(self):
        body = {"prompt": "a", "max_tokens": 8}
        cold, none = ({"temperature": value} for value in (1e-40, 0))
        texts = [self.server.ask("POST", "/v1/completions", body | one)[1]["choices"][0]["text"] for one in (cold, none)]
        self.assertEqual(texts[0], texts[1])

    def test_pages_of_other_sites(self):
        own = {"Origin": f"http://127.0.0.1:{self.server.port}", "Sec-Fetch-Site": "same-origin"}
        self.assertEqual(self.server.ask("POST", "/flush_cache", headers=own)[0], 200)
        for headers in ({"Origin": "http://other.example"}, {"Sec-Fetch-Site": "cross-site"}, {"Origin": "null"}):
            for method in ("POST", "GET"):
                self.assertEqual(self.server.ask(method, "/flush_cache", headers=headers)[0], 403)
        self.assertEqual(self.server.ask("GET", "/v1/models", headers={"Host": "other.example:80"})[0], 403)
        self.assertEqual(self.server.ask("GET", "/v1/models", headers={"Host": "localhost:80"})[0], 200)

    def test_conversations_that_are_none(self):
        for messages in ([], [7], [{"role": "nobody", "content": "a"}], [{"role": "user"}], "a",
                         [{"role": "user", "content": [{"type": "image_url"}]}]):  # fmt: skip
            with self.subTest(messages=messages):
                status, answer, _ = self.server.ask("POST", "/v1/chat/completions", {"messages": messages})
                self.assertEqual(status, 400, answer)

    def test_embeddings_are_refused_with_the_reason(self):
        with self.assertRaises(openai.BadRequestError) as refused:
            self.client.embeddings.create(model=NAME, input="a")
        self.assertIn("embeddings", refused.exception.message)


class Protection(WithServer):
    positions = 200_000  # long enough that no answer ends by itself
    options = ("--api-key-file", "KEYS", "--access-log", "LOG", "--max-rows", "2", "--max-queue", "2")

    @classmethod
    def setUpClass(cls):
        own = tempfile.TemporaryDirectory()
        cls.addClassCleanup(own.cleanup)
        keys, cls.log = pathlib.Path(own.name) / "keys", pathlib.Path(own.name) / "log"
        keys.write_text("first\nsecond\n")
        cls.options = [{"KEYS": str(keys), "LOG": str(cls.log)}.get(option, option) for option in cls.options]
        super().setUpClass()
        cls.client = cls.client.with_options(api_key="second")

    def ask(self, method, path, body=None):
        return self.server.ask(method, path, body, {"Authorization": "Bearer first"})

    def test_asks_for_a_key(self):
        self.assertEqual(self.complete(max_tokens=1).usage.completion_tokens, 1)
        with self.assertRaises(openai.AuthenticationError):
            self.client.with_options(api_key="third").models.list()
        self.assertEqual(self.server.ask("POST", "/update_weights", {})[0], 401)
        self.assertEqual(self.server.ask("GET", "/metrics")[0], 401)
        self.assertEqual(self.server.ask("GET", "/health")[0], 200)

    def metric(self, name):
        text = self.ask("GET", "/metrics")[1]
        return next(int(line.split()[1]) for line in text.splitlines() if line.startswith(f"{name} "))

    def await_open(self, count):
        opened = lambda: self.metric("tdock_serve_answers_open")  # noqa: E731
        until(lambda: opened() == count, lambda: f"{count} open answers, not {opened()}", every=0.01)

    def await_line(self, is_there):
        until(is_there, lambda: f"a line of the log: {self.log.read_text()}", every=0.01)

    def gone(self):
        lines = [json.loads(line) for line in self.log.read_text().splitlines()]
        return [line for line in lines if line.get("client_gone", False)]

    def test_ends_what_nobody_waits_for_and_refuses_what_is_too_much(self):
        fields = {"max_tokens": 190_000, "stream": True, "extra_body": {"ignore_eos": True}}
        before = len(self.gone())
        streams = [self.complete(n=2, **fields) for _ in range(2)]
        next(streams[0])  # the others wait for it
        with self.assertRaises(openai.RateLimitError) as busy:
            self.complete(max_tokens=1)
        self.assertGreaterEqual(int(busy.exception.response.headers["Retry-After"]), 1)
        for stream in streams:
            stream.close()
        self.await_open(0)
        self.complete(max_tokens=1)
        self.await_line(lambda: len(self.gone()) - before == 2)
        for line in self.gone()[before:]:
            self.assertRegex(line["request_id"], "^cmpl-")
            self.assertEqual((line["prompt_tokens"], line["finish_reasons"]), (5, ["abort", "abort"]))
        self.assertGreater(max(line["completion_tokens"] for line in self.gone()[before:]), 0)

    def test_ends_an_answer_whose_client_sent_more_and_left(self):
        before = len(self.gone())
        body = json.dumps({"prompt": "a", "max_tokens": 190_000, "ignore_eos": True})
        request = f"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer first\r\nContent-Length: {len(body)}\r\n\r\n"
        for more in ("", "\r\n"):
            with socket.create_connection(("127.0.0.1", self.server.port), timeout=LONG) as client:
                client.sendall((request + body + more).encode())
                self.await_open(1)
            self.await_open(0)
        self.await_line(lambda: len(self.gone()) - before == 2)
        for line in self.gone()[before:]:
            self.assertEqual(line["finish_reasons"], ["abort"], line)

    def test_many_open_bodies_in_chunks_leave_room_for_others(self):
        body = json.dumps({"prompt": "a", "max_tokens": 2, "ignore_eos": True}).encode()
        head = b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer first\r\nTransfer-Encoding: chunked\r\n\r\n"
        with contextlib.ExitStack() as clients:
            for _ in range(20):
                client = socket.create_connection(("127.0.0.1", self.server.port), timeout=LONG)
                clients.enter_context(client).sendall(head + b"%x\r\n%s\r\n" % (len(body), body))  # more may come
            self.assertEqual(self.complete(max_tokens=1).usage.completion_tokens, 1)

    def test_writes_a_log(self):
        answer = self.complete(max_tokens=3, extra_body={"ignore_eos": True})
        self.await_line(lambda: answer.id in self.log.read_text())
        lines = [json.loads(line) for line in self.log.read_text().splitlines()]
        mine = next(line for line in reversed(lines) if line["path"] == "/v1/completions" and line["status"] == 200)
        self.assertEqual(mine["completion_tokens"], 3)
        self.assertEqual(mine["finish_reasons"], ["length"])

    def test_outlives_a_thousand_clients_that_leave(self):
        server = Server(self.model, "--max-rows", "64")
        self.addCleanup(server.end)
        body = json.dumps({"prompt": "a", "max_tokens": 190_000, "stream": True, "ignore_eos": True})
        request = f"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}\r\n\r\n{body}".encode()

        def leave():
            for _ in range(16):
                with contextlib.ExitStack() as clients:
                    together = [
                        clients.enter_context(socket.create_connection(("127.0.0.1", server.port), timeout=LONG))
                        for _ in range(64)
                    ]
                    for client in together:
                        client.sendall(request)
                    for client in together:
                        self.assertEqual(client.recv(15), b"HTTP/1.1 200 OK", "its answer has begun")
                server.await_metric("tdock_serve_answers_open", 0)

        def memory():  # in kB; without the keys and values that it keeps for prompts that begin alike, up to their budget
            status = pathlib.Path(f"/proc/{server.process.pid}/status").read_text()
            return int(re.search(r"VmRSS:\s+(\d+)", status)[1]) - server.metric("tdock_serve_cache_used_bytes") / 1024

        leave()
        before = memory()
        for _ in range(4):
            leave()
        self.assertLess(memory() - before, 4 << 10, "kB, of four thousand clients more")
        server.await_metric("tdock_serve_clients_gone_total", 5 * 1024)
        server.await_metric("tdock_serve_connections", 1)  # the one that asks
        for state in ("running", "waiting"):
            self.assertEqual(server.metric(f"tdock_serve_answers_{state}"), 0)
        server.ask("POST", "/flush_cache")
        self.assertEqual(server.metric("tdock_serve_cache_used_bytes"), 0)
        self.assertGreater(server.metric("tdock_serve_cache_budget_bytes"), 0)


class Ending(WithServer):
    def test_drains(self):
        server = Server(self.model, "--drain", NEVER)
        self.addCleanup(server.end)
        stream = server.client.completions.create(
            model=NAME, prompt="a", max_tokens=1500, stream=True, extra_body={"ignore_eos": True, "return_token_ids": True}
        )
        events = iter(stream)
        count = len(next(events).choices[0].token_ids)
        server.process.send_signal(signal.SIGTERM)
        for event in events:
            count += len(event.choices[0].token_ids)
        self.assertEqual(count, 1500)
        self.assertEqual(server.process.wait(LONG), 0)

    def test_replicas_share_the_work(self):
        server = Server(self.model, "--replicas", "2")
        self.addCleanup(server.end)
        answers = server.client.completions.create(model=NAME, prompt=["a", "b", "c"], max_tokens=5, temperature=0)
        self.assertEqual(len(answers.choices), 3)
        again = server.client.completions.create(model=NAME, prompt="c", max_tokens=5, temperature=0)
        self.assertEqual(again.choices[0].text, answers.choices[2].text)
        one_each = Server(self.model, "--replicas", "2", "--max-rows", "1")
        self.addCleanup(one_each.end)
        long = {"model": NAME, "prompt": "a", "max_tokens": 4000, "stream": True, "extra_body": {"ignore_eos": True}}
        streams = [one_each.client.completions.create(**long) for _ in range(2)]
        one_each.await_metric("tdock_serve_answers_running", 2)
        for stream in streams:
            stream.close()

    def test_refuses_calls_that_cannot_work(self):
        def refused(*options):
            done = subprocess.run(
                [Server.tdock, "serve", "--model", self.model, *options], capture_output=True, text=True, timeout=LONG
            )
            self.assertEqual(done.returncode, 2, done.stderr)
            return done.stderr

        self.assertIn("--tensor-parallel-size 2", refused("--tensor-parallel-size", "2"))
        self.assertIn("--insecure", refused("--host", "0.0.0.0"))
        self.assertIn("nonsense", refused("--preferred-sampling-params", '{"nonsense": 1}'))
        self.assertIn(str(self.server.port), refused("--port", str(self.server.port)))


if __name__ == "__main__":
    Server.tdock = sys.argv.pop(1)
    unittest.main()
