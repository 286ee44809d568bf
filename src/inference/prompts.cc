#include "inference/requests.h"

#include <algorithm>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "core/base/json_text.h"
#include "core/base/utf8.h"
#include "text/conversation.h"
#include "text/tokenizer.h"

namespace tdock::inference {
namespace {

constexpr char kTooLong[] = "context_length_exceeded";
constexpr char kUsualEffort[] = "medium";  // of OpenAI's reasoning_effort

// The limit for reading: the whole of a prompt that is then cut to its last tokens.
size_t MaxRead(const Ask& ask, const PromptReading& reading) {
  return ask.max_prompt_tokens ? std::numeric_limits<size_t>::max() : static_cast<size_t>(reading.max_tokens);
}

Problem ProblemOfPrompt(const absl::Status& status, const Ask& ask, const ServedModel& model,
                        const PromptReading& reading) {
  const char* const param = PromptFieldOf(ask.form);
  if (absl::IsOutOfRange(status)) {
    return {.message = absl::StrCat("the prompt has more than ", reading.max_tokens,
                                    " tokens, where counting stopped; the answer may have ", reading.wanted,
                                    ", and the model's context has ", model.context_length),
            .param = param,
            .code = kTooLong};
  }
  // Not a status of the server's, after which clients ask again by themselves: the same would take as long again.
  if (absl::IsDeadlineExceeded(status)) {
    return {.message = std::string(status.message()), .param = param, .code = "prompt_timeout"};
  }
  return {.message = std::string(status.message()), .param = param, .code = "invalid_value"};
}

absl::StatusOr<std::vector<int32_t>> TokensOf(const AskedPrompt& prompt, const Ask& ask, const ServedModel& model,
                                              const PromptReading& reading) {
  if (reading.stop) TDOCK_RETURN_IF_ERROR(reading.stop());
  if (const auto* tokens = std::get_if<std::vector<int32_t>>(&prompt)) return *tokens;
  text::EncodeOptions options{.spelled = text::SpelledSpecial::kAsText, .add_special_tokens = ask.add_special_tokens};
  options.max_tokens = MaxRead(ask, reading);
  options.stop = reading.stop;
  return model.tokenizer->Encode(std::get<std::string>(prompt), options);
}

// The model's template with the variables of the request.
std::variant<text::ChatTemplate, Problem> TemplateFor(const Ask& ask, const ServedModel& model) {
  if (!model.chat_template.ok()) {
    return Problem{.message = absl::StrCat("the model has no chat template: ", model.chat_template.status().message(),
                                           "; ask /v1/completions"),
                   .param = PromptFieldOf(ask.form)};
  }
  text::ChatTemplate own = *model.chat_template;
  if (model.shows_today) own = own.WithTime(absl::Now(), absl::LocalTimeZone());
  nlohmann::ordered_json variables = ReadOrderedJson(ask.template_variables.empty() ? "{}" : ask.template_variables);
  if (!ask.reasoning_effort.empty() && own.Uses("reasoning_effort")) {
    variables["reasoning_effort"] = ask.reasoning_effort;
  } else if (!ask.reasoning_effort.empty() && ask.reasoning_effort != kUsualEffort) {
    return Problem{.message = absl::StrCat("'reasoning_effort' is '", EscapeForMessage(ask.reasoning_effort), "', and ",
                                           own.title(), " has no such variable"),
                   .param = ask.form == Form::kResponses ? "reasoning.effort" : "reasoning_effort",
                   .code = "unsupported_value"};
  }
  if (variables.empty()) return own;
  auto with_variables = own.WithVariables(JsonText(variables));
  if (with_variables.ok()) return *std::move(with_variables);
  return Problem{.message = absl::StrCat("'chat_template_kwargs' cannot be used: ", with_variables.status().message()),
                 .param = "chat_template_kwargs",
                 .code = "invalid_value"};
}

// Encodes a conversation up to the end of what its last turn says, so that the answer goes on with it.
absl::StatusOr<std::vector<int32_t>> ContinuedTokens(const text::ChatTemplate& own, const text::Tokenizer& tokenizer,
                                                     std::span<const text::Turn> turns,
                                                     const text::EncodeTurns& options) {
  TDOCK_ASSIGN_OR_RETURN(const auto prepared,
                         own.Prepare(turns, options.context, text::SpellingsOf(tokenizer), options.stop));
  TDOCK_ASSIGN_OR_RETURN(text::ChatTemplate::Rendered rendered, prepared.Render(turns.size(), false));
  const auto last = static_cast<int32_t>(turns.size()) - 1;
  const auto said = std::find_if(rendered.content_turns.rbegin(), rendered.content_turns.rend(),
                                 [&](const auto& run) { return run.value == last; });
  if (said == rendered.content_turns.rend()) {
    return absl::InvalidArgumentError("the last message says nothing that the answer could go on with");
  }
  rendered.text.resize(said->end);
  while (!rendered.content.empty() && rendered.content.back().begin >= said->end) rendered.content.pop_back();
  rendered.content.back().end = std::min(rendered.content.back().end, said->end);
  text::EncodeOptions encode{.spelled = text::SpelledSpecial::kParse, .as_text = rendered.content};
  encode.max_tokens = options.max_tokens;
  encode.stop = options.stop;
  return tokenizer.Encode(rendered.text, encode);
}

absl::StatusOr<std::vector<int32_t>> TokensOfConversation(const text::ChatTemplate& own, const Ask& ask,
                                                          const ServedModel& model, const PromptReading& reading) {
  std::vector<text::Turn> turns = ask.turns;
  if (model.system && turns.front().role != text::Role::kSystem) {
    turns.insert(turns.begin(), {.role = text::Role::kSystem, .content = *model.system});
  }
  text::EncodeTurns options{.generation_prompt = ask.generation_prompt, .context = ask.context};
  options.max_tokens = MaxRead(ask, reading);
  options.stop = reading.stop;
  if (ask.continues_final_turn) return ContinuedTokens(own, *model.tokenizer, turns, options);
  options.counted.assign(turns.size(), false);  // a prompt trains nothing
  TDOCK_ASSIGN_OR_RETURN(text::EncodedConversation encoded,
                         text::EncodeConversation(own, *model.tokenizer, turns, options));
  return std::move(encoded.ids);
}

void KeepLast(const Ask& ask, const PromptReading& reading, std::vector<int32_t>& tokens) {
  if (!ask.max_prompt_tokens) return;
  const int64_t kept = *ask.max_prompt_tokens < 0 ? reading.max_tokens : *ask.max_prompt_tokens;
  const int64_t size = static_cast<int64_t>(tokens.size());
  if (size > kept) tokens.erase(tokens.begin(), tokens.begin() + (size - kept));
}

}  // namespace

const char* PromptFieldOf(Form form) {
  switch (form) {
    case Form::kChat:
      return "messages";
    case Form::kResponses:
      return "input";
    case Form::kGenerate:
      return "input_ids";
    case Form::kCompletion:
      break;
  }
  return "prompt";
}

std::variant<std::vector<std::vector<int32_t>>, Problem> PromptsOf(const Ask& ask, const ServedModel& model,
                                                                   const PromptReading& reading) {
  if (reading.max_tokens < 1) {
    return Problem{.message = absl::StrCat("the answer may have ", reading.wanted, " tokens, and the model's context ",
                                           "has ", model.context_length, ", of which the prompt needs at least one"),
                   .param = PromptFieldOf(ask.form),
                   .code = kTooLong};
  }
  std::vector<std::vector<int32_t>> prompts;
  const auto add = [&](absl::StatusOr<std::vector<int32_t>> tokens) -> std::optional<Problem> {
    if (!tokens.ok()) return ProblemOfPrompt(tokens.status(), ask, model, reading);
    KeepLast(ask, reading, *tokens);
    prompts.push_back(*std::move(tokens));
    return std::nullopt;
  };
  if (!ask.turns.empty()) {
    auto own = TemplateFor(ask, model);
    if (auto* problem = std::get_if<Problem>(&own)) return std::move(*problem);
    if (auto problem = add(TokensOfConversation(std::get<0>(own), ask, model, reading))) return *std::move(problem);
  }
  for (const AskedPrompt& prompt : ask.prompts) {
    if (auto problem = add(TokensOf(prompt, ask, model, reading))) return *std::move(problem);
  }
  return prompts;
}

std::optional<Problem> CheckTokens(std::span<const int32_t> tokens, const char* field, const ServedModel& model) {
  for (const int32_t token : tokens) {
    if (token < model.vocab_size) continue;
    return Problem{
        .message = absl::StrCat("'", field, "' has the token ", token, "; the model's are 0 to ", model.vocab_size - 1),
        .param = field,
        .code = "invalid_value"};
  }
  return std::nullopt;
}

}  // namespace tdock::inference
