// Ten thousand takes that wait over a thousand connections cost no thread, and others hardly any time.
#include <gmock/gmock.h>
#include <sys/resource.h>

#include <algorithm>
#include <deque>

#include "absl/strings/str_cat.h"
#include "dock/service/wire/messages.h"
#include "fault_fixture.h"
#include "raw_client.h"
#include "tdock/verbs.h"

namespace tdock::fault {
namespace {

constexpr int kConnections = 1000;
constexpr int kWaitsOfEach = 10;

service::message::Request WaitingTake() {
  return service::RequestOf<verbs::Take>(
      {.partition = kPartition, .consumer = "waited for", .deadline = absl::InfiniteFuture()});
}

// Takes that wait, and a count of those that do no more.
class Waiters {
 public:
  explicit Waiters(const Target& target) {
    for (int i = 0; i < kConnections; ++i) {
      RawClient& raw = clients_.emplace_back(target);
      raw.Hello();
      for (int wait = 0; wait < kWaitsOfEach; ++wait) EXPECT_TRUE(raw.SendCall(raw.Numbered(WaitingTake())));
    }
  }
  int64_t answers() {
    for (RawClient& raw : clients_) {
      for (;;) {
        const absl::StatusOr<RawClient::Message> message = raw.Receive(-absl::Nanoseconds(1));
        if (!message.ok()) break;
        if (message->header.type == service::kReply) ++answers_;
      }
    }
    return answers_;
  }

 private:
  std::deque<RawClient> clients_;
  int64_t answers_ = 0;
};

class ManyWaiters : public OverEach {
 protected:
  void SetUp() override {
    OverEach::SetUp();
    rlimit limit{};
    getrlimit(RLIMIT_NOFILE, &limit);
    limit.rlim_cur = limit.rlim_max;
    setrlimit(RLIMIT_NOFILE, &limit);
    ASSERT_GE(limit.rlim_max, 4096u) << "each connection needs descriptors";
  }

  // Cost of a row that is put and taken, relative to its cost with the control.
  static double CostOfPutAndTake(Dock& dock, Dock& control) {
    const Medians medians = MediansOf(dock, control, 301, [](Dock& each) {
      EXPECT_EQ(each.Put({.partition = "busy", .batch = MakeBatch(1, 1000)}).status(), absl::OkStatus());
      EXPECT_EQ(each.Take({.partition = "busy", .consumer = "busy"}).status(), absl::OkStatus());
    });
    return absl::FDivDuration(medians.of_dock, medians.of_control);
  }
};

TEST_P(ManyWaiters, CostNoThreadsAndAreWokenOneByOne) {
  const std::unique_ptr<Dock> dock = Connect(), idle = ConnectToIdle();
  ASSERT_NE(idle, nullptr);
  ASSERT_EQ(CreateAll(*dock, {.name = "waited for", .lease_duration = kNever}), absl::OkStatus());
  for (Dock* each : {dock.get(), idle.get()}) {
    ASSERT_EQ(CreateAll(*each, {.name = "busy"}, Columns("busy")), absl::OkStatus());
  }
  // All threads that calls need are there now.
  CostOfPutAndTake(*dock, *idle);
  const int threads = CountThreads(server_pid());
  Waiters waiters(target());
  EXPECT_EQ(dock->ListPartitions().status(), absl::OkStatus());
  // They are there when the server has nothing more to do.
  absl::SleepFor(Seconds(1));
  // Calls that wait have one thread for their deadlines.
  EXPECT_LE(CountThreads(server_pid()), threads + 1);
  // The least of two measurements, and of more where others use the machine.
  double cost = CostOfPutAndTake(*dock, *idle);
  for (int more = 0; more < 1 || (more < 10 && cost > 3); ++more) cost = std::min(cost, CostOfPutAndTake(*dock, *idle));
  EXPECT_LE(cost, 3);
  RecordProperty("cost", absl::StrCat(cost));
  EXPECT_EQ(waiters.answers(), 0);
  for (int woken = 1; woken <= 3; ++woken) {
    ASSERT_EQ(dock->Put({.partition = kPartition, .batch = MakeBatch(1, 1000)}).status(), absl::OkStatus());
    EXPECT_TRUE(Eventually([&] { return waiters.answers() >= woken; }));
    EXPECT_FALSE(HappensWithin(absl::Milliseconds(200), [&] { return waiters.answers() > woken; }));
  }
  EXPECT_EQ(dock->GetConsumerStatus(kPartition, "waited for")->leased, 3);
}

INSTANTIATE_TEST_SUITE_P(Each, ManyWaiters, testing::Values(Over::kUnix, Over::kTcp, Over::kTls), NameOfParam);

}  // namespace
}  // namespace tdock::fault
