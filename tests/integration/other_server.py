#!/usr/bin/env python3
"""A server of its own, by Transformers, that answers as vLLM does: token ids and log-probabilities of completions, and
weights that it is told to read from a folder. other_server.py MODEL prints the port on its first line.
"""

import http.server
import json
import sys
import threading

import torch
import transformers

torch.set_num_threads(1)


class Model:
    def __init__(self, folder):
        self.lock = threading.Lock()
        self.version = "0"
        self.load(folder)

    def load(self, folder):
        model = transformers.AutoModelForCausalLM.from_pretrained(folder, torch_dtype=torch.float32).eval()
        with self.lock:
            self.model = model

    @torch.no_grad()
    def answer(self, prompt, samples, most, temperature, seed):
        """Of each sample, tokens and log-probabilities of what was sampled from, and whether it has ended."""
        with self.lock:
            generator = torch.Generator().manual_seed(seed)
            end = self.model.config.eos_token_id
            batch = torch.tensor([prompt] * samples)
            answers = [([], [], False) for _ in range(samples)]
            for _ in range(most):
                logits = self.model(batch).logits[:, -1]
                log_probs = torch.log_softmax(logits / temperature, -1)
                chosen = torch.multinomial(log_probs.exp(), 1, generator=generator)
                for i, (tokens, sampled, ended) in enumerate(answers):
                    if ended:
                        continue
                    token = int(chosen[i])
                    tokens.append(token)
                    sampled.append(float(log_probs[i, token]))
                    answers[i] = (tokens, sampled, token == end)
                if all(ended for _, _, ended in answers):
                    break
                batch = torch.cat([batch, chosen], 1)
            return answers


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    model = None

    def log_message(self, *arguments):
        pass

    def reply(self, status, body):
        data = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def do_GET(self):
        if self.path != "/v1/models":
            return self.reply(404, {"error": {"message": f"nothing at {self.path}"}})
        longest = self.model.model.config.max_position_embeddings
        card = {"id": "other", "object": "model", "created": 0, "owned_by": "transformers", "max_model_len": longest}
        return self.reply(200, {"object": "list", "data": [card]})

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if self.path == "/update_weights":
            if "model_path" not in body:
                return self.reply(400, {"error": {"message": "'model_path' is missing"}})
            self.model.load(body["model_path"])
            return self.reply(200, {"success": True, "message": "done"})
        if self.path != "/v1/completions":
            return self.reply(404, {"error": {"message": f"nothing at {self.path}"}})
        answers = self.model.answer(
            body["prompt"], body.get("n", 1), body["max_tokens"], body["temperature"], body.get("seed", 0)
        )
        choices = [
            {
                "index": i, "text": "", "token_ids": tokens, "prompt_token_ids": body["prompt"],
                "finish_reason": "stop" if ended else "length", "stop_reason": None,
                "logprobs": {"tokens": [f"token_id:{t}" for t in tokens], "token_logprobs": sampled,
                             "top_logprobs": None, "text_offset": [0] * len(tokens)},
            }
            for i, (tokens, sampled, ended) in enumerate(answers)
        ]  # fmt: skip
        return self.reply(200, {"id": "cmpl-1", "object": "text_completion", "created": 0, "model": "other",
                                "choices": choices, "usage": {}})  # fmt: skip


def main():
    Handler.model = Model(sys.argv[1])
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    print(server.server_address[1], flush=True)
    server.serve_forever()


if __name__ == "__main__":
    main()
