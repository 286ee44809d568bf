// The options of a command that say how prompts become tokens.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "core/command/command.h"
#include "data/data_config.h"
#include "data/encode.h"
#include "data/sample.h"
#include "text/chat_template.h"
#include "text/tokenizer.h"

namespace tdock::cli {

struct PromptArguments {
  bool chat = false;  // texts are what a user says
  std::optional<std::string> system = {};
  data::DataConfig data = {};  // the template
};

// --system, --template and what belongs to it; `arguments` must live until the command line has been parsed.
void AddTemplateOptions(CLI::App& command, PromptArguments& arguments);

// The first of those options that is given; "": none of them.
absl::string_view GivenTemplateOption(const PromptArguments& arguments);

// That of the options, or the model's own. NotFound, with what to do, where there is none.
absl::StatusOr<text::ChatTemplate> TemplateOf(const PromptArguments& arguments, const std::string& model_folder);

// Encodes prompts as training does (data::SampleEncoder). Thread-safe.
class PromptEncoder {
 public:
  // The tokenizer must outlive it. The errors of TemplateOf() where --chat or an option of the template is given; else
  // only Encode() has them, for turns.
  static absl::StatusOr<PromptEncoder> Create(const PromptArguments& arguments, const std::string& model_folder,
                                              const text::Tokenizer& tokenizer);

  // Whether the template renders it.
  bool IsConversation(const data::Sample::Part& prompt) const;
  // Whether what the template renders depends on the day.
  bool shows_day() const { return shows_day_; }

  // A text as it stands, or with --chat as what a user says; and turns. A system turn is put before turns that do not
  // begin with one. InvalidArgument for what cannot be encoded, and for a prompt of no tokens.
  absl::StatusOr<std::vector<int32_t>> Encode(data::Sample::Part prompt, const text::Context& context = {}) const;

  // Tokens, and for each whether it belongs to what is scored.
  struct Answered {
    std::vector<int32_t> ids = {};
    std::vector<uint8_t> counted = {};
  };
  // A prompt with its answer: a text that follows a text as it stands, or turns, of which the last reply is counted as
  // training counts it. Without an answer, turns end with the reply. InvalidArgument as in Encode(), and where there is
  // no answer, or none of its tokens is counted.
  absl::StatusOr<Answered> EncodeAnswered(data::Sample::Part prompt, std::optional<data::Sample::Part> answer,
                                          const text::Context& context = {}) const;
  // A text as it stands, all of which is counted but its first token, which nothing comes before.
  absl::StatusOr<Answered> EncodeText(const std::string& text) const;

 private:
  PromptEncoder(data::SampleEncoder encoder, const text::Tokenizer& tokenizer)
      : encoder_(std::move(encoder)), tokenizer_(&tokenizer) {}

  // Those of a prompt, after a system turn if there is one to add.
  std::vector<text::Turn> TurnsOf(data::Sample::Part prompt) const;

  data::SampleEncoder encoder_;
  const text::Tokenizer* tokenizer_;
  bool chat_ = false, shows_day_ = false;
  std::optional<std::string> system_;
  std::optional<text::ChatTemplate> chat_template_;
  absl::Status template_status_;  // why there is none
};

}  // namespace tdock::cli
