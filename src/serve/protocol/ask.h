// What a client asks of a model.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "absl/strings/string_view.h"
#include "serve/protocol/problem.h"
#include "text/chat_template.h"

namespace tdock::serve {

// What is not given is as --preferred-sampling-params says, or else the usual.
struct SamplingAsk {
  std::optional<double> temperature = {}, top_p = {}, min_p = {};
  std::optional<double> repetition_penalty = {}, presence_penalty = {}, frequency_penalty = {};
  std::optional<int64_t> top_k = {}, max_tokens = {}, min_tokens = {};
  std::optional<uint64_t> seed = {};
  std::optional<bool> ignore_eos = {};
  std::optional<std::vector<std::string>> stop = {};
  std::optional<std::vector<int32_t>> stop_token_ids = {};
  std::optional<std::map<int32_t, double>> logit_bias = {};

  // What this one does not say, `other` does.
  void FillFrom(const SamplingAsk& other);
};

enum class Form {
  kCompletion,  // POST /v1/completions
  kChat,        // POST /v1/chat/completions
  kGenerate     // POST /generate
};

// A text as it stands, or tokens.
using AskedPrompt = std::variant<std::string, std::vector<int32_t>>;

struct Ask {
  Form form = Form::kCompletion;
  std::string model = {};                 // empty: the one that is served
  std::vector<AskedPrompt> prompts = {};  // not of a chat; at least one
  bool is_list = false;                   // they were given as a list, and so are the answers of /generate
  std::vector<text::Turn> turns = {};     // of a chat
  text::Context context = {};
  SamplingAsk sampling = {};
  int64_t n = 1;  // answers to each prompt
  bool stream = false, include_usage = false;
  std::optional<int64_t> log_probs = {};  // absent: none; else how many of the most likely tokens beside each
  bool token_ids = false;                 // the ids of prompts and answers, too
  bool json_object = false;               // answers are JSON objects
  // Of a completion with a seed: what its random numbers follow from beside it, for prompt 0; each prompt has one more.
  std::optional<uint64_t> identity = {};
  std::string request_id = {};  // a name that the client gives, for /abort_request
};

struct AskLimits {
  int64_t max_answers = 128;       // prompts times n
  int64_t max_messages = 1 << 20;  // of a conversation; a server has at most one for each token of the context
  int64_t max_request_id_bytes = 1024;
  int64_t max_stops = 16;
  int64_t max_stop_bytes = 1024;   // of one
  int64_t max_stop_tokens = 1024;  // different ones
  int64_t max_biases = 1024;
  int64_t max_top_log_probs = 20;
  int64_t max_tensors = 1 << 17;         // of an upload of weights
  int64_t max_tensor_name_bytes = 1024;  // of one of these
  int max_depth = 64;                    // of the JSON
};

// The body of a request. Fields that would change the answers and are not supported are refused by name.
std::variant<Ask, Problem> ReadAsk(Form form, absl::string_view body, const AskLimits& limits = {});

// A JSON object of sampling parameters, as --preferred-sampling-params has it, with the names of any of the forms.
std::variant<SamplingAsk, Problem> ReadSampling(absl::string_view body, const AskLimits& limits = {});

// {"rid": …} or {"request_id": …}, or {"abort_all": true}.
struct AbortAsk {
  std::string request_id = {};
  bool all = false;
};
std::variant<AbortAsk, Problem> ReadAbort(absl::string_view body, const AskLimits& limits = {});

}  // namespace tdock::serve
