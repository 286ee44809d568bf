#!/usr/bin/env python3
"""Serves a model with `tdock serve`, and asks it through its OpenAI interface: of each task the first two questions of a file.

usage: examples/real-model/ask.py TDOCK MODEL FILE

With the package openai this is OpenAI(base_url=…, api_key="none").chat.completions.create(…); here nothing needs to be installed.
"""

from __future__ import annotations

import json
import pathlib
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
    if len(sys.argv) != 4:
        sys.exit(__doc__.splitlines()[2])
    tdock, model, file = sys.argv[1:]
    by_task: dict[str, list[dict]] = {}
    for line in pathlib.Path(file).read_text().splitlines():
        record = json.loads(line)
        by_task.setdefault(record["data_source"], []).append(record)
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
            for records in by_task.values():
                for record in records[:2]:
                    print(f"\n{record['prompt']}\n  {ask(found[0], record['prompt'])}    (right: {record['answer']})")
        finally:
            server.terminate()


if __name__ == "__main__":
    main()
