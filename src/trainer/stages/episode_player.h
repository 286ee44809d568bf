// Plays episodes: the model answers, the environment says what comes of it, and so on until the episode is over.
//
//   ┌► Environment::Wait ─► observation ─► transcript ─► engine: Add() ─┐
//   └────────── Environment::Step ◄─ message ◄─ reply ◄─ engine: Step() ┘
//
// Many episodes are played at the same time. The engine goes on with those whose environment has answered; where all
// wait for theirs, the player does.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "engine/engine.h"
#include "trainer/environment/environment.h"
#include "trainer/environment/environment_config.h"
#include "trainer/stages/answer_engine.h"
#include "trainer/stages/stages.h"
#include "trainer/stages/transcript.h"

namespace tdock::trainer {

// What is the same for all episodes.
struct EpisodeOptions {
  TurnRules rules = {};  // its tools are those that the environment has
  environment::OnBadCall on_bad_call = environment::OnBadCall::kTell;
  int64_t max_turns = 8;
  int64_t retries = 2;                   // more tries of an episode that has failed
  int64_t max_response_length = 0;       // tokens of an episode, with what the environment says
  LengthLimits limits = {};              // of its prompt and all that follows
  engine::SamplingParams sampling = {};  // of each turn; max_new_tokens is that of the episode
};

struct EpisodeStart {
  environment::EpisodeRow row = {};
  uint64_t seed = 0;      // of the environment
  uint64_t identity = 0;  // what the random numbers of its turns follow from, beside the sampling's seed
};

// An episode that is over.
struct PlayedEpisode {
  // Of the last try, where all failed: what went wrong. Then the rest is as far as that try came.
  absl::Status status = absl::OkStatus();
  std::vector<int32_t> prompt = {}, response = {};
  std::vector<uint8_t> mask = {};     // of each token of the response: 1 where the model said it
  std::vector<float> log_probs = {};  // the same: as it was sampled; 0 where it was not
  bool finished = false;              // the model ended its last turn, and the environment the episode
  bool truncated = false;             // over before its end: by the environment, or a limit
  environment::Rewards rewards = {};
  double reward = 0;  // their sum
  std::vector<TranscriptTurn> turns = {};
  int64_t replies = 0, forks = 0, bad_calls = 0, failed_tries = 0;
  int64_t generated = 0;        // tokens
  int64_t weights_version = 0;  // the smallest of its tokens

  // True if the replies have no token but their ends.
  bool is_empty() const { return generated <= replies; }
};

// Used by one thread at a time. What it is given must outlive it.
class EpisodePlayer {
 public:
  EpisodePlayer(const model::Decoder& decoder, AnswerEngine& engine, environment::Environment& environment,
                EpisodeOptions options);
  ~EpisodePlayer();

  // Called between steps; an error ends the call of Play().
  using BetweenSteps = std::function<absl::Status()>;
  // Called with the number of an episode and what it came to, in the order in which they end.
  using OnEnd = std::function<absl::Status(size_t number, PlayedEpisode episode)>;
  // The result of an episode depends on its start, the weights and what its environment answers, not on when: in
  // batch-invariant mode to the last bit. A try that failed is repeated from the beginning with the same random
  // numbers. Starts the environment when it is first called.
  //
  // The errors of Environment::Start(), and of Environment::Wait() as a whole; of `between_steps` and `on_end`; of rows
  // that cannot be played, with their numbers: InvalidArgument. May throw what AnswerEngine::Step() throws.
  absl::Status Play(std::span<const EpisodeStart> starts, const BetweenSteps& between_steps, const OnEnd& on_end);

  // How long the last call of Play() waited for the environment with nothing to compute.
  absl::Duration waited() const;

 private:
  class Impl;
  const std::unique_ptr<Impl> impl_;
};

}  // namespace tdock::trainer
