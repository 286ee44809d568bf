// Clients that ask for much and read nothing cost the server no more than a bounded amount of memory, and others no
// time.
#include <gmock/gmock.h>
#include <signal.h>

#include "absl/strings/str_cat.h"
#include "dock/service/wire/messages.h"
#include "fault_fixture.h"
#include "raw_client.h"
#include "tdock/verbs.h"

namespace tdock::fault {
namespace {

class SlowReader : public OverEach {
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
    RecordProperty("growth", absl::StrCat(most >> 20, " MiB"));
    return most;
  }

 private:
  std::unique_ptr<Dock> idle_dock_;
};

TEST_P(SlowReader, HoldsUpItsLargeAnswers) {
  const std::unique_ptr<Dock> dock = Connect();
  ASSERT_EQ(CreateAll(*dock), absl::OkStatus());
  constexpr int kRows = 128;
  for (int row = 0; row < kRows; ++row) {
    ASSERT_EQ(dock->Put({.partition = kPartition, .batch = MakeBatch(1, 500'000)}).status(), absl::OkStatus());
  }
  const int64_t before = ResidentBytes(server_pid());
  // 200 answers of 32 MB each.
  const auto peer = StartPeer({"flood", peer_address(), "200", std::to_string(kRows)});
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

TEST_P(SlowReader, HoldsUpAnswersThatHaveToBeCopied) {
  const std::unique_ptr<Dock> dock = Connect();
  ASSERT_EQ(CreateAll(*dock), absl::OkStatus());
  constexpr int kRows = 8000;
  for (int i = 0; i < kRows / 1000; ++i) {
    ASSERT_EQ(dock->Put({.partition = kPartition, .batch = MakeBatch(1000, 800'000)}).status(), absl::OkStatus());
  }
  const int64_t before = ResidentBytes(server_pid());
  // 1000 answers of 3 MB each, in cells that are not adjacent.
  const auto peer = StartPeer({"flood", peer_address(), "1000", std::to_string(kRows)});
  ASSERT_EQ(peer->ReadLine(kPatience).value_or(""), "asked");
  EXPECT_LT(Growth(before), (int64_t{256} << 20) * kSlowness);
  ExpectOthersAreServed(*dock);
}

TEST_P(SlowReader, IsNotReadFromAnyMore) {
  const std::unique_ptr<Dock> dock = Connect();
  ASSERT_EQ(CreateAll(*dock), absl::OkStatus());
  constexpr int kRows = 2000;
  for (int i = 0; i < kRows / 100; ++i) {
    ASSERT_EQ(dock->Put({.partition = kPartition, .batch = MakeBatch(100, 10'000)}).status(), absl::OkStatus());
  }
  const int64_t before = ResidentBytes(server_pid());
  RawClient raw(target());
  raw.Hello();
  int asked = 0;
  constexpr int kMost = 20'000;
  for (; asked < kMost; ++asked) {
    FetchRequest fetch{.partition = kPartition, .columns = {"mark", "tokens", "text"}};
    // Every other row: each cell is a view of its own.
    for (uint64_t row = 0; row < kRows; row += 2) fetch.rows.push_back(row);
    const service::message::Request request = raw.Numbered(service::RequestOf<verbs::Fetch>(fetch));
    if (!raw.Send(ControlMessage(service::kCall, request.call, request), Seconds(0.5))) break;
  }
  EXPECT_LT(asked, kMost) << "the server reads on";
  EXPECT_GT(asked, 20);
  EXPECT_LT(Growth(before), (int64_t{256} << 20) * kSlowness);
  ExpectOthersAreServed(*dock);
}

INSTANTIATE_TEST_SUITE_P(Each, SlowReader, testing::Values(Over::kUnix, Over::kTcp, Over::kTls), NameOfParam);

}  // namespace
}  // namespace tdock::fault
