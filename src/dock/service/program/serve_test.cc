#include "dock/service/program/serve.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <stdlib.h>
#include <unistd.h>

#include <future>
#include <iostream>
#include <sstream>
#include <string>
#include <thread>

#include "absl/time/time.h"
#include "tdock/remote_dock.h"
#include "tdock/sampler.h"

namespace tdock::program {
namespace {

// A sampler that never chooses, and is asked with a partition locked.
class HungSampler final : public CustomSampler {
 public:
  int64_t Window(int64_t max) const override { return max; }
  std::vector<size_t> Choose(std::span<const Candidate>, int64_t, int64_t, uint64_t) override {
    asked_.set_value();
    for (;;) pause();
  }
  void AwaitAsked() { asked_.get_future().wait(); }

 private:
  std::promise<void> asked_;
};

void TakeWithHungSampler(const std::string& address) {
  const auto dock = ConnectDock({.address = address});
  if (!dock.ok()) abort();
  (*dock)->CreatePartition({.name = "p", .columns = {{"text", {}}}}).IgnoreError();
  (*dock)
      ->RegisterConsumer("p", {.name = "c", .reads = {"text"}, .sampler = Sampler::kCustom, .custom_sampler = "hung"})
      .IgnoreError();
  PutRequest put{.partition = "p"};
  put.batch.Add("text", Column::FromStrings(std::vector<std::string>{"x"})).IgnoreError();
  (*dock)->Put(put).status().IgnoreError();
  (*dock)->Take({.partition = "p", .consumer = "c"}).status().IgnoreError();
}

// A server that is told to end, once a take of its hangs.
void ServeUntilHung(const std::string& socket) {
  HungSampler& sampler = *new HungSampler;
  const StartServer start = [&](DockServerOptions options) {
    options.dock.samplers["hung"] = std::shared_ptr<CustomSampler>(&sampler, [](CustomSampler*) {});
    auto server = DockServer::Start(options);
    if (!server.ok()) abort();
    std::thread([address = (*server)->address()] { TakeWithHungSampler(address); }).detach();
    sampler.AwaitAsked();
    kill(getpid(), SIGTERM);
    return server;
  };
  // The alarm is for a log that nobody reads. On a loaded machine, it may come before the log is written.
  sigset_t too_soon;
  sigemptyset(&too_soon);
  sigaddset(&too_soon, SIGALRM);
  pthread_sigmask(SIG_BLOCK, &too_soon, nullptr);
  std::ostringstream out;
  Serve({.socket = socket, .drain = absl::Milliseconds(100)}, out, std::cerr, start).IgnoreError();
  exit(3);
}

TEST(ServeDeathTest, SigtermEndsTheProcessThoughATakeHangsWithALockHeld) {
  testing::FLAGS_gtest_death_test_style = "threadsafe";
  std::string folder = "/tmp/tdock-serve-XXXXXX";
  ASSERT_NE(mkdtemp(folder.data()), nullptr);
  const std::string socket = folder + "/dock.sock";
  EXPECT_EXIT(ServeUntilHung(socket), testing::ExitedWithCode(1), "1\\.6s.*hangs");
  unlink(socket.c_str());
  rmdir(folder.c_str());
}

}  // namespace
}  // namespace tdock::program
