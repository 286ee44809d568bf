#include "cli/prompt_file.h"

#include <optional>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "cli/json_line.h"
#include "core/base/status.h"
#include "core/base/utf8.h"
#include "data/sample.h"
#include "data/value_text.h"

namespace tdock::cli {
namespace {

using Json = nlohmann::ordered_json;

constexpr size_t kMaxLineBytes = size_t{16} << 20;

// A text, where it may be one, or turns.
absl::StatusOr<data::Sample::Part> ReadPart(const std::string& name, const Json& value, bool may_be_text) {
  if (may_be_text && value.is_string()) return value.get<std::string>();
  if (!value.is_array() || value.empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat("\"", name, "\" is ", may_be_text ? "neither text nor" : "not", " a list of turns"));
  }
  absl::StatusOr<std::vector<text::Turn>> turns = data::TurnsOf(CellOf(value));
  if (!turns.ok()) return Annotate(turns.status(), absl::StrCat("\"", name, "\""));
  return *std::move(turns);
}

absl::StatusOr<data::Sample::Part> PartOf(const Json& fields) {
  const auto prompt = fields.find("prompt"), messages = fields.find("messages");
  if (prompt != fields.end() && messages != fields.end()) {
    return absl::InvalidArgumentError("it has both \"prompt\" and \"messages\"; remove one of them");
  }
  const auto found = prompt != fields.end() ? prompt : messages;
  if (found == fields.end()) {
    return absl::InvalidArgumentError(
        R"(it has no prompt, such as {"prompt": "Hi"} or {"messages": [{"role": "user", "content": "Hi"}]})");
  }
  return ReadPart(found.key(), *found, /*may_be_text=*/found == prompt);
}

// Absent where there is none.
absl::StatusOr<std::optional<data::Sample::Part>> CompletionOf(const Json& fields) {
  const auto found = fields.find("completion");
  if (found == fields.end() || found->is_null()) return std::nullopt;
  TDOCK_ASSIGN_OR_RETURN(data::Sample::Part part, ReadPart("completion", *found, /*may_be_text=*/true));
  return part;
}

// A list in JSON, or the text of one.
absl::StatusOr<std::string> ListOf(const Json& fields, const char* name) {
  const auto found = fields.find(name);
  if (found == fields.end() || found->is_null()) return "";
  if (found->is_string()) return found->get<std::string>();
  if (found->is_array()) return data::JsonOfValue(CellOf(*found));
  return absl::InvalidArgumentError(absl::StrCat("\"", name, "\" is not a list"));
}

}  // namespace

absl::StatusOr<PromptFile> PromptFile::Open(Env& env, const PromptFileRules& rules, const PromptEncoder& encoder) {
  TDOCK_ASSIGN_OR_RETURN(LineReader reader, LineReader::Open(env, rules.path, kMaxLineBytes));
  return PromptFile(std::move(reader), rules, encoder);
}

absl::StatusOr<PromptFileSummary> PromptFile::Check(const std::atomic<bool>& stop) {
  PromptFileSummary summary;
  text::ContentHasher content, tokens;
  for (;;) {
    if (stop)
      return absl::CancelledError(absl::StrCat("interrupted while ", EscapeUnprintable(rules_->path), " was checked"));
    TDOCK_ASSIGN_OR_RETURN(const bool more, ReadLine());
    if (!more) break;
    content.AddField(absl::StrCat(reader_.number()));
    content.AddField(line_);
    const absl::StatusOr<FilePrompt> prompt = Parse();
    if (prompt.ok()) {
      ++summary.prompts;
      if (prompt->is_conversation) ++summary.conversations;
      tokens.AddField({reinterpret_cast<const char*>(prompt->tokens.data()), prompt->tokens.size() * sizeof(int32_t)});
      continue;
    }
    if (!rules_->skip_bad) return prompt.status();
    if (summary.bad++ == 0) summary.first_bad = prompt.status();
  }
  summary.lines = reader_.number();
  summary.content = content.Value();
  summary.tokens = tokens.Value();
  reader_.Rewind();
  checked_lines_ = summary.lines;
  return summary;
}

absl::StatusOr<bool> PromptFile::ReadLine() {
  for (;;) {
    TDOCK_ASSIGN_OR_RETURN(const std::optional<absl::string_view> line, reader_.Next());
    if (!line) return false;
    if (checked_lines_ && reader_.number() > *checked_lines_) {
      return absl::FailedPreconditionError(absl::StrCat(EscapeUnprintable(rules_->path),
                                                        " has changed since it was checked: it had ", *checked_lines_,
                                                        " lines, and has more now"));
    }
    line_ = *line;
    if (!absl::StripAsciiWhitespace(line_).empty()) return true;
  }
}

absl::StatusOr<FilePrompt> PromptFile::Parse() const {
  absl::StatusOr<FilePrompt> prompt = ParseLine();
  if (!prompt.ok()) return Annotate(prompt.status(), reader_.Place());
  return prompt;
}

absl::StatusOr<FilePrompt> PromptFile::ParseLine() const {
  FilePrompt prompt{.line = reader_.number()};
  TDOCK_ASSIGN_OR_RETURN(prompt.fields, ParseJsonLine(line_));
  if (!prompt.fields.is_object()) return absl::InvalidArgumentError("it is not an object in JSON");
  for (const std::string& name : rules_->taken_names) {
    if (!prompt.fields.contains(name)) continue;
    return absl::InvalidArgumentError(
        absl::StrCat("it has \"", name, "\", as the line of its answer has; give it another name"));
  }
  TDOCK_RETURN_IF_ERROR(Encode(prompt));
  TDOCK_RETURN_IF_ERROR(rules_->check_length(static_cast<int64_t>(prompt.tokens.size())));
  return prompt;
}

absl::Status PromptFile::Encode(FilePrompt& prompt) const {
  PromptEncoder::Answered scored;
  const auto text = prompt.fields.find("text");
  if (rules_->scores && text != prompt.fields.end()) {
    for (const char* const other : {"prompt", "messages", "completion"}) {
      if (!prompt.fields.contains(other)) continue;
      return absl::InvalidArgumentError(absl::StrCat("it has both \"text\" and \"", other, "\"; remove one of them"));
    }
    if (!text->is_string()) return absl::InvalidArgumentError("\"text\" is no text");
    TDOCK_ASSIGN_OR_RETURN(scored, encoder_->EncodeText(text->get<std::string>()));
    prompt.tokens = std::move(scored.ids);
    prompt.counted = std::move(scored.counted);
    return absl::OkStatus();
  }
  TDOCK_ASSIGN_OR_RETURN(data::Sample::Part part, PartOf(prompt.fields));
  text::Context context;
  prompt.is_conversation = encoder_->IsConversation(part);
  if (prompt.is_conversation) {
    TDOCK_ASSIGN_OR_RETURN(context.tools, ListOf(prompt.fields, "tools"));
    TDOCK_ASSIGN_OR_RETURN(context.documents, ListOf(prompt.fields, "documents"));
  }
  if (!rules_->scores) {
    TDOCK_ASSIGN_OR_RETURN(prompt.tokens, encoder_->Encode(std::move(part), context));
    return absl::OkStatus();
  }
  TDOCK_ASSIGN_OR_RETURN(std::optional<data::Sample::Part> completion, CompletionOf(prompt.fields));
  TDOCK_ASSIGN_OR_RETURN(scored, encoder_->EncodeAnswered(std::move(part), std::move(completion), context));
  prompt.tokens = std::move(scored.ids);
  prompt.counted = std::move(scored.counted);
  return absl::OkStatus();
}

}  // namespace tdock::cli
