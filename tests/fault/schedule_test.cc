// Random schedules of kills, stops and cuts, held against what the clients wrote down: what was acknowledged is there
// or done, and done once.
#include <gmock/gmock.h>
#include <signal.h>
#include <stdlib.h>

#include <filesystem>

#include "absl/strings/str_cat.h"
#include "core/base/rng.h"
#include "cutter.h"
#include "fault_fixture.h"
#include "recorded.h"
#include "tdock/dock_server.h"

namespace tdock::fault {
namespace {

// A server in a process of its own, or inside this one.
enum class Kind { kProcess, kInside };

class Schedule : public testing::TestWithParam<std::tuple<Over, Kind>> {
 protected:
  void SetUp() override {
    std::string folder = "/tmp/tdock-XXXXXX";
    ASSERT_NE(mkdtemp(folder.data()), nullptr);
    folder_ = folder;
    const auto [over, kind] = GetParam();
    if (kind == Kind::kProcess) {
      absl::StatusOr<std::unique_ptr<service::ServerProcess>> started =
          service::ServerProcess::Start(ServeArguments(over));
      ASSERT_EQ(started.status(), absl::OkStatus());
      process_ = *std::move(started);
      target_ = TargetOf(*process_, over);
    } else {
      absl::StatusOr<std::unique_ptr<DockServer>> started =
          DockServer::Start({.listen = "127.0.0.1:0", .socket = folder_ + "/dock.sock"});
      ASSERT_EQ(started.status(), absl::OkStatus());
      inside_ = *std::move(started);
      target_ = {over == Over::kUnix ? inside_->address() : inside_->tcp_address()};
    }
    absl::StatusOr<std::unique_ptr<Cutter>> cutter = Cutter::Start(target_.address);
    ASSERT_EQ(cutter.status(), absl::OkStatus());
    cutter_ = *std::move(cutter);
    absl::StatusOr<std::unique_ptr<Dock>> dock = ConnectDock(Patiently(target_));
    ASSERT_EQ(dock.status(), absl::OkStatus());
    dock_ = *std::move(dock);
    ASSERT_EQ(CreateRecorded(*dock_), absl::OkStatus());
  }
  void TearDown() override {
    peers_.clear();
    dock_.reset();
    cutter_.reset();
    inside_.reset();
    std::filesystem::remove_all(folder_);
  }

  // The first two produce, the others consume. Every other one goes through the cutter.
  void StartPeerNumber(size_t number) {
    const Target cut{cutter_->address(), target_.tls_ca};
    const std::string address = (started_ % 2 == 0 ? target_ : cut).ToArgument();
    const std::string file = absl::StrCat(folder_, "/", started_);
    const uint64_t start = ++started_;
    const std::string argument = number < 2 ? absl::StrCat(start << 32) : absl::StrCat(start);
    peers_[number] = StartPeer({number < 2 ? "produce_recorded" : "consume_recorded", address, file, argument});
    ASSERT_NE(peers_[number], nullptr);
  }

  // One thing that happens to somebody.
  void Disturb() {
    const size_t number = rng_.Below(peers_.size());
    ChildProcess& peer = *peers_[number];
    switch (rng_.Below(4)) {
      case 0:
      case 1:
        peer.Signal(rng_.Below(4) == 0 ? SIGTERM : SIGKILL);
        ASSERT_TRUE(peer.Wait(kPatience).ok());
        StartPeerNumber(number);
        ++kills_;
        return;
      case 2:
        peer.Signal(SIGSTOP);
        absl::SleepFor(absl::Milliseconds(rng_.Below(300)));
        peer.Signal(SIGCONT);
        ++stops_;
        return;
      default:
        cutter_->CutAfter(rng_.Below(2) == 0, static_cast<int64_t>(rng_.Below(20'000)));
    }
  }

  // What is left when all clients are gone.
  void Drain(std::map<int64_t, int>& left) {
    ASSERT_EQ(dock_->Seal(kPartition), absl::OkStatus());
    for (;;) {
      const absl::StatusOr<Taken> taken = dock_->Take(
          {.partition = kPartition, .consumer = kConsumer, .max = 100, .deadline = absl::Now() + kPatience});
      if (absl::IsOutOfRange(taken.status())) return;
      ASSERT_EQ(taken.status(), absl::OkStatus());
      const absl::StatusOr<std::vector<int64_t>> marks = MarksOf(taken->rows);
      ASSERT_EQ(marks.status(), absl::OkStatus());
      for (int64_t mark : *marks) ++left[mark];
      ASSERT_EQ(dock_->Complete({.partition = kPartition, .lease = taken->lease}), absl::OkStatus());
    }
  }

  void Run(absl::Duration duration) {
    peers_.resize(5);
    for (size_t number = 0; number < peers_.size(); ++number) StartPeerNumber(number);
    for (const absl::Time until = absl::Now() + duration; absl::Now() < until && !HasFatalFailure();) {
      absl::SleepFor(absl::Milliseconds(rng_.Below(100)));
      Disturb();
    }
    // On a loaded machine, the clients may have done nothing yet.
    EXPECT_TRUE(Eventually([&] { return !ReadAll().done.empty(); }));
    for (const auto& peer : peers_) peer->Signal(SIGKILL);
    for (const auto& peer : peers_) ASSERT_TRUE(peer->Wait(kPatience).ok());
    std::map<int64_t, int> left;
    Drain(left);
    ASSERT_FALSE(HasFatalFailure());
    Check(left);
  }

  // Reads what all clients have written down so far.
  Recorded ReadAll() const {
    Recorded all;
    for (uint64_t i = 0; i < started_; ++i) all.Read(absl::StrCat(folder_, "/", i));
    return all;
  }

  void Check(const std::map<int64_t, int>& left) {
    const Recorded all = ReadAll();
    EXPECT_THAT(all.wrong, testing::IsEmpty());
    std::map<int64_t, int> over = all.done;
    for (const auto& [mark, times] : left) over[mark] += times;
    for (const auto& [mark, times] : over) {
      ASSERT_EQ(times, 1) << "mark " << mark << " was done so often";
      ASSERT_TRUE(all.intended.contains(mark)) << "nobody put mark " << mark;
    }
    for (int64_t mark : all.put) {
      ASSERT_TRUE(over.contains(mark) || all.maybe_done.contains(mark)) << "mark " << mark << " is lost";
    }
    std::cout << all.put.size() << " rows put, " << all.done.size() << " done, " << left.size() << " left; " << kills_
              << " kills, " << stops_ << " stops, " << cutter_->cuts() << " cuts" << std::endl;
  }

  Rng rng_{testing::UnitTest::GetInstance()->random_seed() == 0
               ? uint64_t{17}
               : static_cast<uint64_t>(testing::UnitTest::GetInstance()->random_seed())};
  std::string folder_;
  Target target_;
  std::unique_ptr<service::ServerProcess> process_;
  std::unique_ptr<DockServer> inside_;
  std::unique_ptr<Cutter> cutter_;
  std::unique_ptr<Dock> dock_;
  std::vector<std::unique_ptr<ChildProcess>> peers_;
  uint64_t started_ = 0;
  int kills_ = 0, stops_ = 0;
};

TEST_P(Schedule, OfKillsStopsAndCutsLosesNothingAndDoesNothingTwice) { Run(absl::Seconds(3)); }
TEST_P(Schedule, DISABLED_OfAQuarterOfAnHourLosesNothingAndDoesNothingTwice) { Run(absl::Minutes(15)); }

std::string NameOfBoth(const testing::TestParamInfo<std::tuple<Over, Kind>>& info) {
  const auto [over, kind] = info.param;
  return NameOf(over) + (kind == Kind::kProcess ? "Process" : "Inside");
}

INSTANTIATE_TEST_SUITE_P(Each, Schedule,
                         testing::Combine(testing::Values(Over::kUnix, Over::kTcp),
                                          testing::Values(Kind::kProcess, Kind::kInside)),
                         NameOfBoth);
INSTANTIATE_TEST_SUITE_P(Tls, Schedule, testing::Values(std::tuple(Over::kTls, Kind::kProcess)), NameOfBoth);

}  // namespace
}  // namespace tdock::fault
