#include "inference/requests.h"

#include <algorithm>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"

namespace tdock::inference {
namespace {

constexpr int64_t kUsualCompletion = 16;    // as OpenAI's /v1/completions
constexpr int64_t kUsualGenerate = 128;     // as SGLang's /generate
constexpr double kLeastTemperature = 1e-5;  // as vLLM: logits divided by less may not be finite

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
  params.allowed_tokens = given.allowed_token_ids.value_or(std::vector<int32_t>());
  params.logit_bias = given.logit_bias.value_or(std::map<int32_t, double>());
  params.top_log_probs = ask.log_probs.value_or(0);
  const int64_t usual = ask.form == Form::kCompletion ? kUsualCompletion
                        : ask.form == Form::kGenerate ? kUsualGenerate
                                                      : room;
  params.max_new_tokens = ask.sampling.max_tokens.value_or(std::min(given.max_tokens.value_or(usual), room));
  if (!ask.sampling.min_tokens) params.min_new_tokens = std::min(params.min_new_tokens, params.max_new_tokens);
  return params;
}

// The client's parameters, and the preferred ones where these do not contradict them.
SamplingAsk SamplingOf(const Ask& ask, const ServedModel& model) {
  SamplingAsk given = ask.sampling;
  given.FillFrom(model.preferred);
  if (!ask.grammar) return given;
  given.ignore_eos = ask.sampling.ignore_eos;
  given.min_tokens = ask.sampling.min_tokens;
  given.allowed_token_ids = ask.sampling.allowed_token_ids;
  return given;
}

// The field that asks for something else than a grammar does; null: none.
const char* FieldAgainstGrammar(const SamplingAsk& given) {
  if (given.ignore_eos.value_or(false)) return "ignore_eos";
  if (given.min_tokens.value_or(0) > 0) return "min_tokens";
  return given.allowed_token_ids ? "allowed_token_ids" : nullptr;
}

// What is wrong with the parameters of a request and the preferred ones together.
std::optional<Problem> CheckSampling(const Ask& ask, const SamplingAsk& given, const ServedModel& model) {
  const auto problem = [](std::string param, std::string message) {
    return Problem{.message = std::move(message), .param = std::move(param), .code = "invalid_value"};
  };
  if (const char* const field = ask.grammar ? FieldAgainstGrammar(given) : nullptr) {
    return problem(field, absl::StrCat("'", ask.grammar_field, "' says what the answer is made of and where it ends: '",
                                       field, "' cannot be asked for beside it"));
  }
  if (ask.identity && !given.seed) return problem("identity", "'identity' needs a 'seed'");
  const std::vector<int32_t> none;
  if (auto wrong = CheckTokens(given.stop_token_ids.value_or(none), "stop_token_ids", model)) return wrong;
  if (auto wrong = CheckTokens(given.allowed_token_ids.value_or(none), "allowed_token_ids", model)) return wrong;
  for (const auto& [token, bias] : given.logit_bias.value_or(std::map<int32_t, double>())) {
    if (auto wrong = CheckTokens(std::span(&token, 1), "logit_bias", model)) return wrong;
  }
  return std::nullopt;
}

// The most tokens that the answer to a prompt can have.
std::variant<int64_t, Problem> RoomAfter(const std::vector<int32_t>& prompt, const Ask& ask, const ServedModel& model,
                                         const PromptReading& reading) {
  const char* const param = PromptFieldOf(ask.form);
  const auto size = static_cast<int64_t>(prompt.size());
  if (size == 0) {
    return Problem{
        .message = "the prompt is empty; it needs at least one token", .param = param, .code = "invalid_value"};
  }
  if (auto wrong = CheckTokens(prompt, param, model)) return *std::move(wrong);
  if (size > reading.max_tokens) {
    return Problem{.message = absl::StrCat("the prompt has ", size, " tokens and the answer may have ", reading.wanted,
                                           ", together ", size + reading.wanted, "; the model's context has ",
                                           model.context_length),
                   .param = param,
                   .code = "context_length_exceeded"};
  }
  return model.context_length - size;
}

// Absent: nobody asks for log-probabilities of prompts; else how many of the most likely tokens beside each. An answer
// without tokens has them in any case: without, the engine would have nothing to do.
std::optional<int64_t> PromptLogProbsOf(const Ask& ask, const engine::SamplingParams& params) {
  const bool echoes = ask.echo && (ask.log_probs || params.max_new_tokens == 0);
  if (!echoes) return ask.prompt_log_probs;
  return std::max(ask.prompt_log_probs.value_or(0), ask.log_probs.value_or(0));
}

}  // namespace

std::variant<std::vector<engine::Request>, Problem> RequestsOf(const Ask& ask, const ServedModel& model, uint64_t seed,
                                                               uint64_t identity, const StopCheck& stop) {
  const SamplingAsk given = SamplingOf(ask, model);
  if (auto problem = CheckSampling(ask, given, model)) return *std::move(problem);
  const int64_t wanted = ask.sampling.max_tokens.value_or(1);
  const PromptReading reading{.stop = stop, .wanted = wanted, .max_tokens = model.context_length - wanted};
  auto found = PromptsOf(ask, model, reading);
  if (auto* problem = std::get_if<Problem>(&found)) return std::move(*problem);
  std::vector<engine::Request> requests;
  int64_t all_scores = 0;
  for (std::vector<int32_t>& tokens : std::get<0>(found)) {
    const auto room = RoomAfter(tokens, ask, model, reading);
    if (const auto* problem = std::get_if<Problem>(&room)) return *problem;
    engine::SamplingParams params = ParamsOf(ask, given, std::get<int64_t>(room), seed);
    if (params.min_new_tokens > params.max_new_tokens) {
      return Problem{.message = absl::StrCat("'min_tokens' is ", params.min_new_tokens,
                                             ", and the answer may have at most ", params.max_new_tokens, " tokens"),
                     .param = "min_tokens",
                     .code = "invalid_value"};
    }
    const std::optional<int64_t> scores = PromptLogProbsOf(ask, params);
    if (scores) all_scores += static_cast<int64_t>(tokens.size()) * (1 + *scores) * ask.n;
    if (all_scores > kMaxPromptScores) {
      const char* const field = ask.prompt_log_probs ? "prompt_logprobs" : "echo";
      return Problem{.message = absl::StrCat("'", field, "' asks for more than ", kMaxPromptScores,
                                             " log-probabilities of prompts: give fewer prompts, a smaller 'n', or "
                                             "fewer of the most likely tokens"),
                     .param = field,
                     .code = "invalid_value"};
    }
    const absl::Status checked =
        engine::CheckSamplingParams(params, model.vocab_size, model.end_tokens, /*least_new_tokens=*/scores ? 0 : 1);
    if (!checked.ok()) return ProblemOf(checked);
    // The same request with the same seed has the same answers; without one, each has others.
    const uint64_t first = given.seed ? ask.identity.value_or(0) : identity;
    engine::Request request{
        .prompt = {.tokens = std::move(tokens), .samples = ask.n, .identity = first + requests.size()},
        .sampling = std::move(params)};
    request.prompt_log_probs = scores;
    requests.push_back(std::move(request));
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

}  // namespace tdock::inference
