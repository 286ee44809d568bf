// Prompts in a file of JSON lines.
//
//   {"prompt": "37+85=", "truth": "122"}                    a text, or with --chat what a user says
//   {"prompt": [{"role": "user", "content": "Hi"}]}         turns, for the template
//   {"messages": [{"role": "user", "content": "Hi"}]}       the same
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "cli/line_reader.h"
#include "cli/prompt_options.h"
#include "core/base/env.h"
#include "core/base/status.h"
#include "nlohmann/json.hpp"
#include "text/content_hash.h"

namespace tdock::cli {

struct FilePrompt {
  int64_t line = 0;                    // from 1
  nlohmann::ordered_json fields = {};  // all that the line has
  std::vector<int32_t> tokens = {};
};

struct PromptFileRules {
  std::string path;
  // Prompts that leave no room for an answer are bad lines.
  int64_t context_length = 0;
  // Names that a line must not have, because the answer's line has them.
  std::vector<std::string> taken_names = {};
  bool skip_bad = false;
};

// What a file of prompts has, as a whole.
struct PromptFileSummary {
  int64_t lines = 0;  // blank ones and bad ones as well
  int64_t prompts = 0;
  int64_t bad = 0;
  absl::Status first_bad = absl::OkStatus();
  text::ContentHash content, tokens;  // of the file's lines, and of the prompts' tokens
};

// Reads the prompts in their order. Not thread-safe; encoder and rules must outlive it.
class PromptFile {
 public:
  static absl::StatusOr<PromptFile> Open(Env& env, const PromptFileRules& rules, const PromptEncoder& encoder);

  // Goes through all of them. InvalidArgument names a line that cannot be answered, unless bad lines are skipped.
  static absl::StatusOr<PromptFileSummary> Check(Env& env, const PromptFileRules& rules, const PromptEncoder& encoder);

  // The next prompt for whose line `wanted` is true; nullopt behind the last. The errors of Check().
  template <class Wanted>
  absl::StatusOr<std::optional<FilePrompt>> Next(const Wanted& wanted) {
    for (;;) {
      TDOCK_ASSIGN_OR_RETURN(const bool more, ReadLine());
      if (!more) return std::nullopt;
      if (!wanted(reader_.number())) continue;
      absl::StatusOr<FilePrompt> prompt = Parse();
      if (prompt.ok()) return *std::move(prompt);
      if (!rules_->skip_bad) return prompt.status();
    }
  }

 private:
  PromptFile(LineReader reader, const PromptFileRules& rules, const PromptEncoder& encoder)
      : reader_(std::move(reader)), rules_(&rules), encoder_(&encoder) {}

  // The next line that is not blank.
  absl::StatusOr<bool> ReadLine();
  // That line; errors begin with its place.
  absl::StatusOr<FilePrompt> Parse() const;
  absl::StatusOr<FilePrompt> ParseLine() const;

  LineReader reader_;
  const PromptFileRules* rules_;
  const PromptEncoder* encoder_;
  absl::string_view line_;
};

}  // namespace tdock::cli
