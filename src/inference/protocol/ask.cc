#include "inference/protocol/ask.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "absl/functional/function_ref.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "core/base/json_text.h"
#include "inference/protocol/ask_fields.h"
#include "inference/protocol/fields.h"

namespace tdock::inference {
namespace {

using Json = nlohmann::ordered_json;

// "abc", ["abc", "d"], [1, 2] or [[1, 2], [3]].
void ReadPrompts(const Json& value, Fields& fields, const AskLimits& limits, Ask& ask) {
  const auto add = [&](const Json& one) {
    if (one.is_string()) {
      ask.prompts.emplace_back(one.get<std::string>());
    } else if (one.is_array()) {
      if (auto tokens = ReadTokens(one, fields)) ask.prompts.emplace_back(*std::move(tokens));
    } else {
      fields.Fail("must be a text, a list of tokens, or a list of these");
    }
  };
  ask.is_list = value.is_array() && !value.empty() && !value.front().is_number();
  if (!ask.is_list) return add(value);
  if (std::cmp_greater(value.size(), limits.max_answers)) {
    return fields.Fail(
        absl::StrCat("has ", value.size(), " prompts, and a request has at most ", limits.max_answers, " answers"));
  }
  for (const Json& one : value) add(one);
}

void ReadStream(Fields& fields, Ask& ask) {
  ask.stream = fields.Bool({"stream"}).value_or(false);
  const Json* const options = fields.Take({"stream_options"});
  if (options == nullptr) return;
  if (!options->is_object()) return fields.Fail("must be an object");
  Fields inner = fields.In(*options);
  ask.include_usage = inner.Bool({"include_usage"}).value_or(false);
  if (ask.include_usage && !ask.stream) fields.Fail("needs \"stream\": true");
  inner.Ignore({"include_obfuscation"});
  constexpr DefaultField kStreamDefaults[] = {{"continuous_usage_stats", "false", "the last event has the usage"}};
  inner.RefuseOthers(kStreamDefaults);
  inner.Finish();
}

// Fields of all requests but /generate.
void ReadShared(Fields& fields, const AskLimits& limits, Ask& ask) {
  ask.prompt_log_probs = fields.Integer({"prompt_logprobs"}, 0, limits.max_top_log_probs);
  if (ask.prompt_log_probs && ask.stream) fields.Fail("cannot be streamed", "unsupported_value");
  ask.sampling = ReadSamplingFields(fields, limits, ask.echo || ask.prompt_log_probs ? 0 : 1);
  ask.n = fields.Integer({"n"}, 1, limits.max_answers).value_or(1);
  if (const auto best = fields.Integer({"best_of"}, 1, limits.max_answers); best && *best != ask.n) {
    fields.Fail("must be equal to n: all answers that are generated are returned", "unsupported_value");
  }
  ask.token_ids = fields.Bool({"return_token_ids"}).value_or(false);
  ask.skip_special_tokens = fields.Bool({"skip_special_tokens"}).value_or(true);
  ask.include_stop = fields.Bool({"include_stop_str_in_output"}).value_or(false);
  ask.max_prompt_tokens = fields.Integer({"truncate_prompt_tokens"}, -1, kMaxInteger);
  if (ask.max_prompt_tokens == 0) fields.Fail("is 0, and a prompt needs at least one token");
  ReadWhatChangesNothing(fields);
}

constexpr DefaultField kChatDefaults[] = {
    {"add_special_tokens", "false", "the template has the special tokens of a conversation"},
    {"audio", "null", "the model reads and writes text"},
    {"chat_template", "null", "a template is chosen where the server is started, with --template"},
    {"echo", "false", "'continue_final_message' goes on with a message"},
    {"function_call", "\"none\"", "give \"tools\" and \"tool_choice\""},
    {"function_call", "\"auto\"", "give \"tools\" and \"tool_choice\""},
    {"functions", "[]", "give \"tools\""},
    {"include_reasoning", "true", "replies come with their reasoning"},
    {"modalities", "[\"text\"]", "the model writes text"},
    {"prediction", "null", "this server predicts nothing for the model"},
    {"verbosity", "\"medium\"", "the model has no such setting"},
    {"web_search_options", "null", "this server searches nothing"},
};

void ReadChat(Fields& fields, const AskLimits& limits, Ask& ask) {
  ReadConversation(fields, limits, ask);
  ask.reasoning_effort = fields.String({"reasoning_effort"}).value_or("");
  const bool log_probs = fields.Bool({"logprobs"}).value_or(false);
  const auto top = fields.Integer({"top_logprobs"}, 0, limits.max_top_log_probs);
  if (top.value_or(0) > 0 && !log_probs) fields.Fail("needs \"logprobs\": true");
  if (log_probs) ask.log_probs = top.value_or(0);
  ReadFormats(fields, limits, ask);
  fields.RefuseOthers(kChatDefaults);
}

// A whole number, or one as a string: not every writer of JSON has those above 2^53 exactly.
std::optional<uint64_t> ReadIdentity(const Json& value, Fields& fields) {
  uint64_t identity = 0;
  if (value.is_number_unsigned()) return value.get<uint64_t>();
  const bool is_text = value.is_string() && absl::SimpleAtoi(value.get_ref<const std::string&>(), &identity);
  if (is_text && absl::StrCat(identity) == value.get_ref<const std::string&>()) return identity;
  fields.Fail("must be a whole number from 0 to 2^64 - 1, or a string of one");
  return std::nullopt;
}

void ReadCompletion(Fields& fields, const AskLimits& limits, Ask& ask) {
  if (const Json* prompt = fields.Take({"prompt"})) ReadPrompts(*prompt, fields, limits, ask);
  ask.add_special_tokens = fields.Bool({"add_special_tokens"}).value_or(true);
  ask.log_probs = fields.Integer({"logprobs"}, 0, limits.max_top_log_probs);
  if (const Json* identity = fields.Take({"identity"})) ask.identity = ReadIdentity(*identity, fields);
  constexpr DefaultField kCompletionDefaults[] = {{"suffix", "\"\"", "the model has no way to fill in"}};
  fields.RefuseOthers(kCompletionDefaults);
  ReadFormats(fields, limits, ask);
}

void ReadEcho(Fields& fields, Ask& ask) {
  ask.echo = fields.Bool({"echo"}).value_or(false);
  if (ask.echo && ask.stream) fields.Fail("cannot be streamed", "unsupported_value");
}

void ReadGenerate(const Json& json, Fields& fields, const AskLimits& limits, Ask& ask) {
  const bool both = json.contains("text") && json.contains("input_ids");
  if (const Json* prompt = fields.Take({"text", "input_ids", "prompt_ids"})) ReadPrompts(*prompt, fields, limits, ask);
  if (both) fields.Fail("is given beside 'input_ids'; one of them is the prompt");
  const bool log_probs = fields.Bool({"return_logprob"}).value_or(false);
  const auto top = fields.Integer({"top_logprobs_num"}, 0, limits.max_top_log_probs);
  if (log_probs) ask.log_probs = top.value_or(0);
  if (const auto start = fields.Integer({"logprob_start_len"}, -1, kMaxInteger); start && *start != -1) {
    fields.Fail("must be -1: log-probabilities are those of answers", "unsupported_value");
  }
  ask.token_ids = true;
  if (ask.stream) {
    fields.Take({"stream"});
    fields.Fail("is not supported by /generate; /v1/completions streams", "unsupported_value");
  }
  const Json* const sampling = fields.Take({"sampling_params"});
  if (sampling == nullptr) return;
  if (!sampling->is_object()) return fields.Fail("must be an object");
  Fields inner = fields.In(*sampling);
  ask.sampling = ReadSamplingFields(inner, limits);
  ask.n = inner.Integer({"n"}, 1, limits.max_answers).value_or(1);
  ask.skip_special_tokens = inner.Bool({"skip_special_tokens"}).value_or(true);
  ask.include_stop = inner.Bool({"no_stop_trim"}).value_or(false);
  inner.Ignore({"spaces_between_special_tokens"});  // SGLang's have no such thing either
  inner.Finish();
}

std::optional<Problem> CheckTogether(const Ask& ask, const AskLimits& limits) {
  const auto problem = [](absl::string_view param, std::string message) {
    return Problem{.message = std::move(message), .param = std::string(param), .code = "invalid_value"};
  };
  if (ask.grammar && ask.grammar->kind != GrammarSpec::Kind::kCalls && !ask.context.tools.empty()) {
    return problem(ask.grammar_field, absl::StrCat("'", ask.grammar_field,
                                                   "' leaves the model no way to call a tool: give \"tool_choice\": "
                                                   "\"none\", or no 'tools'"));
  }
  if (!ask.turns.empty()) return std::nullopt;
  const char* const name = ask.form == Form::kGenerate ? "input_ids" : "prompt";
  if (ask.prompts.empty()) return problem(name, absl::StrCat("'", name, "' is missing: there is nothing to answer"));
  const auto count = static_cast<int64_t>(ask.prompts.size());
  if (count > limits.max_answers / ask.n) {
    return problem(name, absl::StrCat(count, " prompts with ", ask.n, " answers each are more than the ",
                                      limits.max_answers, " answers of one request"));
  }
  return std::nullopt;
}

// What `read` makes of an object that has no other fields than it takes.
template <typename T>
std::variant<T, Problem> ReadObject(absl::string_view body, const AskLimits& limits,
                                    absl::FunctionRef<T(const Json&, Fields&)> read) {
  std::optional<Problem> problem;
  const std::optional<Json> json = ParseBody(body, limits.max_depth, problem);
  if (!json) return *std::move(problem);
  Fields fields(*json, "", problem);
  T ask = read(*json, fields);
  fields.Finish();
  if (problem) return *std::move(problem);
  return ask;
}

Ask ReadAskFields(Form form, const Json& json, Fields& fields, const AskLimits& limits) {
  Ask ask{.form = form};
  ask.model = fields.String({"model"}).value_or("");
  ask.request_id = fields.String({"request_id", "rid"}).value_or("");
  if (std::cmp_greater(ask.request_id.size(), limits.max_request_id_bytes)) {
    fields.Fail(absl::StrCat("has ", ask.request_id.size(), " bytes, and may have ", limits.max_request_id_bytes));
  }
  ReadStream(fields, ask);
  switch (form) {
    case Form::kGenerate:
      ReadGenerate(json, fields, limits, ask);
      break;
    case Form::kChat:
      ReadShared(fields, limits, ask);
      ReadChat(fields, limits, ask);
      break;
    case Form::kCompletion:
      ReadEcho(fields, ask);
      ReadShared(fields, limits, ask);
      ReadCompletion(fields, limits, ask);
      break;
    case Form::kResponses:
      ReadShared(fields, limits, ask);
      ReadResponses(json, fields, limits, ask);
      break;
  }
  // A grammar makes nothing but the reply's text, unless it makes calls.
  const bool is_reply = form == Form::kChat || form == Form::kResponses;
  ask.reads_reply = is_reply && (!ask.grammar || ask.grammar->kind == GrammarSpec::Kind::kCalls);
  return ask;
}

}  // namespace

void SamplingAsk::FillFrom(const SamplingAsk& other) {
  const auto fill = [](auto& mine, const auto& theirs) {
    if (!mine) mine = theirs;
  };
  fill(temperature, other.temperature);
  fill(top_p, other.top_p);
  fill(min_p, other.min_p);
  fill(repetition_penalty, other.repetition_penalty);
  fill(presence_penalty, other.presence_penalty);
  fill(frequency_penalty, other.frequency_penalty);
  fill(top_k, other.top_k);
  fill(max_tokens, other.max_tokens);
  fill(min_tokens, other.min_tokens);
  fill(seed, other.seed);
  fill(ignore_eos, other.ignore_eos);
  fill(stop, other.stop);
  fill(stop_token_ids, other.stop_token_ids);
  fill(allowed_token_ids, other.allowed_token_ids);
  fill(logit_bias, other.logit_bias);
}

std::variant<Ask, Problem> ReadAsk(Form form, absl::string_view body, const AskLimits& limits) {
  auto read = ReadObject<Ask>(
      body, limits, [&](const Json& json, Fields& fields) { return ReadAskFields(form, json, fields, limits); });
  if (const auto* ask = std::get_if<Ask>(&read)) {
    if (auto problem = CheckTogether(*ask, limits)) return *std::move(problem);
  }
  return read;
}

std::variant<SamplingAsk, Problem> ReadSampling(absl::string_view body, const AskLimits& limits) {
  return ReadObject<SamplingAsk>(body, limits,
                                 [&](const Json&, Fields& fields) { return ReadSamplingFields(fields, limits); });
}

std::variant<AbortAsk, Problem> ReadAbort(absl::string_view body, const AskLimits& limits) {
  auto ask = ReadObject<AbortAsk>(body, limits, [&](const Json&, Fields& fields) {
    return AbortAsk{.request_id = fields.String({"rid", "request_id"}).value_or(""),
                    .all = fields.Bool({"abort_all"}).value_or(false)};
  });
  if (const auto* read = std::get_if<AbortAsk>(&ask); read != nullptr && read->request_id.empty() && !read->all) {
    return Problem{.message = "'rid' is missing: name the request, or give \"abort_all\": true",
                   .param = "rid",
                   .code = "invalid_value"};
  }
  return ask;
}

std::variant<TokenizeAsk, Problem> ReadTokenize(absl::string_view body, const AskLimits& limits) {
  return ReadObject<TokenizeAsk>(body, limits, [&](const Json& json, Fields& fields) {
    TokenizeAsk tokenize{.ask = {.form = json.contains("messages") ? Form::kChat : Form::kCompletion}};
    Ask& ask = tokenize.ask;
    ask.model = fields.String({"model"}).value_or("");
    tokenize.token_texts = fields.Bool({"return_token_strs"}).value_or(false);
    if (ask.form == Form::kChat) {
      ReadConversation(fields, limits, ask);
      fields.RefuseOthers(kChatDefaults);
      return tokenize;
    }
    const auto prompt = fields.String({"prompt"});
    if (!prompt) fields.FailFor("prompt", "is missing: a text, or 'messages'");
    ask.prompts.emplace_back(prompt.value_or(""));
    ask.add_special_tokens = fields.Bool({"add_special_tokens"}).value_or(true);
    return tokenize;
  });
}

std::variant<DetokenizeAsk, Problem> ReadDetokenize(absl::string_view body, const AskLimits& limits) {
  return ReadObject<DetokenizeAsk>(body, limits, [&](const Json&, Fields& fields) {
    DetokenizeAsk ask{.model = fields.String({"model"}).value_or("")};
    const Json* const tokens = fields.Take({"tokens"});
    if (tokens == nullptr || !tokens->is_array()) {
      fields.FailFor("tokens", "must be a list of token ids");
    } else if (auto read = ReadTokens(*tokens, fields)) {
      ask.tokens = *std::move(read);
    }
    return ask;
  });
}

}  // namespace tdock::inference
