// What a client asks of a model.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "absl/strings/string_view.h"
#include "inference/grammar/grammar.h"
#include "inference/protocol/problem.h"
#include "text/chat_template.h"

namespace tdock::inference {

// What is not given is as --preferred-sampling-params says, or else the usual.
struct SamplingAsk {
  std::optional<double> temperature = {}, top_p = {}, min_p = {};
  std::optional<double> repetition_penalty = {}, presence_penalty = {}, frequency_penalty = {};
  std::optional<int64_t> top_k = {}, max_tokens = {}, min_tokens = {};
  std::optional<uint64_t> seed = {};
  std::optional<bool> ignore_eos = {};
  std::optional<std::vector<std::string>> stop = {};
  std::optional<std::vector<int32_t>> stop_token_ids = {}, allowed_token_ids = {};
  std::optional<std::map<int32_t, double>> logit_bias = {};

  // What this one does not say, `other` does.
  void FillFrom(const SamplingAsk& other);
};

enum class Form {
  kCompletion,  // POST /v1/completions
  kChat,        // POST /v1/chat/completions
  kResponses,   // POST /v1/responses
  kGenerate     // POST /generate
};

// A text as it stands, or tokens.
using AskedPrompt = std::variant<std::string, std::vector<int32_t>>;

struct Ask {
  Form form = Form::kCompletion;
  std::string model = {};  // empty: the one that is served

  // Prompts of a completion or /generate; at least one.
  std::vector<AskedPrompt> prompts = {};
  bool is_list = false;            // they were given as a list, and so are the answers of /generate
  bool add_special_tokens = true;  // that the tokenizer adds to a text

  // The conversation, and how its template renders it.
  std::vector<text::Turn> turns = {};
  text::Context context = {};
  std::string template_variables = {};  // a JSON object; empty: none
  std::string reasoning_effort = {};    // a variable of the template, too; empty: not given
  bool generation_prompt = true;        // the conversation ends with what asks for a reply
  bool continues_final_turn = false;    // the answer goes on with the last turn
  bool reads_reply = false;             // thinking and, if there are tools, calls are apart from the reply's text

  std::optional<int64_t> max_prompt_tokens = {};  // of longer prompts, the last ones; -1: as many as there is room for
  SamplingAsk sampling = {};
  int64_t n = 1;  // answers to each prompt
  bool stream = false, include_usage = false;
  std::optional<int64_t> log_probs = {};  // absent: none; else how many of the most likely tokens beside each
  // The same for the tokens of prompts.
  std::optional<int64_t> prompt_log_probs = {};
  bool echo = false;                // of a completion: the prompt is a part of the answer, and so are its tokens
  bool token_ids = false;           // the ids of prompts and answers, too
  bool skip_special_tokens = true;  // texts have none
  bool include_stop = false;        // an answer's text has the stop text or token that ended it
  std::optional<GrammarSpec> grammar = {};  // of the answers
  std::string grammar_field = {};           // the field that `grammar` is from
  // Of a completion with a seed: what its random numbers follow from beside it, for prompt 0; each prompt has one more.
  std::optional<uint64_t> identity = {};
  std::string request_id = {};  // a name that the client gives, for /abort_request
  std::string repeated = {};    // of /v1/responses: the fields that the reply repeats, a JSON object
};

struct AskLimits {
  int64_t max_answers = 128;       // prompts times n
  int64_t max_messages = 1 << 20;  // of a conversation; a server has at most one for each token of the context
  int64_t max_request_id_bytes = 1024;
  int64_t max_stops = 16;
  int64_t max_stop_bytes = 1024;   // of one
  int64_t max_stop_tokens = 1024;  // different ones; also of allowed_token_ids
  int64_t max_biases = 1024;
  int64_t max_choices = 4096;  // that an answer may be
  int64_t max_top_log_probs = 20;
  int64_t max_tensors = 1 << 17;         // of an upload of weights
  int64_t max_tensor_name_bytes = 1024;  // of one of these
  int max_depth = 64;                    // of the JSON
};

// The body of a request. Fields that would change the answers and are not supported are refused by name, unless they
// have the values that OpenAI and vLLM take for them if they are absent.
std::variant<Ask, Problem> ReadAsk(Form form, absl::string_view body, const AskLimits& limits = {});

// A JSON object of sampling parameters, as --preferred-sampling-params has it, with the names of any of the forms.
std::variant<SamplingAsk, Problem> ReadSampling(absl::string_view body, const AskLimits& limits = {});

// {"rid": …} or {"request_id": …}, or {"abort_all": true}.
struct AbortAsk {
  std::string request_id = {};
  bool all = false;
};
std::variant<AbortAsk, Problem> ReadAbort(absl::string_view body, const AskLimits& limits = {});

// POST /tokenize: {"prompt": …} or {"messages": […], …}. Has one prompt, which is a text, or turns.
struct TokenizeAsk {
  Ask ask = {};
  bool token_texts = false;  // the texts of the tokens, too
};
std::variant<TokenizeAsk, Problem> ReadTokenize(absl::string_view body, const AskLimits& limits = {});

// POST /detokenize: {"tokens": […]}.
struct DetokenizeAsk {
  std::string model = {};
  std::vector<int32_t> tokens = {};
};
std::variant<DetokenizeAsk, Problem> ReadDetokenize(absl::string_view body, const AskLimits& limits = {});

}  // namespace tdock::inference
