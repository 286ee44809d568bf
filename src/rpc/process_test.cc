// What happens to one side when the other's process is killed or stopped. The other side is this program, started again
// with a role.
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <spawn.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <thread>

#include "absl/strings/match.h"
#include "rpc/testing.h"

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
int RunServer() {
  Counter begun, gone;
  Methods methods;
  methods["/wait"] = [&](std::shared_ptr<CallSink> sink) { return MakeWait(begun, gone, sink); };
  const auto server = StartServer(Serve(std::move(methods)));
  std::printf("%d\n", server->port());
  std::fflush(stdout);
  for (;;) pause();
}

// Waits for an answer of /wait until it is killed.
int RunClient(int port) {
  const auto client = ConnectTo(port);
  return Ask(*client, "/wait", "", absl::InfiniteFuture()).ok() ? 0 : 1;
}

class Process {
 public:
  explicit Process(std::vector<std::string> arguments) {
    int ends[2];
    EXPECT_EQ(pipe2(ends, O_CLOEXEC), 0);
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_adddup2(&actions, ends[1], STDOUT_FILENO);
    std::vector<char*> argv = {const_cast<char*>("rpc_test")};
    for (std::string& argument : arguments) argv.push_back(argument.data());
    argv.push_back(nullptr);
    EXPECT_EQ(posix_spawn(&pid_, "/proc/self/exe", &actions, nullptr, argv.data(), environ), 0);
    posix_spawn_file_actions_destroy(&actions);
    close(ends[1]);
    output_ = fdopen(ends[0], "r");
  }
  ~Process() {
    Signal(SIGKILL);
    waitpid(pid_, nullptr, 0);
    std::fclose(output_);
  }

  void Signal(int number) const {
    kill(pid_, number);
    // Its threads stop one after another.
    if (number == SIGSTOP) waitpid(pid_, nullptr, WUNTRACED);
  }
  int ReadNumber() {
    int number = 0;
    EXPECT_EQ(std::fscanf(output_, "%d", &number), 1);
    return number;
  }

 private:
  pid_t pid_ = 0;
  FILE* output_ = nullptr;
};

TEST(Process, CallsOfAKilledClientAreGoneWithinASecond) {
  Counter begun, gone;
  Methods methods;
  methods["/wait"] = [&](std::shared_ptr<CallSink> sink) { return MakeWait(begun, gone, sink); };
  const auto server = StartServer(Serve(std::move(methods)));
  const Process client({"--role=client", std::to_string(server->port())});
  ASSERT_TRUE(begun.Await(1));
  client.Signal(SIGKILL);
  EXPECT_TRUE(gone.Await(1, absl::Seconds(1)));
}

TEST(Process, AKilledServerMakesCallsUnavailableAtOnce) {
  Process server({"--role=server"});
  const auto client = ConnectTo(server.ReadNumber());
  ASSERT_TRUE(Ask(*client, "/echo", "x").ok());
  Counter begun;
  absl::Time ended;
  CallResult result;
  std::thread caller([&] {
    const auto on_message = [&](Pieces) {
      begun.Add();
      return absl::OkStatus();
    };
    result = client->Call("/wait", {}, on_message, Soon());
    ended = Clock::Real().Now();
  });
  EXPECT_TRUE(begun.Await(1));
  const absl::Time killed = Clock::Real().Now();
  server.Signal(SIGKILL);
  caller.join();
  EXPECT_TRUE(absl::IsUnavailable(result.status)) << result.status;
  EXPECT_TRUE(result.sent);
  EXPECT_LT(ended - killed, absl::Seconds(1));
}

TEST(Process, AStoppedServerOnlyDelaysItsCalls) {
  Process server({"--role=server"});
  const auto client = ConnectTo(server.ReadNumber());
  ASSERT_TRUE(Ask(*client, "/echo", "x").ok());
  server.Signal(SIGSTOP);
  EXPECT_TRUE(absl::IsDeadlineExceeded(Ask(*client, "/echo", "x", Soon(absl::Seconds(2))).status()));
  server.Signal(SIGCONT);
  EXPECT_EQ(Ask(*client, "/echo", "still there").value(), "still there");
}

TEST(Process, AStoppedClientKeepsItsCalls) {
  Counter begun, gone;
  Methods methods;
  methods["/wait"] = [&](std::shared_ptr<CallSink> sink) { return MakeWait(begun, gone, sink); };
  const auto server = StartServer(Serve(std::move(methods)));
  const Process client({"--role=client", std::to_string(server->port())});
  ASSERT_TRUE(begun.Await(1));
  client.Signal(SIGSTOP);
  EXPECT_FALSE(gone.Await(1, absl::Seconds(2)));
  client.Signal(SIGCONT);
}

}  // namespace

int RunRole(int argc, char** argv) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);  // a test that is killed leaves no process behind
  if (argc == 2 && absl::string_view(argv[1]) == "--role=server") return RunServer();
  if (argc == 3 && absl::string_view(argv[1]) == "--role=client") return RunClient(std::atoi(argv[2]));
  return -1;
}

}  // namespace tdock::rpc

int main(int argc, char** argv) {
  if (argc > 1 && absl::StartsWith(argv[1], "--role=")) return tdock::rpc::RunRole(argc, argv);
  testing::InitGoogleMock(&argc, argv);
  return RUN_ALL_TESTS();
}
