#include "serve/protocol/ask.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "absl/functional/function_ref.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "core/base/json_text.h"
#include "core/base/utf8.h"
#include "serve/protocol/fields.h"

namespace tdock::serve {
namespace {

using Json = nlohmann::json;

constexpr int64_t kMost = std::numeric_limits<int32_t>::max();

std::optional<std::vector<int32_t>> ReadTokens(const Json& value, Fields& fields) {
  std::vector<int32_t> tokens;
  for (const Json& token : value) {
    if (!token.is_number_integer() || token.is_number_float() || token < 0 || token > kMost) {
      fields.Fail(absl::StrCat("has ", EscapeUnprintable(JsonText(token), 40),
                               " among its tokens; each must be a whole number ≥ 0"));
      return std::nullopt;
    }
    tokens.push_back(token.get<int32_t>());
  }
  return tokens;
}

std::optional<std::vector<std::string>> ReadStops(const Json& value, const AskLimits& limits, Fields& fields) {
  if (value.is_array() && std::cmp_greater(value.size(), limits.max_stops)) {
    fields.Fail(absl::StrCat("has ", value.size(), " texts, and may have ", limits.max_stops));
    return std::nullopt;
  }
  std::vector<std::string> stops;
  const auto add = [&](const Json& stop) {
    if (!stop.is_string() || stop.get_ref<const std::string&>().empty()) {
      fields.Fail("must be a text, or a list of texts, none of them empty");
      return false;
    }
    const std::string& text = stop.get_ref<const std::string&>();
    if (std::cmp_greater(text.size(), limits.max_stop_bytes)) {
      fields.Fail(absl::StrCat("has a text of ", text.size(), " bytes, and one may have ", limits.max_stop_bytes));
      return false;
    }
    stops.push_back(text);
    return true;
  };
  const bool fits = value.is_array() ? std::all_of(value.begin(), value.end(), add) : add(value);
  return fits ? std::optional(std::move(stops)) : std::nullopt;
}

std::optional<std::vector<int32_t>> ReadStopTokens(const Json& value, const AskLimits& limits, Fields& fields) {
  if (!value.is_array()) {
    fields.Fail("must be a list of token ids");
    return std::nullopt;
  }
  auto tokens = ReadTokens(value, fields);
  if (!tokens) return std::nullopt;
  std::sort(tokens->begin(), tokens->end());
  tokens->erase(std::unique(tokens->begin(), tokens->end()), tokens->end());
  if (std::cmp_greater(tokens->size(), limits.max_stop_tokens)) {
    fields.Fail(absl::StrCat("has ", tokens->size(), " different tokens, and may have ", limits.max_stop_tokens));
    return std::nullopt;
  }
  return std::vector<int32_t>(*tokens);  // without room for what was there twice
}

std::optional<std::map<int32_t, double>> ReadBias(const Json& value, const AskLimits& limits, Fields& fields) {
  std::map<int32_t, double> bias;
  if (!value.is_object()) {
    fields.Fail("must be an object of token ids and numbers");
    return std::nullopt;
  }
  if (std::cmp_greater(value.size(), limits.max_biases)) {
    fields.Fail(absl::StrCat("has ", value.size(), " tokens, and may have ", limits.max_biases));
    return std::nullopt;
  }
  for (const auto& [name, number] : value.items()) {
    int32_t token = 0;
    if (!absl::SimpleAtoi(name, &token) || token < 0 || !number.is_number() || std::abs(number.get<double>()) > 100) {
      fields.Fail("must have token ids for names, and for values numbers from -100 to 100");
      return std::nullopt;
    }
    bias[token] = number.get<double>();
  }
  return bias;
}

SamplingAsk ReadSampling(Fields& fields, const AskLimits& limits) {
  SamplingAsk ask;
  ask.temperature = fields.Number({"temperature"}, 0, 100);
  ask.top_p = fields.Number({"top_p"}, 0, 1);
  if (ask.top_p && *ask.top_p <= 0) fields.Fail("must be above 0");
  ask.min_p = fields.Number({"min_p"}, 0, 1);
  if (ask.min_p && *ask.min_p >= 1) fields.Fail("must be below 1");
  ask.repetition_penalty = fields.Number({"repetition_penalty"}, 0.01, 100);
  ask.presence_penalty = fields.Number({"presence_penalty"}, -2, 2);
  ask.frequency_penalty = fields.Number({"frequency_penalty"}, -2, 2);
  ask.top_k = fields.Integer({"top_k"}, -1, kMost);
  if (ask.top_k == -1) ask.top_k = 0;  // as vLLM and SGLang say "all"
  ask.max_tokens = fields.Integer({"max_completion_tokens", "max_tokens", "max_new_tokens"}, 1, kMost);
  ask.min_tokens = fields.Integer({"min_tokens", "min_new_tokens"}, 0, kMost);
  if (const auto seed = fields.Integer({"seed", "sampling_seed"}, std::numeric_limits<int64_t>::min(),
                                       std::numeric_limits<int64_t>::max())) {
    ask.seed = static_cast<uint64_t>(*seed);
  }
  ask.ignore_eos = fields.Bool({"ignore_eos"});
  if (const Json* stop = fields.Take({"stop"})) ask.stop = ReadStops(*stop, limits, fields);
  if (const Json* ids = fields.Take({"stop_token_ids"})) ask.stop_token_ids = ReadStopTokens(*ids, limits, fields);
  if (const Json* bias = fields.Take({"logit_bias"})) ask.logit_bias = ReadBias(*bias, limits, fields);
  return ask;
}

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

void ReadStream(Fields& fields, std::optional<Problem>& problem, Ask& ask) {
  ask.stream = fields.Bool({"stream"}).value_or(false);
  const Json* const options = fields.Take({"stream_options"});
  if (options == nullptr) return;
  if (!options->is_object()) return fields.Fail("must be an object");
  if (!ask.stream) return fields.Fail("needs \"stream\": true");
  Fields inner(*options, "stream_options.", problem);
  ask.include_usage = inner.Bool({"include_usage"}).value_or(false);
  inner.Finish();
}

void ReadFormat(const Json& value, Fields& fields, Ask& ask) {
  const std::string type =
      value.is_object() && value.contains("type") && value["type"].is_string() ? value["type"].get<std::string>() : "";
  if (type == "json_object") {
    ask.json_object = true;
  } else if (type != "text") {
    fields.Fail("has a type other than \"text\" and \"json_object\", which is not supported", "unsupported_value");
  }
}

// The text of a message: a string, or a list of parts that are text.
std::optional<std::string> ReadContent(const Json& value, Fields& fields) {
  if (value.is_string()) return value.get<std::string>();
  std::string content;
  if (!value.is_array()) {
    fields.Fail("must be a text, or a list of parts");
    return std::nullopt;
  }
  for (const Json& part : value) {
    const bool is_text =
        part.is_object() && part.value("type", Json()) == "text" && part.contains("text") && part["text"].is_string();
    if (!is_text) {
      fields.Fail("has a part that is no text, which is all that the model reads", "unsupported_value");
      return std::nullopt;
    }
    content += part["text"].get<std::string>();
  }
  return content;
}

// Templates loop over the arguments of a call, which clients send as a text of JSON.
void OpenArguments(Json& calls, const AskLimits& limits) {
  if (!calls.is_array()) return;
  for (Json& call : calls) {
    if (!call.is_object() || !call.contains("function") || !call["function"].is_object()) continue;
    Json& function = call["function"];
    if (!function.contains("arguments") || !function["arguments"].is_string()) continue;
    const auto parsed = ParseJsonObject(function["arguments"].get<std::string>(), limits.max_depth);
    if (parsed.ok()) function["arguments"] = *parsed;
  }
}

std::optional<text::Turn> ReadTurn(const Json& value, size_t number, const AskLimits& limits,
                                   std::optional<Problem>& problem) {
  if (!value.is_object()) {
    problem = Problem{.message = absl::StrCat("'messages[", number, "]' must be an object"),
                      .param = "messages",
                      .code = "invalid_value"};
    return std::nullopt;
  }
  Fields fields(value, absl::StrCat("messages[", number, "]."), problem);
  text::Turn turn;
  const std::string role = fields.String({"role"}).value_or("");
  bool known = false;
  for (const text::Role one : {text::Role::kSystem, text::Role::kUser, text::Role::kAssistant, text::Role::kDeveloper,
                               text::Role::kTool, text::Role::kFunction}) {
    if (role != text::RoleName(one)) continue;
    turn.role = one;
    known = true;
  }
  if (!known) {
    fields.Take({"role"});
    fields.Fail("must be system, developer, user, assistant, tool or function");
  }
  const Json* const content = fields.Take({"content"});
  turn.has_content = content != nullptr;
  if (content != nullptr) turn.content = ReadContent(*content, fields).value_or("");
  Json rest = Json::object();
  for (const absl::string_view name : {"name", "tool_calls", "tool_call_id", "reasoning_content", "function_call"}) {
    const Json* const field = fields.Take({name});
    if (field != nullptr) rest[std::string(name)] = *field;
  }
  fields.Ignore({"refusal", "annotations"});
  fields.Refuse("audio", "is not supported: the model reads text");
  fields.Finish();
  if (!turn.has_content && rest.empty()) {
    problem = Problem{.message = absl::StrCat("'messages[", number, "].content' is missing"),
                      .param = "messages",
                      .code = "invalid_value"};
  }
  if (rest.contains("tool_calls")) OpenArguments(rest["tool_calls"], limits);
  if (!rest.empty()) turn.fields = JsonText(rest);
  return turn;
}

void ReadTools(Fields& fields, Ask& ask) {
  const Json* const tools = fields.Take({"tools"});
  if (tools != nullptr) {
    if (!tools->is_array()) return fields.Fail("must be a list of functions");
    if (!tools->empty()) ask.context.tools = tools->dump(-1, ' ', false, Json::error_handler_t::replace);
  }
  const Json* const choice = fields.Take({"tool_choice"});
  if (choice == nullptr) return;
  if (*choice == "none") ask.context.tools.clear();
  if (*choice != "none" && *choice != "auto") {
    fields.Fail("must be \"auto\" or \"none\": the model is not made to call a tool", "unsupported_value");
  }
}

void ReadChat(const Json& json, Fields& fields, const AskLimits& limits, std::optional<Problem>& problem, Ask& ask) {
  const Json* const messages = fields.Take({"messages"});
  if (messages == nullptr || !messages->is_array() || messages->empty()) {
    problem = Problem{
        .message = "'messages' must be a list of at least one message", .param = "messages", .code = "invalid_value"};
    return;
  }
  if (std::cmp_greater(messages->size(), limits.max_messages)) {
    problem = Problem{.message = absl::StrCat("'messages' has ", messages->size(), " messages, and may have ",
                                              limits.max_messages, ": each needs a token of the model's context"),
                      .param = "messages",
                      .code = "context_length_exceeded"};
    return;
  }
  for (size_t i = 0; i < messages->size() && !problem; ++i) {
    if (auto turn = ReadTurn((*messages)[i], i, limits, problem)) ask.turns.push_back(*std::move(turn));
  }
  ReadTools(fields, ask);
  const bool log_probs = fields.Bool({"logprobs"}).value_or(false);
  const auto top = fields.Integer({"top_logprobs"}, 0, limits.max_top_log_probs);
  if (top && !log_probs) fields.Fail("needs \"logprobs\": true");
  if (log_probs) ask.log_probs = top.value_or(0);
  if (const Json* format = fields.Take({"response_format"})) ReadFormat(*format, fields, ask);
  fields.Ignore({"parallel_tool_calls"});
  for (const absl::string_view name : {"functions", "function_call", "audio", "prediction", "web_search_options"}) {
    fields.Refuse(name, "is not supported by this server");
  }
  if (const auto effort = fields.Take({"modalities"}); effort != nullptr && *effort != Json::array({"text"})) {
    fields.Fail("must be [\"text\"]", "unsupported_value");
  }
  static_cast<void>(json);
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
  ask.log_probs = fields.Integer({"logprobs"}, 0, limits.max_top_log_probs);
  if (const Json* identity = fields.Take({"identity"})) ask.identity = ReadIdentity(*identity, fields);
  if (fields.Bool({"echo"}).value_or(false)) {
    fields.Fail("is not supported: prompts are not part of answers", "unsupported_value");
  }
  if (const auto best = fields.Integer({"best_of"}, 1, limits.max_answers); best && *best != ask.n) {
    fields.Fail("must be equal to n: all answers that are generated are returned", "unsupported_value");
  }
  fields.Refuse("suffix", "is not supported: the model has no way to fill in");
  if (const Json* format = fields.Take({"response_format"})) ReadFormat(*format, fields, ask);
}

void ReadGenerate(const Json& json, Fields& fields, const AskLimits& limits, std::optional<Problem>& problem,
                  Ask& ask) {
  const bool both = json.contains("text") && json.contains("input_ids");
  if (const Json* prompt = fields.Take({"text", "input_ids", "prompt_ids"})) ReadPrompts(*prompt, fields, limits, ask);
  if (both) fields.Fail("is given beside 'input_ids'; one of them is the prompt");
  const bool log_probs = fields.Bool({"return_logprob"}).value_or(false);
  const auto top = fields.Integer({"top_logprobs_num"}, 0, limits.max_top_log_probs);
  if (log_probs) ask.log_probs = top.value_or(0);
  if (const auto start = fields.Integer({"logprob_start_len"}, -1, kMost); start && *start != -1) {
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
  Fields inner(*sampling, "sampling_params.", problem);
  ask.sampling = ReadSampling(inner, limits);
  ask.n = inner.Integer({"n"}, 1, limits.max_answers).value_or(1);
  if (!inner.Bool({"skip_special_tokens"}).value_or(true)) {
    inner.Fail("must be true: texts are without special tokens; their ids are in output_ids", "unsupported_value");
  }
  if (inner.Bool({"no_stop_trim"}).value_or(false)) {
    inner.Fail("must be false: texts are without the stop text that ended them", "unsupported_value");
  }
  inner.Ignore({"spaces_between_special_tokens"});  // there are none in texts
  inner.Finish();
}

std::optional<Problem> CheckTogether(const Ask& ask, const AskLimits& limits) {
  const auto problem = [](absl::string_view param, std::string message) {
    return Problem{.message = std::move(message), .param = std::string(param), .code = "invalid_value"};
  };
  if (ask.form == Form::kChat) return std::nullopt;
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
  fill(logit_bias, other.logit_bias);
}

std::variant<Ask, Problem> ReadAsk(Form form, absl::string_view body, const AskLimits& limits) {
  std::optional<Problem> problem;
  const std::optional<Json> json = ParseBody(body, limits.max_depth, problem);
  if (!json) return *std::move(problem);
  Ask ask{.form = form};
  Fields fields(*json, "", problem);
  ask.model = fields.String({"model"}).value_or("");
  ask.request_id = fields.String({"request_id", "rid"}).value_or("");
  if (std::cmp_greater(ask.request_id.size(), limits.max_request_id_bytes)) {
    fields.Fail(absl::StrCat("has ", ask.request_id.size(), " bytes, and may have ", limits.max_request_id_bytes));
  }
  ReadStream(fields, problem, ask);
  if (form == Form::kGenerate) {
    ReadGenerate(*json, fields, limits, problem, ask);
  } else {
    ask.sampling = ReadSampling(fields, limits);
    ask.n = fields.Integer({"n"}, 1, limits.max_answers).value_or(1);
    ask.token_ids = fields.Bool({"return_token_ids"}).value_or(false);
    fields.Ignore({"user", "metadata", "store", "service_tier", "safety_identifier", "prompt_cache_key"});
    if (form == Form::kChat) ReadChat(*json, fields, limits, problem, ask);
    if (form == Form::kCompletion) ReadCompletion(fields, limits, ask);
  }
  fields.Finish();
  if (!problem) problem = CheckTogether(ask, limits);
  if (problem) return *std::move(problem);
  return ask;
}

std::variant<SamplingAsk, Problem> ReadSampling(absl::string_view body, const AskLimits& limits) {
  return ReadObject<SamplingAsk>(body, limits,
                                 [&](const Json&, Fields& fields) { return ReadSampling(fields, limits); });
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

}  // namespace tdock::serve
