#include "text/tokenizer.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "core/base/status.h"

namespace tdock::text {

absl::StatusOr<std::string> Tokenizer::Decode(std::span<const int32_t> ids, SpecialTokens special) const {
  const std::unique_ptr<StreamDecoder> stream = MakeStreamDecoder(special);
  std::string text;
  for (size_t i = 0; i < ids.size(); ++i) {
    const absl::StatusOr<std::string> part = stream->Push(ids[i]);
    if (!part.ok()) return Annotate(part.status(), absl::StrCat("position ", i));
    text += *part;
  }
  return text + stream->Finish();
}

absl::Status Tokenizer::NoToken(int32_t id) const {
  return absl::InvalidArgumentError(
      absl::StrCat("id ", id, " is not a token of the vocabulary, whose highest is ", vocab_size() - 1));
}

absl::Status Tokenizer::CheckSize(absl::string_view text, const EncodeOptions& options) const {
  if (text.size() > kMaxTextBytes) {
    return absl::InvalidArgumentError(
        absl::StrCat("the text has ", text.size(), " bytes; at most ", kMaxTextBytes, " are encoded at once"));
  }
  const std::optional<size_t> max_bytes = max_token_bytes();
  if (!max_bytes || text.size() <= options.max_tokens) return absl::OkStatus();
  if ((text.size() - 1) / std::max<size_t>(*max_bytes, 1) < options.max_tokens) return absl::OkStatus();
  return absl::OutOfRangeError(
      absl::StrCat("the text has more than ", options.max_tokens, " tokens, the limit: it has ", text.size(),
                   " bytes, and no token stands for more than ", *max_bytes, "; none of it was encoded"));
}

absl::Status Tokenizer::CheckRepairable(const EncodeOptions& options) {
  if (options.as_text.empty()) return absl::OkStatus();
  return absl::InvalidArgumentError("the text is not UTF-8, so it has no places where special tokens are text");
}

}  // namespace tdock::text
