// Many threads on one dock: what must hold whatever their order.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <limits>
#include <optional>
#include <set>
#include <stop_token>
#include <thread>
#include <utility>

#include "core/base/rng.h"
#include "core/base/testing/fake_clock.h"
#include "tdock/local_dock.h"

namespace tdock::dock {
namespace {

using Code = absl::StatusCode;

constexpr const char* kPartition = "train";
constexpr int64_t kGroups = 120, kGroupSize = 4, kRows = kGroups * kGroupSize;
constexpr absl::Duration kLease = absl::Seconds(10);

// A row is known by its number, which it holds in column x: four to a group.
GroupId GroupOf(int64_t number) { return static_cast<GroupId>(number / kGroupSize); }
// A few are so large that they lie in blocks of their own.
std::string NoteOf(int64_t number) {
  return std::string(static_cast<size_t>(number % 97 == 0 ? 70'000 : number % 50),
                     static_cast<char>('a' + number % 26));
}

// Who holds which rows of one consumer, and which are done. A holder is known by the time when its lease expires, from
// which follows when the dock made the lease: so it can be told exactly whether two leases were alive at once, although
// threads come here later than they were served. Thread-safe.
class Ledger {
 public:
  explicit Ledger(Clock& clock) : clock_(clock) {}

  // What is wrong with a row being handed out under this lease, if anything.
  std::string Take(int64_t row, absl::Time expires) {
    const int64_t mine = absl::ToUnixNanos(expires), term = absl::ToInt64Nanoseconds(kLease);
    std::atomic<int64_t>& holder = holders_[static_cast<size_t>(row)];
    int64_t other = holder;
    for (;;) {
      // This thread may be late: its lease is over, and the row has been given to another and perhaps finished.
      if (other == kDone) return clock_.Now() >= expires ? "" : "is handed out though it is done";
      if (other > mine) return mine <= other - term ? "" : "is in two leases";
      if (other > mine - term) return "is in two leases";
      if (holder.compare_exchange_weak(other, mine)) return "";
    }
  }
  void Renew(int64_t row, absl::Time expires, absl::Time renewed) {
    int64_t mine = absl::ToUnixNanos(expires);
    holders_[static_cast<size_t>(row)].compare_exchange_strong(mine, absl::ToUnixNanos(renewed));
  }
  // Before a release: as soon as it is called, another may have the row.
  void GiveBack(int64_t row, absl::Time expires) {
    int64_t mine = absl::ToUnixNanos(expires);
    holders_[static_cast<size_t>(row)].compare_exchange_strong(mine, kFree);
  }
  // After the dock said that the row is done.
  std::string Complete(int64_t row, absl::Time expires) {
    const int64_t holder = holders_[static_cast<size_t>(row)].exchange(kDone);
    if (++completions_[static_cast<size_t>(row)] != 1) return "is done twice";
    return holder == absl::ToUnixNanos(expires) ? "" : "was another's when it became done";
  }
  int completions(int64_t row) const { return completions_[static_cast<size_t>(row)]; }

 private:
  static constexpr int64_t kFree = 0, kDone = std::numeric_limits<int64_t>::max();

  Clock& clock_;
  std::vector<std::atomic<int64_t>> holders_ = std::vector<std::atomic<int64_t>>(kRows);
  std::vector<std::atomic<int>> completions_ = std::vector<std::atomic<int>>(kRows);
};

struct Scenario {
  uint64_t seed = 0;
  // More than expire in a test, or so few that rows are quarantined and must be requeued.
  int32_t max_deliveries = std::numeric_limits<int32_t>::max();
  // Rows are released when both consumers are done with them.
  bool retain = false;
  // Some groups are cleared while they are worked on.
  bool clears = false;
  // 0: the feeders need not wait.
  int64_t max_rows = 0;
};

// What one thread was handed.
struct Handed {
  Taken taken;
  std::vector<int64_t> numbers;  // of its rows
};

// Two feeders, three writers of rows, two takers of groups and one who looks on, while leases are given back, renewed,
// finished in parts, forgotten and refused. The first who finds a fault stops the others.
class Pipeline {
 public:
  explicit Pipeline(const Scenario& scenario) : scenario_(scenario) {}

  void Run() {
    const ColumnType longs = ColumnType::Dense(DType::kI64);
    PartitionOptions partition{.name = kPartition,
                               .columns = {{"x", longs}, {"twice", longs}, {"note", ColumnType::Bytes()}},
                               .group_size = kGroupSize};
    partition.max_rows = scenario_.max_rows;
    if (scenario_.retain) partition.retain_for = {"double", "check"};
    ASSERT_EQ(dock_->CreatePartition(partition), absl::OkStatus());
    for (const bool groups : {false, true}) {
      ConsumerOptions consumer{.name = groups ? "check" : "double", .reads = {"x"}, .lease_duration = kLease};
      if (groups) {
        consumer.reads = {"x", "twice", "note"};
        consumer.unit = Unit::kGroup;
      } else {
        consumer.writes = {"twice", "note"};
        consumer.sampler = Sampler::kUniform;
        consumer.seed = scenario_.seed;
      }
      consumer.max_deliveries = scenario_.max_deliveries;
      ASSERT_EQ(dock_->RegisterConsumer(kPartition, consumer), absl::OkStatus());
    }

    std::vector<std::thread> feeders, stages;
    for (uint64_t i = 0; i < 2; ++i) feeders.emplace_back([this, i] { Feed(RngOf(i), static_cast<int64_t>(i)); });
    for (uint64_t i = 2; i < 5; ++i) stages.emplace_back([this, i] { Work("double", RngOf(i)); });
    for (uint64_t i = 5; i < 7; ++i) stages.emplace_back([this, i] { Work("check", RngOf(i)); });
    std::thread observer([this] { Observe(RngOf(7)); });
    for (std::thread& thread : feeders) thread.join();
    Expect(dock_->Seal(kPartition), "seal");
    for (std::thread& thread : stages) thread.join();
    finished_ = true;
    Progress();
    observer.join();
    if (!stop_.stop_requested()) Recount();
  }

 private:
  Rng RngOf(uint64_t thread) const { return Rng(MixBits(scenario_.seed) + thread); }

  // Lets the one who looks on look again.
  void Progress() {
    ++progress_;
    progress_.notify_all();
  }

  // ---- Faults.

  void Fail(const std::string& what) {
    ADD_FAILURE() << "seed " << scenario_.seed << ": " << what;
    stop_.request_stop();
    Progress();
  }
  void Expect(const absl::Status& status, const std::string& what) {
    if (!status.ok()) Fail(what + ": " + status.ToString());
  }
  void ExpectRow(const std::string& fault, absl::string_view consumer, int64_t number) {
    if (!fault.empty()) Fail("row " + std::to_string(number) + " of '" + std::string(consumer) + "' " + fault);
  }
  bool Cleared(int64_t number) const { return cleared_[GroupOf(number)]; }
  bool AnyCleared(const Handed& handed) const {
    return std::any_of(handed.numbers.begin(), handed.numbers.end(), [this](int64_t row) { return Cleared(row); });
  }

  // A call with a lease may fail because that has expired, or because its rows were cleared.
  bool Succeeded(const absl::Status& status, const Handed& handed, absl::Time before) {
    const bool expired = before >= handed.taken.expires, may_have = clock_.Now() >= handed.taken.expires;
    if (status.ok() && expired) Fail("a lease is taken for alive that has expired");
    const bool refused = status.code() == Code::kFailedPrecondition && may_have;
    const bool gone = (status.code() == Code::kFailedPrecondition || status.code() == Code::kNotFound);
    if (!status.ok() && !refused && !(gone && AnyCleared(handed))) Expect(status, "a live lease is refused");
    return status.ok();
  }

  // ---- Feeders.

  // Every second group, in any order, each in two puts.
  void Feed(Rng rng, int64_t part) {
    std::vector<int64_t> groups;
    for (int64_t group = part; group < kGroups; group += 2) groups.push_back(group);
    rng.Shuffle(std::span(groups));
    for (int64_t group : groups) {
      const int64_t first = 1 + static_cast<int64_t>(rng.Below(kGroupSize - 1));
      for (const auto& [begin, end] : {std::pair<int64_t, int64_t>(0, first), {first, kGroupSize}}) {
        if (stop_.stop_requested()) return;
        PutRequest put{.partition = kPartition, .deadline = absl::InfiniteFuture(), .cancel = stop_.get_token()};
        std::vector<int64_t> numbers;
        for (int64_t i = begin; i < end; ++i) numbers.push_back(group * kGroupSize + i);
        Expect(put.batch.Add("x", Column::FromValues<int64_t>(numbers)), "x");
        put.groups.assign(numbers.size(), static_cast<GroupId>(group));
        const absl::StatusOr<PutResult> result = dock_->Put(put);
        Expect(result.status(), "feed");
        for (size_t i = 0; result.ok() && i < numbers.size(); ++i) {
          ids_[static_cast<size_t>(numbers[i])] = result->rows[i];
        }
      }
      fed_[static_cast<size_t>(group)] = true;
      Progress();
    }
  }

  // ---- Stages.

  void Work(const std::string& consumer, Rng rng) {
    Ledger& ledger = consumer == "check" ? checked_ : doubled_;
    bool first = true;
    while (!stop_.stop_requested()) {
      Progress();
      std::optional<Handed> handed = Take(consumer, rng);
      if (!handed.has_value()) return;
      if (handed->numbers.empty()) continue;
      for (int64_t number : handed->numbers) {
        if (!Cleared(number)) {
          ExpectRow(ledger.Take(number, handed->taken.expires), consumer, number);
        }
      }
      if (consumer == "check") CheckGroups(handed->taken.rows);
      // Mostly too little for a lease to expire.
      if (rng.Below(4) == 0) clock_.Advance(absl::Seconds(1 + rng.Below(9)));
      const uint64_t fate = std::exchange(first, false) ? 0 : rng.Below(16);
      if (fate == 0) {
        // It crashes. Time goes by, or the others might wait for ever.
        clock_.Advance(kLease);
        continue;
      }
      if (fate == 1) clock_.Advance(kLease + absl::Seconds(1));
      if (fate == 2) Renew(*handed, ledger);
      if (fate != 3) {
        consumer == "check" ? FinishGroups(*handed, rng) : FinishRows(*handed, rng);
      }
      GiveBackTheRest(*handed, ledger);
    }
  }

  // Nothing at the end; no rows when there were none in time.
  std::optional<Handed> Take(const std::string& consumer, Rng& rng) {
    TakeRequest request{.partition = kPartition, .consumer = consumer, .cancel = stop_.get_token()};
    request.min = 1 + static_cast<int64_t>(rng.Below(3));
    request.max = request.min + static_cast<int64_t>(rng.Below(6));
    request.deadline = rng.Below(4) == 0 ? clock_.Now() + absl::Seconds(2) : absl::InfiniteFuture();
    absl::StatusOr<Taken> taken = dock_->Take(request);
    const Code code = taken.status().code();
    if (code == Code::kOutOfRange || code == Code::kCancelled) return std::nullopt;
    if (code == Code::kDeadlineExceeded) return Handed();
    if (code == Code::kFailedPrecondition && scenario_.max_deliveries < 100) {
      // Nothing can come but what is quarantined.
      Expect(dock_->Requeue({.partition = kPartition, .consumer = consumer}), "requeue");
      ++requeued_;
      return Handed();
    }
    Expect(taken.status(), "take of '" + consumer + "'");
    if (!taken.ok()) return std::nullopt;
    Handed handed{*std::move(taken), {}};
    const absl::StatusOr<Column> numbers = handed.taken.rows.ToColumn("x");
    Expect(numbers.status(), "x");
    if (!numbers.ok()) return std::nullopt;
    const std::span<const int64_t> values = *numbers->Values<int64_t>();
    handed.numbers.assign(values.begin(), values.end());
    return handed;
  }

  void CheckGroups(const Rows& rows) {
    if (rows.size() % kGroupSize != 0) return Fail("a consumer of groups is handed a part of one");
    for (size_t i = 0; i < rows.size(); ++i) {
      const size_t place = i % kGroupSize;
      const int64_t x = rows.Get<int64_t>(i, "x")->front();
      const bool whole = rows.groups()[i] == rows.groups()[i - place] && x % kGroupSize == static_cast<int64_t>(place);
      if (!whole || rows.groups()[i] != GroupOf(x)) Fail("a group is not whole, or mixed with another");
      if (*rows.Get<int64_t>(i, "twice")->begin() != 2 * x || *rows.Text(i, "note") != NoteOf(x)) {
        Fail("row " + std::to_string(x) + " has the cells of another");
      }
    }
  }

  void Renew(Handed& handed, Ledger& ledger) {
    const absl::Time before = clock_.Now();
    const absl::StatusOr<absl::Time> expires = dock_->Renew(kPartition, handed.taken.lease);
    if (!Succeeded(expires.status(), handed, before)) return;
    for (int64_t number : handed.numbers) ledger.Renew(number, handed.taken.expires, *expires);
    handed.taken.expires = *expires;
  }

  // The results of the rows, all at once or in parts, and not always of all.
  void FinishRows(Handed& handed, Rng& rng) {
    size_t begin = 0;
    while (begin < handed.numbers.size()) {
      const size_t left = handed.numbers.size() - begin;
      const size_t count = rng.Below(3) == 0 ? 1 + rng.Below(left) : left;
      const bool keep = rng.Below(8) == 0;
      if (!PutResults(handed, begin, count, keep)) return;
      if (keep && rng.Below(2) == 0) return;
      if (!keep) begin += count;
    }
  }

  bool PutResults(const Handed& handed, size_t begin, size_t count, bool keep) {
    // What another stored before its lease expired is there already.
    FillRequest put{.partition = kPartition, .lease = handed.taken.lease, .keep = keep, .overwrite = true};
    std::vector<int64_t> twice;
    std::vector<std::string> notes;
    for (size_t i = begin; i < begin + count; ++i) {
      put.rows.push_back(handed.taken.rows.ids()[i]);
      twice.push_back(2 * handed.numbers[i]);
      notes.push_back(NoteOf(handed.numbers[i]));
    }
    Expect(put.batch.Add("twice", Column::FromValues<int64_t>(twice)), "twice");
    Expect(put.batch.Add("note", Column::FromStrings(notes)), "note");
    const absl::Time before = clock_.Now();
    if (!Succeeded(dock_->Fill(put), handed, before)) return false;
    for (size_t i = begin; !keep && i < begin + count; ++i) Completed(doubled_, "double", handed, i);
    return true;
  }

  void FinishGroups(const Handed& handed, Rng& rng) {
    // Whole groups: what is done in part is not handed out again.
    LeaseRequest request{.partition = kPartition, .lease = handed.taken.lease};
    size_t count = handed.numbers.size();
    if (rng.Below(4) == 0) {
      count = kGroupSize * (1 + rng.Below(count / kGroupSize));
      request.rows.assign(handed.taken.rows.ids().begin(), handed.taken.rows.ids().begin() + static_cast<int>(count));
    }
    const absl::Time before = clock_.Now();
    if (!Succeeded(dock_->Complete(request), handed, before)) return;
    for (size_t i = 0; i < count; ++i) Completed(checked_, "check", handed, i);
  }

  void Completed(Ledger& ledger, absl::string_view consumer, const Handed& handed, size_t i) {
    const int64_t number = handed.numbers[i];
    if (!Cleared(number)) ExpectRow(ledger.Complete(number, handed.taken.expires), consumer, number);
  }

  void GiveBackTheRest(const Handed& handed, Ledger& ledger) {
    for (int64_t number : handed.numbers) ledger.GiveBack(number, handed.taken.expires);
    const absl::Status status = dock_->Release({.partition = kPartition, .lease = handed.taken.lease});
    // It is over, too, when nothing is left of it.
    if (status.code() != Code::kFailedPrecondition) Expect(status, "release");
  }

  // ---- The one who looks on.

  void Observe(Rng rng) {
    int clears = scenario_.clears ? 20 : 0;
    for (;;) {
      // Before it asks whether this is the end, whose announcement it might sleep through otherwise.
      const int seen = progress_;
      if (finished_ || stop_.stop_requested()) return;
      const absl::StatusOr<PartitionStatus> status = dock_->GetStatus(kPartition);
      if (!status.ok()) return Expect(status.status(), "status");
      if (scenario_.max_rows > 0 && status->rows > scenario_.max_rows) Fail("there are more rows than max_rows");
      for (const NamedConsumerStatus& consumer : status->consumers) {
        const ConsumerStatus& s = consumer.status;
        if (s.waiting + s.ready + s.leased + s.quarantined + s.done != status->rows) Fail("the states do not add up");
        if (std::min({s.waiting, s.ready, s.leased, s.quarantined, s.done}) < 0) Fail("a counter is negative");
      }
      Expect(dock_->Explain(kPartition, rng.Below(2) == 0 ? "check" : "double").status(), "explain");
      const uint64_t group = rng.Below(kGroups);
      if (clears > 0 && rng.Below(8) == 0 && fed_[group] && !cleared_[group]) {
        --clears;
        cleared_[group] = true;
        const absl::Status cleared = dock_->Clear({.partition = kPartition, .groups = {group}}).status();
        // Released already.
        if (cleared.code() != Code::kNotFound) Expect(cleared, "clear");
      }
      // Whoever looks all the time keeps the others from the lock.
      progress_.wait(seen);
    }
  }

  // ---- The end: rows are counted one by one, not by the dock's counters.

  void Recount() {
    std::set<int64_t> expected;
    for (int64_t number = 0; number < kRows; ++number) {
      if (Cleared(number)) continue;
      expected.insert(number);
      ASSERT_EQ(doubled_.completions(number), 1) << "row " << number;
      ASSERT_EQ(checked_.completions(number), 1) << "row " << number;
    }
    // Whoever is handed something first crashes.
    if (scenario_.max_deliveries == 1) {
      EXPECT_GT(requeued_, 0);
    }
    for (const std::string consumer : {"double", "check"}) {
      EXPECT_EQ(dock_->Take({.partition = kPartition, .consumer = consumer}).status().code(), Code::kOutOfRange);
    }
    if (scenario_.retain) {
      for (RowId row : ids_) {
        EXPECT_EQ(dock_->Fetch({.partition = kPartition, .rows = {row}, .columns = {"x"}}).status().code(),
                  Code::kNotFound);
      }
      EXPECT_EQ(dock_->GetStatus(kPartition)->rows, 0);
      EXPECT_EQ(dock_->GetStatus(kPartition)->held_bytes, 0);
      return;
    }
    ASSERT_EQ(dock_->RegisterConsumer(kPartition, {.name = "recount", .reads = {"x", "twice", "note"}}),
              absl::OkStatus());
    const absl::StatusOr<Taken> all = dock_->Take({.partition = kPartition, .consumer = "recount", .max = 2 * kRows});
    ASSERT_EQ(all.status(), absl::OkStatus());
    std::set<int64_t> found;
    for (size_t i = 0; i < all->rows.size(); ++i) {
      const int64_t x = all->rows.Get<int64_t>(i, "x")->front();
      found.insert(x);
      EXPECT_EQ(all->rows.ids()[i], ids_[static_cast<size_t>(x)]);
      EXPECT_EQ(all->rows.groups()[i], GroupOf(x));
      EXPECT_EQ(all->rows.Get<int64_t>(i, "twice")->front(), 2 * x);
      EXPECT_EQ(*all->rows.Text(i, "note"), NoteOf(x));
    }
    EXPECT_EQ(all->rows.size(), expected.size());
    EXPECT_EQ(found, expected);
    const PartitionStatus status = *dock_->GetStatus(kPartition);
    EXPECT_EQ(status.rows, static_cast<int64_t>(expected.size()));
    for (size_t i = 0; i < 2; ++i) EXPECT_EQ(status.consumers[i].status.done, status.rows);
  }

  const Scenario scenario_;
  FakeClock clock_;
  const std::unique_ptr<Dock> dock_ = MakeLocalDock({.clock = &clock_});
  std::stop_source stop_;
  Ledger doubled_ = Ledger(clock_), checked_ = Ledger(clock_);
  // By number: written by the feeder that has the row, read at the end.
  std::vector<RowId> ids_ = std::vector<RowId>(kRows);
  std::vector<std::atomic<bool>> fed_ = std::vector<std::atomic<bool>>(kGroups);
  // Set before the group is cleared.
  std::vector<std::atomic<bool>> cleared_ = std::vector<std::atomic<bool>>(kGroups);
  std::atomic<int> requeued_ = 0;
  std::atomic<int> progress_ = 0;
  std::atomic<bool> finished_ = false;
};

class LocalDockThreads : public testing::TestWithParam<uint64_t> {};

TEST_P(LocalDockThreads, EveryRowPassesEveryStageOnceAndGroupsStayWhole) { Pipeline({.seed = GetParam()}).Run(); }

TEST_P(LocalDockThreads, SoItIsWithRowsThatGoWhenTheyAreDone) { Pipeline({.seed = GetParam(), .retain = true}).Run(); }

TEST_P(LocalDockThreads, SoItIsWithRowsThatAreQuarantinedAndRequeued) {
  for (const int32_t most : {1, 3}) Pipeline({.seed = GetParam(), .max_deliveries = most}).Run();
}

TEST_P(LocalDockThreads, SoItIsWithRowsThatAreClearedMeanwhile) {
  Pipeline({.seed = GetParam(), .clears = true}).Run();
  Pipeline({.seed = GetParam(), .retain = true, .clears = true}).Run();
}

TEST_P(LocalDockThreads, SoItIsWithinABudgetOfRowsThatIsNeverExceeded) {
  // Takes wait for up to three rows or groups; with fewer groups than this all might wait for each other.
  for (const bool clears : {false, true}) {
    Pipeline({.seed = GetParam(), .retain = true, .clears = clears, .max_rows = 8 * kGroupSize}).Run();
  }
}

INSTANTIATE_TEST_SUITE_P(Seeds, LocalDockThreads, testing::Range<uint64_t>(1, 5));

}  // namespace
}  // namespace tdock::dock
