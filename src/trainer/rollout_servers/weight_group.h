// Weights by broadcasts from this process to the ranks of a vLLM or an SGLang, in a group of their own for each server.
//
//   this process (rank 0)                       server (ranks 1 …)
//   Join() ◄──────────────── rendezvous ───────► JoinCall()
//   Broadcast(), in the order of the names ────► ReceiveCall()
//
// No group over NCCL is in this repository yet, and none was tested on a GPU: programs give their own
// (OpenWeightGroup).
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <span>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "model/decoder/decoder.h"
#include "trainer/rollout_servers/server_engine.h"
#include "trainer/rollout_servers/weight_sender.h"
#include "trainer/rollout_servers/wire/weight_calls.h"

namespace tdock::trainer {

// An error ends the group. Not thread-safe.
class WeightGroup {
 public:
  virtual ~WeightGroup() = default;

  // How the server finds the group.
  virtual const GroupPlace& place() const = 0;
  // Returns when all ranks have joined. Where the server is a vLLM, its last step is a sum of one float32 over all
  // ranks (ncclAllReduce), without which they wait for each other for ever.
  virtual absl::Status Join(absl::Time deadline) = 0;
  // Sends a contiguous tensor to all ranks.
  virtual absl::Status Broadcast(const at::Tensor& tensor, absl::Time deadline) = 0;
};

// The group of one start of a server, once it has joined.
struct WeightGroupLink {
  std::unique_ptr<WeightGroup> group = {};
};

// Sends the weights to all recipients at the same time; a server that is new joins a group first. After an error of a
// server its group is given up, and its next update makes another one.
Deliveries BroadcastWeights(const model::Decoder& decoder, std::span<const Recipient> recipients,
                            const OpenWeightGroup& open_group, const SendOptions& options);

}  // namespace tdock::trainer
