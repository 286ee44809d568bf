// Which tokens pass through the model in the next step. Internal to this module.
#pragma once

#include <cstdint>
#include <vector>

#include "engine/draft.h"
#include "engine/sequence.h"
#include "model/decoder/kv_cache.h"

namespace tdock::engine {

// The next `count` tokens of a sequence, and guesses of those that follow. Room for all is reserved.
struct Piece {
  Sequence* sequence = nullptr;
  int64_t count = 0;
  std::vector<int32_t> guesses = {};  // empty unless these are the last tokens so far

  int64_t size() const { return count + static_cast<int64_t>(guesses.size()); }
};

struct SchedulerLimits {
  int64_t max_rows = 0;         // sequences that run
  int64_t max_step_tokens = 0;  // in a step
  bool one_batch_at_a_time = false;
  int64_t speculative_tokens = 0;  // in a step; see EngineOptions
};

// Sequences run in the order of their priorities and arrivals, as long as there is room; where the cache is full, the
// last one is sent back, and read again later. Not thread-safe.
class Scheduler {
 public:
  // `draft` guesses where nothing was said before that an answer repeats; null: nobody does.
  Scheduler(model::KvCache& cache, const SchedulerLimits& limits, Draft* draft = nullptr)
      : cache_(cache), limits_(limits), draft_(draft) {}

  // A sequence must live until it is removed. It waits for its turn.
  void Add(Sequence& sequence);
  // The same, but it runs at once, with a copy of what the cache has of another, if there is room for it.
  void Fork(const Sequence& from, Sequence& sequence);
  void Remove(Sequence& sequence);

  // In the order of the sequences. Empty only if there are none, where one was sent back that was alone, or where there
  // is one that the whole cache has no room for: too_long().
  std::vector<Piece> Next();
  Sequence* too_long() const { return too_long_; }

  // The step with a piece is over: its tokens are in the cache. Its guesses do not count.
  void Done(const Piece& piece);

  // The cache shares nothing that it has, for other weights. Everything that runs waits again, to be read again, unless
  // it is to go on from what is cached of it.
  void Forget(bool go_on);

  int64_t running() const { return static_cast<int64_t>(running_.size()); }
  int64_t waiting() const { return static_cast<int64_t>(waiting_.size()); }
  int64_t preemptions() const { return preemptions_; }
  int64_t shared_tokens() const { return shared_tokens_; }
  const SequenceQueue& all_running() const { return running_; }

 private:
  void SendBack(Sequence& sequence);
  void Guess(std::vector<Piece>& pieces);
  bool MakeRoom(Sequence& sequence, int64_t length);
  // The places for sequences that begin to run now.
  int64_t Places();
  bool Admit(Sequence& sequence, int64_t most);
  void Run(Sequence& sequence);

  model::KvCache& cache_;
  const SchedulerLimits limits_;
  Draft* const draft_;
  SequenceQueue waiting_, running_;
  Sequence* too_long_ = nullptr;
  int64_t places_of_batch_ = 0;  // of one_batch_at_a_time, that are not taken yet
  int64_t preemptions_ = 0;
  int64_t shared_tokens_ = 0;
};

}  // namespace tdock::engine
