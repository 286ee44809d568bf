// The environment of a run and how its episodes are played, as the configuration says.
#pragma once

#include <functional>
#include <memory>
#include <string>

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

// One of its own for each caller, which is used by one thread at a time. Errors of environment::MakeEnvironment().
absl::StatusOr<std::unique_ptr<environment::Environment>> MakeRunEnvironment(
    const RunConfig& config, const RolloutSection& rollout, const std::function<void(const std::string&)>& log);

// `chat_template` is null where the model has none.
EpisodeOptions EpisodesOf(const RunConfig& config, const RolloutSection& rollout, const LengthLimits& limits,
                          const text::Tokenizer& tokenizer, const text::ChatTemplate* chat_template,
                          const engine::SamplingParams& sampling);

}  // namespace tdock::trainer
