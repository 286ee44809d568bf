// Prompts in a file of JSON lines.
//
//   {"prompt": "37+85=", "truth": "122"}                    a text, or with --chat what a user says
//   {"prompt": [{"role": "user", "content": "Hi"}]}         turns, for the template
//   {"messages": [{"role": "user", "content": "Hi"}]}       the same
//
// To be scored, they have answers: a "completion", or turns that end with a reply. Or they are {"text": "…"}.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
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
#include "core/base/json_text.h"
#include "core/base/status.h"
#include "text/content_hash.h"

namespace tdock::cli {

struct FilePrompt {
  int64_t line = 0;                    // from 1
  nlohmann::ordered_json fields = {};  // all that the line has
  std::vector<int32_t> tokens = {};
  std::vector<uint8_t> counted = {};  // with PromptFileRules::scores, for each token: it is among those to be scored
  bool is_conversation = false;       // which the template renders
};

struct PromptFileRules {
  std::string path;
  // Whether a prompt of so many tokens can be answered; what it refuses are bad lines.
  std::function<absl::Status(int64_t tokens)> check_length = {};
  // Names that a line must not have, because the answer's line has them.
  std::vector<std::string> taken_names = {};
  bool skip_bad = false;
  bool scores = false;  // prompts with their answers, and texts
};

// What a file of prompts has, as a whole.
struct PromptFileSummary {
  int64_t lines = 0;  // blank ones and bad ones as well
  int64_t prompts = 0;
  int64_t conversations = 0;  // how many of them the template renders
  int64_t bad = 0;
  absl::Status first_bad = absl::OkStatus();
  text::ContentHash content, tokens;  // of the file's lines, and of the prompts' tokens
};

// Goes through the prompts twice: Check(), and then Next() in their order. What is added to the file after Open() is
// not read. Not thread-safe; encoder and rules must outlive it.
class PromptFile {
 public:
  static absl::StatusOr<PromptFile> Open(Env& env, const PromptFileRules& rules, const PromptEncoder& encoder);

  // Goes through all of them. InvalidArgument names a line that cannot be answered, unless bad lines are skipped.
  // Cancelled once `stop` is set.
  absl::StatusOr<PromptFileSummary> Check(const std::atomic<bool>& stop);

  // The next prompt for whose line `wanted` is true; nullopt behind the last. The errors of Check(); FailedPrecondition
  // where the file has more lines than Check() has seen.
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

  absl::StatusOr<bool> ReadLine();  // the next one that is not blank
  // That line; errors begin with its place.
  absl::StatusOr<FilePrompt> Parse() const;
  absl::StatusOr<FilePrompt> ParseLine() const;
  absl::Status Encode(FilePrompt& prompt) const;

  LineReader reader_;
  const PromptFileRules* rules_;
  const PromptEncoder* encoder_;
  absl::string_view line_;
  std::optional<int64_t> checked_lines_;
};

}  // namespace tdock::cli
