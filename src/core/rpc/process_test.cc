// What happens to one side when the other's process is killed or stopped. The other side is this program, started again
// with a role.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <thread>

#include "absl/strings/match.h"
#include "core/rpc/testing/process.h"
#include "core/rpc/testing/servers.h"

namespace tdock::rpc {
namespace {

// A method that says that it has begun, and holds its calls.
std::shared_ptr<Script> MakeWait(Counter& begun, Counter& gone, const std::shared_ptr<CallSink>& sink) {
  auto script = std::make_shared<Script>(sink);
  script->on_half_close = [&begun, sink] {
    sink->Send({Bytes("begun")});
    begun.Add();
  };
  script->on_gone = [&gone] { gone.Add(); };
  return script;
}

// Serves until it is killed; prints its port.
int RunServer(const StreamServerOptions& options) {
  Counter begun, gone;
  Methods methods;
  methods["/wait"] = [&](std::shared_ptr<CallSink> sink) { return MakeWait(begun, gone, sink); };
  const auto server = StartServer(Serve(std::move(methods)), options);
  std::printf("%d\n", server->port());
  std::fflush(stdout);
  for (;;) pause();
}

// Waits for an answer of /wait until it is killed.
int RunClient(int port) {
  const auto client = ConnectTo(port);
  return Ask(*client, "/wait", "", absl::InfiniteFuture()).ok() ? 0 : 1;
}

// Returns when all of its threads stand still: they stop one after another.
void Stop(ChildProcess& process) {
  process.Signal(SIGSTOP);
  EXPECT_EQ(waitpid(process.pid(), nullptr, WUNTRACED), process.pid());
}

TEST(Process, CallsOfAKilledClientAreGone) {
  Counter begun, gone;
  Methods methods;
  methods["/wait"] = [&](std::shared_ptr<CallSink> sink) { return MakeWait(begun, gone, sink); };
  const auto server = StartServer(Serve(std::move(methods)));
  const auto client = StartRole({"--role=client", std::to_string(server->port())});
  ASSERT_TRUE(begun.Await(1));
  client->Signal(SIGKILL);
  EXPECT_TRUE(gone.Await(1));
}

TEST(Process, AKilledServerMakesCallsUnavailableBeforeTheirDeadline) {
  const auto server = StartRole({"--role=server"});
  const auto client = ConnectTo(PortOf(*server));
  ASSERT_TRUE(Ask(*client, "/echo", "x").ok());
  Counter begun;
  CallResult result;
  std::thread caller([&] {
    const auto on_message = [&](Pieces) {
      begun.Add();
      return absl::OkStatus();
    };
    result = client->Call("/wait", {}, on_message, Soon(kNever));
  });
  EXPECT_TRUE(begun.Await(1));
  server->Signal(SIGKILL);
  caller.join();
  EXPECT_TRUE(absl::IsUnavailable(result.status)) << result.status;
  EXPECT_TRUE(result.sent);
}

TEST(Process, AStoppedServerOnlyDelaysItsCalls) {
  const auto server = StartRole({"--role=server"});
  const auto client = ConnectTo(PortOf(*server));
  ASSERT_TRUE(Ask(*client, "/echo", "x").ok());
  Stop(*server);
  EXPECT_TRUE(absl::IsDeadlineExceeded(Ask(*client, "/echo", "x", Soon(absl::Seconds(2))).status()));
  server->Signal(SIGCONT);
  EXPECT_EQ(Ask(*client, "/echo", "still there").value(), "still there");
}

TEST(Process, AStoppedClientKeepsItsCalls) {
  Counter begun, gone;
  Methods methods;
  methods["/wait"] = [&](std::shared_ptr<CallSink> sink) { return MakeWait(begun, gone, sink); };
  const auto server = StartServer(Serve(std::move(methods)));
  const auto client = StartRole({"--role=client", std::to_string(server->port())});
  ASSERT_TRUE(begun.Await(1));
  Stop(*client);
  EXPECT_FALSE(gone.Await(1, absl::Seconds(2)));
  client->Signal(SIGCONT);
}

}  // namespace

int RunRole(int argc, char** argv) {
  if (argc == 2 && absl::string_view(argv[1]) == "--role=server") return RunServer({});
  if (argc == 3 && absl::string_view(argv[1]) == "--role=server") return RunServer({.token = argv[2]});
  if (argc == 5 && absl::string_view(argv[1]) == "--role=server") {
    return RunServer({.tls = {.certificate = argv[3], .key = argv[4]}, .token = argv[2]});
  }
  if (argc == 3 && absl::string_view(argv[1]) == "--role=client") return RunClient(std::atoi(argv[2]));
  return -1;
}

}  // namespace tdock::rpc

int main(int argc, char** argv) {
  if (argc > 1 && absl::StartsWith(argv[1], "--role=")) return tdock::rpc::RunRole(argc, argv);
  testing::InitGoogleMock(&argc, argv);
  return RUN_ALL_TESTS();
}
