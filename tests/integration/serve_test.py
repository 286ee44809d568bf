#!/usr/bin/env python3
"""`tdock serve`, asked by OpenAI's own client and by hand: tests/integration/serve_test.py TDOCK"""

import asyncio
import contextlib
import http.client
import json
import pathlib
import re
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import unittest

import openai
from generate_test import POSITIONS, VOCABULARY, write_model

NAME = "small"
tdock = None

# With a place for tools.
TEMPLATE = (
    "{%- if tools %}{{ tools | length }} tools;{% endif %}{%- for m in messages %}({{ m.role }}){{ m.content }}"
    "{%- endfor %}{% if add_generation_prompt %}(a){% endif %}"
)


class Server:
    """A `tdock serve` that ends with its test."""

    def __init__(self, model, *options, name=NAME):
        command = [tdock, "serve", "--model", str(model), "--port", "0", "--threads", "1", *map(str, options)]
        if name:
            command += ["--served-model-name", name]
        self.process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
        self.lines = []
        self.ready = threading.Event()
        self.reader = threading.Thread(target=self._read, daemon=True)
        self.reader.start()
        if not self.ready.wait(60) or self.process.poll() is not None:
            self.end()
            raise AssertionError("".join(self.lines))
        self.port = int(re.search(r"http://127.0.0.1:(\d+)", "".join(self.lines))[1])
        self.client = openai.OpenAI(
            base_url=f"http://127.0.0.1:{self.port}/v1", api_key="none", max_retries=0, timeout=60
        )

    def _read(self):
        for line in self.process.stderr:
            self.lines.append(line)
            if line.startswith("Serving "):
                self.ready.set()
        self.ready.set()

    def end(self, number=signal.SIGTERM):
        if self.process.poll() is None:
            self.process.send_signal(number)
        try:
            return self.process.wait(30)
        except subprocess.TimeoutExpired:
            self.process.kill()
            raise
        finally:
            self.process.wait(30)
            self.reader.join(30)
            self.process.stderr.close()

    def ask(self, method, path, body=None, headers=None):
        """Status, body (of JSON where it is), headers."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        with contextlib.closing(connection):
            data = body if isinstance(body, (bytes, type(None))) else json.dumps(body).encode()
            connection.request(method, path, data, headers or {})
            response = connection.getresponse()
            text = response.read().decode()
            is_json = response.headers.get("Content-Type") == "application/json"
            return response.status, json.loads(text) if is_json else text, response.headers

    def metric(self, name):
        text = self.ask("GET", "/metrics")[1]
        return sum(float(line.split()[-1]) for line in text.splitlines() if line.startswith(name))

    def await_metric(self, name, value):
        deadline = time.monotonic() + 20
        while time.monotonic() < deadline:
            if self.metric(name) == value:
                return
            time.sleep(0.02)
        raise AssertionError(f"{name} is {self.metric(name)}, not {value}")


class WithServer(unittest.TestCase):
    options = ()
    positions = POSITIONS

    @classmethod
    def setUpClass(cls):
        folder = tempfile.TemporaryDirectory()
        cls.addClassCleanup(folder.cleanup)
        cls.folder = pathlib.Path(folder.name)
        cls.model = write_model(
            cls.folder / "model", chat_template=TEMPLATE, max_position_embeddings=cls.positions
        )
        cls.server = Server(cls.model, *cls.options)
        cls.addClassCleanup(cls.server.end)
        cls.client = cls.server.client

    def complete(self, prompt="hello", **fields):
        return self.client.completions.create(model=NAME, prompt=prompt, **fields)

    def chat(self, *contents, **fields):
        messages = [{"role": "user", "content": content} for content in contents]
        return self.client.chat.completions.create(model=NAME, messages=messages, **fields)


class Completions(WithServer):
    def test_says_what_it_serves(self):
        models = self.client.models.list().data
        self.assertEqual([model.id for model in models], [NAME])
        self.assertEqual(self.client.models.retrieve(NAME).id, NAME)
        self.assertEqual(self.server.ask("GET", "/health")[0], 200)

    def test_answers_as_generate_does(self):
        with_ids = {"return_token_ids": True}
        answer = self.complete(max_tokens=12, temperature=0, logprobs=2, extra_body=with_ids)
        choice = answer.choices[0]
        line = subprocess.run(
            [tdock, "generate", "--model", self.model, "--prompt", "hello", "--temperature", "0", "--max-new-tokens",
             "12", "--json", "--top-log-probs", "2", "--threads", "1"], capture_output=True, check=True,
        ).stdout  # fmt: skip
        alone = json.loads(line)
        self.assertEqual(choice.token_ids, alone["ids"])
        self.assertEqual(choice.prompt_token_ids, list(b"hello"))
        self.assertEqual(choice.text, alone["text"])
        for here, there in zip(choice.logprobs.token_logprobs, alone["log_probs"], strict=True):
            self.assertAlmostEqual(here, there, places=4)
        self.assertEqual(len(choice.logprobs.top_logprobs), len(alone["ids"]))
        self.assertEqual(answer.usage.prompt_tokens, 5)
        self.assertEqual(answer.usage.completion_tokens, len(alone["ids"]))
        self.assertEqual(answer.usage.total_tokens, 5 + len(alone["ids"]))
        self.assertEqual(choice.weight_versions, [{"version": 0, "tokens": len(alone["ids"])}])

    def test_prompts_may_be_lists_and_tokens(self):
        def texts(prompt, **fields):
            answer = self.complete(prompt, max_tokens=6, temperature=0, **fields)
            self.assertEqual([choice.index for choice in answer.choices], list(range(len(answer.choices))))
            return [choice.text for choice in answer.choices]

        one = texts("ab") + texts("cd")
        self.assertEqual(texts(["ab", "cd"]), one)
        self.assertEqual(texts([list(b"ab"), list(b"cd")]), one)
        self.assertEqual(texts(list(b"ab")), one[:1])
        self.assertEqual(texts(["ab", "cd"], n=2), [one[0], one[0], one[1], one[1]])

    def test_a_seed_repeats_and_its_absence_does_not(self):
        def texts(**fields):
            answer = self.complete(max_tokens=30, n=3, extra_body={"ignore_eos": True}, **fields)
            return [choice.text for choice in answer.choices]

        again = texts(seed=7)
        self.assertEqual(texts(seed=7), again)
        self.assertNotEqual(texts(seed=8), again)
        self.assertNotEqual(texts(), texts())
        self.assertEqual(len(set(again)), 3)

    def test_streams_what_it_answers_at_once(self):
        fields = {"max_tokens": 40, "seed": 3, "n": 2, "logprobs": 1, "extra_body": {"return_token_ids": True}}
        whole = self.complete(**fields)
        texts, tokens, finish, usage = ["", ""], [[], []], [None, None], None
        log_probs, offsets = [[], []], [[], []]
        for event in self.complete(**fields, stream=True, stream_options={"include_usage": True}):
            usage = event.usage or usage
            self.assertEqual("usage" in event.model_fields_set, True, "null in all but the last")
            for choice in event.choices:
                texts[choice.index] += choice.text
                tokens[choice.index] += choice.token_ids
                log_probs[choice.index] += choice.logprobs.token_logprobs
                offsets[choice.index] += choice.logprobs.text_offset
                finish[choice.index] = choice.finish_reason or finish[choice.index]
        for choice in whole.choices:
            self.assertEqual(texts[choice.index], choice.text)
            self.assertEqual(tokens[choice.index], choice.token_ids)
            self.assertEqual(log_probs[choice.index], choice.logprobs.token_logprobs)
            self.assertEqual(offsets[choice.index], choice.logprobs.text_offset)
            self.assertEqual(finish[choice.index], choice.finish_reason)
        self.assertEqual(usage, whole.usage)

    def test_no_event_has_a_part_of_a_character(self):
        bias = {str(byte): 100 for byte in "€".encode()}  # three bytes, each a token
        # Not all that is sampled is UTF-8, but what is must not come apart: streamed, it reads as it does at once.
        whole = self.complete(max_tokens=60, seed=1, logit_bias=bias).choices[0].text
        pieces = [e.choices[0].text for e in self.complete(max_tokens=60, seed=1, logit_bias=bias, stream=True)]
        self.assertEqual("".join(pieces), whole)
        self.assertIn("€", whole)
        fields = {"logit_bias": bias, "logprobs": True, "top_logprobs": 1, "seed": 1, "max_completion_tokens": 20}
        for token in self.chat("a", **fields).choices[0].logprobs.content:
            self.assertIn(bytes(token.bytes), (b"\xe2", b"\x82", b"\xac"))
            self.assertEqual(token.token, f"bytes:\\x{token.bytes[0]:02x}")
        log_probs = self.complete(max_tokens=20, seed=1, logit_bias=bias, logprobs=3).choices[0].logprobs
        tops = log_probs.top_logprobs
        self.assertTrue(all(len(top) >= 3 for top in tops), "no two bytes have the same name")

    def test_ends_at_stop_texts(self):
        whole = self.complete(max_tokens=200, seed=4, extra_body={"ignore_eos": True}).choices[0].text
        stop = whole[20:22]
        cut = self.complete(max_tokens=200, seed=4, stop=[stop, "no such"], extra_body={"ignore_eos": True}).choices[0]
        self.assertEqual(cut.text, whole[: whole.index(stop)])
        self.assertEqual(cut.finish_reason, "stop")
        events = self.complete(max_tokens=200, seed=4, stop=stop, stream=True, extra_body={"ignore_eos": True})
        self.assertEqual("".join(event.choices[0].text for event in events), cut.text)

    def test_chats_by_the_template(self):
        answer = self.chat("Hi", max_completion_tokens=8, seed=1, logprobs=True, top_logprobs=2)
        prompt = "(user)Hi(a)"
        self.assertEqual(answer.usage.prompt_tokens, len(prompt))
        choice = answer.choices[0]
        raw = self.complete(prompt, max_tokens=8, seed=1)
        self.assertEqual(choice.message.content, raw.choices[0].text)
        self.assertEqual(choice.message.role, "assistant")
        self.assertEqual(len(choice.logprobs.content), answer.usage.completion_tokens)
        self.assertEqual(len(choice.logprobs.content[0].top_logprobs), 2)
        events = list(self.chat("Hi", max_completion_tokens=8, seed=1, stream=True))
        self.assertEqual(events[0].choices[0].delta.role, "assistant")
        text = "".join(event.choices[0].delta.content or "" for event in events)
        self.assertEqual(text, choice.message.content)
        self.assertEqual(events[-1].choices[0].finish_reason, choice.finish_reason)

    def test_passes_tools_through_the_template(self):
        tool = {"type": "function", "function": {"name": "add", "parameters": {"type": "object", "properties": {}}}}
        answer = self.chat("Hi", max_completion_tokens=1, tools=[tool])
        self.assertEqual(answer.usage.prompt_tokens, len("1 tools;(user)Hi(a)"))
        none = self.chat("Hi", max_completion_tokens=1, tools=[tool], tool_choice="none")
        self.assertEqual(none.usage.prompt_tokens, len("(user)Hi(a)"))

    def test_answers_with_json_objects(self):
        ended = 0
        for seed in range(8):
            answer = self.chat(
                "Hi", max_completion_tokens=400, seed=seed, response_format={"type": "json_object"},
                logit_bias={str(ord("}")): 4, str(ord('"')): 4},
            ).choices[0]  # fmt: skip
            self.assertEqual(answer.message.content.lstrip()[:1], "{")
            if answer.finish_reason == "stop":
                ended += 1
                self.assertIsInstance(json.loads(answer.message.content), dict)
        self.assertGreater(ended, 3)

    def test_a_slow_reader_gets_fewer_events_and_all_of_the_text(self):
        fields = {"prompt": "a", "max_tokens": 4000, "seed": 1, "logprobs": 20, "ignore_eos": True}
        body = json.dumps(fields | {"stream": True})
        request = f"POST /v1/completions HTTP/1.0\r\nContent-Length: {len(body)}\r\n\r\n{body}"
        with socket.socket() as client:
            client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            client.settimeout(30)
            client.connect(("127.0.0.1", self.server.port))
            client.sendall(request.encode())
            client.recv(1)
            self.server.await_metric("tdock_serve_answers_open", 0)  # it has ended, and waits in the server
            text = b"".join(iter(lambda: client.recv(1 << 16), b"")).decode()
        events = [line.removeprefix("data: ") for line in text.splitlines() if line.startswith("data: ")]
        self.assertEqual(events.pop(), "[DONE]")
        choices = [json.loads(event)["choices"][0] for event in events]
        self.assertLess(len(choices), 4000)
        self.assertEqual(sum(len(choice["logprobs"]["tokens"]) for choice in choices), 4000)
        whole = self.server.ask("POST", "/v1/completions", fields)[1]["choices"][0]
        self.assertEqual("".join(choice["text"] for choice in choices), whole["text"])

    def test_answers_many_at_the_same_time(self):
        async def all_of_them():
            client = openai.AsyncOpenAI(base_url=str(self.client.base_url), api_key="none", max_retries=0)

            async def one(seed):
                stream = await client.completions.create(
                    model=NAME, prompt=f"number {seed}", max_tokens=40, seed=seed, stream=True
                )
                return "".join([event.choices[0].text async for event in stream])

            return await asyncio.gather(*map(one, range(64)))

        together = asyncio.run(all_of_them())
        for seed in (0, 31, 63):
            alone = self.complete(f"number {seed}", max_tokens=40, seed=seed)
            self.assertEqual(together[seed][:8], alone.choices[0].text[:8])


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
        for field in ({"echo": True}, {"suffix": "a"}, {"best_of": 2}, {"response_format": {"type": "json_schema"}}):
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


class Verl(WithServer):
    options = ("--preferred-sampling-params", '{"temperature": 0, "top_p": 1}')

    def generate(self, **body):
        status, answer, _ = self.server.ask("POST", "/generate", body)
        self.assertEqual(status, 200, answer)
        return answer

    def test_generates(self):
        params = {"max_new_tokens": 9, "n": 1}
        answer = self.generate(input_ids=list(b"hello"), sampling_params=params, return_logprob=True)
        meta = answer["meta_info"]
        self.assertEqual(len(answer["output_ids"]), meta["completion_tokens"])
        self.assertEqual([token for _, token, _ in meta["output_token_logprobs"]], answer["output_ids"])
        self.assertEqual(meta["prompt_tokens"], 5)
        self.assertIn(meta["finish_reason"]["type"], ("length", "stop"))
        plain = self.generate(text="hello", sampling_params=params)
        self.assertEqual(plain["output_ids"], answer["output_ids"])
        self.assertNotIn("output_token_logprobs", plain["meta_info"])
        # The preferred parameters make it greedy.
        self.assertEqual(plain["text"], self.complete("hello", max_tokens=9, temperature=0).choices[0].text)
        many = self.generate(text=["hello", "you"], sampling_params={"max_new_tokens": 9, "n": 2})
        self.assertEqual(len(many), 4)
        self.assertEqual(many[0]["output_ids"], answer["output_ids"])

    def test_aborts(self):
        found = {}
        body = {"text": "a", "rid": "mine", "sampling_params": {"max_new_tokens": 4000, "ignore_eos": True}}
        asking = threading.Thread(target=lambda: found.update(self.generate(**body)))
        asking.start()
        self.server.await_metric("tdock_serve_answers_open", 1)
        status, answer, _ = self.server.ask("POST", "/abort_request", {"rid": "mine"})
        asking.join(30)
        self.assertEqual((status, answer["aborted"]), (200, 1))
        self.assertEqual(found["meta_info"]["finish_reason"]["type"], "abort")
        self.assertLess(found["meta_info"]["completion_tokens"], 4000)
        self.assertEqual(self.server.ask("POST", "/abort_request", {"rid": "mine"})[1]["aborted"], 0)

    def test_forgets_what_it_has_cached(self):
        before = self.generate(text="hello", sampling_params={"max_new_tokens": 5})
        self.assertEqual(self.server.ask("POST", "/flush_cache")[0], 200)
        self.assertEqual(self.server.metric("tdock_serve_cache_used_bytes"), 0)
        after = self.generate(text="hello", sampling_params={"max_new_tokens": 5})
        self.assertEqual(after["output_ids"], before["output_ids"])

    def test_serves_other_weights_while_requests_go_on(self):
        server = Server(self.model)
        self.addCleanup(server.end)
        other = write_model(self.folder / "other", seed=5, chat_template=TEMPLATE)
        stream = server.client.completions.create(
            model=NAME, prompt="a", max_tokens=2000, temperature=0, stream=True,
            extra_body={"ignore_eos": True, "return_token_ids": True},
        )  # fmt: skip
        runs, tokens, ids = [], 0, []
        updated = None
        for event in stream:
            if not event.choices:
                continue
            ids += event.choices[0].token_ids
            for run in event.choices[0].weight_versions:
                if not runs or runs[-1][0] != run["version"]:
                    runs.append([run["version"], 0])
                runs[-1][1] += run["tokens"]
            if updated is None:
                body = {"model_path": str(other), "weight_version": "7"}
                updated = server.ask("POST", "/update_weights", body)
        self.assertEqual(updated[0], 200, updated)
        self.assertEqual(updated[1]["weight_version"], "7")
        tokens = sum(count for _, count in runs)
        self.assertEqual([version for version, _ in runs], [0, 7])
        self.assertEqual(tokens, 2000, "no token without its version")
        self.assertEqual(server.client.models.list().data[0].weight_version, 7)

        def likeliest(of, prompt, count):
            params = {"max_new_tokens": count, "temperature": 0, "ignore_eos": True}
            return of.ask("POST", "/generate", {"input_ids": prompt, "sampling_params": params})[1]["output_ids"]

        first, prompt = runs[0][1], list(b"a")
        self.assertEqual(ids[: min(first, 8)], likeliest(self.server, prompt, min(first, 8)))
        self.assertEqual(ids[first : first + 8], likeliest(server, prompt + ids[:first], 8))
        self.assertNotEqual(ids[first : first + 8], likeliest(self.server, prompt + ids[:first], 8))
        for version in (0, 6, 7, "7", 1 << 53, (1 << 63) - 1):
            body = {"model_path": str(other), "weight_version": version}
            status, answer, _ = server.ask("POST", "/update_weights", body)
            self.assertEqual(status, 400, answer)
            self.assertIn("weight_version", answer["error"]["message"])
        wrong = write_model(self.folder / "wrong", num_hidden_layers=2)
        status, answer, _ = server.ask("POST", "/update_weights", {"model_path": str(wrong)})
        self.assertEqual(status, 400, answer)
        status, answer, _ = server.ask("POST", "/update_weights", {"model_path": str(self.folder / "nowhere")})
        self.assertEqual(status, 400, answer)


    def test_refuses_weights_that_need_another_model(self):
        settings = {
            "max_position_embeddings": 64, "rope_theta": 5000.0, "rms_norm_eps": 1e-3,
            "rope_scaling": {"rope_type": "linear", "factor": 2.0},
        }  # fmt: skip
        for name, value in settings.items():
            other = write_model(self.folder / name, seed=5, chat_template=TEMPLATE, **{name: value})
            status, answer, _ = self.server.ask("POST", "/update_weights", {"model_path": str(other)})
            self.assertEqual(status, 400, answer)
            self.assertIn(f'"{name}"', answer["error"]["message"])
        answer = self.generate(text="a" * 100, sampling_params={"max_new_tokens": 5})
        self.assertEqual(answer["meta_info"]["weight_version"], "0")

    def test_an_answer_without_tokens_has_the_version_that_is_served(self):
        server = Server(self.model, "--max-rows", "1")
        self.addCleanup(server.end)
        other = write_model(self.folder / "next", seed=6, chat_template=TEMPLATE)
        self.assertEqual(server.ask("POST", "/update_weights", {"model_path": str(other)})[0], 200)
        runs = server.client.completions.create(
            model=NAME, prompt="a", max_tokens=4000, stream=True, extra_body={"ignore_eos": True}
        )
        next(runs)
        found = {}
        body = {"text": "a", "rid": "waits", "sampling_params": {"max_new_tokens": 9}}
        waits = threading.Thread(target=lambda: found.update(server.ask("POST", "/generate", body)[1]))
        waits.start()
        server.await_metric("tdock_serve_answers_open", 2)
        self.assertEqual(server.ask("POST", "/abort_request", {"rid": "waits"})[1]["aborted"], 1)
        waits.join(30)
        runs.close()
        self.assertEqual(found["output_ids"], [])
        self.assertEqual(found["meta_info"]["weight_version"], "1")


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

    def open_answers(self):
        text = self.ask("GET", "/metrics")[1]
        return next(int(line.split()[1]) for line in text.splitlines() if line.startswith("tdock_serve_answers_open "))

    def await_open(self, count):
        deadline = time.monotonic() + 20
        while self.open_answers() != count:
            self.assertLess(time.monotonic(), deadline, f"{self.open_answers()} answers are open, not {count}")
            time.sleep(0.01)

    def await_line(self, is_there):
        deadline = time.monotonic() + 20
        while not is_there():
            self.assertLess(time.monotonic(), deadline, self.log.read_text())
            time.sleep(0.01)

    def gone(self):
        lines = [json.loads(line) for line in self.log.read_text().splitlines()]
        return sum(line.get("client_gone", False) for line in lines)

    def test_ends_what_nobody_waits_for_and_refuses_what_is_too_much(self):
        fields = {"max_tokens": 190_000, "stream": True, "extra_body": {"ignore_eos": True}}
        before = self.gone()
        streams = [self.complete(n=2, **fields) for _ in range(2)]
        next(streams[0])  # the others wait for it
        with self.assertRaises(openai.RateLimitError) as busy:
            self.complete(max_tokens=1)
        self.assertGreaterEqual(int(busy.exception.response.headers["Retry-After"]), 1)
        for stream in streams:
            stream.close()
        self.await_open(0)
        self.complete(max_tokens=1)
        self.await_line(lambda: self.gone() - before == 2)

    def test_ends_an_answer_at_once_whose_client_sent_more_and_left(self):
        body = json.dumps({"prompt": "a", "max_tokens": 190_000, "ignore_eos": True})
        request = f"POST /v1/completions HTTP/1.1\r\nAuthorization: Bearer first\r\nContent-Length: {len(body)}\r\n\r\n"
        for more in ("", "\r\n"):
            with socket.create_connection(("127.0.0.1", self.server.port), timeout=20) as client:
                client.sendall((request + body + more).encode())
                self.await_open(1)
            self.await_open(0)

    def test_many_open_bodies_in_chunks_leave_room_for_others(self):
        body = json.dumps({"prompt": "a", "max_tokens": 2, "ignore_eos": True}).encode()
        head = b"POST /v1/completions HTTP/1.1\r\nAuthorization: Bearer first\r\nTransfer-Encoding: chunked\r\n\r\n"
        with contextlib.ExitStack() as clients:
            for _ in range(20):
                client = socket.create_connection(("127.0.0.1", self.server.port), timeout=20)
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
        request = f"POST /v1/completions HTTP/1.1\r\nContent-Length: {len(body)}\r\n\r\n{body}".encode()

        def leave(rounds):
            for _ in range(rounds):
                with contextlib.ExitStack() as clients:
                    together = [
                        clients.enter_context(socket.create_connection(("127.0.0.1", server.port), timeout=20))
                        for _ in range(64)
                    ]
                    for client in together:
                        client.sendall(request)
                    for client in together:
                        self.assertEqual(client.recv(15), b"HTTP/1.1 200 OK", "its answer has begun")
                server.await_metric("tdock_serve_answers_open", 0)

        def memory():
            status = pathlib.Path(f"/proc/{server.process.pid}/status").read_text()
            return int(re.search(r"VmRSS:\s+(\d+)", status)[1])

        leave(4)
        before = memory()
        leave(12)
        self.assertLess(memory() - before, 8 << 10, "kB")
        self.assertEqual(server.metric("tdock_serve_clients_gone_total"), 1024)


class Ending(WithServer):
    def test_drains(self):
        server = Server(self.model, "--drain", "30")
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
        self.assertEqual(server.process.wait(30), 0)

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
                [tdock, "serve", "--model", self.model, *options], capture_output=True, text=True, timeout=60
            )
            self.assertEqual(done.returncode, 2, done.stderr)
            return done.stderr

        self.assertIn("--tensor-parallel-size 2", refused("--tensor-parallel-size", "2"))
        self.assertIn("--insecure", refused("--host", "0.0.0.0"))
        self.assertIn("nonsense", refused("--preferred-sampling-params", '{"nonsense": 1}'))
        self.assertIn(str(self.server.port), refused("--port", str(self.server.port)))


if __name__ == "__main__":
    tdock = sys.argv.pop(1)
    unittest.main()
