// Samples of the data as columns of the dock.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "data/encode.h"
#include "tdock/batch.h"

namespace tdock::trainer {

// Prompts to answer: prompt, prompt_text, truth, data_source, and `kept`: the names of the samples' further texts.
absl::StatusOr<Batch> FeedPrompts(std::span<const data::EncodedSample> samples, const std::vector<std::string>& kept);

// Answers to learn from: prompt, responses and response_mask. The prompt is what comes before the first token that the
// loss counts, at least the first token, which nothing predicts.
absl::StatusOr<Batch> FeedAnswers(std::span<const data::EncodedSample> samples);

// The tokens of FeedAnswers() for one sample: the length of its prompt.
size_t PromptLength(const data::EncodedSample& sample);

}  // namespace tdock::trainer
