#include "text/tokenizer.h"

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

absl::Status Tokenizer::CheckRepairable(const EncodeOptions& options) {
  if (options.as_text.empty()) return absl::OkStatus();
  return absl::InvalidArgumentError("the text is not UTF-8, so it has no places where special tokens are text");
}

}  // namespace tdock::text
