#include "runtime/collective/gloo/testing/rank_threads.h"

#include <memory>
#include <thread>
#include <vector>

#include "core/base/clock.h"
#include "core/base/status.h"
#include "runtime/collective/gloo/gloo_collective.h"
#include "runtime/launch/port.h"
#include "runtime/rendezvous/rendezvous.h"

namespace tdock::runtime {

void RunOnRanks(int size, const std::function<void(TensorCollective&)>& body) {
  const absl::StatusOr<int> port = FreePort();
  TDOCK_CHECK(port.ok(), port.status().ToString());
  const auto rendezvous = Rendezvous::Open(
      {.rank = 0, .world_size = size, .master_addr = "127.0.0.1", .master_port = *port}, absl::Seconds(30));
  TDOCK_CHECK(rendezvous.ok(), rendezvous.status().ToString());
  std::vector<std::thread> threads;
  for (int rank = 0; rank < size; ++rank) {
    threads.emplace_back([&, rank] {
      const auto group = OpenGlooCollective(
          {.rendezvous = **rendezvous, .name = "test", .rank = rank, .size = size, .host = "127.0.0.1"},
          Clock::Real().Now() + absl::Seconds(60));
      TDOCK_CHECK(group.ok(), group.status().ToString());
      body(**group);
    });
  }
  for (std::thread& thread : threads) thread.join();
}

}  // namespace tdock::runtime
