// Samples of the data as columns of the dock.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "data/encode.h"
#include "data/loader.h"
#include "data/source.h"
#include "tdock/batch.h"
#include "trainer/environment/environment.h"
#include "trainer/reward/reward.h"
#include "trainer/stages/columns.h"
#include "trainer/stages/step_metrics.h"
#include "trainer/stages/update_stage.h"

namespace tdock::trainer {

// Prompts to answer: prompt, prompt_text, truth, data_source, and `kept`: the names of the samples' further texts; with
// `messages`, also prompt_messages. `prompt` is the column of the prompt.
absl::StatusOr<Batch> FeedPrompts(std::span<const data::EncodedSample> samples, const std::vector<std::string>& kept,
                                  bool messages = false, const char* prompt = kPrompt);

// A question to a reward, whose columns have the names `kept`; without the response.
reward::Answer QuestionOf(const data::EncodedSample& sample, const std::vector<std::string>& kept);

// What an episode begins with, whose columns have the names `kept`. InvalidArgument if its messages cannot be read.
absl::StatusOr<environment::EpisodeRow> EpisodeRowOf(const data::EncodedSample& sample,
                                                     const std::vector<std::string>& kept);

// Answers to learn from: prompt, responses and response_mask. The prompt is what comes before the first token that the
// loss counts, at least the first token, which nothing predicts.
absl::StatusOr<Batch> FeedAnswers(std::span<const data::EncodedSample> samples);

struct PairColumns {
  bool margin = false;  // the samples' labels, of each row. InvalidArgument names a pair without one
  // Pads the shorter answer of a pair to the length of the other, with this token, which the mask does not count, and
  // lets answers begin where they first differ, or with the last token of one that the other begins with. kComparedFrom
  // says where they differ.
  std::optional<int32_t> pad_with = {};
};
struct PairRows {
  std::vector<std::vector<int32_t>> prompts, responses;
  std::vector<std::vector<uint8_t>> masks;
  std::vector<float> margins, compared_from;  // empty unless they are asked for
};
// Pairs of answers to learn from: two rows for each sample, the chosen answer first, with prompt, responses,
// response_mask and, if asked, margin. The prompt is what both begin with, up to the first token that the loss counts.
absl::StatusOr<PairRows> RowsOfPairs(std::span<const data::EncodedSample> samples, const PairColumns& columns = {});
absl::StatusOr<Batch> FeedPairs(std::span<const data::EncodedSample> samples, const PairColumns& columns = {});

// The length of the prompt of both answers of a pair; each has at least a token behind it.
size_t PairPromptLength(const data::EncodedSample& sample, bool up_to_difference = false);

// The batches of a data::Loader; its state is their position. `source` must outlive the result.
std::shared_ptr<AnswerSource> GivenAnswers(const data::Source<data::EncodedSample>& source,
                                           const data::LoaderOptions& options);

// Reports the lengths of samples in tokens: prompt_length/mean, /max and /min, of kPrompt also /clip_ratio, the share
// that has `max_prompt_length` tokens; of kSft, and of both answers of kReward, response_length/mean,
// /max and /min. Of other phases nothing.
void ReportLengths(data::Phase phase, std::span<const data::EncodedSample> samples, int64_t max_prompt_length,
                   StepMetrics& metrics);

// The tokens of FeedAnswers() for one sample: the length of its prompt.
size_t PromptLength(const data::EncodedSample& sample);

}  // namespace tdock::trainer
