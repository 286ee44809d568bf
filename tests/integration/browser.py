"""Chromium without a window, driven over a pipe by its DevTools protocol: what tests of pages need of it."""

import base64
import json
import os
import select
import shutil
import subprocess
import tempfile
import time

from waiting import LONG, until

FLAGS = [
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-extensions",
    "--disable-background-networking", "--disable-component-update", "--disable-sync", "--disable-dev-shm-usage",
    "--hide-scrollbars", "--remote-debugging-pipe",
]  # fmt: skip


class NavigatedError(RuntimeError):
    """The page went elsewhere while it was asked."""


class Browser:
    """A page. `problems` are what its console, its scripts and its security policy have complained about."""

    def __init__(self, width=1280, height=900, dark=False):
        program = shutil.which("chromium")
        if program is None:
            raise RuntimeError("there is no chromium: scripts/setup.sh oracle installs it")
        self.folder = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
        to_browser, self.write = os.pipe()
        self.read, from_browser = os.pipe()

        def pipes():  # Chromium reads from descriptor 3, and writes to 4
            os.dup2(to_browser, 103), os.dup2(from_browser, 104)
            os.dup2(103, 3), os.dup2(104, 4)

        self.process = subprocess.Popen(
            [program, *FLAGS, f"--user-data-dir={self.folder.name}", "about:blank"], preexec_fn=pipes,
            close_fds=False, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        os.close(to_browser), os.close(from_browser)
        self.unread, self.last, self.session, self.problems = b"", 0, None, []
        target = next(t for t in self.call("Target.getTargets")["targetInfos"] if t["type"] == "page")
        self.session = self.call("Target.attachToTarget", targetId=target["targetId"], flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log"):
            self.call(f"{domain}.enable")
        self.call("Emulation.setFocusEmulationEnabled", enabled=True)
        self.look(width, height, dark)

    def close(self):
        self.process.kill()
        self.process.wait()
        os.close(self.write), os.close(self.read)
        self.folder.cleanup()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def look(self, width, height, dark):
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", features=[scheme])

    def call(self, method, **parameters):
        self.last += 1
        message = {"id": self.last, "method": method, "params": parameters}
        if self.session:
            message["sessionId"] = self.session
        os.write(self.write, json.dumps(message).encode() + b"\0")
        deadline = time.monotonic() + LONG
        while True:
            answer = self.receive(deadline, method)
            if answer.get("id") == self.last:
                if "error" in answer:
                    is_gone = any(word in answer["error"]["message"] for word in ("navigated", "context was destroyed"))
                    raise (NavigatedError if is_gone else RuntimeError)(f"{method}: {answer['error']}")
                return answer["result"]

    def receive(self, deadline, what):
        while b"\0" not in self.unread:
            if not select.select([self.read], [], [], max(0, deadline - time.monotonic()))[0]:
                raise TimeoutError(f"Chromium has not answered {what}")
            piece = os.read(self.read, 1 << 16)
            if not piece:
                raise RuntimeError("Chromium has ended")
            self.unread += piece
        text, self.unread = self.unread.split(b"\0", 1)
        message = json.loads(text)
        if message.get("method") == "Runtime.exceptionThrown":
            details = message["params"]["exceptionDetails"]
            self.problems.append(details.get("exception", {}).get("description", details["text"]))
        elif message.get("method") == "Runtime.consoleAPICalled" and message["params"]["type"] in ("error", "warning"):
            self.problems.append(str(message["params"]["args"]))
        elif message.get("method") == "Log.entryAdded" and message["params"]["entry"]["level"] in ("error", "warning"):
            self.problems.append(message["params"]["entry"]["text"])
        return message

    def open(self, url):
        self.call("Page.navigate", url=url)

    def ask(self, expression):
        """The value of a JavaScript expression."""
        result = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in result:
            raise RuntimeError(f"{expression}: {result['exceptionDetails']}")
        return result["result"].get("value")

    def wait(self, expression):
        """Waits until the expression is true, and returns its value."""

        def value():
            try:
                return self.ask(expression)
            except NavigatedError:
                return None  # the next page is asked

        return until(value, lambda: f"{expression}; problems: {self.problems}", every=0.05)

    def press(self, key, text=None):
        for kind in ("keyDown", "keyUp"):
            codes = {"Tab": 9, "Enter": 13, "Escape": 27, " ": 32, "ArrowLeft": 37, "ArrowRight": 39, "Home": 36}
            extra = {"text": text} if text and kind == "keyDown" else {}
            self.call("Input.dispatchKeyEvent", type=kind, key=key, code="Space" if key == " " else key,
                      windowsVirtualKeyCode=codes[key], **extra)  # fmt: skip

    def screenshot(self, path, whole=False):
        clip = {}
        if whole:
            width, height = self.ask("[innerWidth, document.documentElement.scrollHeight]")
            clip = {"clip": {"x": 0, "y": 0, "width": width, "height": height, "scale": 1}}
        data = self.call("Page.captureScreenshot", captureBeyondViewport=whole, **clip)["data"]
        with open(path, "wb") as file:
            file.write(base64.b64decode(data))
