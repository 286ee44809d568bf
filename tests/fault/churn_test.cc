// Clients that come and go leave nothing behind.
#include <gmock/gmock.h>

#include "fault_fixture.h"

namespace tdock::fault {
namespace {

class Churn : public OverEach {
 protected:
  void ComeAndGo(int times) {
    for (int i = 0; i < times; ++i) {
      const std::unique_ptr<Dock> dock = Connect();
      ASSERT_EQ(dock->ListPartitions().status(), absl::OkStatus());
      if (i % 10 != 0) continue;
      ASSERT_EQ(dock->Put({.partition = kPartition, .batch = MakeBatch(1, 200'000)}).status(), absl::OkStatus());
      ASSERT_EQ(dock->Take({.partition = kPartition, .consumer = kConsumer}).status(), absl::OkStatus());
      ASSERT_EQ(dock->Clear({.partition = kPartition, .everything = true}).status(), absl::OkStatus());
    }
  }
};

TEST_P(Churn, LeavesNoDescriptorsAndNoMemory) {
  const std::unique_ptr<Dock> dock = Connect();
  ASSERT_EQ(CreateAll(*dock), absl::OkStatus());
  ComeAndGo(100);
  // The sessions of those who went end after a second, and the segments in which nothing is after four. What is there
  // longer on a loaded machine only makes the bounds wider.
  absl::SleepFor(absl::Seconds(6));
  const int descriptors = CountDescriptors(server_pid());
  const int64_t resident = ResidentBytes(server_pid());
  ComeAndGo(1000);
  EXPECT_TRUE(Eventually([&] { return CountDescriptors(server_pid()) <= descriptors + 2; }))
      << CountDescriptors(server_pid()) << " descriptors; there were " << descriptors;
  // 16 KiB for each; a sanitizer keeps freed memory for a while.
  const int64_t allowed = kSlowness > 1 ? int64_t{300} << 20 : int64_t{16} << 20;
  EXPECT_TRUE(Eventually([&] { return ResidentBytes(server_pid()) < resident + allowed; }))
      << ResidentBytes(server_pid()) << " bytes; there were " << resident;
}

INSTANTIATE_TEST_SUITE_P(Each, Churn, testing::Values(Over::kUnix, Over::kTcp, Over::kTls), NameOfParam);

}  // namespace
}  // namespace tdock::fault
