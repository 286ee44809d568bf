// Rollouts of several turns: each row is an episode with an environment.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/engine.h"
#include "trainer/environment/environment.h"
#include "trainer/environment/environment_config.h"
#include "trainer/stages/episode_player.h"
#include "trainer/stages/policy.h"
#include "trainer/stages/stage.h"
#include "trainer/stages/stages.h"

namespace tdock::trainer {

struct TurnsOptions {
  EpisodeOptions episodes = {};
  environment::OnError on_error = environment::OnError::kStop;
  uint64_t environment_seed = 0;       // what the seeds of the environment follow from
  std::vector<std::string> kept = {};  // columns of texts that the environment is given
  RolloutPuts puts = {};               // min_tokens must be 0
  int32_t end_token = 0;               // any one of the engine's
};

// Consumer "rollout", of groups. Reads initial_prompt, prompt_text, truth, data_source, prompt_messages and `kept`;
// writes what the rollout of one turn writes, and prompt, rewards and trace. The samples of a group have the same seed
// of their environment; the random numbers of a turn follow from the sampling's seed, its group, its number in the
// group, the turn, and how often the group was sent back. Groups are put as soon as all of their episodes are over.
//
// An episode that has failed without any reply, where its reward is then 0, has an end token as its response, which the
// mask does not count.
//
// Figures beside those of the rollout: reward/NAME of each reward; critic/score of their sums; of episodes:
// episode/turns, episode/truncated, episode/failed and episode/forks, means; episode/failed_tries and
// episode/bad_calls, sums; episode/observation_tokens, the mean; timing_s/environment, the seconds that nothing was
// computed because all episodes waited for the environment.
std::unique_ptr<Stage> MakeTurnsStage(const Policy& policy, std::unique_ptr<AnswerEngine> engine,
                                      std::unique_ptr<environment::Environment> environment,
                                      const TurnsOptions& options);

// Notes rewards by name, and how the episode went.
void NoteEpisode(const PlayedEpisode& episode, StepMetrics& metrics);

}  // namespace tdock::trainer
