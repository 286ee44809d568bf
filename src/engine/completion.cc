#include "engine/completion.h"

#include <algorithm>

#include "core/base/status.h"

namespace tdock::engine {

const char* NameOf(FinishReason reason) {
  switch (reason) {
    case FinishReason::kEndToken:
      return "end_token";
    case FinishReason::kStop:
      return "stop";
    case FinishReason::kBudget:
      return "budget";
    case FinishReason::kDeadline:
      return "deadline";
    case FinishReason::kAborted:
      return "aborted";
    case FinishReason::kLength:
      break;
  }
  return "length";
}

absl::StatusOr<std::string> TextOf(const Completion& completion, const text::Tokenizer& tokenizer) {
  TDOCK_ASSIGN_OR_RETURN(std::string text, tokenizer.Decode(completion.tokens));
  if (completion.text_bytes) text.resize(std::min(text.size(), *completion.text_bytes));
  return text;
}

}  // namespace tdock::engine
