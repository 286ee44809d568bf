#include "serve/requests.h"

#include <algorithm>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "core/base/status.h"
#include "text/conversation.h"
#include "text/tokenizer.h"

namespace tdock::serve {
namespace {

constexpr int64_t kUsualCompletion = 16;    // as OpenAI's /v1/completions
constexpr int64_t kUsualGenerate = 128;     // as SGLang's /generate
constexpr double kLeastTemperature = 1e-5;  // as vLLM: logits divided by less may not be finite

constexpr char kTooLong[] = "context_length_exceeded";

// How prompts are read.
struct Reading {
  const ServedModel& model;
  const StopCheck& stop;
  const char* param;   // that has them
  int64_t wanted;      // tokens of the answer
  int64_t max_tokens;  // of the prompt
};

Problem ProblemOfPrompt(const absl::Status& status, const Reading& reading) {
  if (absl::IsOutOfRange(status)) {
    return {.message = absl::StrCat("the prompt has more than ", reading.max_tokens,
                                    " tokens, where counting stopped; the answer may have ", reading.wanted,
                                    ", and the model's context has ", reading.model.context_length),
            .param = reading.param,
            .code = kTooLong};
  }
  // Not a status of the server's, after which clients ask again by themselves: the same would take as long again.
  if (absl::IsDeadlineExceeded(status)) {
    return {.message = std::string(status.message()), .param = reading.param, .code = "prompt_timeout"};
  }
  return {.message = std::string(status.message()), .param = reading.param, .code = "invalid_value"};
}

absl::StatusOr<std::vector<int32_t>> TokensOf(const AskedPrompt& prompt, const Reading& reading) {
  if (reading.stop) TDOCK_RETURN_IF_ERROR(reading.stop());
  if (const auto* tokens = std::get_if<std::vector<int32_t>>(&prompt)) return *tokens;
  text::EncodeOptions options{.spelled = text::SpelledSpecial::kAsText, .add_special_tokens = true};
  options.max_tokens = static_cast<size_t>(reading.max_tokens);
  options.stop = reading.stop;
  return reading.model.tokenizer->Encode(std::get<std::string>(prompt), options);
}

absl::StatusOr<std::vector<int32_t>> TokensOfConversation(const Ask& ask, const Reading& reading) {
  const ServedModel& model = reading.model;
  std::vector<text::Turn> turns = ask.turns;
  if (model.system && turns.front().role != text::Role::kSystem) {
    turns.insert(turns.begin(), {.role = text::Role::kSystem, .content = *model.system});
  }
  text::EncodeTurns options{.generation_prompt = true, .context = ask.context};
  options.max_tokens = static_cast<size_t>(reading.max_tokens);
  options.stop = reading.stop;
  const text::ChatTemplate& own = *model.chat_template;
  TDOCK_ASSIGN_OR_RETURN(
      text::EncodedConversation encoded,
      text::EncodeConversation(model.shows_today ? own.WithTime(absl::Now(), absl::LocalTimeZone()) : own,
                               *model.tokenizer, turns, options));
  return std::move(encoded.ids);
}

std::variant<std::vector<std::vector<int32_t>>, Problem> PromptsOf(const Ask& ask, const Reading& reading) {
  const ServedModel& model = reading.model;
  if (reading.max_tokens < 1) {
    return Problem{.message = absl::StrCat("the answer may have ", reading.wanted, " tokens, and the model's context ",
                                           "has ", model.context_length, ", of which the prompt needs at least one"),
                   .param = reading.param,
                   .code = kTooLong};
  }
  std::vector<std::vector<int32_t>> prompts;
  if (ask.form == Form::kChat) {
    if (!model.chat_template.ok()) {
      return Problem{.message = absl::StrCat("the model has no chat template: ", model.chat_template.status().message(),
                                             "; ask /v1/completions"),
                     .param = "messages"};
    }
    auto tokens = TokensOfConversation(ask, reading);
    if (!tokens.ok()) return ProblemOfPrompt(tokens.status(), reading);
    prompts.push_back(*std::move(tokens));
  }
  for (const AskedPrompt& prompt : ask.prompts) {
    auto tokens = TokensOf(prompt, reading);
    if (!tokens.ok()) return ProblemOfPrompt(tokens.status(), reading);
    prompts.push_back(*std::move(tokens));
  }
  return prompts;
}

engine::SamplingParams ParamsOf(const Ask& ask, const SamplingAsk& given, int64_t room, uint64_t seed) {
  engine::SamplingParams params;
  params.temperature = given.temperature.value_or(1.0);
  if (params.temperature < kLeastTemperature) params.temperature = 0;
  params.top_p = given.top_p.value_or(1.0);
  params.min_p = given.min_p.value_or(0.0);
  params.top_k = given.top_k.value_or(0);
  params.repetition_penalty = given.repetition_penalty.value_or(1.0);
  params.presence_penalty = given.presence_penalty.value_or(0.0);
  params.frequency_penalty = given.frequency_penalty.value_or(0.0);
  params.seed = given.seed.value_or(seed);
  params.min_new_tokens = given.min_tokens.value_or(0);
  params.ignore_eos = given.ignore_eos.value_or(false);
  params.stop = given.stop.value_or(std::vector<std::string>());
  params.stop_tokens = given.stop_token_ids.value_or(std::vector<int32_t>());
  params.logit_bias = given.logit_bias.value_or(std::map<int32_t, double>());
  params.top_log_probs = ask.log_probs.value_or(0);
  const int64_t usual = ask.form == Form::kChat         ? room
                        : ask.form == Form::kCompletion ? kUsualCompletion
                                                        : kUsualGenerate;
  params.max_new_tokens = ask.sampling.max_tokens.value_or(std::min(given.max_tokens.value_or(usual), room));
  if (!ask.sampling.min_tokens) params.min_new_tokens = std::min(params.min_new_tokens, params.max_new_tokens);
  return params;
}

// The client's parameters, and the preferred ones where these do not contradict them.
SamplingAsk SamplingOf(const Ask& ask, const ServedModel& model) {
  SamplingAsk given = ask.sampling;
  given.FillFrom(model.preferred);
  if (!ask.json_object) return given;
  given.ignore_eos = ask.sampling.ignore_eos;
  given.min_tokens = ask.sampling.min_tokens;
  return given;
}

// What is wrong with the parameters of a request and the preferred ones together.
std::optional<Problem> CheckSampling(const Ask& ask, const SamplingAsk& given, const ServedModel& model) {
  const auto problem = [](std::string param, std::string message) {
    return Problem{.message = std::move(message), .param = std::move(param), .code = "invalid_value"};
  };
  if (ask.json_object && (given.ignore_eos.value_or(false) || given.min_tokens.value_or(0) > 0)) {
    return problem(given.ignore_eos.value_or(false) ? "ignore_eos" : "min_tokens",
                   "'response_format' is json_object, and an answer ends with its object: 'ignore_eos' and "
                   "'min_tokens' cannot be asked for beside it");
  }
  const auto beyond = [&](const std::string& param, int32_t token) {
    return problem(
        param, absl::StrCat("'", param, "' has the token ", token, "; the model's are 0 to ", model.vocab_size - 1));
  };
  if (ask.identity && !given.seed) return problem("identity", "'identity' needs a 'seed'");
  for (const int32_t token : given.stop_token_ids.value_or(std::vector<int32_t>())) {
    if (token >= model.vocab_size) return beyond("stop_token_ids", token);
  }
  for (const auto& [token, bias] : given.logit_bias.value_or(std::map<int32_t, double>())) {
    if (token >= model.vocab_size) return beyond("logit_bias", token);
  }
  return std::nullopt;
}

// The most tokens that the answer to a prompt can have.
std::variant<int64_t, Problem> RoomAfter(const std::vector<int32_t>& prompt, const Reading& reading) {
  const ServedModel& model = reading.model;
  const auto problem = [&](std::string message, const char* code) {
    return Problem{.message = std::move(message), .param = reading.param, .code = code};
  };
  const auto size = static_cast<int64_t>(prompt.size());
  if (size == 0) return problem("the prompt is empty; it needs at least one token", "invalid_value");
  for (const int32_t token : prompt) {
    if (token >= model.vocab_size) {
      return problem(absl::StrCat("the prompt has the token ", token, "; the model's are 0 to ", model.vocab_size - 1),
                     "invalid_value");
    }
  }
  if (size > reading.max_tokens) {
    return problem(
        absl::StrCat("the prompt has ", size, " tokens and the answer may have ", reading.wanted, ", together ",
                     size + reading.wanted, "; the model's context has ", model.context_length),
        kTooLong);
  }
  return model.context_length - size;
}

}  // namespace

std::variant<std::vector<engine::Request>, Problem> RequestsOf(const Ask& ask, const ServedModel& model, uint64_t seed,
                                                               uint64_t identity, const StopCheck& stop) {
  const SamplingAsk given = SamplingOf(ask, model);
  if (auto problem = CheckSampling(ask, given, model)) return *std::move(problem);
  const int64_t wanted = ask.sampling.max_tokens.value_or(1);
  const Reading reading{.model = model,
                        .stop = stop,
                        .param = ask.form == Form::kChat       ? "messages"
                                 : ask.form == Form::kGenerate ? "input_ids"
                                                               : "prompt",
                        .wanted = wanted,
                        .max_tokens = model.context_length - wanted};
  auto found = PromptsOf(ask, reading);
  if (auto* problem = std::get_if<Problem>(&found)) return std::move(*problem);
  std::vector<engine::Request> requests;
  for (std::vector<int32_t>& tokens : std::get<0>(found)) {
    const auto room = RoomAfter(tokens, reading);
    if (const auto* problem = std::get_if<Problem>(&room)) return *problem;
    engine::SamplingParams params = ParamsOf(ask, given, std::get<int64_t>(room), seed);
    if (params.min_new_tokens > params.max_new_tokens) {
      return Problem{.message = absl::StrCat("'min_tokens' is ", params.min_new_tokens,
                                             ", and the answer may have at most ", params.max_new_tokens, " tokens"),
                     .param = "min_tokens",
                     .code = "invalid_value"};
    }
    const absl::Status checked = engine::CheckSamplingParams(params, model.vocab_size, model.end_tokens);
    if (!checked.ok()) return ProblemOf(checked);
    // The same request with the same seed has the same answers; without one, each has others.
    const uint64_t first = given.seed ? ask.identity.value_or(0) : identity;
    requests.push_back({.prompt = {.tokens = std::move(tokens), .samples = ask.n, .identity = first + requests.size()},
                        .sampling = std::move(params)});
  }
  return requests;
}

Problem ProblemOf(const absl::Status& status) {
  Problem problem{.message = std::string(status.message())};
  switch (status.code()) {
    case absl::StatusCode::kInvalidArgument:
    case absl::StatusCode::kOutOfRange:
    case absl::StatusCode::kNotFound:
    case absl::StatusCode::kUnimplemented:
      problem.code = "invalid_value";
      break;
    case absl::StatusCode::kUnavailable:
    case absl::StatusCode::kResourceExhausted:
      problem.status = 503;
      problem.type = "server_error";
      break;
    default:
      problem.status = 500;
      problem.type = "server_error";
  }
  return problem;
}

}  // namespace tdock::serve
