#include "trainer/loop/evaluation.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <malloc.h>

#include <algorithm>
#include <cmath>
#include <set>
#include <string>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "core/base/status.h"
#include "model/decoder/checkpoint.h"
#include "trainer/loop/feed.h"
#include "trainer/loop/fingerprint.h"
#include "trainer/stages/answer_engine.h"
#include "trainer/stages/guard.h"
#include "trainer/stages/stages.h"

namespace tdock::trainer {
namespace {

// The sources of the samples as parts of names of metrics; empty where there is only one, or more than anybody looks
// at.
std::vector<std::string> SourceNames(std::span<const data::EncodedSample> samples) {
  constexpr size_t kMost = 32;
  std::set<std::string> sources;
  std::vector<std::string> names;
  for (const data::EncodedSample& sample : samples) {
    sources.insert(sample.source);
    std::string& name = names.emplace_back(sample.source.empty() ? "unknown" : sample.source.substr(0, 100));
    for (char& c : name) {
      if (!absl::ascii_isalnum(static_cast<unsigned char>(c)) && !absl::StrContains("_-./", c)) c = '_';
    }
  }
  if (sources.size() < 2 || sources.size() > kMost) names.assign(samples.size(), "");
  return names;
}

// Gives back what was freed before an evaluation and what the evaluation frees. glibc has a heap for each thread and
// keeps what is freed there for the same thread. Steps and evaluations need tensors of other sizes, on other numbers of
// threads, and would take theirs beside what is kept.
class FreedMemory {
 public:
  FreedMemory() { Return(); }
  ~FreedMemory() { Return(); }
  FreedMemory(const FreedMemory&) = delete;
  FreedMemory& operator=(const FreedMemory&) = delete;

 private:
  static void Return() {
#ifdef __GLIBC__
    ::malloc_trim(0);
#endif
  }
};

class LossEvaluation final : public Evaluation {
 public:
  LossEvaluation(const Policy& policy, std::span<const data::EncodedSample> samples, const ForwardOptions& forward)
      : policy_(policy), samples_(samples), forward_(forward) {}

  absl::Status Run(StepMetrics& metrics, std::vector<Answer>&) override {
    const FreedMemory returned;
    std::vector<Sequence> sequences;
    for (const data::EncodedSample& sample : samples_) {
      const std::span<const int32_t> ids(sample.ids);
      sequences.push_back({ids.first(PromptLength(sample)), ids.subspan(PromptLength(sample))});
    }
    const at::Tensor log_probs = LogProbs(policy_.decoder, sequences, forward_).to(at::kCPU).to(at::kDouble);
    const double* next = log_probs.const_data_ptr<double>();
    const std::vector<std::string> sources = SourceNames(samples_);
    double total = 0, tokens = 0;
    for (size_t s = 0; s < samples_.size(); ++s) {
      const data::EncodedSample& sample = samples_[s];
      double of_sample = 0, counted = 0;
      for (size_t i = PromptLength(sample); i < sample.ids.size(); ++i, ++next) {
        if (sample.loss_mask[i] == 0) continue;
        of_sample -= *next;
        ++counted;
      }
      if (counted == 0) continue;
      if (!sources[s].empty()) metrics.Mean(absl::StrCat("val/loss/", sources[s]), of_sample / counted, counted);
      total += of_sample;
      tokens += counted;
    }
    if (tokens == 0) return absl::InvalidArgumentError("the loss counts no token of the validation data");
    metrics.Mean("val/loss", total / tokens);
    metrics.Mean("val/perplexity", std::exp(total / tokens));
    return absl::OkStatus();
  }

 private:
  const Policy& policy_;
  const std::span<const data::EncodedSample> samples_;
  const ForwardOptions forward_;
};

class PairEvaluation final : public Evaluation {
 public:
  PairEvaluation(std::span<const data::EncodedSample> samples, const PairColumns& columns,
                 std::shared_ptr<const Objective> objective, ScorePairs score)
      : samples_(samples), columns_(columns), objective_(std::move(objective)), score_(std::move(score)) {}

  absl::Status Run(StepMetrics& metrics, std::vector<Answer>&) override {
    const FreedMemory returned;
    TDOCK_ASSIGN_OR_RETURN(const PairRows rows, RowsOfPairs(samples_, columns_));
    std::vector<Sequence> answers;
    for (size_t row = 0; row < rows.prompts.size(); ++row) {
      answers.push_back({rows.prompts[row], rows.responses[row]});
    }
    const at::NoGradGuard no_grad;
    TokenBatch batch = BatchOf(rows);
    const at::Tensor scores = score_(answers, batch).contiguous();
    StepMetrics of_training;
    metrics.Mean("val/pair_loss", objective_->Loss(batch, of_training).item<double>());
    const double* const score = scores.const_data_ptr<double>();
    const std::vector<std::string> sources = SourceNames(samples_);
    std::vector<float> margins;
    for (size_t s = 0; s < samples_.size(); ++s) {
      const double chosen = score[2 * s], rejected = score[2 * s + 1], margin = chosen - rejected;
      const double right = margin > 0 ? 1 : margin == 0 ? 0.5 : 0;
      margins.push_back(static_cast<float>(margin));
      metrics.Mean("val/accuracy", right);
      metrics.Mean("val/chosen/mean", chosen);
      metrics.Mean("val/rejected/mean", rejected);
      if (sources[s].empty()) continue;
      metrics.Mean(absl::StrCat("val/accuracy/", sources[s]), right);
      metrics.Mean(absl::StrCat("val/margin/", sources[s]), margin);
    }
    metrics.Distribution("val/margin", margins);
    return absl::OkStatus();
  }

 private:
  // The objective's inputs, without the tensors that the policy computes.
  static TokenBatch BatchOf(const PairRows& rows) {
    std::vector<uint8_t> mask;
    std::vector<int64_t> lengths;
    for (const std::vector<uint8_t>& of_row : rows.masks) {
      mask.insert(mask.end(), of_row.begin(), of_row.end());
      lengths.push_back(static_cast<int64_t>(of_row.size()));
    }
    TokenBatch batch;
    batch.tokens = algo::MakeTokens(at::tensor(mask, at::kByte), lengths);
    batch.counts = algo::CountsOf(batch.tokens);
    for (const auto& [name, values] :
         {std::pair(kMargin, &rows.margins), std::pair(kComparedFrom, &rows.compared_from)}) {
      if (!values->empty()) batch.columns[name].values = algo::Spread(at::tensor(*values, at::kDouble), batch.tokens);
    }
    return batch;
  }

  const std::span<const data::EncodedSample> samples_;
  const PairColumns columns_;
  const std::shared_ptr<const Objective> objective_;
  const ScorePairs score_;
};

// The prompts of samples; of those with answers, what asks for their last reply.
struct PromptsToAnswer {
  explicit PromptsToAnswer(std::span<const data::EncodedSample> samples) {
    const std::vector<std::string> names = SourceNames(samples);
    for (size_t s = 0; s < samples.size(); ++s) {
      const data::EncodedSample& sample = samples[s];
      std::vector<int32_t> prompt = sample.ids;
      if (!sample.loss_mask.empty()) prompt.resize(static_cast<size_t>(sample.prompt_tokens));
      if (prompt.empty()) continue;
      prompts.push_back({.tokens = std::move(prompt)});
      asked.push_back(&sample);
      sources.push_back(names[s]);
    }
  }
  std::vector<engine::Prompt> prompts;
  std::vector<const data::EncodedSample*> asked;  // whose prompts they are
  std::vector<std::string> sources;               // empty where there is only one
};

class WinRateEvaluation final : public Evaluation {
 public:
  WinRateEvaluation(const Policy& policy, const Policy& reference, std::span<const data::EncodedSample> samples,
                    const text::Tokenizer& tokenizer, const ModelScores& scores, const AnswerEvaluationOptions& options)
      : engine_(policy.decoder, options.engine),
        reference_(reference.decoder, options.engine),
        tokenizer_(tokenizer),
        scores_(scores),
        max_new_tokens_(options.max_new_tokens),
        questions_(samples) {}

  absl::Status Run(StepMetrics& metrics, std::vector<Answer>&) override {
    const FreedMemory returned;
    if (questions_.prompts.empty()) {
      return absl::InvalidArgumentError("no sample of the validation data has a prompt that could be answered");
    }
    if (of_reference_.empty()) {
      TDOCK_ASSIGN_OR_RETURN(of_reference_, ScoresOf(reference_));
    }
    TDOCK_ASSIGN_OR_RETURN(const std::vector<float> scores, ScoresOf(engine_));
    for (size_t i = 0; i < scores.size(); ++i) {
      const double won = scores[i] > of_reference_[i] ? 1 : scores[i] == of_reference_[i] ? 0.5 : 0;
      metrics.Mean("val/win_rate", won);
      metrics.Mean("val/reference_score/mean", of_reference_[i]);
      if (questions_.sources[i].empty()) continue;
      metrics.Mean(absl::StrCat("val/win_rate/", questions_.sources[i]), won);
      metrics.Mean(absl::StrCat("val/score/", questions_.sources[i]), scores[i]);
    }
    metrics.Distribution("val/score", scores);
    return absl::OkStatus();
  }

 private:
  absl::StatusOr<std::vector<float>> ScoresOf(engine::Engine& engine) const {
    TDOCK_ASSIGN_OR_RETURN(const std::vector<engine::Completion> completions,
                           engine.Generate(questions_.prompts, {.temperature = 0, .max_new_tokens = max_new_tokens_}));
    std::vector<std::string> texts(completions.size());
    std::vector<AnswerToScore> answers;
    for (size_t i = 0; i < completions.size(); ++i) {
      TDOCK_ASSIGN_OR_RETURN(texts[i], ResponseText(tokenizer_, completions[i].tokens, completions[i].finished));
      const data::EncodedSample& asked = *questions_.asked[i];
      answers.push_back({questions_.prompts[i].tokens, completions[i].tokens, asked.prompt_text, asked.messages,
                         texts[i], completions[i].finished});
    }
    return scores_.Score(answers);
  }

  engine::Engine engine_, reference_;
  const text::Tokenizer& tokenizer_;
  const ModelScores& scores_;
  const int64_t max_new_tokens_;
  const PromptsToAnswer questions_;
  std::vector<float> of_reference_;  // which does not change
};

class AnswerEvaluation final : public Evaluation {
 public:
  AnswerEvaluation(const Policy& policy, std::span<const data::EncodedSample> samples, const text::Tokenizer& tokenizer,
                   reward::Reward& reward, const AnswerEvaluationOptions& options)
      : engine_(policy.decoder, options.engine),
        tokenizer_(tokenizer),
        reward_(reward),
        options_(options),
        questions_(samples) {}

  absl::Status Run(StepMetrics& metrics, std::vector<Answer>& answers) override {
    const FreedMemory returned;
    if (questions_.prompts.empty()) {
      return absl::InvalidArgumentError("no sample of the validation data has a prompt that could be answered");
    }
    TDOCK_ASSIGN_OR_RETURN(
        const std::vector<engine::Completion> completions,
        engine_.Generate(questions_.prompts, {.temperature = 0, .max_new_tokens = options_.max_new_tokens}));
    std::vector<reward::Answer> given(completions.size());
    for (size_t i = 0; i < completions.size(); ++i) {
      given[i] = QuestionOf(*questions_.asked[i], options_.kept);
      TDOCK_ASSIGN_OR_RETURN(given[i].response,
                             ResponseText(tokenizer_, completions[i].tokens, completions[i].finished));
      given[i].finished = completions[i].finished;
      metrics.Mean("val/response_length/mean", static_cast<double>(completions[i].tokens.size()));
    }
    TDOCK_ASSIGN_OR_RETURN(const reward::Scores scores, reward::CheckedScore(reward_, given, options_.check_stop));
    int64_t left_out = 0;
    for (size_t i = 0; i < given.size(); ++i) {
      if (std::isnan(scores.totals[i])) {
        ++left_out;
      } else {
        Note(i, scores, given[i], metrics, answers);
      }
    }
    if (std::cmp_equal(left_out, given.size())) {
      return absl::FailedPreconditionError("no sample of the validation data has a score (reward.on_error=drop)");
    }
    if (left_out > 0) metrics.Mean("val/left_out", static_cast<double>(left_out));
    return absl::OkStatus();
  }

 private:
  void Note(size_t i, const reward::Scores& scores, const reward::Answer& given, StepMetrics& metrics,
            std::vector<Answer>& answers) const {
    const float score = scores.totals[i];
    const bool correct = score >= 1;
    metrics.Mean("val/reward/mean", score);
    metrics.Mean("val/accuracy", correct ? 1 : 0);
    if (!questions_.sources[i].empty()) {
      metrics.Mean(absl::StrCat("val/reward/", questions_.sources[i]), score);
      metrics.Mean(absl::StrCat("val/accuracy/", questions_.sources[i]), correct ? 1 : 0);
    }
    if (static_cast<int64_t>(i) >= options_.recorded) return;
    answers.push_back({.prompt = given.prompt,
                       .response = given.response,
                       .truth = given.truth,
                       .reward = score,
                       .correct = correct,
                       .message = scores.messages.empty() ? "" : scores.messages[i]});
  }

  engine::Engine engine_;
  const text::Tokenizer& tokenizer_;
  reward::Reward& reward_;
  const AnswerEvaluationOptions options_;
  const PromptsToAnswer questions_;
};

class EpisodeEvaluation final : public Evaluation {
 public:
  EpisodeEvaluation(const Policy& policy, std::span<const data::EncodedSample> samples,
                    std::unique_ptr<environment::Environment> environment, const EpisodeOptions& episodes,
                    environment::OnError on_error, const AnswerEvaluationOptions& options)
      : environment_(std::move(environment)),
        decoder_(policy.decoder),
        engine_(MakeLocalEngine(policy.decoder, options.engine)),
        tokenizer_(*episodes.rules.tokenizer),
        player_(policy.decoder, *engine_, *environment_, episodes),
        on_error_(on_error),
        options_(options),
        questions_(samples) {}

  absl::Status Run(StepMetrics& metrics, std::vector<Answer>& answers) override {
    const FreedMemory returned;
    if (questions_.prompts.empty()) {
      return absl::InvalidArgumentError("no sample of the validation data has a prompt that could be answered");
    }
    std::vector<EpisodeStart> starts;
    for (size_t i = 0; i < questions_.prompts.size(); ++i) {
      EpisodeStart& start = starts.emplace_back(EpisodeStart{.seed = i, .identity = i});
      TDOCK_ASSIGN_OR_RETURN(start.row, EpisodeRowOf(*questions_.asked[i], options_.kept));
    }
    // The weights may be others than those of the last call.
    TDOCK_RETURN_IF_ERROR(engine_->Serve(Unowned(decoder_), 0, /*in_flight=*/false, options_.check_stop));
    std::vector<PlayedEpisode> episodes(starts.size());
    TDOCK_RETURN_IF_ERROR(player_.Play(starts, options_.check_stop, [&](size_t i, PlayedEpisode episode) {
      episodes[i] = std::move(episode);
      return on_error_ == environment::OnError::kStop ? episodes[i].status : absl::OkStatus();
    }));
    int64_t left_out = 0;
    for (size_t i = 0; i < episodes.size(); ++i) {
      if (!episodes[i].status.ok()) episodes[i].reward = 0;
      if (!episodes[i].status.ok() && on_error_ == environment::OnError::kDrop) {
        ++left_out;
      } else {
        TDOCK_RETURN_IF_ERROR(Note(i, episodes[i], metrics, answers));
      }
    }
    if (std::cmp_equal(left_out, episodes.size())) {
      return absl::FailedPreconditionError(absl::StrCat(
          "every episode of the validation failed (environment.on_error=drop): ", episodes[0].status.message()));
    }
    if (left_out > 0) metrics.Mean("val/left_out", static_cast<double>(left_out));
    return absl::OkStatus();
  }

 private:
  absl::Status Note(size_t i, const PlayedEpisode& episode, StepMetrics& metrics, std::vector<Answer>& answers) const {
    const bool correct = episode.reward >= 1;
    metrics.Mean("val/reward/mean", episode.reward);
    metrics.Mean("val/accuracy", correct ? 1 : 0);
    metrics.Mean("val/response_length/mean", static_cast<double>(episode.response.size()));
    metrics.Mean("val/turns/mean", static_cast<double>(episode.replies));
    if (!questions_.sources[i].empty()) {
      metrics.Mean(absl::StrCat("val/reward/", questions_.sources[i]), episode.reward);
      metrics.Mean(absl::StrCat("val/accuracy/", questions_.sources[i]), correct ? 1 : 0);
    }
    if (std::cmp_greater_equal(i, options_.recorded)) return absl::OkStatus();
    TDOCK_ASSIGN_OR_RETURN(const std::string said, tokenizer_.Decode(episode.response, text::SpecialTokens::kKeep));
    answers.push_back({.prompt = questions_.asked[i]->prompt_text,
                       .response = said,
                       .truth = questions_.asked[i]->truth,
                       .reward = episode.reward,
                       .correct = correct,
                       .message = std::string(episode.status.message())});
    return absl::OkStatus();
  }

  const std::unique_ptr<environment::Environment> environment_;
  const model::Decoder& decoder_;
  const std::unique_ptr<AnswerEngine> engine_;
  const text::Tokenizer& tokenizer_;
  EpisodePlayer player_;
  const environment::OnError on_error_;
  const AnswerEvaluationOptions options_;
  const PromptsToAnswer questions_;
};

}  // namespace

std::unique_ptr<Evaluation> MakeLossEvaluation(const Policy& policy, std::span<const data::EncodedSample> samples,
                                               const ForwardOptions& forward) {
  return std::make_unique<LossEvaluation>(policy, samples, forward);
}

std::unique_ptr<Evaluation> MakePairEvaluation(std::span<const data::EncodedSample> samples, const PairColumns& columns,
                                               std::shared_ptr<const Objective> objective, ScorePairs score) {
  return std::make_unique<PairEvaluation>(samples, columns, std::move(objective), std::move(score));
}

std::unique_ptr<Evaluation> MakeAnswerEvaluation(const Policy& policy, std::span<const data::EncodedSample> samples,
                                                 const text::Tokenizer& tokenizer, reward::Reward& reward,
                                                 const AnswerEvaluationOptions& options) {
  return std::make_unique<AnswerEvaluation>(policy, samples, tokenizer, reward, options);
}

std::unique_ptr<Evaluation> MakeEpisodeEvaluation(const Policy& policy, std::span<const data::EncodedSample> samples,
                                                  std::unique_ptr<environment::Environment> environment,
                                                  const EpisodeOptions& episodes, environment::OnError on_error,
                                                  const AnswerEvaluationOptions& options) {
  return std::make_unique<EpisodeEvaluation>(policy, samples, std::move(environment), episodes, on_error, options);
}

std::unique_ptr<Evaluation> MakeWinRateEvaluation(const Policy& policy, const Policy& reference,
                                                  std::span<const data::EncodedSample> samples,
                                                  const text::Tokenizer& tokenizer, const ModelScores& scores,
                                                  const AnswerEvaluationOptions& options) {
  return std::make_unique<WinRateEvaluation>(policy, reference, samples, tokenizer, scores, options);
}

absl::StatusOr<Metrics> EvaluateFolder(Env& env, const std::string& folder, const ModelOptions& options,
                                       std::span<const std::unique_ptr<Evaluation>> evaluations, const Metrics& known,
                                       Policy& policy) {
  const bool of_values = policy.decoder.config().head == model::Head::kValue;
  TDOCK_ASSIGN_OR_RETURN(model::Decoder loaded,
                         model::LoadCheckpoint(env, folder, policy.decoder.device(),
                                               {.dtype = options.weight_dtype(), .value_head = of_values}));
  if (!policy.decoder.lora() && WeightsChecksum(loaded) == WeightsChecksum(policy.decoder)) return known;
  ModelOptions as_it_is = options;
  as_it_is.lora_rank = 0;  // adapters are merged into it
  TDOCK_RETURN_IF_ERROR(as_it_is.Apply(0, loaded));
  if (!of_values) loaded.LimitVocabulary(policy.decoder.used_tokens());
  loaded.FixRopeLength(policy.decoder.rope_length());
  std::swap(policy.decoder, loaded);
  StepMetrics metrics;
  std::vector<Answer> answers;
  absl::Status status;
  for (size_t i = 0; i < evaluations.size() && status.ok(); ++i) {
    status = Guarded([&] { return evaluations[i]->Run(metrics, answers); });
  }
  std::swap(policy.decoder, loaded);
  TDOCK_RETURN_IF_ERROR(status);
  return metrics.Values();
}

}  // namespace tdock::trainer
