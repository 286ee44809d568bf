// Weights on their way to servers.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "core/base/clock.h"
#include "core/base/env.h"
#include "model/decoder/decoder.h"
#include "trainer/rollout_servers/server_client.h"
#include "trainer/rollout_servers/tasks.h"

namespace tdock::trainer {

// A server that is to have weights.
struct Recipient {
  ServerClient client;
  int64_t version = 0;  // what the server is to call them
};

struct Delivery {
  Sent sent = {};  // of what failed, or of the last request
  UpdateCard said = {};
};

struct SendOptions {
  bool keep_cache = false;                        // answers in progress go on with what they have read
  absl::Duration timeout = absl::ZeroDuration();  // of each request
  std::function<absl::Status()> check_stop = {};  // any thread may call it; its errors are Cancelled
  Clock* clock = nullptr;
  Tasks* tasks = nullptr;
};

struct Deliveries {
  std::vector<Delivery> deliveries = {};  // one for each recipient
  uint64_t bytes = 0;                     // of weights that were sent
};

// Straight from memory to all recipients at the same time: each piece is made once, and sent to all of them before the
// next one is made. A recipient that fails is left out of the rest.
Deliveries StreamWeights(const model::Decoder& decoder, std::span<const Recipient> recipients,
                         const SendOptions& options);

// Weights as folders with a number in their name, in one folder. Not thread-safe.
class WeightFolders {
 public:
  WeightFolders(Env& env, std::string folder, std::string tokenizer_from)
      : env_(env), folder_(std::move(folder)), tokenizer_from_(std::move(tokenizer_from)) {}
  // Removes what it has written.
  ~WeightFolders();
  WeightFolders(const WeightFolders&) = delete;
  WeightFolders& operator=(const WeightFolders&) = delete;

  // The folder that has these weights now. The errors of SaveCheckpoint().
  absl::StatusOr<std::string> Write(const model::Decoder& decoder, int64_t version);
  // Of all versions but this one.
  void RemoveOthers(int64_t version);

 private:
  Env& env_;
  const std::string folder_, tokenizer_from_;
  std::vector<std::pair<int64_t, std::string>> written_;
};

// Tells all recipients to read a folder.
Deliveries PostFolder(const std::string& folder, const std::string& path, std::span<const Recipient> recipients,
                      const SendOptions& options);

}  // namespace tdock::trainer
