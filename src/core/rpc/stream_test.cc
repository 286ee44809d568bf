// Client and server together, in one process.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>

#include <algorithm>
#include <atomic>
#include <iostream>
#include <thread>

#include "absl/strings/match.h"
#include "core/base/testing/fails.h"
#include "core/rpc/testing/servers.h"

namespace tdock::rpc {
namespace {

using testing::HasSubstr;

// Bytes that look different everywhere.
Buffer MakeNoise(size_t size) {
  Buffer noise = Buffer::Allocate(size);
  uint32_t state = 1;
  for (size_t i = 0; i < size; ++i) {
    state = state * 1664525 + 1013904223;
    noise.mutable_data()[i] = static_cast<std::byte>(state >> 24);
  }
  return noise;
}

TEST(Stream, MessagesComeBackInOrderAndWholeWhateverTheirSizesAndPieces) {
  const auto server = StartServer(Serve());
  const auto client = ConnectTo(server->port());
  const Buffer noise = MakeNoise(100'000);
  std::vector<Message> messages = {{}, {Bytes("a")}, {Bytes(""), Bytes("b"), Bytes("")}};
  for (const size_t piece : {1, 100, 4095, 4096, 50'000}) {
    messages.push_back({noise.Slice(0, piece), noise.Slice(7, 3), noise.Slice(piece, piece), noise.Slice(1, 1)});
  }
  std::vector<std::string> answers;
  const CallResult result = client->Call(
      "/echo", messages,
      [&](Pieces message) {
        answers.push_back(Text(message));
        return absl::OkStatus();
      },
      Soon());
  EXPECT_TRUE(result.status.ok()) << result.status;
  EXPECT_TRUE(result.sent);
  ASSERT_EQ(answers.size(), messages.size());
  for (size_t i = 0; i < messages.size(); ++i) {
    std::vector<std::span<const std::byte>> sent;
    for (const Buffer& buffer : messages[i]) sent.push_back(buffer.bytes());
    EXPECT_EQ(answers[i], Text(sent)) << "message " << i;
  }
}

TEST(Stream, ThreeHundredMegabytesTravelBothWaysAtOnceUnchanged) {
  const auto server = StartServer(Serve());
  const auto client = ConnectTo(server->port());
  const Buffer noise = MakeNoise(3 << 20);
  std::vector<Message> messages;
  for (size_t i = 0; i < 150; ++i) messages.push_back({noise.Slice(i * 997, 1 << 20), noise.Slice(i, 1'000'000)});
  size_t received = 0;
  const CallResult result = client->Call(
      "/echo", messages,
      [&](Pieces message) {
        const Buffer answer = CopyOf(message);
        const Message& expected = messages[received++];
        const size_t first = expected[0].size();
        if (answer.size() != first + expected[1].size() || std::memcmp(answer.data(), expected[0].data(), first) != 0 ||
            std::memcmp(answer.data() + first, expected[1].data(), expected[1].size()) != 0) {
          return absl::DataLossError(absl::StrCat("message ", received - 1, " has changed"));
        }
        return absl::OkStatus();
      },
      Soon(kNever));
  EXPECT_TRUE(result.status.ok()) << result.status;
  EXPECT_EQ(received, messages.size());
}

TEST(Stream, EveryStatusArrivesWithItsMessage) {
  Methods methods;
  methods["/fail"] = [](std::shared_ptr<CallSink> sink) {
    auto script = std::make_shared<Script>(sink);
    script->on_message = [sink](Pieces message) {
      sink->Send({Bytes("before")});
      sink->Finish(absl::Status(static_cast<absl::StatusCode>(std::stoi(Text(message))), "Zeile 3: größer"));
      sink->Finish(absl::OkStatus());
      sink->Send({Bytes("after")});
    };
    return script;
  };
  const auto server = StartServer(Serve(std::move(methods)));
  const auto client = ConnectTo(server->port());
  for (int code = 1; code <= 16; ++code) {
    const Message messages[] = {{Bytes(std::to_string(code))}};
    std::string answer;
    const auto keep = [&](Pieces message) {
      answer += Text(message);
      return absl::OkStatus();
    };
    const absl::Status status = client->Call("/fail", messages, keep, Soon()).status;
    EXPECT_EQ(status.raw_code(), code);
    EXPECT_THAT(std::string(status.message()), HasSubstr("Zeile 3: größer"));
    EXPECT_EQ(answer, "before");
  }
  EXPECT_TRUE(absl::IsUnimplemented(Ask(*client, "/unknown", "").status()));
}

TEST(Stream, ALongStatusMessageIsCutAndSaysSo) {
  Methods methods;
  methods["/fail"] = [](std::shared_ptr<CallSink> sink) {
    std::string message;
    for (int i = 0; i < 20'000; ++i) message += "ü";
    sink->Finish(absl::InvalidArgumentError(message));
    return std::make_shared<Script>(sink);
  };
  const auto server = StartServer(Serve(std::move(methods)));
  const auto client = ConnectTo(server->port());
  const absl::Status status = Ask(*client, "/fail", "").status();
  EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
  EXPECT_TRUE(absl::StrContains(status.message(), "ü… (27712 more bytes)")) << status;
}

TEST(Stream, AMessageBeyondTheLimitEndsItsCallWithResourceExhausted) {
  const auto server = StartServer(Serve(), {.max_message_bytes = 1 << 20});
  const auto client = ConnectTo(server->port());
  EXPECT_TRUE(Ask(*client, "/echo", std::string(1 << 20, 'x')).ok());
  EXPECT_TRUE(absl::IsResourceExhausted(Ask(*client, "/echo", std::string((1 << 20) + 1, 'x')).status()));
  EXPECT_TRUE(Ask(*client, "/echo", "fine").ok());
  const auto modest = ConnectTo(server->port(), {.max_message_bytes = 1000});
  EXPECT_TRUE(absl::IsResourceExhausted(Ask(*modest, "/echo", std::string(1001, 'x')).status()));
}

TEST(Stream, ADeadlineEndsACallAndSaysWhatDidNotAnswer) {
  Counter begun, gone;
  Methods methods;
  methods["/wait"] = [&](std::shared_ptr<CallSink> sink) {
    begun.Add();
    auto script = std::make_shared<Script>(sink);
    script->on_gone = [&gone, sink] { gone.Add(sink->gone() ? 1 : 0); };
    return script;
  };
  const auto server = StartServer(Serve(std::move(methods)));
  const auto client = ConnectTo(server->port());
  // Under load, a call may end before the server has heard of it.
  for (absl::Duration limit = absl::Milliseconds(200); begun.count() == 0; limit *= 2) {
    ASSERT_THAT(Ask(*client, "/wait", "", Soon(limit)).status(),
                Fails(absl::StatusCode::kDeadlineExceeded, {absl::StrCat("127.0.0.1:", server->port()), "/wait"}));
  }
  EXPECT_TRUE(gone.Await(begun.count()));
}

TEST(Stream, AnErrorOfTheReaderCancelsItsCall) {
  Counter gone;
  Methods methods;
  methods["/endless"] = [&](std::shared_ptr<CallSink> sink) {
    auto script = std::make_shared<Script>(sink);
    script->on_message = [sink](Pieces) { sink->Send({Bytes("1")}); };
    script->on_sent = [sink] { sink->Send({Bytes("more")}); };
    script->on_gone = [&gone] { gone.Add(); };
    return script;
  };
  const auto server = StartServer(Serve(std::move(methods)));
  const auto client = ConnectTo(server->port());
  const Message messages[] = {{Bytes("go")}};
  int answers = 0;
  const auto refuse_third = [&](Pieces) {
    return ++answers < 3 ? absl::OkStatus() : absl::DataLossError("checksum of block 3");
  };
  EXPECT_EQ(client->Call("/endless", messages, refuse_third, Soon()).status,
            absl::DataLossError("checksum of block 3"));
  EXPECT_EQ(answers, 3);
  EXPECT_TRUE(gone.Await(1));
}

TEST(Stream, AnUploadThatIsCutOffNeverLooksComplete) {
  Counter begun, gone;
  std::atomic<int> complete{0};
  Methods methods;
  methods["/put"] = [&](std::shared_ptr<CallSink> sink) {
    auto script = std::make_shared<Script>(sink);
    script->on_message = [&](Pieces) { begun.Add(); };
    script->on_half_close = [&] { ++complete; };
    script->on_gone = [&] { gone.Add(); };
    return script;
  };
  const auto server = StartServer(Serve(std::move(methods)));
  const auto client = ConnectTo(server->port());
  for (int i = 0; i < 300; ++i) {
    const auto stream = client->Open(
        "/put", [](Pieces) {}, [](const absl::Status&) {});
    stream->Send({Bytes("first of two")});
    ASSERT_TRUE(begun.Await(i + 1));
  }
  EXPECT_TRUE(gone.Await(300));
  EXPECT_EQ(complete, 0);
}

TEST(Stream, AnOpenStreamCarriesMessagesBothWaysUntilItIsHalfClosed) {
  const auto server = StartServer(Serve());
  const auto client = ConnectTo(server->port());
  Counter answers, ends;
  absl::Status end = absl::UnknownError("not set");
  const auto stream = client->Open(
      "/echo", [&](Pieces message) { answers.Add(SizeOf(message)); },
      [&](const absl::Status& status) {
        end = status;
        ends.Add();
      });
  for (int i = 1; i <= 100; ++i) {
    EXPECT_TRUE(stream->Send({Bytes("12345")}));
    ASSERT_TRUE(answers.Await(5 * i));
  }
  stream->HalfClose();
  ASSERT_TRUE(ends.Await(1));
  EXPECT_TRUE(end.ok()) << end;
  EXPECT_FALSE(stream->Send({Bytes("late")}));
}

TEST(Stream, DestroyingAnOpenStreamCancelsItAndWaitsForItsEnd) {
  const auto server = StartServer(Serve());
  const auto client = ConnectTo(server->port());
  absl::Status end;
  {
    const auto stream = client->Open(
        "/echo", [](Pieces) {}, [&](const absl::Status& status) { end = status; });
    stream->Send({Bytes("x")});
  }
  EXPECT_TRUE(absl::IsCancelled(end)) << end;
}

TEST(Stream, AReaderThatIsSlowBoundsWhatTheServerQueues) {
  constexpr int64_t kBound = 4 << 20;
  constexpr int64_t kTotal = 200 << 20;
  std::atomic<int64_t> most_queued{0}, sent{0};
  const Buffer chunk = MakeNoise(1 << 20);
  Methods methods;
  methods["/get"] = [&](std::shared_ptr<CallSink> sink) {
    auto script = std::make_shared<Script>(sink);
    const auto more = [&, sink] {
      while (sent < kTotal && sink->queued_bytes() < kBound) {
        sink->Send({chunk});
        sent += chunk.size();
        most_queued = std::max(most_queued.load(), sink->queued_bytes());
        if (sent == kTotal) sink->Finish(absl::OkStatus());
      }
    };
    script->on_half_close = more;
    script->on_sent = more;
    return script;
  };
  const auto server = StartServer(Serve(std::move(methods)));
  const auto client = ConnectTo(server->port());
  const auto other = ConnectTo(server->port());
  Counter received, go_on, ended;
  const auto stream = client->Open(
      "/get",
      [&](Pieces message) {
        // Stands still after the first message.
        const bool waited = received.count() != SizeOf(message) || go_on.Await(1);
        EXPECT_TRUE(waited);
        received.Add(SizeOf(message));
      },
      [&](const absl::Status& status) {
        EXPECT_TRUE(status.ok()) << status;
        ended.Add();
      });
  stream->HalfClose();
  ASSERT_TRUE(received.Await(chunk.size()));
  for (int i = 0; i < 100; ++i) EXPECT_TRUE(Ask(*other, "/echo", std::string(10'000, 'x')).ok());
  // Both windows, the sockets' buffers and one message on each side.
  EXPECT_LT(sent, 64 << 20);
  go_on.Add();
  ASSERT_TRUE(ended.Await(1));
  EXPECT_EQ(received.count(), kTotal);
  EXPECT_LE(most_queued, kBound + static_cast<int64_t>(chunk.size()));
}

TEST(Stream, AHandlerThatPausesReadsHoldsTheClientUp) {
  std::shared_ptr<CallSink> paused;
  std::atomic<int64_t> got{0};
  Counter begun, done;
  Methods methods;
  methods["/put"] = [&](std::shared_ptr<CallSink> sink) {
    auto script = std::make_shared<Script>(sink);
    script->on_message = [&, sink](Pieces message) {
      if ((got += SizeOf(message)) == SizeOf(message)) {
        sink->PauseReads();
        paused = sink;
        begun.Add();
      }
    };
    script->on_half_close = [&, sink] {
      sink->Finish(absl::OkStatus());
      done.Add();
    };
    return script;
  };
  const auto server = StartServer(Serve(std::move(methods)));
  const auto client = ConnectTo(server->port());
  const auto stream = client->Open(
      "/put", [](Pieces) {}, [](const absl::Status&) {});
  const Buffer chunk = MakeNoise(1 << 20);
  for (int i = 0; i < 100; ++i) stream->Send({chunk});
  stream->HalfClose();
  ASSERT_TRUE(begun.Await(1));
  EXPECT_TRUE(Ask(*client, "/echo", "the same connection still serves others").ok());
  EXPECT_EQ(got, chunk.size());
  EXPECT_GT(stream->queued_bytes(), 30 << 20);
  paused->ResumeReads();
  ASSERT_TRUE(done.Await(1));
  EXPECT_EQ(got, 100 * chunk.size());
}

TEST(Stream, AThousandClientsComeAndGo) {
  const auto server = StartServer(Serve());
  for (int i = 0; i < 1000; ++i) {
    const auto client = ConnectTo(server->port());
    ASSERT_EQ(Ask(*client, "/echo", "hello").value(), "hello");
  }
}

TEST(Stream, ACallIsAnsweredAtOnceWhileTenThousandWaitOnAThousandConnections) {
  rlimit limit = {};
  getrlimit(RLIMIT_NOFILE, &limit);
  limit.rlim_cur = limit.rlim_max;
  setrlimit(RLIMIT_NOFILE, &limit);
  ASSERT_GE(limit.rlim_cur, 4096) << "a thousand connections need two files each";
  Counter waiting, ended;
  Methods methods;
  methods["/wait"] = [&](std::shared_ptr<CallSink> sink) {
    auto script = std::make_shared<Script>(sink);
    script->on_half_close = [&waiting] { waiting.Add(); };
    return script;
  };
  const auto server = StartServer(Serve(std::move(methods)));
  std::vector<std::unique_ptr<StreamClient>> clients;
  std::vector<std::unique_ptr<ClientStream>> streams;
  for (int i = 0; i < 1000; ++i) {
    clients.push_back(ConnectTo(server->port()));
    for (int j = 0; j < 10; ++j) {
      streams.push_back(clients.back()->Open(
          "/wait", [](Pieces) {}, [&ended](const absl::Status&) { ended.Add(); }));
      streams.back()->HalfClose();
    }
  }
  ASSERT_TRUE(waiting.Await(10'000));
  // A server where nobody waits is asked in turn with it.
  const auto idle = StartServer(Serve());
  const auto client = ConnectTo(server->port()), other = ConnectTo(idle->port());
  const auto measure = [](StreamClient& asked) {
    const absl::Time start = Clock::Real().Now();
    EXPECT_TRUE(Ask(asked, "/echo", "x").ok());
    return Clock::Real().Now() - start;
  };
  std::vector<absl::Duration> took, took_idle;
  for (int i = 0; i < 200; ++i) {
    took.push_back(measure(*client));
    took_idle.push_back(measure(*other));
  }
  std::sort(took.begin(), took.end());
  std::sort(took_idle.begin(), took_idle.end());
  RecordProperty("median_us", static_cast<int>(absl::ToInt64Microseconds(took[100])));
  std::cout << "median " << took[100] << ", 99 of 100 below " << took[198] << "; without waiting calls, median "
            << took_idle[100] << ", 99 of 100 below " << took_idle[198] << "\n";
  // Looking at each of ten thousand calls would take longer. Load changes the shortest times least.
  EXPECT_LT(took[0], 20 * took_idle[0]);
  EXPECT_EQ(ended.count(), 0);
  streams.clear();
  EXPECT_EQ(ended.count(), 10'000);
}

}  // namespace
}  // namespace tdock::rpc
