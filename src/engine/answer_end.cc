#include "engine/answer_end.h"

#include <algorithm>

#include "core/base/status.h"

namespace tdock::engine {
namespace {

bool Has(std::span<const int32_t> tokens, int32_t token) {
  return std::find(tokens.begin(), tokens.end(), token) != tokens.end();
}

}  // namespace

absl::StatusOr<std::optional<size_t>> StopTextReader::Push(int32_t token, bool heeded) {
  TDOCK_ASSIGN_OR_RETURN(const std::string text, decoder_->Push(token));
  return finder_.Push(text, heeded);
}

AnswerEnds::AnswerEnds(const SamplingParams& params, std::span<const int32_t> end_tokens,
                       const text::Tokenizer* tokenizer)
    : params_(params), end_tokens_(end_tokens), tokenizer_(tokenizer), stops_(params.stop) {}

std::unique_ptr<StopTextReader> AnswerEnds::MakeReader() const {
  return params_.stop.empty() ? nullptr : std::make_unique<StopTextReader>(*tokenizer_, stops_);
}

absl::Status AnswerEnds::Update(Completion& completion, bool full, bool may_end, StopTextReader* reader) const {
  const int32_t token = completion.tokens.back();
  if (may_end && !params_.ignore_eos && Has(end_tokens_, token)) {
    completion.finish_reason = FinishReason::kEndToken;
  } else if (may_end && Has(params_.stop_tokens, token)) {
    completion.finish_reason = FinishReason::kStop;
  }
  if (reader != nullptr) {
    const bool heeded = may_end && static_cast<int64_t>(completion.tokens.size()) >= params_.min_new_tokens;
    TDOCK_ASSIGN_OR_RETURN(completion.text_bytes, reader->Push(token, heeded));
    const bool ends = full || completion.finish_reason != FinishReason::kLength;
    if (!completion.text_bytes && ends && heeded) completion.text_bytes = reader->Finish();
    if (completion.text_bytes) completion.finish_reason = FinishReason::kStop;
  }
  completion.finished = completion.finish_reason != FinishReason::kLength;
  return absl::OkStatus();
}

}  // namespace tdock::engine
