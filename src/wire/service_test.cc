#include "wire/service.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <stop_token>
#include <thread>

#include "wire/serve_for_test.h"

namespace tdock {
namespace {

using Code = absl::StatusCode;

// A partition with a row, and a consumer that reads it.
void Prepare(Dock& dock) {
  ASSERT_EQ(dock.CreatePartition({.name = "p", .columns = {{"text", {}}}}), absl::OkStatus());
  ASSERT_EQ(dock.RegisterConsumer("p", {.name = "c", .reads = {"text"}}), absl::OkStatus());
  PutRequest put{.partition = "p"};
  ASSERT_EQ(put.batch.Add("text", Column::FromStrings(std::vector<std::string>{"seven"})), absl::OkStatus());
  ASSERT_EQ(dock.Put(put).status(), absl::OkStatus());
}

TEST(SocketService, ACallThatWaitsKeepsNoAnswersOfOthersInTheSession) {
  TestSocketServer server;
  Prepare(*server.dock);
  const std::unique_ptr<Dock> client = ConnectThrough(std::make_unique<SocketTransport>(server.path()), Clock::Real());
  ASSERT_NE(client, nullptr);
  std::stop_source stop;
  std::thread waiting([&] {
    const TakeRequest take{.partition = "p",
                           .consumer = "c",
                           .min = 2,
                           .max = 2,
                           .deadline = absl::InfiniteFuture(),
                           .cancel = stop.get_token()};
    EXPECT_EQ(client->Take(take).status().code(), Code::kCancelled);
  });
  while (server.service.counts().calls_under_way == 0) std::this_thread::yield();
  for (size_t call = 0; call < Session::kMaxCalls + 100; ++call) {
    ASSERT_EQ(client->ListPartitions().status(), absl::OkStatus()) << call;
  }
  stop.request_stop();
  waiting.join();
}

}  // namespace
}  // namespace tdock
