#include "tdock/fork_guard.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <thread>

#include "absl/strings/str_cat.h"
#include "core/base/testing/patience.h"
#include "dock/service/remote/server_process.h"
#include "tdock/remote_dock.h"

namespace tdock::service {
namespace {

class ForkGuardTest : public testing::Test {
 protected:
  std::unique_ptr<Dock> Connect(ForkGuard* guard) {
    return *ConnectDock({.address = server_->tcp_address(),
                         .reconnect_for = kPatience,
                         .answer_within = kPatience,
                         .fork_guard = guard});
  }

  // Runs in a forked process, which has kPatience; whether it returned true.
  template <class Body>
  static bool InChild(Body body) {
    const pid_t child = fork();
    if (child == 0) {
      alarm(static_cast<unsigned>(absl::ToInt64Seconds(kPatience)));
      _exit(body() ? 0 : 1);
    }
    int status = 0;
    waitpid(child, &status, 0);
    return WIFEXITED(status) && WEXITSTATUS(status) == 0;
  }

  // Outlives the guard's docks.
  ForkGuard guard_;
  // The session outlives its connection for as long as a child may take.
  std::unique_ptr<ServerProcess> server_ =
      *ServerProcess::Start({"--session-grace", absl::StrCat(absl::ToInt64Seconds(kPatience))});
};

TEST_F(ForkGuardTest, ChildrenConnectAnewAndTheParentGoesOn) {
  const std::unique_ptr<Dock> dock = Connect(&guard_);
  ASSERT_EQ(dock->CreatePartition({.name = "p", .growing = true}), absl::OkStatus());
  ASSERT_EQ(dock->RegisterConsumer("p", {.name = "c"}), absl::OkStatus());
  ASSERT_TRUE(dock->Put({.partition = "p", .new_rows = 10}).ok());
  const Taken taken = *dock->Take({.partition = "p", .consumer = "c", .max = 2});
  // The second and third find what the first left behind.
  for (int i = 0; i < 3; ++i) {
    EXPECT_TRUE(guard_.Prepare(kPatience));
    EXPECT_TRUE(InChild([&] {
      if (!ForkGuard::BeginChild().ok()) return false;
      ForkGuard own;
      const std::unique_ptr<Dock> other = Connect(&own);
      return other->Take({.partition = "p", .consumer = "c", .max = 1}).ok();
    }));
    guard_.Resume();
  }
  // The session, and with it the lease, is still there.
  EXPECT_EQ(dock->Complete({.partition = "p", .lease = taken.lease}), absl::OkStatus());
  EXPECT_EQ(dock->GetConsumerStatus("p", "c")->done, 2);
}

TEST_F(ForkGuardTest, CallsThatWaitGoOnAfterTheFork) {
  const std::unique_ptr<Dock> dock = Connect(&guard_);
  ASSERT_EQ(dock->CreatePartition({.name = "p", .growing = true}), absl::OkStatus());
  ASSERT_EQ(dock->RegisterConsumer("p", {.name = "c"}), absl::OkStatus());
  absl::StatusOr<Taken> taken = absl::UnknownError("");
  std::jthread waiter(
      [&] { taken = dock->Take({.partition = "p", .consumer = "c", .deadline = absl::Now() + kPatience}); });
  EXPECT_TRUE(guard_.Prepare(kPatience));
  guard_.Resume();
  ASSERT_TRUE(dock->Put({.partition = "p", .new_rows = 1}).ok());
  waiter.join();
  ASSERT_EQ(taken.status(), absl::OkStatus());
  EXPECT_EQ(taken->rows.size(), 1u);
}

TEST_F(ForkGuardTest, AChildOfAProcessThatUsesGrpcIsRefused) {
  const std::unique_ptr<Dock> unguarded = Connect(nullptr);
  EXPECT_FALSE(guard_.Prepare(absl::Milliseconds(50)));
  EXPECT_TRUE(InChild([] { return absl::IsFailedPrecondition(ForkGuard::BeginChild()); }));
  guard_.Resume();
  EXPECT_TRUE(unguarded->ListPartitions().ok());
}

}  // namespace
}  // namespace tdock::service
