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
#include "absl/strings/str_cat.h"
#include "core/base/rng.h"
#include "core/base/status.h"
#include "trainer/loop/feed.h"
#include "trainer/loop/run_environment.h"
#include "trainer/stages/answer_engine.h"
#include "trainer/stages/episode_player.h"
#include "trainer/stages/stages.h"

namespace tdock::trainer {
namespace {

// Prompts that are answered between two signs of progress.
constexpr size_t kAtOnce = 8;

class Prober {
 public:
  Prober(const StepShape& shape, const RunConfig& config, const RunInputs& inputs)
      : rollout_(*shape.rollout),
        kept_(config.data.columns.keep),
        inputs_(inputs),
        sampling_(rollout_.sampling(SeedFor(config, SeedPurpose::kRollout))),
        workers_(static_cast<int>(config.threads), [] { at::init_num_threads(); }),
        options_{.end_tokens = inputs.end_tokens,
                 .max_rows = rollout_.max_num_seqs,
                 .workers = &workers_,
                 .tokenizer = inputs.tokenizer.get()},
        engine_(*inputs.decoder, options_) {
    figures_.scored = !absl::c_linear_search(config.trainer.dock.external_stages, "reward");
  }

  // Where the recipe has an environment: before the first call of Add().
  absl::Status PlayEpisodes(const Recipe& recipe, const RunConfig& config) {
    TDOCK_ASSIGN_OR_RETURN(environment_, MakeRunEnvironment(config, rollout_, inputs_.log));
    const LengthLimits limits{.max_model_len = recipe.longest_tokens(),
                              .leaves_last_position = rollout_.leave_last_position};
    of_episodes_ = MakeLocalEngine(*inputs_.decoder, options_);
    player_.emplace(*inputs_.decoder, *of_episodes_, *environment_,
                    EpisodesOf(config, rollout_, limits, *inputs_.tokenizer,
                               inputs_.chat_template ? &*inputs_.chat_template : nullptr, sampling_));
    return absl::OkStatus();
  }

  absl::Status Add(std::span<const data::EncodedSample> samples, Clock& clock) {
    if (player_.has_value()) return AddEpisodes(samples, clock);
    std::vector<engine::Prompt> prompts;
    for (const data::EncodedSample& sample : samples) {
      prompts.push_back({.tokens = sample.ids,
                         .samples = rollout_.n,
                         .identity = static_cast<uint64_t>(figures_.prompts) + prompts.size()});
    }
    const absl::Time begun = clock.Now();
    TDOCK_ASSIGN_OR_RETURN(const std::vector<engine::Completion> completions, engine_.Generate(prompts, sampling_));
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
      figures_.tokens += static_cast<int64_t>(completions[i].tokens.size());
    }
    if (figures_.scored) {
      TDOCK_ASSIGN_OR_RETURN(const reward::Scores scores, reward::CheckedScore(*inputs_.reward, answers));
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
      figures_.tokens += episode.generated;
      return absl::OkStatus();
    };
    const absl::Status played = player_->Play(
        starts, [] { return absl::OkStatus(); }, on_end);
    if (!played.ok()) return played;
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
      if (std::all_of(group.begin(), group.end(), [&](float score) { return score == group[0]; })) {
        ++figures_.equal_groups;
      }
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
  const engine::SamplingParams sampling_;
  Workers workers_;
  const engine::EngineOptions options_;
  engine::Engine engine_;
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
                                   Progress* progress) {
  const auto count = std::min(static_cast<size_t>(prompts), samples.size());
  Prober prober(recipe.shape(), config, inputs);
  if (config.environment.used()) TDOCK_RETURN_IF_ERROR(prober.PlayEpisodes(recipe, config));
  if (progress != nullptr) progress->Begin("answering prompts", static_cast<int64_t>(count));
  for (size_t begin = 0; begin < count; begin += kAtOnce) {
    const size_t end = std::min(begin + kAtOnce, count);
    TDOCK_RETURN_IF_ERROR(prober.Add(std::span(samples).subspan(begin, end - begin), clock));
    if (progress != nullptr) progress->Update(static_cast<int64_t>(end), {});
  }
  if (progress != nullptr) progress->End();
  return prober.Finish();
}

}  // namespace tdock::trainer
