#include "cli/prompt_options.h"

#include <iostream>
#include <limits>
#include <utility>
#include <variant>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "core/base/env.h"
#include "core/base/status.h"
#include "core/base/utf8.h"

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
  PromptEncoder made(std::move(encoder));
  made.chat_ = arguments.chat;
  made.shows_day_ = found.ok() && found->shows_time();
  made.system_ = arguments.system;
  made.template_status_ = found.status();
  return made;
}

bool PromptEncoder::IsConversation(const data::Sample::Part& prompt) const {
  return chat_ || std::holds_alternative<std::vector<text::Turn>>(prompt);
}

absl::StatusOr<std::vector<int32_t>> PromptEncoder::Encode(data::Sample::Part prompt,
                                                           const text::Context& context) const {
  if (chat_ && std::holds_alternative<std::string>(prompt)) {
    prompt = std::vector<text::Turn>{{text::Role::kUser, std::get<std::string>(std::move(prompt))}};
  }
  data::Sample sample{.context = context};
  if (auto* turns = std::get_if<std::vector<text::Turn>>(&prompt)) {
    TDOCK_RETURN_IF_ERROR(template_status_);
    const bool has_system = !turns->empty() && turns->front().role == text::Role::kSystem;
    if (system_ && !has_system) turns->insert(turns->begin(), {text::Role::kSystem, *system_});
    sample.conversation = std::move(*turns);
  } else {
    sample.prompt = std::move(prompt);
  }
  TDOCK_ASSIGN_OR_RETURN(data::OrSkip<data::EncodedSample> encoded, encoder_.Encode(sample));
  if (auto* made = std::get_if<data::EncodedSample>(&encoded)) return std::move(made->ids);
  return absl::InvalidArgumentError("it is empty; a prompt needs at least one token");
}

}  // namespace tdock::cli
