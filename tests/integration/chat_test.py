#!/usr/bin/env python3
"""`tdock chat --server`, and the page that `tdock serve` has for chatting, in Chromium, against a server of a small
model and one that does what it is told: tests/integration/chat_test.py TDOCK"""

import contextlib
import http.client
import http.server
import json
import os
import pathlib
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import unittest

from browser import Browser
from generate_test import write_model
from messages import mentions
from served_model import NAME, Server
from waiting import LONG

HOSTILE = "<img src=x onerror=\"document.title='owned'\"><script>document.title='owned'</script>"
KEY = "first-key-of-two"
tdock = None


def event(text, **more):
    return {"choices": [{"index": 0, "delta": {"content": text}, **more}]}


def error(message, code=None):
    return {"error": {"message": message, "type": "x", "param": None, "code": code}}


class Told(http.server.ThreadingHTTPServer):
    """Answers each conversation with the next of `answers`: (status, headers, object), or a list of events, of which None
    cuts the connection and an Event waits for it. Keeps what it was asked in `asked`."""

    daemon_threads = True

    def __init__(self, *answers, models=("one",), page=None):
        super().__init__(("127.0.0.1", 0), Handler)
        self.answers, self.models, self.page, self.asked, self.keys = list(answers), models, page, [], []
        self.thread = threading.Thread(target=self.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
        self.thread.start()
        self.url = f"http://127.0.0.1:{self.server_port}"

    def end(self):
        self.shutdown()
        self.thread.join(LONG)
        self.server_close()


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *_):
        pass

    def whole(self, status, headers, body):
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        self.send_response(status)
        for name, value in {"Content-Type": "application/json", **headers, "Content-Length": len(data)}.items():
            self.send_header(name, str(value))
        self.end_headers()
        self.wfile.write(data)

    def do_GET(self):
        self.server.keys.append(self.headers.get("Authorization"))
        if self.path == "/v1/models":
            return self.whole(200, {}, {"data": [{"id": name} for name in self.server.models]})
        if self.path == "/" and self.server.page:
            return self.whole(200, *self.server.page)
        self.whole(404, {}, error("nothing here"))

    def do_POST(self):
        self.server.keys.append(self.headers.get("Authorization"))
        self.server.asked.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
        answer = self.server.answers.pop(0)
        if isinstance(answer, tuple):
            return self.whole(*answer)
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        for one in answer:
            if one is None:
                self.close_connection = True
                return
            if isinstance(one, threading.Event):
                one.wait(LONG)
                continue
            data = b"data: " + (one.encode() if isinstance(one, str) else json.dumps(one).encode()) + b"\n\n"
            self.wfile.write(b"%x\r\n%s\r\n" % (len(data), data))
        self.wfile.write(b"0\r\n\r\n")


def said(*texts):
    return [*map(event, texts), event("", finish_reason="stop"), "[DONE]"]


class WithTold(unittest.TestCase):
    def told(self, *answers, **options):
        server = Told(*answers, **options)
        self.addCleanup(server.end)
        return server

    def chat(self, url, lines, *options, code=0, **environment):
        done = subprocess.run(
            [tdock, "chat", "--server", url, *map(str, options)], input=lines, capture_output=True, text=True,
            timeout=LONG, env={**os.environ, **environment},
        )  # fmt: skip
        self.assertEqual(done.returncode, code, done.stderr)
        return done.stdout, done.stderr


class ChatWithTold(WithTold):
    def test_the_conversation_is_sent_and_kept(self):
        server = self.told(said("Hel", "lo"), said("again"), said("new"))
        out, log = self.chat(server.url, "hi\n\nand?\nclear\nx\n", "--system", "S")
        self.assertEqual(out, "Hello\nagain\nnew\n")
        self.assertRegex(log, r"\A.* forgotten\.\n\Z")
        system, first = {"role": "system", "content": "S"}, {"role": "user", "content": "hi"}
        answered = [{"role": "assistant", "content": "Hello"}, {"role": "user", "content": "and?"}]
        self.assertEqual(server.asked[0], {"max_tokens": 128, "model": "one", "messages": [system, first], "stream": True})
        self.assertEqual(server.asked[1]["messages"], [system, first, *answered])
        self.assertEqual(server.asked[2]["messages"], [system, {"role": "user", "content": "x"}])

    def test_sampling_options_are_passed_on_and_only_those_that_are_given(self):
        server = self.told(said("a"))
        options = "--temperature 0 --top-p 0.5 --top-k 7 --min-p 0.1 --seed 3 --presence-penalty 1 --frequency-penalty 1 "
        options += "--repetition-penalty 1.5 --max-new-tokens 9 --min-new-tokens 2 --ignore-eos --stop a --stop-tokens 5 "
        options += "--logit-bias 6:-1.5 --allowed-tokens 1,2 --model other"
        self.chat(server.url + "/v1/", "hi\n", *options.split())
        wanted = {
            "temperature": 0, "top_p": 0.5, "top_k": 7, "min_p": 0.1, "seed": 3, "presence_penalty": 1,
            "frequency_penalty": 1, "repetition_penalty": 1.5, "max_tokens": 9, "min_tokens": 2, "ignore_eos": True,
            "stop": ["a"], "stop_token_ids": [5], "logit_bias": {"6": -1.5}, "allowed_token_ids": [1, 2],
            "model": "other", "stream": True, "messages": [{"role": "user", "content": "hi"}],
        }  # fmt: skip
        self.assertEqual(server.asked, [wanted])

    def test_says_why_there_is_no_answer_and_goes_on(self):
        server = self.told(
            (401, {}, error("no key")), (404, {}, error("no such model")),
            (429, {"Retry-After": "700"}, error("busy")), (500, {}, b"<h1>oops</h1>"), (200, {}, {"choices": []}),
            (307, {"Location": "http://elsewhere/"}, b""), [error("broke")], said("at last"),
        )  # fmt: skip
        out, log = self.chat(server.url, "1\n2\n3\n4\n5\n6\n7\n8\n", "--model", "m", code=1)
        self.assertEqual(out, "at last\n")
        lines = log.splitlines()
        for line, words in zip(lines[:7], [
            ["401: no key", "--api-key-env"], ["404: no such model", ": one"], ["429: busy", "11m40s"],
            ["500: <h1>oops</h1>"], ["\"application/json\"", "text/event-stream"], ["307", "http://elsewhere/"], ["broke"],
        ], strict=True):  # fmt: skip
            mentions(line, "left out", f"{server.url}/v1: ", *words)
        mentions(lines[7], "7 of")
        self.assertEqual(server.asked[-1]["messages"], [{"role": "user", "content": "8"}])

    def test_a_busy_server_is_asked_again_when_it_says(self):
        busy = (429, {"Retry-After": "1"}, error("busy"))
        longer = (429, {"Retry-After": str(LONG + 100)}, error("busy"))
        server = self.told(busy, (503, {"Retry-After": "0"}, error("draining")), said("now"), longer)
        begun = time.monotonic()
        out, log = self.chat(server.url, "hi\n", "--timeout", LONG)
        self.assertGreater(time.monotonic() - begun, 2)
        self.assertEqual(out, "now\n")
        self.assertEqual(len(log.splitlines()), 2)
        for line in log.splitlines():
            mentions(line, "busy", "1s", "Ctrl-C")
        self.assertEqual(server.asked, 3 * server.asked[:1])
        # Longer than it may be silent: not waited for.
        _, log = self.chat(server.url, "hi\n", "--timeout", LONG, code=1)
        mentions(log, "left out", "429: busy", "6m40s")

    def test_ctrl_c_ends_the_waiting_for_a_busy_server(self):
        server = self.told((429, {"Retry-After": "200"}, error("busy")), said("more"))
        process = subprocess.Popen(
            [tdock, "chat", "--server", server.url], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )
        self.addCleanup(process.kill)
        process.stdin.write(b"hi\n")
        process.stdin.flush()
        self.assertIn(b"3m20s", process.stderr.readline())
        process.send_signal(signal.SIGINT)
        out, log = process.communicate(b"go on\n", timeout=LONG)
        self.assertEqual((process.returncode, out, log), (0, b"\nmore\n", b""))
        self.assertEqual([turn["content"] for turn in server.asked[1]["messages"]], ["go on"])

    def test_a_server_that_is_not_there(self):
        with socket.socket() as unused:
            unused.bind(("127.0.0.1", 0))
            url = f"http://127.0.0.1:{unused.getsockname()[1]}"
            mentions(self.chat(url, "", code=2)[1], f"{url}/v1: ", "Connection refused")
            mentions(self.chat(url, "hi\n", "--model", "m", code=1)[1], f"{url}/v1: ", "Connection refused")
        mentions(self.chat("127.0.0.1:80", "", code=2)[1], "http://HOST")
        secret = self.chat("http://me:secret@host/", "", code=2)[1]
        self.assertIn("--api-key-env", secret)
        self.assertNotIn("secret", secret)

    def test_a_server_that_says_nothing_is_given_up(self):
        never = threading.Event()
        self.addCleanup(never.set)
        server = self.told([event("He"), never])
        # The first part may take as long as to connect, and the silence behind it ends the answer.
        out, log = self.chat(server.url, "hi\n", "--model", "m", "--timeout", 0.3, "--connect-timeout", LONG, code=1)
        self.assertEqual(out, "He\n")
        mentions(log, "cut off", "time ran")

    def test_what_came_of_an_answer_that_is_cut_off_is_kept(self):
        server = self.told([event("Hel"), None], [event("ab")], said("b"))
        out, log = self.chat(server.url, "1\n2\n3\n", "--model", "m", code=1)
        self.assertEqual(out, "Hel\nab\nb\n")
        self.assertEqual(log.count("cut off"), 2)
        mentions(log, "closed the", "ended its")
        self.assertEqual([turn["content"] for turn in server.asked[2]["messages"]], ["1", "Hel", "2", "ab", "3"])

    def test_a_full_context_forgets_the_oldest_turns(self):
        full = (400, {}, error("too long", "context_length_exceeded"))
        server = self.told(said("a"), said("b"), full, full, said("c"), full)
        out, log = self.chat(server.url, "1\n2\n3\n" + "clear\n4\n", "--model", "m", code=1)
        self.assertEqual(out, "a\nb\nc\n")
        self.assertRegex(log, r"\b4 turns\b.*forgotten")
        self.assertEqual(server.asked[4]["messages"], [{"role": "user", "content": "3"}])
        mentions(log, "left out")

    def test_the_key_is_sent_and_not_shown(self):
        server = self.told((401, {}, error(f"{KEY} is wrong")), models=("a", "b"))
        _, log = self.chat(server.url, "hi\n", "--api-key-env", "MINE", code=1, MINE=KEY)
        self.assertEqual(set(server.keys), {f"Bearer {KEY}"})
        mentions(log, "(a, b)")
        self.assertNotIn(KEY, log)
        self.assertIn('"MINE", which is not set', self.chat(server.url, "", "--api-key-env", "MINE", code=2)[1])

    def test_options_that_do_not_go_together(self):
        self.assertIn("--server excludes", self.chat("http://x", "", "--raw", code=2)[1])
        done = subprocess.run([tdock, "chat"], capture_output=True, text=True, timeout=LONG)
        self.assertEqual(done.returncode, 2)
        self.assertIn("--model FOLDER, or --server URL", done.stderr)

    def test_ctrl_c_ends_the_answer_and_not_the_chat(self):
        never = threading.Event()
        self.addCleanup(never.set)
        server = self.told([event("He"), never], said("more"))
        process = subprocess.Popen(
            [tdock, "chat", "--server", server.url], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )
        self.addCleanup(process.kill)
        process.stdin.write(b"hi\n")
        process.stdin.flush()
        self.assertEqual(os.read(process.stdout.fileno(), 2), b"He")
        process.send_signal(signal.SIGINT)
        self.assertEqual(process.stdout.readline(), b"\n")
        out, log = process.communicate(b"go on\n", timeout=LONG)
        self.assertEqual((process.returncode, out, log), (0, b"more\n", b""))
        self.assertEqual([turn["content"] for turn in server.asked[1]["messages"]], ["hi", "He", "go on"])


def setUpModule():
    """A model, which takes a moment to load, for all tests: by itself, and served."""
    folder = tempfile.TemporaryDirectory()
    unittest.addModuleCleanup(folder.cleanup)
    WithModel.folder = pathlib.Path(folder.name)
    WithModel.model = write_model(WithModel.folder / "model", max_position_embeddings=100_000)
    preferred = json.dumps({"ignore_eos": True, "temperature": 0})
    WithModel.server = Server(WithModel.model, "--preferred-sampling-params", preferred)
    unittest.addModuleCleanup(WithModel.server.end)
    WithModel.url = f"http://127.0.0.1:{WithModel.server.port}"


class WithModel(WithTold):
    folder = model = server = url = None


class ChatWithServer(WithModel):
    def test_a_server_answers_as_the_model_does(self):
        letters = ",".join(f"{code}:50" for code in range(ord("a"), ord("z")))  # so that texts are their tokens
        options = ["--temperature", "0", "--max-new-tokens", "12", "--system", "S", "--logit-bias", letters]
        there = self.chat(self.url, "hi\nso?\nclear\nhi\n", *options)
        here = subprocess.run(
            [tdock, "chat", "--model", self.model, "--ignore-eos", *options], input="hi\nso?\nclear\nhi\n",
            capture_output=True, text=True, timeout=LONG, check=True,
        )  # fmt: skip
        self.assertEqual(there, (here.stdout, here.stderr))

    def test_the_server_says_what_is_wrong(self):
        log = self.chat(self.url, "hi\n", "--model", "no", code=1)[1]
        mentions(log, f": {NAME}")
        self.assertIn("allowed_token_ids", self.chat(self.url, "hi\n", "--allowed-tokens", "999999", code=1)[1])


class Page(WithModel):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.browser = Browser()
        cls.addClassCleanup(cls.browser.close)

    def opened(self, url, name=NAME, width=1280, height=900, dark=False):
        browser = self.browser
        browser.look(width, height, dark)
        browser.open("about:blank")
        browser.wait("location.href === 'about:blank'")
        browser.problems.clear()
        browser.open(url + "/")
        browser.wait(f"document.title === 'Chat' && document.getElementById('name')?.textContent === {json.dumps(name)}")
        return browser

    def page(self):
        """The page with its headers, as another server may send it."""
        connection = http.client.HTTPConnection("127.0.0.1", self.server.port, timeout=LONG)
        with contextlib.closing(connection):
            connection.request("GET", "/")
            response = connection.getresponse()
            headers = {name: response.headers[name] for name in ("Content-Type", "Content-Security-Policy")}
            return headers, response.read()

    def say(self, browser, text):
        """Types and sends as a user does."""
        browser.ask("document.getElementById('message').focus()")
        browser.call("Input.insertText", text=text)
        browser.press("Enter", "\r")

    def shown(self, browser):
        return browser.ask("[...document.querySelectorAll('article p')].map(p => p.textContent)")

    def is_idle(self, browser):
        browser.wait("document.getElementById('log').getAttribute('aria-busy') === 'false'")

    def test_has_a_strict_policy(self):
        headers, body = self.page()
        policy = headers["Content-Security-Policy"]
        for part in ("default-src 'none'", "script-src 'nonce-", "connect-src 'self'", "base-uri 'none'",
                     "form-action 'none'", "frame-ancestors 'none'", "require-trusted-types-for 'script'"):  # fmt: skip
            self.assertIn(part, policy)
        self.assertNotIn("unsafe", policy)
        self.assertNotEqual(policy, self.page()[0]["Content-Security-Policy"], "a nonce is used once")
        self.assertNotIn(b"{{", body)
        for unwanted in (b"innerHTML", b"http://", b"https://", b"eval("):
            self.assertNotIn(unwanted, body)

    def test_chats_by_keyboard(self):
        browser = self.opened(self.url)
        self.assertEqual(browser.ask("document.activeElement.id"), "message")
        browser.ask("document.getElementById('settings').open = true")
        browser.ask("document.getElementById('most').value = '12', document.getElementById('system').value = 'S'")
        self.say(browser, "hi")
        browser.wait("document.getElementById('status').textContent === 'Answered.'")
        self.say(browser, "so?")
        browser.wait("document.querySelectorAll('article small').length === 2")
        self.is_idle(browser)
        lines = subprocess.run(
            [tdock, "chat", "--server", self.url, "--max-new-tokens", "12", "--system", "S"], input="hi\nso?\n",
            capture_output=True, text=True, timeout=LONG, check=True,
        ).stdout  # fmt: skip
        user, first, then, second = self.shown(browser)
        self.assertEqual((user, then), ("hi", "so?"))
        self.assertEqual(first + "\n" + second + "\n", lines)
        browser.press("Enter", "\r")  # an empty message is none
        browser.call("Input.insertText", text="a")
        shifted = {"key": "Enter", "code": "Enter", "windowsVirtualKeyCode": 13, "modifiers": 8}
        browser.call("Input.dispatchKeyEvent", type="keyDown", text="\r", **shifted)
        browser.call("Input.dispatchKeyEvent", type="keyUp", **shifted)
        self.assertEqual(browser.ask("document.getElementById('message').value"), "a\n")
        reached = []
        for _ in range(4):
            browser.press("Tab")
            reached.append(browser.ask("document.activeElement.id || document.activeElement.tagName"))
            self.assertNotEqual(browser.ask("getComputedStyle(document.activeElement).outlineStyle"), "none", reached)
        self.assertEqual(reached, ["send", "SUMMARY", "system", "temperature"])
        browser.ask("document.getElementById('clear').click()")
        self.assertEqual(self.shown(browser), [])
        self.assertEqual(browser.problems, [])

    def test_an_answer_is_shown_as_it_comes_and_can_be_stopped(self):
        browser = self.opened(self.url)
        self.say(browser, "hi")
        browser.wait("document.querySelectorAll('article p')[1]?.textContent.length > 50")
        self.assertEqual(browser.ask("document.getElementById('log').getAttribute('aria-busy')"), "true")
        browser.press("Escape")
        self.is_idle(browser)
        text = self.shown(browser)[1]
        self.assertEqual(browser.ask("document.querySelector('article small').textContent"), "Stopped.")
        self.server.await_metric("tdock_serve_answers_open", 0)
        browser.ask("document.getElementById('most').value = 1")
        self.say(browser, "more")
        browser.wait("document.querySelectorAll('article').length === 4")
        self.is_idle(browser)
        self.assertEqual(self.shown(browser)[1], text)
        self.assertEqual(browser.problems, [])

    def test_texts_are_only_text(self):
        server = self.told(said(HOSTILE), models=(HOSTILE,), page=self.page())
        browser = self.opened(server.url, name=HOSTILE)
        self.say(browser, HOSTILE)
        browser.wait("document.getElementById('status').textContent === 'Answered.'")
        self.assertEqual(self.shown(browser), [HOSTILE, HOSTILE])
        self.assertEqual(browser.ask("[document.title, document.querySelectorAll('img, main script').length]"), ["Chat", 0])
        self.assertEqual(browser.problems, [])

    def test_says_what_went_wrong_and_keeps_the_message(self):
        hold = threading.Event()
        self.addCleanup(hold.set)
        server = self.told(
            (429, {"Retry-After": "7"}, error("2 answers run")), (400, {}, error(HOSTILE)), [error("broke")],
            [event("Hel"), hold, None], said("and on"), page=self.page(),
        )  # fmt: skip
        browser = self.opened(server.url, name="one")
        for names in (["7 s", "2 answers run"], [HOSTILE], ["broke"]):
            self.say(browser, "hi")
            browser.wait("!document.getElementById('problem').hidden")
            mentions(browser.ask("document.getElementById('problem').textContent"), *names)
            self.assertEqual((self.shown(browser), browser.ask("document.getElementById('message').value")), ([], "hi"))
            browser.ask("document.getElementById('message').value = ''")
        self.say(browser, "hi")
        browser.wait("document.querySelectorAll('article p')[1]?.textContent === 'Hel'")
        hold.set()
        browser.wait("document.querySelector('article small')?.textContent === 'Cut off.'")
        self.assertIn("lost", browser.ask("document.getElementById('problem').textContent"))
        self.say(browser, "go on")
        browser.wait("document.getElementById('status').textContent === 'Answered.'")
        self.assertTrue(browser.ask("document.getElementById('problem').hidden"))
        self.assertEqual([turn["content"] for turn in server.asked[-1]["messages"]], ["hi", "Hel", "go on"])
        self.assertNotIn("temperature", server.asked[-1])

    def test_asks_for_a_key_where_one_is_needed(self):
        (self.folder / "keys").write_text(f"{KEY}\nsecond\n")
        locked = Server(self.model, "--api-key-file", self.folder / "keys")
        self.addCleanup(locked.end)
        browser = self.opened(f"http://127.0.0.1:{locked.port}", name="")
        browser.wait("document.activeElement?.id === 'key'")
        for key, then in (("wrong", "!document.getElementById('problem').hidden"),
                          (KEY, f"document.getElementById('name').textContent === '{NAME}'")):  # fmt: skip
            browser.ask("document.getElementById('key').value = ''")
            browser.call("Input.insertText", text=key)
            browser.press("Enter", "\r")
            browser.wait(then)
        self.assertEqual(browser.ask("document.getElementById('unlock').hidden"), True)
        browser.ask("document.getElementById('most').value = 2")
        self.say(browser, "hi")
        browser.wait("document.getElementById('status').textContent === 'Answered.'")

    def test_fits_a_phone(self):
        server = self.told(said("word " * 200 + "x" * 500), models=("a" * 200,), page=self.page())
        browser = self.opened(server.url, name="a" * 200, width=360, height=640, dark=True)
        self.say(browser, "y" * 300)
        browser.wait("document.getElementById('status').textContent === 'Answered.'")
        browser.ask("document.getElementById('settings').open = true")
        self.assertLessEqual(browser.ask("document.documentElement.scrollWidth"), 360)
        self.assertLessEqual(browser.ask("document.documentElement.scrollHeight"), 640)
        self.assertGreater(browser.ask("document.getElementById('log').clientHeight"), 100)
        dark = browser.ask("getComputedStyle(document.body).backgroundColor")
        browser.look(360, 640, dark=False)
        self.assertNotEqual(browser.ask("getComputedStyle(document.body).backgroundColor"), dark)


if __name__ == "__main__":
    tdock = Server.tdock = sys.argv.pop(1)
    unittest.main()
