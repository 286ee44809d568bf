#include "cli/prompt_options.h"

#include <algorithm>
#include <iostream>
#include <limits>
#include <span>
#include <utility>
#include <variant>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "core/base/env.h"
#include "core/base/status.h"
#include "core/base/utf8.h"
#include "text/conversation.h"

namespace tdock::cli {
namespace {

constexpr char kTemplateGroup[] = "Conversations";

}  // namespace

void AddTemplateOptions(CLI::App& command, PromptArguments& arguments) {
  command.add_option("--system", arguments.system, "What a system turn before the conversation says")
      ->group(kTemplateGroup)
      ->check([](const std::string& text) { return FindInvalidUtf8(text) ? "it is not UTF-8" : ""; });
  command
      .add_option("--template", arguments.data.chat_template,
                  absl::StrCat("Template: ", absl::StrJoin(text::ChatTemplate::Names(), ", "), " (the model's own)"))
      ->group(kTemplateGroup);
  command
      .add_option("--template-variables", arguments.data.template_variables,
                  "More variables of the template, as a JSON object")
      ->group(kTemplateGroup);
  command.add_option("--template-date", arguments.data.template_date, "The day that the template shows (today)")
      ->group(kTemplateGroup);
}

absl::string_view GivenTemplateOption(const PromptArguments& arguments) {
  if (arguments.system) return "--system";
  if (!arguments.data.chat_template.empty()) return "--template";
  if (!arguments.data.template_variables.empty()) return "--template-variables";
  return arguments.data.template_date.empty() ? "" : "--template-date";
}

absl::StatusOr<text::ChatTemplate> TemplateOf(const PromptArguments& arguments, const std::string& model_folder) {
  return data::ResolveTemplate(Env::Real(), arguments.data, model_folder);
}

absl::StatusOr<PromptEncoder> PromptEncoder::Create(const PromptArguments& arguments, const std::string& model_folder,
                                                    const text::Tokenizer& tokenizer) {
  absl::StatusOr<text::ChatTemplate> found = TemplateOf(arguments, model_folder);
  std::optional<text::ChatTemplate> chat_template;
  if (found.ok()) chat_template = *found;
  const bool asked = arguments.chat || !GivenTemplateOption(arguments).empty();
  if (!found.ok() && asked) return found.status();
  data::Adapter adapter{.name = "prompts", .prompt = "prompt"};
  if (chat_template) adapter.style = data::Adapter::Style::kChat;
  TDOCK_ASSIGN_OR_RETURN(data::SampleEncoder encoder,
                         data::SampleEncoder::Create(adapter, data::Phase::kPrompt, tokenizer, chat_template,
                                                     {.max_prompt_len = std::numeric_limits<int64_t>::max()}));
  PromptEncoder made(std::move(encoder), tokenizer);
  made.chat_ = arguments.chat;
  made.shows_day_ = found.ok() && found->shows_time();
  made.system_ = arguments.system;
  made.chat_template_ = std::move(chat_template);
  made.template_status_ = found.status();
  return made;
}

bool PromptEncoder::IsConversation(const data::Sample::Part& prompt) const {
  return chat_ || std::holds_alternative<std::vector<text::Turn>>(prompt);
}

std::vector<text::Turn> PromptEncoder::TurnsOf(data::Sample::Part prompt) const {
  if (auto* const text = std::get_if<std::string>(&prompt)) {
    prompt = std::vector<text::Turn>{{text::Role::kUser, std::move(*text)}};
  }
  auto& turns = std::get<std::vector<text::Turn>>(prompt);
  const bool has_system = !turns.empty() && turns.front().role == text::Role::kSystem;
  if (system_ && !has_system) turns.insert(turns.begin(), {text::Role::kSystem, *system_});
  return std::move(turns);
}

absl::StatusOr<std::vector<int32_t>> PromptEncoder::Encode(data::Sample::Part prompt,
                                                           const text::Context& context) const {
  data::Sample sample{.context = context};
  if (IsConversation(prompt)) {
    TDOCK_RETURN_IF_ERROR(template_status_);
    sample.conversation = TurnsOf(std::move(prompt));
  } else {
    sample.prompt = std::move(prompt);
  }
  TDOCK_ASSIGN_OR_RETURN(data::OrSkip<data::EncodedSample> encoded, encoder_.Encode(sample));
  if (auto* made = std::get_if<data::EncodedSample>(&encoded)) return std::move(made->ids);
  return absl::InvalidArgumentError("it is empty; a prompt needs at least one token");
}

absl::StatusOr<PromptEncoder::Answered> PromptEncoder::EncodeAnswered(data::Sample::Part prompt,
                                                                      std::optional<data::Sample::Part> answer,
                                                                      const text::Context& context) const {
  Answered answered;
  if (IsConversation(prompt)) {
    TDOCK_RETURN_IF_ERROR(template_status_);
    std::vector<text::Turn> turns = TurnsOf(std::move(prompt));
    if (answer) {
      if (auto* const text = std::get_if<std::string>(&*answer)) {
        answer = std::vector<text::Turn>{{text::Role::kAssistant, std::move(*text)}};
      }
      const auto& more = std::get<std::vector<text::Turn>>(*answer);
      turns.insert(turns.end(), more.begin(), more.end());
    }
    if (turns.empty() || turns.back().role != text::Role::kAssistant) {
      return absl::InvalidArgumentError("its conversation does not end with a reply of the assistant, to be scored");
    }
    TDOCK_ASSIGN_OR_RETURN(text::EncodedConversation encoded,
                           text::EncodeConversation(*chat_template_, *tokenizer_, turns,
                                                    {.train_on = text::TrainOn::kLastReply, .context = context}));
    answered = {.ids = std::move(encoded.ids), .counted = std::move(encoded.loss_mask)};
    if (!answered.counted.empty()) answered.counted.front() = 0;  // nothing comes before it
  } else {
    if (!answer || !std::holds_alternative<std::string>(*answer)) {
      return absl::InvalidArgumentError(
          R"(its prompt is text and has no completion that is, such as {"prompt": "37+85=", "completion": "122"})");
    }
    const std::string text = std::get<std::string>(prompt);
    TDOCK_ASSIGN_OR_RETURN(const std::vector<int32_t> before, data::TokensBeforeText(*tokenizer_));
    TDOCK_ASSIGN_OR_RETURN(answered.ids, Encode(std::move(prompt)));
    answered.counted.assign(answered.ids.size(), 0);
    TDOCK_ASSIGN_OR_RETURN(const std::vector<int32_t> own,
                           text::EncodeReply(*tokenizer_, text, std::span(answered.ids).subspan(before.size()),
                                             std::get<std::string>(*answer)));
    answered.ids.insert(answered.ids.end(), own.begin(), own.end());
    answered.counted.resize(answered.ids.size(), 1);
  }
  if (std::count(answered.counted.begin(), answered.counted.end(), 1) > 0) return answered;
  return absl::InvalidArgumentError("its answer has no token to be scored");
}

absl::StatusOr<PromptEncoder::Answered> PromptEncoder::EncodeText(const std::string& text) const {
  Answered answered;
  TDOCK_ASSIGN_OR_RETURN(answered.ids, data::TokensBeforeText(*tokenizer_));
  TDOCK_ASSIGN_OR_RETURN(const std::vector<int32_t> own,
                         tokenizer_->Encode(text, {.spelled = text::SpelledSpecial::kAsText}));
  answered.ids.insert(answered.ids.end(), own.begin(), own.end());
  if (answered.ids.size() < 2) {
    return absl::InvalidArgumentError(absl::StrCat("its text has ", answered.ids.size(),
                                                   " tokens; at least 2 are needed: nothing comes before the first"));
  }
  answered.counted.assign(answered.ids.size(), 1);
  answered.counted.front() = 0;
  return answered;
}

}  // namespace tdock::cli
