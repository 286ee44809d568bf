// Thousands of connections over which nothing is said cost little memory, no threads and no processor.
#include <gmock/gmock.h>
#include <sys/resource.h>

#include <deque>

#include "absl/strings/str_cat.h"
#include "fault_fixture.h"
#include "raw_client.h"

namespace tdock::fault {
namespace {

constexpr int kManyConnections = 5000;

class IdleConnections : public OverEach {
 protected:
  void SetUp() override {
    rlimit limit{};
    getrlimit(RLIMIT_NOFILE, &limit);
    limit.rlim_cur = limit.rlim_max;
    setrlimit(RLIMIT_NOFILE, &limit);
    // The server has the same limit, and as many descriptors.
    const rlim_t needed = kManyConnections * DescriptorsOfEach() + 200;
    if (limit.rlim_max < needed) GTEST_SKIP() << "a process may have " << limit.rlim_max << " descriptors";
    OverEach::SetUp();
  }
  // Over a Unix socket, each session has an upload area.
  static int DescriptorsOfEach() { return GetParam() == Over::kUnix ? 2 : 1; }
};

TEST_P(IdleConnections, CostLittleMemoryNoThreadsAndNoProcessor) {
  const std::unique_ptr<Dock> dock = Connect(), idle = ConnectToIdle();
  ASSERT_NE(idle, nullptr);
  EXPECT_EQ(dock->ListPartitions().status(), absl::OkStatus());
  const int threads = CountThreads(server_pid()), descriptors = CountDescriptors(server_pid());
  const int64_t resident = ResidentBytes(server_pid());
  std::deque<RawClient> clients;
  const absl::Time begin = absl::Now();
  for (int i = 0; i < kManyConnections; ++i) clients.emplace_back(target()).Hello();
  RecordProperty("connecting", absl::FormatDuration(absl::Now() - begin));
  EXPECT_EQ(CountDescriptors(server_pid()), descriptors + kManyConnections * DescriptorsOfEach());
  EXPECT_EQ(CountThreads(server_pid()), threads);
  const int64_t grown = ResidentBytes(server_pid()) - resident;
  RecordProperty("memory", absl::StrCat(grown >> 20, " MiB"));
  EXPECT_LE(grown, (GetParam() == Over::kTls ? 400'000'000 : 100'000'000) * kSlowness);

  const auto used_in = [&](absl::Duration time) {
    const absl::Duration before = CpuTime(server_pid());
    absl::SleepFor(time);
    return CpuTime(server_pid()) - before;
  };
  // On a busy machine the server still works for the last connections.
  EXPECT_TRUE(Eventually([&] { return used_in(Seconds(0.5)) <= Seconds(0.01); }));
  const absl::Duration used = used_in(Seconds(2));
  EXPECT_LE(used, Seconds(0.05));
  RecordProperty("processor in 2 s", absl::FormatDuration(used));

  const Medians medians =
      MediansOf(*dock, *idle, 100, [](Dock& each) { EXPECT_EQ(each.ListPartitions().status(), absl::OkStatus()); });
  EXPECT_LT(medians.of_dock, 3 * medians.of_control + Seconds(0.1));
  clients.clear();
  EXPECT_TRUE(Eventually([&] { return CountDescriptors(server_pid()) <= descriptors; }))
      << CountDescriptors(server_pid()) << " descriptors; there were " << descriptors;
}

TEST_P(IdleConnections, ThatComeAndGoLeaveNothing) {
  const auto come_and_go = [&](int times) {
    for (int i = 0; i < times; ++i) RawClient(target()).Hello();
  };
  // Fills the allocator's caches, and the quarantine of freed memory (256 MiB) if the server runs under asan.
  come_and_go(1500);
  const std::unique_ptr<Dock> dock = Connect();
  EXPECT_EQ(dock->ListPartitions().status(), absl::OkStatus());
  const int descriptors = CountDescriptors(server_pid());
  const int64_t resident = ResidentBytes(server_pid());
  const absl::Time begin = absl::Now();
  come_and_go(1000);
  RecordProperty("connecting", absl::FormatDuration(absl::Now() - begin));
  RecordProperty("memory", absl::StrCat((ResidentBytes(server_pid()) - resident) >> 20, " MiB"));
  EXPECT_TRUE(Eventually([&] { return CountDescriptors(server_pid()) <= descriptors; }))
      << CountDescriptors(server_pid()) << " descriptors; there were " << descriptors;
  EXPECT_TRUE(Eventually([&] { return ResidentBytes(server_pid()) < resident + (int64_t{16} << 20) * kSlowness; }))
      << ResidentBytes(server_pid()) << " bytes; there were " << resident;
}

INSTANTIATE_TEST_SUITE_P(Each, IdleConnections, testing::Values(Over::kUnix, Over::kTcp, Over::kTls), NameOfParam);

}  // namespace
}  // namespace tdock::fault
