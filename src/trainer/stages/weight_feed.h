// The weights that answers are sampled with while the policy goes on training.
#pragma once

#include <cstdint>
#include <memory>
#include <utility>

#include "core/base/mutex.h"
#include "model/decoder/decoder.h"

namespace tdock::trainer {

// Thread-safe.
class WeightFeed {
 public:
  struct Weights {
    std::shared_ptr<const model::Decoder> decoder;  // does not change; null before the first
    int64_t version = 0;
  };

  void Publish(std::shared_ptr<const model::Decoder> decoder, int64_t version) TDOCK_EXCLUDES(mu_) {
    const MutexLock lock(mu_);
    newest_ = {std::move(decoder), version};
  }
  Weights Newest() const TDOCK_EXCLUDES(mu_) {
    const MutexLock lock(mu_);
    return newest_;
  }

 private:
  mutable Mutex mu_;
  Weights newest_ TDOCK_GUARDED_BY(mu_);
};

}  // namespace tdock::trainer
