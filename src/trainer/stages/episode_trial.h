// An environment tried before a run begins.
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "trainer/environment/environment.h"
#include "trainer/stages/episode_player.h"

namespace tdock::trainer {

struct EpisodeTrial {
  std::string name = {};  // of the environment
  bool is_agent = false;
  bool has_tools = false;
  int64_t prompt_tokens = 0;  // with tools, and what the environment says first; of an agent, of its first request
  std::string said = {};      // what it says first
};

// Starts the environment and an episode, which is given up once something has come of it. Errors are those of the
// environment, and those of a prompt that cannot be rendered or leaves no room for an answer in `positions`;
// DeadlineExceeded after `patience`, which is what the environment itself may take.
absl::StatusOr<EpisodeTrial> TryEpisode(environment::Environment& environment, const EpisodeOptions& options,
                                        const EpisodeStart& start, int64_t positions, absl::Duration patience);

}  // namespace tdock::trainer
