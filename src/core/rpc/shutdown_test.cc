// How servers end, and what is left of their calls.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <thread>

#include "core/base/testing/fails.h"
#include "core/rpc/testing/servers.h"

namespace tdock::rpc {
namespace {

// The method "/wait": holds its calls, and counts them.
struct Waiting {
  Counter begun, gone;
  std::shared_ptr<CallSink> last;

  Methods methods() {
    Methods methods;
    methods["/wait"] = [this](std::shared_ptr<CallSink> sink) {
      auto script = std::make_shared<Script>(sink);
      script->on_half_close = [this, sink] {
        last = sink;
        begun.Add();
      };
      script->on_gone = [this] { gone.Add(); };
      return script;
    };
    return methods;
  }
};

TEST(Shutdown, RefusesNewCallsAndLetsRunningOnesFinish) {
  Waiting waiting;
  const auto server = StartServer(Serve(waiting.methods()));
  const auto client = ConnectTo(server->port());
  absl::StatusOr<std::string> answer;
  std::thread caller([&] { answer = Ask(*client, "/wait", ""); });
  ASSERT_TRUE(waiting.begun.Await(1));
  server->StopAccepting();
  const absl::Status refused = Ask(*client, "/wait", "").status();
  EXPECT_TRUE(absl::IsUnavailable(refused)) << refused;
  EXPECT_THAT(std::string(refused.message()), testing::HasSubstr("shutting down"));
  std::thread stopper([&] { server->Shutdown(Soon()); });
  waiting.last->Send({Bytes("late, but whole")});
  waiting.last->Finish(absl::OkStatus());
  stopper.join();
  caller.join();
  EXPECT_EQ(answer.value(), "late, but whole");
  EXPECT_EQ(waiting.gone.count(), 1);
}

TEST(Shutdown, CancelsAtItsDeadlineWhatStillRunsAndReturnsAfterTheLastIsGone) {
  Waiting waiting;
  const auto server = StartServer(Serve(waiting.methods()));
  const auto client = ConnectTo(server->port());
  std::vector<std::unique_ptr<ClientStream>> streams;
  Counter ended;
  for (int i = 0; i < 100; ++i) {
    streams.push_back(client->Open(
        "/wait", [](Pieces) {},
        [&](const absl::Status& status) {
          EXPECT_FALSE(status.ok());
          ended.Add();
        }));
    streams.back()->HalfClose();
  }
  ASSERT_TRUE(waiting.begun.Await(100));
  const absl::Time start = Clock::Real().Now();
  server->Shutdown(start + absl::Milliseconds(100));
  EXPECT_GE(Clock::Real().Now() - start, absl::Milliseconds(90));
  EXPECT_EQ(waiting.gone.count(), 100);
  EXPECT_TRUE(ended.Await(100));
  server->Shutdown(absl::InfinitePast());
}

TEST(Shutdown, CancelsCallsWhoseReadsArePausedOrWhoseReaderIsStuck) {
  Counter begun, gone;
  Methods methods;
  methods["/paused"] = [&](std::shared_ptr<CallSink> sink) {
    auto script = std::make_shared<Script>(sink);
    script->on_message = [&, sink](Pieces) {
      sink->PauseReads();
      for (int i = 0; i < 50; ++i) sink->Send({Buffer::CopyOf(std::vector<std::byte>(1 << 20))});
      begun.Add();
    };
    script->on_gone = [&] { gone.Add(); };
    return script;
  };
  auto server = StartServer(Serve(std::move(methods)));
  const auto client = ConnectTo(server->port());
  Counter release;
  const auto stream = client->Open(
      "/paused", [&](Pieces) { EXPECT_TRUE(release.Await(1)); }, [](const absl::Status&) {});
  stream->Send({Bytes("x")});
  ASSERT_TRUE(begun.Await(1));
  server = nullptr;
  EXPECT_EQ(gone.count(), 1);
  release.Add();
}

TEST(Shutdown, ASinkThatOutlivesItsServerDoesNothing) {
  Waiting waiting;
  auto server = StartServer(Serve(waiting.methods()));
  const auto client = ConnectTo(server->port());
  const auto stream = client->Open(
      "/wait", [](Pieces) {}, [](const absl::Status&) {});
  stream->HalfClose();
  ASSERT_TRUE(waiting.begun.Await(1));
  EXPECT_FALSE(waiting.last->gone());
  server = nullptr;
  EXPECT_TRUE(waiting.last->gone());
  waiting.last->Send({Bytes("nobody hears")});
  EXPECT_EQ(waiting.last->queued_bytes(), 0);
  waiting.last->PauseReads();
  waiting.last->ResumeReads();
  waiting.last->Finish(absl::OkStatus());
}

TEST(Shutdown, SendsFromManyThreadsThatRaceWithTheEndOfTheirCallsAreHarmless) {
  Waiting waiting;
  const auto server = StartServer(Serve(waiting.methods()));
  const auto client = ConnectTo(server->port());
  for (int i = 0; i < 100; ++i) {
    auto stream = client->Open(
        "/wait", [](Pieces) {}, [](const absl::Status&) {});
    stream->HalfClose();
    ASSERT_TRUE(waiting.begun.Await(i + 1));
    std::vector<std::thread> senders;
    for (int j = 0; j < 3; ++j) {
      senders.emplace_back([sink = waiting.last] {
        for (int k = 0; k < 50; ++k) sink->Send({Bytes("x")});
        sink->Finish(absl::OkStatus());
      });
    }
    if (i % 2 == 0) stream = nullptr;
    for (std::thread& sender : senders) sender.join();
  }
  EXPECT_TRUE(waiting.gone.Await(100));
}

TEST(Shutdown, TheHealthServiceSaysWhetherCallsAreTaken) {
  const auto server = StartServer(Serve());
  const auto client = ConnectTo(server->port());
  // HealthCheckResponse { status = 1: SERVING, 2: NOT_SERVING } in protobuf's encoding.
  EXPECT_EQ(Ask(*client, "/grpc.health.v1.Health/Check", "").value(), "\x08\x01");
  // HealthCheckRequest { service = "other" }
  EXPECT_TRUE(absl::IsNotFound(Ask(*client, "/grpc.health.v1.Health/Check", "\x0a\x05other").status()));
  EXPECT_TRUE(absl::IsInvalidArgument(Ask(*client, "/grpc.health.v1.Health/Check", "\xff").status()));
  server->StopAccepting();
  EXPECT_EQ(Ask(*client, "/grpc.health.v1.Health/Check", "").value(), "\x08\x02");
}

TEST(Shutdown, WhoWatchesTheHealthIsToldOfItsEndAndDoesNotHoldUpTheServer) {
  const auto server = StartServer(Serve());
  const auto client = ConnectTo(server->port());
  std::string heard;
  Counter messages, ends;
  const auto watch = client->Open(
      "/grpc.health.v1.Health/Watch",
      [&](Pieces message) {
        heard += Text(message);
        messages.Add();
      },
      [&](const absl::Status& status) {
        EXPECT_TRUE(absl::IsUnavailable(status)) << status;
        ends.Add();
      });
  watch->Send({Bytes("")});
  watch->HalfClose();
  ASSERT_TRUE(messages.Await(1));
  EXPECT_EQ(heard, "\x08\x01");
  server->StopAccepting();
  ASSERT_TRUE(messages.Await(2));
  EXPECT_EQ(heard, "\x08\x01\x08\x02");
  server->Shutdown(Soon(kNever));
  EXPECT_TRUE(ends.Await(1));
}

TEST(Shutdown, ACallToAServerThatIsGoneIsUnavailableAndWasNotSent) {
  auto server = StartServer(Serve());
  const auto client = ConnectTo(server->port());
  ASSERT_TRUE(Ask(*client, "/echo", "x").ok());
  const std::string name = absl::StrCat("127.0.0.1:", server->port());
  server = nullptr;
  const Message messages[] = {{Bytes("x")}};
  // Until the client has noticed, a call may leave it and be lost on the way.
  EXPECT_TRUE(Eventually([&] {
    const CallResult result = client->Call("/echo", messages, Ignore, Soon());
    EXPECT_THAT(result.status, Fails(absl::StatusCode::kUnavailable, {name}));
    return !result.sent;
  }));
}

TEST(Shutdown, AClientFindsAServerThatCameBackOnItsPort) {
  auto server = StartServer(Serve());
  const int port = server->port();
  const auto client = ConnectTo(port);
  ASSERT_TRUE(Ask(*client, "/echo", "x").ok());
  server = nullptr;
  EXPECT_TRUE(absl::IsUnavailable(Ask(*client, "/echo", "x").status()));
  server = StartServer(Serve(), {.listen = absl::StrCat("127.0.0.1:", port)});
  absl::Status status;
  EXPECT_TRUE(Eventually([&] {
    status = Ask(*client, "/echo", "x").status();
    return !absl::IsUnavailable(status);
  }));
  EXPECT_TRUE(status.ok()) << status;
}

}  // namespace
}  // namespace tdock::rpc
