#!/usr/bin/env python3
"""What `tdock serve` answers, asked by OpenAI's own client and by hand: tests/integration/serve_test.py TDOCK"""

import asyncio
import json
import socket
import subprocess
import sys
import threading
import unittest

import openai
from generate_test import write_model
from served_model import NAME, TEMPLATE, Server, WithServer
from waiting import LONG


class Completions(WithServer):
    def test_says_what_it_serves(self):
        models = self.client.models.list().data
        self.assertEqual([model.id for model in models], [NAME])
        self.assertEqual(self.client.models.retrieve(NAME).id, NAME)
        instance = models[0].instance
        self.assertRegex(instance, "^[0-9a-f]{16}$")
        self.assertEqual(self.complete(max_tokens=1).system_fingerprint, f"tdock-{instance}")
        events = list(self.complete(max_tokens=3, stream=True))
        self.assertEqual({event.system_fingerprint for event in events}, {f"tdock-{instance}"})
        other = Server(self.model)
        self.addCleanup(other.end)
        self.assertNotEqual(other.client.models.list().data[0].instance, instance)
        self.assertEqual(self.server.ask("GET", "/health")[0], 200)

    def test_answers_as_generate_does(self):
        with_ids = {"return_token_ids": True}
        answer = self.complete(max_tokens=12, temperature=0, logprobs=2, extra_body=with_ids)
        choice = answer.choices[0]
        line = subprocess.run(
            [Server.tdock, "generate", "--model", self.model, "--prompt", "hello", "--temperature", "0", "--max-new-tokens",
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

    def test_an_identity_says_which_random_numbers_an_answer_has(self):
        def texts(prompt, identity=None, n=2):
            extra = {} if identity is None else {"identity": identity}
            answer = self.complete(prompt, max_tokens=12, seed=4, n=n, extra_body=extra)
            return [choice.text for choice in answer.choices]

        top = (1 << 64) - 1
        both = texts(["hello", "hello"], str(top))
        self.assertEqual(both, texts("hello", top) + texts("hello", 0), "the second prompt's is one more, and wraps")
        self.assertEqual(texts("hello", 0), texts("hello"))
        self.assertEqual(texts("hello", 1, n=1), texts("hello", 1)[:1])
        self.assertEqual(len(set(both)), 4)
        fields = {"prompt": "a", "identity": 1}
        status, answer, _ = self.server.ask("POST", "/v1/completions", fields)
        self.assertEqual((status, answer["error"]["param"]), (400, "identity"), "it needs a seed")

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
                logit_bias={str(ord("}")): 4, str(ord('"')): 4}, logprobs=True,
            ).choices[0]  # fmt: skip
            self.assertEqual(answer.message.content.lstrip()[:1], "{")
            if answer.finish_reason == "stop":
                ended += 1
                self.assertIsInstance(json.loads(answer.message.content), dict)
                self.assertEqual(answer.logprobs.content[-1].token, "}")
        self.assertGreater(ended, 3)

    def test_a_slow_reader_gets_fewer_events_and_all_of_the_text(self):
        # About 10 MB as they come, more than the 4 MiB that Linux takes for a connection.
        fields = {"prompt": "a", "max_tokens": 4000, "n": 3, "seed": 1, "logprobs": 20, "ignore_eos": True}
        body = json.dumps(fields | {"stream": True})
        request = f"POST /v1/completions HTTP/1.0\r\nContent-Length: {len(body)}\r\n\r\n{body}"
        with socket.socket() as client:
            client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            client.settimeout(LONG)
            client.connect(("127.0.0.1", self.server.port))
            client.sendall(request.encode())
            client.recv(1)
            self.server.await_metric("tdock_serve_answers_open", 0)  # it has ended, and waits in the server
            text = b"".join(iter(lambda: client.recv(1 << 16), b"")).decode()
        events = [line.removeprefix("data: ") for line in text.splitlines() if line.startswith("data: ")]
        self.assertEqual(events.pop(), "[DONE]")
        choices = [json.loads(event)["choices"][0] for event in events]
        self.assertLess(len(choices), 9_000)
        for whole in self.server.ask("POST", "/v1/completions", fields)[1]["choices"]:
            own = [choice for choice in choices if choice["index"] == whole["index"]]
            self.assertEqual(sum(len(choice["logprobs"]["tokens"]) for choice in own), 4000)
            self.assertEqual("".join(choice["text"] for choice in own), whole["text"])

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


ENDLESS = {"max_position_embeddings": 200_000}  # of a model with answers that do not end by themselves


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
        self.assertEqual(meta["instance"], self.client.models.list().data[0].instance)
        plain = self.generate(text="hello", sampling_params=params)
        self.assertEqual(plain["output_ids"], answer["output_ids"])
        self.assertNotIn("output_token_logprobs", plain["meta_info"])
        # The preferred parameters make it greedy.
        self.assertEqual(plain["text"], self.complete("hello", max_tokens=9, temperature=0).choices[0].text)
        many = self.generate(text=["hello", "you"], sampling_params={"max_new_tokens": 9, "n": 2})
        self.assertEqual(len(many), 4)
        self.assertEqual(many[0]["output_ids"], answer["output_ids"])

    def test_aborts(self):
        server = Server(write_model(self.folder / "endless", chat_template=TEMPLATE, **ENDLESS))
        self.addCleanup(server.end)
        found = {}
        body = {"text": "a", "rid": "mine", "sampling_params": {"max_new_tokens": 190_000, "ignore_eos": True}}
        asking = threading.Thread(target=lambda: found.update(server.ask("POST", "/generate", body)[1]))
        asking.start()
        server.await_metric("tdock_serve_answers_open", 1)
        status, answer, _ = server.ask("POST", "/abort_request", {"rid": "mine"})
        asking.join(LONG)
        self.assertEqual((status, answer["aborted"]), (200, 1))
        self.assertEqual(found["meta_info"]["finish_reason"]["type"], "abort")
        self.assertLess(found["meta_info"]["completion_tokens"], 190_000)
        self.assertEqual(server.ask("POST", "/abort_request", {"rid": "mine"})[1]["aborted"], 0)

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
            model=NAME, prompt="a", max_tokens=4000, temperature=0, stream=True,
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
        self.assertEqual(tokens, 4000, "no token without its version")
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
        server = Server(write_model(self.folder / "first", chat_template=TEMPLATE, **ENDLESS), "--max-rows", "1")
        self.addCleanup(server.end)
        other = write_model(self.folder / "next", seed=6, chat_template=TEMPLATE, **ENDLESS)
        self.assertEqual(server.ask("POST", "/update_weights", {"model_path": str(other)})[0], 200)
        runs = server.client.completions.create(
            model=NAME, prompt="a", max_tokens=190_000, stream=True, extra_body={"ignore_eos": True}
        )
        next(runs)
        found = {}
        body = {"text": "a", "rid": "waits", "sampling_params": {"max_new_tokens": 9}}
        waits = threading.Thread(target=lambda: found.update(server.ask("POST", "/generate", body)[1]))
        waits.start()
        server.await_metric("tdock_serve_answers_open", 2)
        self.assertEqual(server.ask("POST", "/abort_request", {"rid": "waits"})[1]["aborted"], 1)
        waits.join(LONG)
        runs.close()
        self.assertEqual(found["output_ids"], [])
        self.assertEqual(found["meta_info"]["weight_version"], "1")


if __name__ == "__main__":
    Server.tdock = sys.argv.pop(1)
    unittest.main()
