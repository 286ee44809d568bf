// Other weights for a model that is served: of a folder, or straight from a program. docs/serving.md has the protocol.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "core/base/clock.h"
#include "core/base/mutex.h"
#include "core/http/message.h"
#include "engine/engine.h"
#include "inference/metrics.h"
#include "inference/protocol/weights_ask.h"
#include "inference/replica.h"
#include "inference/served_model.h"
#include "inference/weight_upload.h"
#include "model/decoder/decoder.h"

namespace tdock::inference {

// One change of weights at a time, and one upload. Thread-safe; calls last as long as what they ask for.
class WeightUpdates {
 public:
  using Replicas = std::vector<std::unique_ptr<Replica>>;

  // An upload that was not touched for so long gives way to another one.
  static constexpr absl::Duration kForgotten = absl::Seconds(60);

  // All of them must outlive it, and nobody else may change weights.
  WeightUpdates(const ServedModel& model, const Replicas& replicas, Metrics& metrics, AskLimits limits,
                uint64_t most_piece_bytes, Clock& clock);

  // The answer to a request for other weights, or to a part of an upload.
  http::Response Update(const http::Request& request) TDOCK_EXCLUDES(mu_);
  // Forgets keys and values, but nothing that answers need: these are read again.
  http::Response FlushCache();

  int64_t version() const { return version_; }
  // Internal where a change ended half done, so that replicas may serve different weights.
  absl::Status health() const;

 private:
  struct Upload {
    std::string id = {};
    int64_t version = 0;
    bool flush_cache = true;
    absl::Time touched = absl::InfinitePast();
    std::unique_ptr<WeightUpload> weights = {};
    bool reads_piece = false;  // without the lock, and alone
  };
  struct Ended {
    std::string id = {};
    std::string answer = {};
  };

  http::Response UpdateFromFolder(const WeightsAsk& ask);
  http::Response Begin(const WeightsAsk& ask) TDOCK_EXCLUDES(mu_);
  http::Response Continue(const UploadAsk& ask, absl::string_view bytes) TDOCK_EXCLUDES(mu_);
  // Why a request of an upload that is not there is refused.
  http::Response Absent(const std::string& upload) const TDOCK_REQUIRES(mu_);
  http::Response AddPiece(const UploadAsk& ask, absl::string_view bytes) TDOCK_EXCLUDES(mu_);
  // An upload that is whole, to be served; or why it is not.
  std::variant<Upload, http::Response> TakeWhole(const UploadAsk& ask) TDOCK_EXCLUDES(mu_);
  http::Response End(Upload upload) TDOCK_EXCLUDES(mu_);

  absl::Status CheckVersion(int64_t version) const;
  // Packs what `load` gives, and lets all replicas serve it: on a thread of its own, behind those that answer.
  using Load = absl::FunctionRef<absl::StatusOr<model::Decoder>()>;
  absl::Status Serve(Load load, int64_t version, bool flush_cache);
  std::string Success(absl::string_view what, int64_t version) const;

  const ServedModel& model_;
  const Replicas& replicas_;
  Metrics& metrics_;
  const AskLimits limits_;
  const uint64_t most_piece_bytes_;
  Clock& clock_;
  std::atomic<int64_t> version_;
  std::atomic<bool> updating_ = false;
  std::atomic<bool> is_half_done_ = false;

  Mutex mu_;
  std::optional<Upload> upload_ TDOCK_GUARDED_BY(mu_);
  std::string ending_ TDOCK_GUARDED_BY(mu_);          // the name of one that is being packed; empty: none
  std::optional<Ended> ended_ TDOCK_GUARDED_BY(mu_);  // the last upload that was served
  // The weights of the upload that is served, and those of one before it, for the next one.
  std::optional<model::Decoder> served_ TDOCK_GUARDED_BY(mu_), spare_ TDOCK_GUARDED_BY(mu_);
};

}  // namespace tdock::inference
