#include "runtime/collective/gloo/testing/rank_threads.h"

#include <memory>
#include <thread>
#include <vector>

#include "core/base/clock.h"
#include "core/base/status.h"
#include "core/base/testing/patience.h"
#include "runtime/collective/gloo/gloo_collective.h"
#include "runtime/rendezvous/rendezvous.h"
#include "torch/csrc/distributed/c10d/HashStore.hpp"

namespace tdock::runtime {
namespace {

// Threads find each other in this process's memory, which, unlike a TCPStore, does not ask a name server who it is.
class MemoryRendezvous final : public Rendezvous {
 public:
  absl::Status Publish(absl::string_view, absl::string_view) override { return absl::UnimplementedError("no texts"); }
  absl::StatusOr<std::string> Await(absl::string_view, absl::Duration) override {
    return absl::UnimplementedError("no texts");
  }
  absl::StatusOr<c10::intrusive_ptr<c10d::Store>> NewStore() override { return store_; }

 private:
  const c10::intrusive_ptr<c10d::Store> store_ = c10::make_intrusive<c10d::HashStore>();
};

}  // namespace

void RunOnRanks(int size, const std::function<void(TensorCollective&)>& body) {
  MemoryRendezvous rendezvous;
  std::vector<std::thread> threads;
  for (int rank = 0; rank < size; ++rank) {
    threads.emplace_back([&, rank] {
      const auto group = OpenGlooCollective(
          {.rendezvous = rendezvous, .name = "test", .rank = rank, .size = size, .host = "127.0.0.1"},
          Clock::Real().Now() + kPatience);
      TDOCK_CHECK(group.ok(), group.status().ToString());
      // Otherwise one could leave while others connect.
      const absl::Status all_there = (*group)->Barrier(Clock::Real().Now() + kPatience);
      TDOCK_CHECK(all_there.ok(), all_there.ToString());
      body(**group);
    });
  }
  for (std::thread& thread : threads) thread.join();
}

}  // namespace tdock::runtime
