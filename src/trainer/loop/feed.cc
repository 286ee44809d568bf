#include "trainer/loop/feed.h"

#include <algorithm>
#include <cstdint>
#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "core/base/status.h"
#include "core/base/utf8.h"
#include "trainer/stages/columns.h"
#include "trainer/stages/messages.h"

namespace tdock::trainer {

reward::Answer QuestionOf(const data::EncodedSample& sample, const std::vector<std::string>& kept) {
  reward::Answer answer{.prompt = sample.prompt_text,
                        .response = {},
                        .truth = sample.truth,
                        .source = sample.source,
                        .messages = sample.messages};
  for (size_t k = 0; k < kept.size(); ++k) {
    answer.columns.emplace_back(kept[k], k < sample.kept.size() ? sample.kept[k] : "");
  }
  return answer;
}

absl::StatusOr<Batch> FeedPrompts(std::span<const data::EncodedSample> samples, const std::vector<std::string>& kept,
                                  bool messages, const char* prompt) {
  std::vector<std::vector<int32_t>> prompts;
  std::vector<std::string> texts, truths, sources, turns;
  std::vector<std::vector<std::string>> more(kept.size());
  for (const data::EncodedSample& sample : samples) {
    prompts.push_back(sample.ids);
    texts.push_back(sample.prompt_text);
    truths.push_back(sample.truth);
    sources.push_back(sample.source);
    if (messages) turns.push_back(sample.messages);
    for (size_t k = 0; k < kept.size(); ++k) more[k].push_back(k < sample.kept.size() ? sample.kept[k] : "");
  }
  Batch batch;
  TDOCK_RETURN_IF_ERROR(batch.Add(prompt, Column::FromRows(prompts)));
  TDOCK_RETURN_IF_ERROR(batch.Add(kPromptText, Column::FromStrings(texts)));
  TDOCK_RETURN_IF_ERROR(batch.Add(kTruth, Column::FromStrings(truths)));
  TDOCK_RETURN_IF_ERROR(batch.Add(kSource, Column::FromStrings(sources)));
  if (messages) TDOCK_RETURN_IF_ERROR(batch.Add(kMessages, Column::FromStrings(turns)));
  for (size_t k = 0; k < kept.size(); ++k) TDOCK_RETURN_IF_ERROR(batch.Add(kept[k], Column::FromStrings(more[k])));
  return batch;
}

absl::StatusOr<environment::EpisodeRow> EpisodeRowOf(const data::EncodedSample& sample,
                                                     const std::vector<std::string>& kept) {
  environment::EpisodeRow row{
      .prompt = sample.prompt_text, .prompt_ids = sample.ids, .truth = sample.truth, .source = sample.source};
  if (!sample.loss_mask.empty()) row.prompt_ids.resize(static_cast<size_t>(sample.prompt_tokens));
  if (!sample.messages.empty()) {
    TDOCK_ASSIGN_OR_RETURN(row.messages, TurnsOfMessages(sample.messages));
  }
  for (size_t k = 0; k < kept.size(); ++k) row.columns[kept[k]] = k < sample.kept.size() ? sample.kept[k] : "";
  return row;
}

size_t PromptLength(const data::EncodedSample& sample) {
  const auto first = std::find_if(sample.loss_mask.begin(), sample.loss_mask.end(), [](uint8_t m) { return m != 0; });
  return std::max<size_t>(static_cast<size_t>(first - sample.loss_mask.begin()), 1);
}

namespace {

GivenAnswer AnswerOf(const data::EncodedSample& sample) {
  const auto length = static_cast<std::ptrdiff_t>(PromptLength(sample));
  return {.prompt = {sample.ids.begin(), sample.ids.begin() + length},
          .response = {sample.ids.begin() + length, sample.ids.end()},
          .mask = {sample.loss_mask.begin() + length, sample.loss_mask.end()}};
}

class LoadedAnswers final : public AnswerSource {
 public:
  LoadedAnswers(const data::Source<data::EncodedSample>& source, const data::LoaderOptions& options)
      : loader_(source, options) {}

  absl::StatusOr<std::vector<GivenAnswer>> Next() override {
    TDOCK_ASSIGN_OR_RETURN(const auto samples, loader_.Next());
    std::vector<GivenAnswer> answers;
    for (const data::EncodedSample& sample : *samples) answers.push_back(AnswerOf(sample));
    return answers;
  }

  void Save(State& state) const override { state.SetText("position", loader_.position().ToText()); }
  absl::Status Load(const State& state) override {
    TDOCK_ASSIGN_OR_RETURN(const std::string text, state.Text("position"));
    TDOCK_ASSIGN_OR_RETURN(const data::LoaderPosition position, data::LoaderPosition::FromText(text));
    // Other data, where the run is allowed to go on with them, begin at their beginning.
    return position.order == loader_.position().order ? loader_.Resume(position) : absl::OkStatus();
  }

 private:
  data::Loader<data::EncodedSample> loader_;
};

// The tokens that both answers of a pair begin with, those of the prompt among them.
size_t SharedLength(const data::EncodedSample& sample) {
  const auto differ =
      std::mismatch(sample.ids.begin(), sample.ids.end(), sample.rejected.begin(), sample.rejected.end());
  return static_cast<size_t>(differ.first - sample.ids.begin());
}

}  // namespace

absl::StatusOr<Batch> FeedAnswers(std::span<const data::EncodedSample> samples) {
  std::vector<std::vector<int32_t>> prompts, responses;
  std::vector<std::vector<uint8_t>> masks;
  for (const data::EncodedSample& sample : samples) {
    GivenAnswer answer = AnswerOf(sample);
    prompts.push_back(std::move(answer.prompt));
    responses.push_back(std::move(answer.response));
    masks.push_back(std::move(answer.mask));
  }
  Batch batch;
  TDOCK_RETURN_IF_ERROR(batch.Add(kPrompt, Column::FromRows(prompts)));
  TDOCK_RETURN_IF_ERROR(batch.Add(kResponses, Column::FromRows(responses)));
  TDOCK_RETURN_IF_ERROR(batch.Add(kResponseMask, Column::FromRows(masks)));
  return batch;
}

size_t PairPromptLength(const data::EncodedSample& sample, bool up_to_difference) {
  // An answer may be the beginning of the other one.
  const size_t most = std::min({SharedLength(sample), sample.ids.size() - 1, sample.rejected.size() - 1});
  return std::max<size_t>(up_to_difference ? most : std::min(most, PromptLength(sample)), 1);
}

absl::StatusOr<PairRows> RowsOfPairs(std::span<const data::EncodedSample> samples, const PairColumns& columns) {
  PairRows rows;
  for (const data::EncodedSample& sample : samples) {
    if (std::min(sample.ids.size(), sample.rejected.size()) < 2) {
      return absl::InvalidArgumentError("a pair has an answer without a token behind its prompt");
    }
    const size_t prompt = PairPromptLength(sample, columns.pad_with.has_value());
    const size_t longest = std::max(sample.ids.size(), sample.rejected.size()) - prompt;
    for (const auto& [ids, mask] :
         {std::pair(&sample.ids, &sample.loss_mask), std::pair(&sample.rejected, &sample.rejected_mask)}) {
      const auto begin = static_cast<std::ptrdiff_t>(prompt);
      rows.prompts.emplace_back(ids->begin(), ids->begin() + begin);
      rows.responses.emplace_back(ids->begin() + begin, ids->end());
      rows.masks.emplace_back(mask->begin() + begin, mask->end());
      if (!columns.pad_with) continue;
      rows.responses.back().resize(longest, *columns.pad_with);
      rows.masks.back().resize(longest, 0);
    }
    if (columns.pad_with) {
      rows.compared_from.insert(rows.compared_from.end(), 2, static_cast<float>(SharedLength(sample) - prompt));
    }
    if (!columns.margin) continue;
    if (!sample.label) {
      return absl::InvalidArgumentError(absl::StrCat(
          "a pair has no margin, which loss.use_margin asks for: name the column with it in data.columns.label; its ",
          "prompt is \"", EscapeForMessage(sample.prompt_text.substr(0, 80)), "\""));
    }
    rows.margins.insert(rows.margins.end(), 2, static_cast<float>(*sample.label));
  }
  return rows;
}

absl::StatusOr<Batch> FeedPairs(std::span<const data::EncodedSample> samples, const PairColumns& columns) {
  TDOCK_ASSIGN_OR_RETURN(const PairRows rows, RowsOfPairs(samples, columns));
  Batch batch;
  TDOCK_RETURN_IF_ERROR(batch.Add(kPrompt, Column::FromRows(rows.prompts)));
  TDOCK_RETURN_IF_ERROR(batch.Add(kResponses, Column::FromRows(rows.responses)));
  TDOCK_RETURN_IF_ERROR(batch.Add(kResponseMask, Column::FromRows(rows.masks)));
  if (columns.margin) TDOCK_RETURN_IF_ERROR(batch.Add(kMargin, Column::FromValues(rows.margins)));
  if (columns.pad_with) TDOCK_RETURN_IF_ERROR(batch.Add(kComparedFrom, Column::FromValues(rows.compared_from)));
  return batch;
}

std::shared_ptr<AnswerSource> GivenAnswers(const data::Source<data::EncodedSample>& source,
                                           const data::LoaderOptions& options) {
  return std::make_shared<LoadedAnswers>(source, options);
}

void ReportLengths(data::Phase phase, std::span<const data::EncodedSample> samples, int64_t max_prompt_length,
                   StepMetrics& metrics) {
  std::vector<float> prompts, responses;
  for (const data::EncodedSample& sample : samples) {
    size_t prompt = sample.ids.size();
    if (phase == data::Phase::kPrompt) {
      metrics.Mean("prompt_length/clip_ratio", std::cmp_equal(prompt, max_prompt_length) ? 1 : 0);
    } else if (phase == data::Phase::kReward) {
      prompt = PairPromptLength(sample);
      responses.push_back(static_cast<float>(sample.ids.size() - prompt));
      responses.push_back(static_cast<float>(sample.rejected.size() - prompt));
    } else if (phase == data::Phase::kSft) {
      prompt = PromptLength(sample);
      responses.push_back(static_cast<float>(sample.ids.size() - prompt));
    } else {
      return;
    }
    prompts.push_back(static_cast<float>(prompt));
  }
  metrics.Distribution("prompt_length", prompts);
  metrics.Distribution("response_length", responses);
}

}  // namespace tdock::trainer
