// The environment of a run and how its episodes are played, as the configuration says.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "text/chat_template.h"
#include "text/tokenizer.h"
#include "trainer/environment/environment.h"
#include "trainer/loop/sections.h"
#include "trainer/stages/episode_player.h"
#include "trainer/stages/stages.h"

namespace tdock::trainer {

// The keys environment.*, with checks of what else the recipe's answers have. What is
// given must outlive `spec`.
void BindRunEnvironment(config::Spec& spec, RunConfig& config, const RolloutSection& rollout);

// The model that episodes are played with. What it points to must outlive the environment.
struct PlayedModel {
  const text::Tokenizer& tokenizer;
  const text::ChatTemplate* chat_template = nullptr;  // null: the model has none
  const std::vector<int32_t>& end_tokens;
};

// One of its own for each caller, which is used by one thread at a time. Errors of environment::MakeEnvironment().
absl::StatusOr<std::unique_ptr<environment::Environment>> MakeRunEnvironment(
    const RunConfig& config, const RolloutSection& rollout, const PlayedModel& model,
    const std::function<void(const std::string&)>& log);

// `chat_template` is null where the model has none.
EpisodeOptions EpisodesOf(const RunConfig& config, const RolloutSection& rollout, const LengthLimits& limits,
                          const text::Tokenizer& tokenizer, const text::ChatTemplate* chat_template,
                          const engine::SamplingParams& sampling);

}  // namespace tdock::trainer
