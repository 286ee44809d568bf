// The options of a command that say how prompts become tokens.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "core/command/command.h"
#include "data/data_config.h"
#include "data/encode.h"
#include "data/sample.h"
#include "text/chat_template.h"
#include "text/tokenizer.h"

namespace tdock::cli {

struct PromptArguments {
  bool chat = false;  // texts are what a user says
  std::optional<std::string> system;
  data::DataConfig data;  // the template
};

// --template and what belongs to it; `arguments` must live until the command line has been parsed.
void AddTemplateOptions(CLI::App& command, PromptArguments& arguments);

// That of the options, or the model's own. NotFound, with what to do, where there is none.
absl::StatusOr<text::ChatTemplate> TemplateOf(const PromptArguments& arguments, const std::string& model_folder);

// Encodes prompts as training does (data::SampleEncoder). Thread-safe.
class PromptEncoder {
 public:
  // The tokenizer must outlive it. NotFound for --chat with a model that has no template.
  static absl::StatusOr<PromptEncoder> Create(const PromptArguments& arguments, const std::string& model_folder,
                                              const text::Tokenizer& tokenizer);

  // A text as it stands, or with --chat as what a user says; and turns. A system turn is put before turns that do not
  // begin with one. InvalidArgument for what cannot be encoded, and for a prompt of no tokens.
  absl::StatusOr<std::vector<int32_t>> Encode(data::Sample::Part prompt, const text::Context& context = {}) const;

  bool chat() const { return chat_; }  // whether texts are turns of a user

 private:
  PromptEncoder(data::SampleEncoder encoder) : encoder_(std::move(encoder)) {}

  data::SampleEncoder encoder_;
  bool chat_ = false;
  std::optional<std::string> system_;
  absl::Status template_status_;  // why there is none
};

}  // namespace tdock::cli
