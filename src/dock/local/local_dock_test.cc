#include "tdock/local_dock.h"

#include <set>

#include "core/base/testing/hostile_text.h"
#include "dock/testing/conformance.h"

namespace tdock::dock {
namespace {

// Wakes nobody by itself, and tells until when the last waiter would have slept.
class SleepyClock final : public Clock {
 public:
  absl::Time Now() override { return absl::UnixEpoch(); }
  void Wait(CondVar& cv, Mutex& mu, absl::Time deadline) override TDOCK_REQUIRES(mu) {
    {
      MutexLock lock(mu_);
      deadline_ = deadline;
      changed_.NotifyAll();
    }
    cv.Wait(mu);
  }
  std::optional<AlarmId> SetAlarm(absl::Time at, std::function<void()>) override { return AlarmId(at, 0); }
  void CancelAlarm(const AlarmId&) override {}
  void AwaitDeadline(absl::Time deadline) TDOCK_EXCLUDES(mu_) {
    MutexLock lock(mu_);
    while (deadline_ != deadline) changed_.Wait(mu_);
  }

 private:
  Mutex mu_;
  CondVar changed_;
  absl::Time deadline_ TDOCK_GUARDED_BY(mu_);
};

TEST(LocalDock, QuotesNamesOfAnyKind) {
  const std::string hostile = kHostileText, turned = "a\u202Eb";
  const std::unique_ptr<Dock> dock = MakeLocalDock();
  const auto expect_quoted = [](const absl::Status& status) {
    EXPECT_FALSE(status.ok());
    EXPECT_TRUE(IsSafeForTerminals(status.message())) << EscapeForTerminal(status.message());
  };
  ASSERT_TRUE(
      dock->CreatePartition({.name = "p", .columns = {{"a", ColumnType::Dense(DType::kF32)}}, .growing = true}).ok());
  ASSERT_TRUE(dock->RegisterConsumer("p", {.name = "x", .reads = {"a"}}).ok());
  for (const std::string& name : {hostile, turned}) {
    const auto of_consumer = [&](const ConsumerOptions& options) {
      expect_quoted(dock->RegisterConsumer("p", options));
    };
    expect_quoted(dock->CreatePartition({.name = name, .growing = true}));
    expect_quoted(dock->CreatePartition({.name = "q", .columns = {{name, ColumnType::Dense(DType::kF32)}}}));
    expect_quoted(dock->CreatePartition({.name = "q", .growing = true, .retain_for = {name}}));
    of_consumer({.name = name, .reads = {"a"}});
    of_consumer({.name = "y", .reads = {name}});
    of_consumer({.name = "y", .reads_optional = {name}});
    of_consumer({.name = "y", .writes = {name}});
    of_consumer({.name = "y", .reads = {name}, .length_column = "b"});
    of_consumer({.name = "y", .reads = {"a"}, .length_column = name});
    of_consumer({.name = "y", .reads = {"a"}, .sampler = Sampler::kCustom, .custom_sampler = name});
    expect_quoted(dock->GetStatus(name).status());
    expect_quoted(dock->GetConsumerStatus("p", name).status());
    expect_quoted(dock->Explain("p", name).status());
    expect_quoted(dock->FindRows("p", std::vector<std::string>{name}).status());
    expect_quoted(dock->Take({.partition = "p", .consumer = name}).status());
    expect_quoted(dock->Fetch({.partition = "p", .rows = {0}, .columns = {name}}).status());
    expect_quoted(dock->Commit({.partition = "p", .consumer = name, .step = 1}));
    expect_quoted(dock->Put({.partition = "p", .new_rows = 1, .tags = {{{name, "v"}}}}).status());
    expect_quoted(dock->Put({.partition = "p", .new_rows = 1, .keys = {name}}).status());
    PutRequest put{.partition = "p"};
    ASSERT_TRUE(put.batch.Add(name, Column::FromValues<float>({1})).ok());
    expect_quoted(dock->Put(put).status());
  }
}

TEST(LocalDock, AWaiterWakesForTheEndOfALeaseThatBeganWhileItWaited) {
  SleepyClock clock;
  const std::unique_ptr<Dock> dock = MakeLocalDock({.clock = &clock});
  ASSERT_TRUE(dock->CreatePartition({.name = "p", .columns = {{"a", ColumnType::Dense(DType::kF32)}}}).ok());
  ASSERT_TRUE(dock->RegisterConsumer("p", {.name = "x", .reads = {"a"}, .lease_duration = absl::Seconds(30)}).ok());
  absl::Status status;
  std::thread waiter([&] {
    status = dock->Take({.partition = "p", .consumer = "x", .min = 2, .max = 2, .deadline = absl::InfiniteFuture()})
                 .status();
  });
  clock.AwaitDeadline(absl::InfiniteFuture());
  PutRequest put{.partition = "p"};
  ASSERT_TRUE(put.batch.Add("a", Column::FromValues<float>({1})).ok());
  ASSERT_TRUE(dock->Put(put).ok());
  ASSERT_TRUE(dock->Take({.partition = "p", .consumer = "x"}).ok());
  clock.AwaitDeadline(absl::UnixEpoch() + absl::Seconds(30));
  ASSERT_TRUE(dock->DropPartition("p").ok());
  waiter.join();
  EXPECT_EQ(status.code(), absl::StatusCode::kNotFound);
}

TEST(LocalDock, LargeCellsAndCopiesOfThemUseTheSameMemoryAgain) {
  const std::unique_ptr<Dock> dock = MakeLocalDock();
  ASSERT_TRUE(dock->CreatePartition({.name = "p", .columns = {{"a", ColumnType::Dense(DType::kF32)}}}).ok());
  std::vector<const std::byte*> cells, copies;
  for (int again = 0; again < 2; ++again) {
    PutRequest put{.partition = "p"};
    ASSERT_TRUE(put.batch.Add("a", Column::FromValues<float>(std::vector<float>(1'000'000))).ok());
    const std::vector<RowId> rows = dock->Put(put)->rows;
    const Rows view = *dock->Fetch({.partition = "p", .rows = rows, .columns = {"a"}});
    cells.push_back(view.cell(0, 0).bytes.data());
    copies.push_back(view.ToColumn("a")->values().data());
    ASSERT_TRUE(dock->Clear({.partition = "p", .everything = true}).ok());
  }
  // Each round needs the memory of the one before, in whatever order.
  EXPECT_THAT(std::set({cells[1], copies[1]}), testing::Eq(std::set({cells[0], copies[0]})));
}

const auto kLocal = testing::Values([](Clock& clock) { return MakeLocalDock({.clock = &clock}); });
INSTANTIATE_TEST_SUITE_P(Local, DockConformance, kLocal);
INSTANTIATE_TEST_SUITE_P(Local, DockRows, kLocal);
INSTANTIATE_TEST_SUITE_P(Local, DockVersions, kLocal);

// Takes from the end of what it sees, and does as it is told otherwise.
class FromTheEnd final : public CustomSampler {
 public:
  int64_t Window(int64_t max) const override { return 2 * max; }
  std::vector<size_t> Choose(std::span<const Candidate> candidates, int64_t min, int64_t max, uint64_t seed) override {
    if (throws) throw std::runtime_error("out of ideas");
    seen.assign(candidates.begin(), candidates.end());
    seeds.push_back(seed);
    if (!answer.empty()) return answer;
    std::vector<size_t> chosen;
    for (size_t i = candidates.size(); i-- > 0 && static_cast<int64_t>(chosen.size()) < std::max(min, max / 2);) {
      chosen.push_back(i);
    }
    return chosen;
  }
  bool throws = false;
  std::vector<size_t> answer;
  std::vector<Candidate> seen;
  std::vector<uint64_t> seeds;
};

TEST(LocalDockTest, ASamplerOfOnesOwnChooses) {
  const auto sampler = std::make_shared<FromTheEnd>();
  const std::unique_ptr<Dock> dock = MakeLocalDock({.samplers = {{"from_the_end", sampler}}});
  ASSERT_EQ(dock->CreatePartition({.name = "p", .columns = {{"text", ColumnType::Bytes()}}}), absl::OkStatus());
  ASSERT_EQ(dock->RegisterConsumer("p", {.name = "x",
                                         .reads = {"text"},
                                         .sampler = Sampler::kCustom,
                                         .length_column = "text",
                                         .custom_sampler = "from_the_end"}),
            absl::OkStatus());
  PutRequest put{.partition = "p"};
  const std::vector<std::string> texts = {"", "a", "bb", "ccc", "dddd", "eeeee"};
  ASSERT_EQ(put.batch.Add("text", Column::FromStrings(texts)), absl::OkStatus());
  ASSERT_EQ(dock->Put(put).status(), absl::OkStatus());

  const absl::StatusOr<Taken> taken = dock->Take({.partition = "p", .consumer = "x", .min = 1, .max = 2});
  ASSERT_EQ(taken.status(), absl::OkStatus());
  EXPECT_THAT(taken->rows.ids(), testing::ElementsAre(3));
  ASSERT_EQ(sampler->seen.size(), 4u);
  EXPECT_EQ(sampler->seen[2].length, 2);
  EXPECT_EQ(sampler->seen[2].group, kNoGroup);

  const auto code = [&] { return dock->Take({.partition = "p", .consumer = "x", .max = 2}).status(); };
  for (const std::vector<size_t>& wrong : {std::vector<size_t>{9}, {0, 0}, {0, 1, 2}}) {
    sampler->answer = wrong;
    EXPECT_EQ(code().code(), absl::StatusCode::kInternal);
  }
  sampler->throws = true;
  EXPECT_EQ(code().message(), "sampler 'from_the_end': out of ideas");
  // Nothing was taken by those that failed.
  EXPECT_EQ(dock->GetConsumerStatus("p", "x")->ready, 5);
  sampler->throws = false;
  sampler->answer.clear();
  ASSERT_EQ(code(), absl::OkStatus());
  EXPECT_NE(sampler->seeds.front(), sampler->seeds.back());
}

}  // namespace
}  // namespace tdock::dock
