// A model that guesses which tokens a large one will choose. Internal to this module.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <vector>

#include "core/base/workers.h"
#include "engine/engine.h"
#include "engine/sequence.h"
#include "model/decoder/decoder.h"
#include "model/decoder/kv_cache.h"

namespace tdock::engine {

// A token is guessed by the random number with which the large model will choose it (Leviathan et al. 2023,
// arXiv:2211.17192, couple the two models by rejection instead), so wherever both models agree about the token, the
// guess is right, and what they disagree about changes no answer. Not thread-safe; passes are divided among `workers`.
class Draft {
 public:
  // `options` and `decoder` must outlive it. `cache_bytes` is what keys and values may take.
  Draft(const EngineOptions& options, const model::Decoder& decoder, int64_t cache_bytes, Workers& workers);
  ~Draft();

  struct Asked {
    const Sequence* sequence = nullptr;  // its cache lacks only tokens that pass in this step
    int64_t most = 0;
    std::vector<int32_t>* guesses = nullptr;  // of the tokens that follow it, empty
  };
  // Guesses up to `most` tokens for each, fewer if it is not sure of the last one, and none while there is more of a
  // prompt to read than a step may have.
  void Guess(std::span<const Asked> asked);

 private:
  struct Guesser {
    const Asked* asked = nullptr;
    Sequence* own = nullptr;
  };

  // The tokens of a sequence, with this model's own cache of those that it has read.
  Sequence& Follow(const Sequence& sequence);
  // A pass of those that guess, each of which gets one more token; those that go on.
  std::vector<Guesser> GuessOne(std::span<const Guesser> guessers);
  // Takes the places of others if there is no room.
  bool Reserve(const Sequence& own, int64_t length);
  // Forgets the earliest sequence that no caller asks for now; false if all are asked for.
  bool ForgetAnIdleOne();

  const EngineOptions& options_;
  Workers& workers_;
  const model::Decoder& decoder_;
  const std::unique_ptr<model::KvCache> cache_;
  std::map<uint64_t, std::unique_ptr<Sequence>> followed_;  // by Sequence::arrival
};

}  // namespace tdock::engine
