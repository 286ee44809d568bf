// For tests: a group with the ranks of a server, whose tensors a FakeServer takes from a channel.
#pragma once

#include <memory>
#include <string>
#include <utility>

#include "trainer/rollout_servers/testing/fake_server.h"
#include "trainer/rollout_servers/weight_group.h"

namespace tdock::trainer {

class FakeGroup final : public WeightGroup {
 public:
  FakeGroup(std::shared_ptr<FakeChannel> channel, int64_t server_ranks) : channel_(std::move(channel)) {
    place_ = {.servers = server_ranks, .unique_id = std::string(128, 'u'), .address = "127.0.0.1", .port = 29500};
  }

  const GroupPlace& place() const override { return place_; }
  absl::Status Join(absl::Time) override { return absl::OkStatus(); }
  absl::Status Broadcast(const at::Tensor& tensor, absl::Time) override {
    channel_->Push(tensor.clone());
    return absl::OkStatus();
  }

 private:
  const std::shared_ptr<FakeChannel> channel_;
  GroupPlace place_;
};

}  // namespace tdock::trainer
