// Weights on their way to servers: straight from memory, or in folders.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "core/base/env.h"
#include "model/decoder/decoder.h"
#include "trainer/rollout_servers/server_update.h"

namespace tdock::trainer {

struct Deliveries {
  std::vector<Delivery> deliveries = {};  // one for each recipient
  uint64_t bytes = 0;                     // of weights that were sent
};

// Sends weights straight from memory to all recipients, which are `tdock serve`, at the same time: each piece is made
// once, and sent to all of them before the next one is made. A recipient that fails is left out of the rest.
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
  // Removes the folders of all other versions.
  void RemoveOthers(int64_t version);

 private:
  Env& env_;
  const std::string folder_, tokenizer_from_;
  std::vector<std::pair<int64_t, std::string>> written_;
};

// Tells all recipients to read a folder, and compares what they say of the weights that they have then.
Deliveries PostFolder(Env& env, const std::string& folder, const std::string& path,
                      std::span<const Recipient> recipients, const SendOptions& options);

}  // namespace tdock::trainer
