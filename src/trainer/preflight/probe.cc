#include "trainer/preflight/probe.h"

#include <ATen/Parallel.h>

#include <algorithm>
#include <cmath>
#include <iterator>
#include <map>
#include <memory>
#include <optional>
#include <span>

#include "absl/algorithm/container.h"
#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "core/base/rng.h"
#include "core/base/status.h"
#include "trainer/loop/feed.h"
#include "trainer/loop/run_environment.h"
#include "trainer/stages/answer_engine.h"
#include "trainer/stages/episode_player.h"
#include "trainer/stages/model_scores.h"
#include "trainer/stages/stages.h"

namespace tdock::trainer {
namespace {

// Prompts that are answered between two signs of progress.
constexpr size_t kAtOnce = 8;

class Prober {
 public:
  Prober(const StepShape& shape, const RunConfig& config, const RunInputs& inputs, const std::atomic<bool>* stop)
      : rollout_(*shape.rollout),
        kept_(config.data.columns.keep),
        inputs_(inputs),
        stop_(stop),
        sampling_(rollout_.sampling(SeedFor(config, SeedPurpose::kRollout))),
        workers_(static_cast<int>(config.threads), [] { at::init_num_threads(); }),
        options_{.end_tokens = inputs.end_tokens,
                 .max_rows = rollout_.max_num_seqs,
                 .workers = &workers_,
                 .tokenizer = inputs.tokenizer.get()},
        engine_(*inputs.decoder, options_) {
    figures_.scored = !absl::c_linear_search(config.trainer.dock.external_stages, "reward");
    const auto found = inputs.models.find("reward_model");
    if (found == inputs.models.end()) return;
    const RoleModel& model = found->second;
    model_scores_.emplace(model.policy.decoder,
                          ForwardOptions{.workers = workers_,
                                         .micro_batch_size = model.role.pass.micro_batch_size,
                                         .max_tokens = model.role.pass.max_tokens,
                                         .max_row_tokens = MaxRowTokens(inputs.decoder->config()),
                                         .max_shared_row_tokens = MaxSharedRowTokens(*inputs.decoder)},
                          model.role.score, model.Texts());
  }

  // Where the recipe has an environment: before the first call of Add().
  absl::Status PlayEpisodes(const Recipe& recipe, const RunConfig& config) {
    const text::ChatTemplate* const chat_template = inputs_.chat_template ? &*inputs_.chat_template : nullptr;
    TDOCK_ASSIGN_OR_RETURN(
        environment_,
        MakeRunEnvironment(config, rollout_, {*inputs_.tokenizer, chat_template, inputs_.end_tokens}, inputs_.log));
    const LengthLimits limits{.max_model_len = recipe.longest_tokens(),
                              .leaves_last_position = rollout_.leave_last_position};
    of_episodes_ = MakeLocalEngine(*inputs_.decoder, options_);
    player_.emplace(*inputs_.decoder, *of_episodes_, *environment_,
                    EpisodesOf(config, rollout_, limits, *inputs_.tokenizer, chat_template, sampling_));
    return absl::OkStatus();
  }

  absl::Status Add(std::span<const data::EncodedSample> samples, Clock& clock) {
    if (player_.has_value()) return AddEpisodes(samples, clock);
    const absl::Time begun = clock.Now();
    TDOCK_ASSIGN_OR_RETURN(const std::vector<engine::Completion> completions, CompletionsOf(samples));
    figures_.seconds += absl::ToDoubleSeconds(clock.Now() - begun);
    const auto n = static_cast<size_t>(rollout_.n);
    std::vector<reward::Answer> answers(completions.size());
    for (size_t i = 0; i < completions.size(); ++i) {
      const data::EncodedSample& sample = samples[i / n];
      answers[i] = QuestionOf(sample, kept_);
      TDOCK_ASSIGN_OR_RETURN(answers[i].response,
                             ResponseText(*inputs_.tokenizer, completions[i].tokens, completions[i].finished));
      answers[i].finished = completions[i].finished;
      figures_.clipped += completions[i].finished ? 0 : 1;
      figures_.empty += absl::StripAsciiWhitespace(answers[i].response).empty() ? 1 : 0;
      figures_.tokens += static_cast<int64_t>(completions[i].tokens.size());
    }
    if (figures_.scored) {
      TDOCK_ASSIGN_OR_RETURN(const reward::Scores scores, ScoresOf(samples, completions, answers));
      NoteScores(answers, scores);
    } else if (figures_.answers == 0) {
      Show(answers[0]);
    }
    figures_.answers += static_cast<int64_t>(answers.size());
    figures_.prompts += static_cast<int64_t>(samples.size());
    return absl::OkStatus();
  }

  ProbeFigures Finish() {
    figures_.mean_reward /= static_cast<double>(std::max<int64_t>(figures_.answers - figures_.unscored, 1));
    for (const auto& [rule, sum] : by_rule_) figures_.mean_by_rule.emplace_back(rule, sum.first / sum.second);
    return figures_;
  }

 private:
  absl::Status CheckStop() const {
    if (stop_ == nullptr || !*stop_) return absl::OkStatus();
    return absl::CancelledError("interrupted while prompts are tried");
  }

  // The answers to each sample, one after another.
  absl::StatusOr<std::vector<engine::Completion>> CompletionsOf(std::span<const data::EncodedSample> samples) {
    const auto n = static_cast<size_t>(rollout_.n);
    std::vector<engine::Request> requests;
    for (const data::EncodedSample& sample : samples) {
      const uint64_t identity = static_cast<uint64_t>(figures_.prompts) + requests.size();
      engine::Request& request = requests.emplace_back();
      request.prompt = {.tokens = sample.ids, .samples = rollout_.n, .identity = identity};
      request.sampling = sampling_;
    }
    std::vector<engine::Completion> completions(requests.size() * n);
    const auto take = [&](std::span<engine::Answer> ended) -> absl::Status {
      for (engine::Answer& answer : ended) {
        if (!answer.status.ok()) return Annotate(answer.status, absl::StrCat("prompt ", answer.request));
        completions[answer.request * n + static_cast<size_t>(answer.sample)] = std::move(answer.completion);
      }
      return CheckStop();
    };
    TDOCK_RETURN_IF_ERROR(engine_.AnswerAll(std::move(requests), take));
    return completions;
  }

  absl::StatusOr<reward::Scores> ScoresOf(std::span<const data::EncodedSample> samples,
                                          const std::vector<engine::Completion>& completions,
                                          const std::vector<reward::Answer>& answers) const {
    if (!model_scores_.has_value()) {
      return reward::CheckedScore(*inputs_.reward, answers, [this] { return CheckStop(); });
    }
    std::vector<AnswerToScore> asked;
    for (size_t i = 0; i < answers.size(); ++i) {
      asked.push_back({.prompt = samples[i / static_cast<size_t>(rollout_.n)].ids,
                       .response = completions[i].tokens,
                       .prompt_text = answers[i].prompt,
                       .messages = answers[i].messages,
                       .response_text = answers[i].response,
                       .finished = answers[i].finished});
    }
    reward::Scores scores;
    TDOCK_ASSIGN_OR_RETURN(scores.totals, model_scores_->Score(asked));
    return scores;
  }

  // Rewards by name are what rules are elsewhere.
  absl::Status AddEpisodes(std::span<const data::EncodedSample> samples, Clock& clock) {
    std::vector<EpisodeStart> starts;
    std::vector<reward::Answer> answers;
    for (const data::EncodedSample& sample : samples) {
      TDOCK_ASSIGN_OR_RETURN(const environment::EpisodeRow row, EpisodeRowOf(sample, kept_));
      const auto prompt = static_cast<uint64_t>(figures_.prompts) + starts.size();
      for (int64_t n = 0; n < rollout_.n; ++n) {
        starts.push_back({.row = row, .seed = prompt, .identity = DeriveSeed(prompt, static_cast<uint64_t>(n))});
        answers.push_back(QuestionOf(sample, kept_));
      }
    }
    reward::Scores scores;
    scores.totals.assign(starts.size(), 0);
    const absl::Time begun = clock.Now();
    const auto on_end = [&](size_t i, PlayedEpisode episode) -> absl::Status {
      if (!episode.status.ok()) return episode.status;
      scores.totals[i] = static_cast<float>(episode.reward);
      for (const auto& [name, value] : episode.rewards) {
        by_rule_[name].first += value;
        by_rule_[name].second += 1;
      }
      TDOCK_ASSIGN_OR_RETURN(answers[i].response,
                             inputs_.tokenizer->Decode(episode.response, text::SpecialTokens::kKeep));
      figures_.clipped += episode.truncated ? 1 : 0;
      figures_.empty += episode.is_empty() ? 1 : 0;
      figures_.tokens += episode.generated;
      return absl::OkStatus();
    };
    TDOCK_RETURN_IF_ERROR(player_->Play(
        starts, [this] { return CheckStop(); }, on_end));
    figures_.seconds += absl::ToDoubleSeconds(clock.Now() - begun);
    NoteScores(answers, scores);
    figures_.answers += std::ssize(answers);
    figures_.prompts += std::ssize(samples);
    return absl::OkStatus();
  }

  void Show(const reward::Answer& answer) {
    figures_.prompt = answer.prompt;
    figures_.answer = answer.response;
    figures_.truth = answer.truth;
  }

  void NoteScores(const std::vector<reward::Answer>& answers, const reward::Scores& scores) {
    const auto n = static_cast<size_t>(rollout_.n);
    for (size_t begin = 0; begin < answers.size(); begin += n) {
      const std::span<const float> group(scores.totals.data() + begin, n);
      if (std::any_of(group.begin(), group.end(), [](float score) { return std::isnan(score); })) continue;
      const bool equal = std::all_of(group.begin(), group.end(), [&](float score) { return score == group[0]; });
      if (equal && n > 1) ++figures_.equal_groups;
    }
    for (size_t i = 0; i < answers.size(); ++i) {
      if (std::isnan(scores.totals[i])) {
        ++figures_.unscored;
        continue;
      }
      figures_.mean_reward += scores.totals[i];
      if (any_scored_ && scores.totals[i] <= figures_.reward) continue;
      any_scored_ = true;
      figures_.reward = scores.totals[i];
      Show(answers[i]);
    }
    for (const reward::Scores::Part& part : scores.parts) {
      for (const float score : part.scores) {
        if (std::isnan(score)) continue;  // the rule is not for this answer
        by_rule_[part.rule].first += score;
        by_rule_[part.rule].second += 1;
      }
    }
  }

  const RolloutSection rollout_;
  const std::vector<std::string> kept_;
  const RunInputs& inputs_;
  const std::atomic<bool>* const stop_;  // null: nobody stops it
  const engine::SamplingParams sampling_;
  Workers workers_;
  const engine::EngineOptions options_;
  engine::Engine engine_;
  std::optional<ModelScores> model_scores_;  // nothing: there is no reward model
  std::unique_ptr<AnswerEngine> of_episodes_;
  std::unique_ptr<environment::Environment> environment_;
  std::optional<EpisodePlayer> player_;
  ProbeFigures figures_;
  bool any_scored_ = false;
  std::map<std::string, std::pair<double, double>> by_rule_;  // sum and number
};

}  // namespace

absl::Status CheckProbe(const Recipe& recipe, const std::string& name) {
  if (recipe.shape().rollout != nullptr) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("--probe tries the rollout, and the recipe ", name,
                                                 " has none: it learns from the answers of its data"));
}

absl::StatusOr<ProbeFigures> Probe(const Recipe& recipe, const RunConfig& config, const RunInputs& inputs,
                                   const std::vector<data::EncodedSample>& samples, int64_t prompts, Clock& clock,
                                   const ReadingLimits& limits) {
  const auto count = std::min(static_cast<size_t>(prompts), samples.size());
  Progress* const progress = limits.progress;
  Prober prober(recipe.shape(), config, inputs, limits.stop);
  if (config.environment.used()) TDOCK_RETURN_IF_ERROR(prober.PlayEpisodes(recipe, config));
  if (progress != nullptr) progress->Begin("answering prompts", static_cast<int64_t>(count), 0, "prompt");
  for (size_t begin = 0; begin < count; begin += kAtOnce) {
    const size_t end = std::min(begin + kAtOnce, count);
    TDOCK_RETURN_IF_ERROR(prober.Add(std::span(samples).subspan(begin, end - begin), clock));
    if (progress != nullptr) progress->Update(static_cast<int64_t>(end), {});
  }
  if (progress != nullptr) progress->End();
  return prober.Finish();
}

}  // namespace tdock::trainer
