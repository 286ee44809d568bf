// The work of an engine, for one thread. Internal to this module.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "core/base/clock.h"
#include "engine/engine.h"
#include "engine/model_pass.h"
#include "engine/open_request.h"
#include "engine/scheduler.h"
#include "model/decoder/decoder.h"
#include "model/decoder/kv_cache.h"

namespace tdock::engine {

// Tells a request of what it wants to know, by on_prompt or on_token.
using News = std::function<void()>;

// Not thread-safe; but a step divides its passes among the workers of the options.
class EngineCore {
 public:
  // The decoders of steps have this configuration and device, and this dtype of activations.
  EngineCore(const EngineOptions& options, const model::Decoder& decoder);

  void Add(std::unique_ptr<OpenRequest> request, std::vector<Answer>& ended);
  // Ends the answers of a request as they are. Does nothing if it has none any more.
  void Abort(RequestId id, std::vector<Answer>& ended);
  void Step(const model::Decoder& decoder, int64_t version, std::vector<Answer>& ended, std::vector<News>& news);

  bool HasRequests() const { return !requests_.empty(); }
  bool IsOpen(RequestId id) const { return requests_.contains(id); }

  // Says that there will be no more than `rows` answers, of `longest` tokens with their prompts, until Clear(): the
  // cache is then no larger than they need. To be called before the first step.
  void Expect(int64_t rows, int64_t longest);

  // For other weights.
  void Forget(InProgress in_progress);
  // Gives up all requests, and the memory of the cache; that of packed weights too, unless they stay as they are.
  void Clear(bool weights_stay);

  EngineStats stats() const;

 private:
  void MakeCache(const model::Decoder& decoder);
  void MakeDraft();
  // The decoder, or one with packed copies of its weights where passes use such.
  const model::Decoder& Packed(const model::Decoder& decoder);
  std::vector<PassResult> RunPasses(const model::Decoder& decoder, std::span<Piece> pieces);
  void EndLate(std::vector<Answer>& ended);
  void AddScores(PassResult& result, int64_t version, std::vector<Answer>& ended, std::vector<News>& news);
  // False if the answer has ended with it.
  bool Append(Chosen& chosen, int64_t version, std::vector<Answer>& ended, std::vector<News>& news);
  void AppendAll(PassResult& result, int64_t version, std::vector<Answer>& ended, std::vector<News>& news);
  void StartFollowers(Sequence& leader);
  void End(Sequence& sequence, absl::Status status, std::vector<Answer>& ended);
  void EndAll(OpenRequest& request, FinishReason reason, std::vector<Answer>& ended);
  void EndAll(OpenRequest& request, const absl::Status& status, std::vector<Answer>& ended);

  Clock& clock() const { return options_.clock != nullptr ? *options_.clock : Clock::Real(); }
  Workers& workers() { return options_.workers != nullptr ? *options_.workers : alone_; }

  const EngineOptions& options_;
  const model::ModelConfig config_;
  Workers alone_{1};
  std::unique_ptr<model::KvCache> cache_;  // with scheduler_: made when there is something to do
  std::unique_ptr<Draft> draft_;           // with the cache
  std::unique_ptr<Scheduler> scheduler_;
  std::optional<model::Decoder> packed_, packed_draft_;
  absl::flat_hash_map<RequestId, std::unique_ptr<OpenRequest>> requests_;
  uint64_t arrivals_ = 0;
  int64_t expected_rows_ = 0, expected_tokens_ = 0;  // 0: see Expect()
  EngineStats done_;                                 // of schedulers before this one, too
};

// InvalidArgument if cache_bytes is too small for one answer of the request.
absl::Status CheckCacheBytes(const EngineOptions& options, const model::Decoder& decoder, const Request& request);

}  // namespace tdock::engine
