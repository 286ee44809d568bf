#include "trainer/loop/feed.h"

#include <algorithm>
#include <cstdint>

#include "core/base/status.h"
#include "trainer/stages/columns.h"

namespace tdock::trainer {

absl::StatusOr<Batch> FeedPrompts(std::span<const data::EncodedSample> samples, const std::vector<std::string>& kept) {
  std::vector<std::vector<int32_t>> prompts;
  std::vector<std::string> texts, truths, sources;
  std::vector<std::vector<std::string>> more(kept.size());
  for (const data::EncodedSample& sample : samples) {
    prompts.push_back(sample.ids);
    texts.push_back(sample.prompt_text);
    truths.push_back(sample.truth);
    sources.push_back(sample.source);
    for (size_t k = 0; k < kept.size(); ++k) more[k].push_back(k < sample.kept.size() ? sample.kept[k] : "");
  }
  Batch batch;
  TDOCK_RETURN_IF_ERROR(batch.Add(kPrompt, Column::FromRows(prompts)));
  TDOCK_RETURN_IF_ERROR(batch.Add(kPromptText, Column::FromStrings(texts)));
  TDOCK_RETURN_IF_ERROR(batch.Add(kTruth, Column::FromStrings(truths)));
  TDOCK_RETURN_IF_ERROR(batch.Add(kSource, Column::FromStrings(sources)));
  for (size_t k = 0; k < kept.size(); ++k) TDOCK_RETURN_IF_ERROR(batch.Add(kept[k], Column::FromStrings(more[k])));
  return batch;
}

size_t PromptLength(const data::EncodedSample& sample) {
  const auto first = std::find_if(sample.loss_mask.begin(), sample.loss_mask.end(), [](uint8_t m) { return m != 0; });
  return std::max<size_t>(static_cast<size_t>(first - sample.loss_mask.begin()), 1);
}

absl::StatusOr<Batch> FeedAnswers(std::span<const data::EncodedSample> samples) {
  std::vector<std::vector<int32_t>> prompts, responses;
  std::vector<std::vector<uint8_t>> masks;
  for (const data::EncodedSample& sample : samples) {
    const auto length = static_cast<std::ptrdiff_t>(PromptLength(sample));
    prompts.emplace_back(sample.ids.begin(), sample.ids.begin() + length);
    responses.emplace_back(sample.ids.begin() + length, sample.ids.end());
    masks.emplace_back(sample.loss_mask.begin() + length, sample.loss_mask.end());
  }
  Batch batch;
  TDOCK_RETURN_IF_ERROR(batch.Add(kPrompt, Column::FromRows(prompts)));
  TDOCK_RETURN_IF_ERROR(batch.Add(kResponses, Column::FromRows(responses)));
  TDOCK_RETURN_IF_ERROR(batch.Add(kResponseMask, Column::FromRows(masks)));
  return batch;
}

}  // namespace tdock::trainer
