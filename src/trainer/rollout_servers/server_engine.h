// Answers of HTTP servers that speak OpenAI's completions with token ids: `tdock serve`, vLLM, and others like them.
//
//   Add() ──► waiting ──► the ready server with the least to do ──► Step()
//               ▲               │ connection lost, overloaded, other weights, nonsense
//               └───────────────┘ asked again, at another one if there is
//
//            listed                answers            has the weights
//   (none) ─────────► down ─────────────────► behind ─────────────────► ready
//                      ▲  ◄── connection lost ──┴────────────────────────┘
//                         (asked for its card again, with back-off)
//
// One that says nothing at all for some 40 seconds, while it has requests, is down, too.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "core/base/clock.h"
#include "core/base/env.h"
#include "trainer/rollout_servers/wire/weight_calls.h"
#include "trainer/stages/answer_engine.h"

namespace tdock::trainer {

// How servers get weights.
enum class ServerWeights {
  kStream,  // straight from memory, to `tdock serve`
  kFolder,  // as a Hugging Face folder, which they are told to read
  kNccl,    // by broadcasts between GPUs, to vLLM and SGLang; never tested on a GPU
  kNone,    // not at all: they answer with what they have, which counts as the first version that is served
};

// Makes a group with so many ranks of a server, which nobody has joined yet (weight_group.h).
class WeightGroup;
using OpenWeightGroup =
    std::function<absl::StatusOr<std::unique_ptr<WeightGroup>>(ServerKind kind, int64_t server_ranks)>;

struct ServerEngineOptions {
  std::vector<std::string> urls = {};  // http://HOST[:PORT], without the path /v1 or with it
  std::string urls_file = {};          // more of them, one in a line; looked at again while the run goes on
  WantedCard wanted = {};              // without a model: the one that a server has
  std::string key_env = {};            // the environment variable with the key; empty: none is sent
  std::string ca_file = {};            // certificates (PEM) that are trusted for https; empty: the system's

  ServerWeights weights = ServerWeights::kStream;
  // Where the folders of kFolder are written, which servers must see under the same name, and what is posted to. A vLLM
  // and an SGLang are told in ways of their own where the path is the usual one.
  std::string weights_folder = {};
  std::string weights_path = kUsualFolderPath;
  std::string tokenizer_from = {};  // a model's folder whose tokenizer goes into them; empty: none does

  OpenWeightGroup open_group = {};  // of kNccl; empty: there is no such way

  // True if the weights that servers of this kind are sent get a label of ours.
  bool LabelsWeights(ServerKind kind) const {
    if (weights != ServerWeights::kFolder) return weights != ServerWeights::kNone;
    return kind == ServerKind::kTdock || HasOwnFolderCall(kind, weights_path);
  }

  int64_t connections = 64;  // requests in progress at a server
  // How long there may be no server that answers, a server may be overloaded, or a piece of weights may take.
  absl::Duration timeout = absl::Seconds(300);
  absl::Duration answer_timeout = absl::Hours(2);  // of one try of a request
  int64_t tries = 5;                               // of a request on servers that could be reached

  std::vector<int32_t> end_tokens = {};  // any of them ends an answer
  int64_t vocab_size = 0;                // tokens are below it

  Env* env = nullptr;      // null: Env::Real()
  Clock* clock = nullptr;  // null: Clock::Real()
};

// Requests as those of an engine in this process, and the same answers, where a `tdock serve` computes as this process
// would. Other servers draw other random numbers, from a seed that follows from the request's. Add() returns
// Unimplemented, naming it, for what cannot be asked of a server: `constrain`, `on_token`, stop texts, top_log_probs,
// prompt_log_probs, filtered_log_probs, allowed_tokens, and penalties of an answer that goes on.
//
// Serve() returns when every server that can be reached has the weights, or has failed to take them, and one at least
// has them. Serve() and Step() return Unavailable, with each server's trouble, when no server could be used for
// `timeout`; Serve() the error of its stop check some 200 ms after it came. What is wrong with one request comes as the
// status of its answers: FailedPrecondition with a server's words for what it refuses, Unavailable after too many
// tries. Aborting closes the connection.
//
// InvalidArgument for URLs, keys and files that are not valid, NotFound for a file that is not there.
absl::StatusOr<std::unique_ptr<AnswerEngine>> MakeServerEngine(const ServerEngineOptions& options);

// Looks whether each listed server has what the first step needs: room for `longest` tokens, token ids and
// log-probabilities in an answer of one token, and the calls that give it weights. Changes nothing on a server, except
// that one which a killed run left halted goes on. InvalidArgument, FailedPrecondition, Unimplemented or Unavailable
// with the troubles of all: which program a server is, what was tried, what it answered, and what would be right. If
// one server can be used, and others are only away or too busy, it returns their troubles: a run may go on without
// them. With a file only, OK if there are none.
absl::StatusOr<std::vector<std::string>> CheckServers(const ServerEngineOptions& options, int64_t longest,
                                                      const std::function<absl::Status()>& check_stop);

}  // namespace tdock::trainer
