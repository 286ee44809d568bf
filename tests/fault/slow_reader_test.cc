// Clients that ask for much and read nothing cost the server no more than a bounded amount of memory, and others no
// time.
#include <gmock/gmock.h>
#include <signal.h>

#include "dock/service/wire/messages.h"
#include "fault_fixture.h"
#include "raw_socket.h"
#include "tdock/verbs.h"

namespace tdock::fault {
namespace {

class SlowReader : public OverBoth {
 protected:
  void ExpectOthersAreServed(Dock& dock) {
    if (idle_dock_ == nullptr) idle_dock_ = ConnectToIdle();
    ASSERT_NE(idle_dock_, nullptr);
    const Medians medians = MediansOf(dock, *idle_dock_, 200,
                                      [](Dock& each) { EXPECT_EQ(each.ListPartitions().status(), absl::OkStatus()); });
    EXPECT_LT(medians.of_dock, 3 * medians.of_control + Seconds(0.1));
    EXPECT_EQ(dock.Put({.partition = kPartition, .batch = MakeBatch(1, 1000)}).status(), absl::OkStatus());
    EXPECT_EQ(dock.Take({.partition = kPartition, .consumer = kConsumer}).status(), absl::OkStatus());
  }
  // How much the server's memory grows at most in three seconds.
  int64_t Growth(int64_t before) {
    int64_t most = 0;
    for (const absl::Time until = absl::Now() + absl::Seconds(3); absl::Now() < until;) {
      most = std::max(most, ResidentBytes(server_pid()) - before);
      absl::SleepFor(absl::Milliseconds(5));
    }
    return most;
  }

 private:
  std::unique_ptr<Dock> idle_dock_;
};

class SlowReaderOverTcp : public SlowReader {};

TEST_P(SlowReaderOverTcp, HoldsUpAnswersThatHaveToBeCopied) {
  const std::unique_ptr<Dock> dock = Connect();
  ASSERT_EQ(CreateAll(*dock), absl::OkStatus());
  // Of cells that were put in turn with others', so that an answer does not lie in one place.
  constexpr int kRows = 64;
  for (int row = 0; row < kRows; ++row) {
    ASSERT_EQ(dock->Put({.partition = kPartition, .batch = MakeBatch(1, 500'000)}).status(), absl::OkStatus());
  }
  const int64_t before = ResidentBytes(server_pid());
  // 200 answers of 32 MB each.
  const auto peer = StartPeer({"flood", address(), "200", std::to_string(kRows)});
  ASSERT_EQ(peer->ReadLine(kPatience).value_or(""), "asked");
  EXPECT_LT(Growth(before), (int64_t{256} << 20) * kSlowness);
  ExpectOthersAreServed(*dock);
  ASSERT_TRUE(Stop(*peer));
  ExpectOthersAreServed(*dock);
  peer->Signal(SIGKILL);
  ASSERT_TRUE(peer->Wait(kPatience).ok());
  EXPECT_TRUE(Eventually([&] { return ResidentBytes(server_pid()) - before < (int64_t{128} << 20) * kSlowness; }))
      << ResidentBytes(server_pid()) - before;
}

class SlowReaderOverSocket : public SlowReader {};

TEST_P(SlowReaderOverSocket, IsNotReadFromAnyMore) {
  const std::unique_ptr<Dock> dock = Connect();
  ASSERT_EQ(CreateAll(*dock), absl::OkStatus());
  constexpr int kRows = 2000;
  for (int i = 0; i < kRows / 100; ++i) {
    ASSERT_EQ(dock->Put({.partition = kPartition, .batch = MakeBatch(100, 10'000)}).status(), absl::OkStatus());
  }
  const int64_t before = ResidentBytes(server_pid());
  RawSocket raw(socket_path());
  raw.Hello();
  int asked = 0;
  for (; asked < 4000; ++asked) {
    FetchRequest fetch{.partition = kPartition, .columns = {"mark", "tokens", "text"}};
    // Every other row: each cell is a view of its own.
    for (uint64_t row = 0; row < kRows; row += 2) fetch.rows.push_back(row);
    const service::message::Request request = raw.Numbered(service::RequestOf<verbs::Fetch>(fetch));
    if (!raw.Send(ControlMessage(service::SocketMessage::kCall, request.call, request), Seconds(0.5))) break;
  }
  EXPECT_LT(asked, 4000) << "the server reads on";
  EXPECT_GT(asked, 20);
  EXPECT_LT(Growth(before), (int64_t{256} << 20) * kSlowness);
  ExpectOthersAreServed(*dock);
}

INSTANTIATE_TEST_SUITE_P(One, SlowReaderOverTcp, testing::Values(Via::kTcp), NameOf);
INSTANTIATE_TEST_SUITE_P(One, SlowReaderOverSocket, testing::Values(Via::kSocket), NameOf);

}  // namespace
}  // namespace tdock::fault
