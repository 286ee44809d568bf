#include "trainer/stages/model_scores.h"

#include <ATen/ATen.h>

#include <cmath>
#include <utility>

#include "absl/strings/str_cat.h"
#include "core/base/status.h"
#include "data/encode.h"
#include "text/conversation.h"
#include "trainer/stages/columns.h"
#include "trainer/stages/messages.h"
#include "trainer/stages/model_time.h"

namespace tdock::trainer {
namespace {

class ModelRewardStage final : public Stage {
 public:
  explicit ModelRewardStage(const ModelScores& scores) : scores_(scores) {
    if (!scores.reads_texts()) return;
    consumer_.reads.insert(consumer_.reads.end(), {kPromptText, kMessages, kResponseText, kFinished});
  }

  const ConsumerOptions& consumer() const override { return consumer_; }
  Together together() const override { return TogetherIn(scores_.decoder()); }

  absl::StatusOr<StageOutput> Run(const Rows& rows, StageContext& context) override {
    std::vector<AnswerToScore> answers(rows.size());
    for (size_t i = 0; i < rows.size(); ++i) {
      AnswerToScore& answer = answers[i];
      TDOCK_ASSIGN_OR_RETURN(answer.prompt, rows.Get<int32_t>(i, kPrompt));
      TDOCK_ASSIGN_OR_RETURN(answer.response, rows.Get<int32_t>(i, kResponses));
      if (!scores_.reads_texts()) continue;
      TDOCK_ASSIGN_OR_RETURN(answer.prompt_text, rows.Text(i, kPromptText));
      TDOCK_ASSIGN_OR_RETURN(answer.messages, rows.Text(i, kMessages));
      TDOCK_ASSIGN_OR_RETURN(answer.response_text, rows.Text(i, kResponseText));
      TDOCK_ASSIGN_OR_RETURN(const auto finished, rows.Get<uint8_t>(i, kFinished));
      answer.finished = finished[0] != 0;
    }
    absl::StatusOr<std::vector<float>> given;
    {
      const ModelTime timed(consumer_.name, context.metrics);
      given = scores_.Score(answers);
    }
    TDOCK_ASSIGN_OR_RETURN(const std::vector<float> scores, std::move(given));
    context.metrics.Distribution("critic/score", scores);
    StageOutput output;
    TDOCK_RETURN_IF_ERROR(output.columns.Add(kRewards, Column::FromValues(scores)));
    return output;
  }

 private:
  const ModelScores& scores_;
  ConsumerOptions consumer_{.name = "reward", .reads = {kPrompt, kResponses}, .writes = {kRewards}};
};

}  // namespace

// A prompt and its answer as the model was trained with them.
absl::StatusOr<std::pair<std::vector<int32_t>, std::vector<int32_t>>> ModelScores::Encode(
    const AnswerToScore& answer) const {
  const text::Tokenizer& tokenizer = *texts_->tokenizer;
  if (answer.messages.empty()) {
    TDOCK_ASSIGN_OR_RETURN(std::vector<int32_t> prompt, data::TokensBeforeText(tokenizer));
    TDOCK_ASSIGN_OR_RETURN(const std::vector<int32_t> said,
                           tokenizer.Encode(answer.prompt_text, {.spelled = text::SpelledSpecial::kAsText}));
    TDOCK_ASSIGN_OR_RETURN(std::vector<int32_t> response,
                           text::EncodeReply(tokenizer, answer.prompt_text, said, answer.response_text));
    prompt.insert(prompt.end(), said.begin(), said.end());
    if (answer.finished && tokenizer.eos_id()) response.push_back(*tokenizer.eos_id());
    if (prompt.empty() || response.empty()) return absl::InvalidArgumentError("its prompt or the answer has no token");
    return std::pair(std::move(prompt), std::move(response));
  }
  if (texts_->chat_template == nullptr) {
    return absl::InvalidArgumentError(
        "its prompt is a list of turns, and the reward model has a tokenizer of its own but no chat template; add "
        "chat_template.jinja to its folder");
  }
  TDOCK_ASSIGN_OR_RETURN(std::vector<text::Turn> turns, TurnsOfMessages(answer.messages));
  turns.push_back({.role = text::Role::kAssistant, .content = std::string(answer.response_text)});
  TDOCK_ASSIGN_OR_RETURN(const text::EncodedConversation encoded,
                         text::EncodeConversation(*texts_->chat_template, tokenizer, turns));
  // What follows the token that ends the reply does not count.
  size_t end = encoded.ids.size();
  while (end > 0 && encoded.loss_mask[end - 1] == 0) --end;
  if (!answer.finished && end > encoded.before_last_reply + 1) --end;
  if (end <= encoded.before_last_reply || encoded.before_last_reply == 0) {
    return absl::InvalidArgumentError("its reply has no token in the reward model's template");
  }
  const auto begin = encoded.ids.begin() + static_cast<std::ptrdiff_t>(encoded.before_last_reply);
  return std::pair(std::vector<int32_t>(encoded.ids.begin(), begin),
                   std::vector<int32_t>(begin, encoded.ids.begin() + static_cast<std::ptrdiff_t>(end)));
}

absl::StatusOr<std::vector<float>> ModelScores::Score(std::span<const AnswerToScore> answers) const {
  std::vector<std::pair<std::vector<int32_t>, std::vector<int32_t>>> own(texts_ ? answers.size() : 0);
  std::vector<Sequence> samples;
  std::vector<int64_t> lengths;
  for (size_t i = 0; i < answers.size(); ++i) {
    if (texts_) {
      auto encoded = Encode(answers[i]);
      if (!encoded.ok()) return Annotate(encoded.status(), absl::StrCat("answer ", i, " for the reward model"));
      own[i] = *std::move(encoded);
      samples.push_back({own[i].first, own[i].second});
    } else {
      samples.push_back({answers[i].prompt, answers[i].response});
    }
    lengths.push_back(static_cast<int64_t>(samples[i].response.size()));
    const int64_t tokens = static_cast<int64_t>(samples[i].prompt.size()) + lengths[i];
    if (tokens > decoder_.config().context_length()) {
      return absl::InvalidArgumentError(absl::StrCat("answer ", i, " and its prompt are ", tokens,
                                                     " tokens for the reward model, which has ",
                                                     decoder_.config().context_length(), " positions"));
    }
  }
  const at::Tensor values = Values(decoder_, samples, forward_, Scored::kValuesAt).to(at::kCPU, at::kDouble);
  const algo::Tokens tokens = algo::MakeTokens(at::ones({values.size(0)}, at::kByte), lengths);
  const at::Tensor scores = (score_ == AnswerScore::kLastToken ? values.index_select(0, algo::LastCounted(tokens))
                                                               : algo::MeanBySequence(values, tokens))
                                .to(at::kFloat)
                                .contiguous();
  const float* const first = scores.const_data_ptr<float>();
  for (size_t i = 0; i < answers.size(); ++i) {
    if (!std::isfinite(first[i])) {
      return absl::InternalError(absl::StrCat("the reward model's score of answer ", i, " is ", first[i]));
    }
  }
  return std::vector<float>(first, first + answers.size());
}

std::unique_ptr<Stage> MakeModelRewardStage(const ModelScores& scores) {
  return std::make_unique<ModelRewardStage>(scores);
}

}  // namespace tdock::trainer
