#!/usr/bin/env python3
"""Serves a model with `tdock serve`, and asks it questions through its OpenAI interface.

usage: examples/real-model/ask.py TDOCK MODEL QUESTION…

With the package openai this is OpenAI(base_url=…, api_key="none").chat.completions.create(…); here nothing needs to be installed.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import urllib.request


def ask(address: str, question: str) -> str:
    fields = {"model": "mine", "messages": [{"role": "user", "content": question}], "temperature": 0, "max_tokens": 32}
    request = urllib.request.Request(
        f"{address}/v1/chat/completions", json.dumps(fields).encode(), {"Content-Type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=300) as reply:
        return json.load(reply)["choices"][0]["message"]["content"]


def main() -> None:
    if len(sys.argv) < 4:
        sys.exit(__doc__.splitlines()[2])
    tdock, model, *questions = sys.argv[1:]
    command = [tdock, "serve", "--model", model, "--served-model-name", "mine", "--port", "0"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as server:
        said = []
        for line in server.stderr:
            said.append(line)
            if found := re.search(r"http://[\d.]+:\d+", line):
                break
        else:
            sys.exit(f"ask.py: tdock serve ended: {''.join(said[-3:])}")
        try:
            for question in questions:
                print(f"{question}\n  {ask(found[0], question)}")
        finally:
            server.terminate()


if __name__ == "__main__":
    main()
