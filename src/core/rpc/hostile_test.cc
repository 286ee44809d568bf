// Bytes on the port that are no calls.
#include <gtest/gtest.h>

#include "core/base/rng.h"
#include "core/rpc/testing/http2.h"
#include "core/rpc/testing/servers.h"

namespace tdock::rpc {
namespace {

struct Counting {
  Counter messages, half_closes, gone;

  std::unique_ptr<StreamServer> Start() {
    Methods methods;
    methods["/count"] = [this](std::shared_ptr<CallSink> sink) {
      auto script = std::make_shared<Script>(sink);
      script->on_message = [this](Pieces) { messages.Add(); };
      script->on_half_close = [this, sink] {
        half_closes.Add();
        sink->Finish(absl::OkStatus());
      };
      script->on_gone = [this] { gone.Add(); };
      return script;
    };
    return StartServer(Serve(std::move(methods)));
  }
};

const std::string kMessage("\0\0\0\0\3abc", 8);

TEST(Hostile, TheRawCallOfTheseTestsIsOneThatTheServerTakes) {
  Counting counting;
  const auto server = counting.Start();
  RawConnection raw(server->port());
  raw.Send(CallBytes(kMessage, /*end_stream=*/true));
  EXPECT_TRUE(counting.half_closes.Await(1));
  EXPECT_EQ(counting.messages.count(), 1);
}

TEST(Hostile, ACallThatIsCutAnywhereIsNeverComplete) {
  Counting counting;
  const auto server = counting.Start();
  const std::string whole = CallBytes(kMessage, /*end_stream=*/true);
  int64_t begun = 0;
  for (size_t size = 0; size < whole.size(); ++size) {
    RawConnection raw(server->port());
    raw.Send(absl::string_view(whole).substr(0, size));
    raw.EndSending();
    // A client that hangs up without reading what the server says cuts the connection, and its call may never begin.
    raw.Drain();
    if (size + kMessage.size() + 9 >= whole.size()) ++begun;
  }
  // From the end of the HEADERS frame on, there is a call that must end.
  EXPECT_TRUE(counting.gone.Await(begun));
  EXPECT_EQ(counting.half_closes.count(), 0);
  EXPECT_EQ(Ask(*ConnectTo(server->port()), "/echo", "x").value(), "x");
}

TEST(Hostile, AMessageShorterThanItsPrefixSaysIsNotDelivered) {
  Counting counting;
  const auto server = counting.Start();
  RawConnection raw(server->port());
  raw.Send(CallBytes(kMessage.substr(0, 7), /*end_stream=*/true));
  EXPECT_TRUE(counting.gone.Await(1));
  EXPECT_EQ(counting.messages.count(), 0);
}

TEST(Hostile, AMessageThatClaimsFourGigabytesIsNotDeliveredAndGoesWithItsConnection) {
  Counting counting;
  const auto server = counting.Start();
  {
    RawConnection raw(server->port());
    raw.Send(CallBytes(std::string("\0\xff\xff\xff\xff", 5) + std::string(100, 'x'), /*end_stream=*/false));
    raw.EndSending();
    raw.Drain();
  }
  EXPECT_TRUE(counting.gone.Await(1));
  EXPECT_EQ(counting.messages.count(), 0);
  EXPECT_EQ(counting.half_closes.count(), 0);
}

TEST(Hostile, GarbageIsHungUpOnAndDisturbsNobody) {
  Counting counting;
  const auto server = counting.Start();
  const auto client = ConnectTo(server->port());
  const auto stream = client->Open(
      "/count", [](Pieces) {}, [](const absl::Status&) {});
  Rng rng(3);
  std::vector<std::string> garbage = {
      "GET / HTTP/1.1\r\nHost: x\r\n\r\n",
      std::string(1 << 20, '\0'),
      "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + std::string(100'000, '\xff'),
      "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + Frame(4, 0, 0, "") + Frame(1, 4, 1, std::string(16'000, '\x7f')),
  };
  const std::string whole = CallBytes(kMessage, true);
  for (int i = 0; i < 200; ++i) {
    std::string bytes = whole;
    for (int j = 0; j < 3; ++j) bytes[24 + rng.Below(bytes.size() - 24)] = static_cast<char>(rng.Next());
    garbage.push_back(bytes);
  }
  for (const std::string& bytes : garbage) {
    RawConnection raw(server->port());
    raw.Send(bytes);
    raw.EndSending();
  }
  RawConnection silent(server->port());
  RawConnection listening(server->port());
  listening.Send(garbage[0]);
  listening.Drain();
  EXPECT_EQ(Ask(*client, "/echo", "x").value(), "x");
  EXPECT_TRUE(stream->Send({Bytes("as well")}));
}

}  // namespace
}  // namespace tdock::rpc
