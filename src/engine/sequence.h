// An answer on its way. Internal to this module.
#pragma once

#include <cstdint>
#include <limits>
#include <memory>
#include <set>
#include <vector>

#include "engine/answer_end.h"
#include "engine/completion.h"
#include "engine/sampling/token_constraint.h"
#include "engine/sampling/token_counts.h"

namespace tdock::engine {

struct OpenRequest;

struct Sequence {
  enum class State {
    kFollows,  // waits for sample 0 of its request, with which it shares the prompt
    kWaits,    // for its turn
    kRuns,     // has a place in the cache
  };

  OpenRequest* request = nullptr;
  int64_t sample = 0;
  int64_t priority = 0;
  uint64_t arrival = 0;  // of equal priorities the lower goes first
  State state = State::kWaits;
  // Whether the cache's pages mean the same for others with these tokens: not where positions depend on the request.
  bool shares = true;
  // Maximum number of tokens that it takes from the cache. The others must pass through the model, to be scored.
  int64_t max_shared = std::numeric_limits<int64_t>::max();

  std::vector<int32_t> tokens = {};  // the prompt and the answer so far
  int64_t cached = 0;                // how many of them the cache has
  int64_t cache = -1;                // its number there, if it runs

  int64_t longest = 0;       // maximum number of tokens
  bool may_guess = false;    // see EngineOptions::speculative_tokens
  int64_t guess_length = 4;  // maximum number of guesses in the next step: more if the last ones were right

  uint64_t stream = 0;     // of random numbers
  int64_t new_tokens = 0;  // since the request was added
  Completion completion = {};
  std::unique_ptr<StopTextReader> stop_texts = {};
  std::unique_ptr<TokenConstraint> constraint = {};
  TokenCounts counts = {};  // where the sampler needs them

  int64_t size() const { return static_cast<int64_t>(tokens.size()); }
  // Whether the next token can be chosen once `count` more tokens are in the cache.
  bool IsReadWith(int64_t count) const { return cached + count == size(); }
};

// By priority, then by arrival.
struct GoesFirst {
  bool operator()(const Sequence* a, const Sequence* b) const {
    return a->priority != b->priority ? a->priority > b->priority : a->arrival < b->arrival;
  }
};
using SequenceQueue = std::set<Sequence*, GoesFirst>;

}  // namespace tdock::engine
