// Connections that break in the middle of a call: what was asked twice happens once.
#include <gmock/gmock.h>

#include <algorithm>
#include <functional>
#include <set>

#include "absl/strings/str_cat.h"
#include "core/base/rng.h"
#include "cutter.h"
#include "fault_fixture.h"

namespace tdock::fault {
namespace {

class CutConnection : public OverEach {
 protected:
  static constexpr int64_t kRowBytes = 200'000;

  void SetUp() override {
    // On a busy machine, connecting again may take longer than a second.
    Start({"--session-grace", absl::StrCat(absl::ToInt64Seconds(kPatience))});
    direct_ = Connect();
    absl::StatusOr<std::unique_ptr<Cutter>> cutter = Cutter::Start(address());
    ASSERT_EQ(cutter.status(), absl::OkStatus());
    cutter_ = *std::move(cutter);
    through_ = Connect(Patiently({cutter_->address(), target().tls_ca}));
    ASSERT_NE(through_, nullptr);
  }

  // What a call sends, more or less: every other row is small enough to go over the socket itself.
  static int64_t RowBytes(int64_t call) { return GetParam() == Over::kUnix && call % 2 == 0 ? 30'000 : kRowBytes; }
  static int64_t SentBytes(int64_t call) {
    return GetParam() == Over::kUnix && call % 2 == 1 ? 100 : RowBytes(call) + 200;
  }
  // Where to cut: in the first bytes, one behind the other, or anywhere.
  int64_t Place(int64_t call, int64_t most) {
    return call % 4 < 2 ? call * 5 % most : static_cast<int64_t>(rng_.Below(static_cast<uint64_t>(most)));
  }

  // Puts a row in each of so many calls that are cut, and looks whether each is there once.
  void Puts(int64_t count, bool to_server) {
    ASSERT_EQ(CreateAll(*direct_), absl::OkStatus());
    for (int64_t mark = 0; mark < count; ++mark) {
      const int64_t place = Place(mark, to_server ? SentBytes(mark) : 40);
      cutter_->CutAfter(to_server, place);
      const absl::Status status =
          through_->Put({.partition = kPartition, .batch = MakeBatch(1, RowBytes(mark), mark)}).status();
      ASSERT_EQ(status, absl::OkStatus()) << "cut after " << place;
    }
    EXPECT_GT(cutter_->cuts(), count / 2);
    EXPECT_EQ(MarksThere(), Numbers(count));
    EXPECT_TRUE(HasWholeRowsOnly(direct_->GetStatus(kPartition).value()));
  }

  // Takes a row in each of so many calls that are cut.
  void Takes(int64_t count, bool to_server) {
    ASSERT_EQ(CreateAll(*direct_), absl::OkStatus());
    ASSERT_EQ(direct_->Put({.partition = kPartition, .batch = MakeBatch(count, count * kRowBytes)}).status(),
              absl::OkStatus());
    std::multiset<int64_t> taken;
    for (int64_t call = 0; call < count; ++call) {
      const int64_t place = Place(call, to_server || GetParam() == Over::kUnix ? 80 : kRowBytes);
      cutter_->CutAfter(to_server, place);
      const absl::StatusOr<Taken> row = through_->Take({.partition = kPartition, .consumer = kConsumer});
      ASSERT_EQ(row.status(), absl::OkStatus()) << "cut after " << place;
      const absl::StatusOr<Batch> batch = row->rows.ToBatch();
      ASSERT_EQ(batch.status(), absl::OkStatus());
      const int64_t mark = batch->Values<int64_t>("mark").value().front();
      taken.insert(mark);
      const std::span<const int32_t> tokens = batch->Row<int32_t>("tokens", 0).value();
      EXPECT_EQ(std::count(tokens.begin(), tokens.end(), mark), std::ssize(tokens));
    }
    EXPECT_GT(cutter_->cuts(), count / 2);
    EXPECT_EQ(taken, Numbers(count));
    EXPECT_EQ(direct_->GetConsumerStatus(kPartition, kConsumer)->leased, count) << "leases of answers that were lost";
    EXPECT_EQ(direct_->GetConsumerStatus(kPartition, kConsumer)->expired, 0);
  }

  // Makes a call that is cut after no byte, one that is cut after its first, and so on, until one passes. Returns how
  // many that were.
  int64_t CallCutAtEveryByte(bool to_server, const std::function<absl::Status(int64_t call)>& make) {
    for (int64_t call = 0;; ++call) {
      const int64_t cuts = cutter_->cuts();
      cutter_->CutAfter(to_server, call);
      if (const absl::Status status = make(call); !status.ok()) {
        ADD_FAILURE() << status << " when cut after " << call << " bytes";
        return call;
      }
      if (cutter_->cuts() == cuts) return call + 1;
    }
  }

  std::multiset<int64_t> MarksThere() {
    FetchRequest fetch{.partition = kPartition, .columns = {"mark"}};
    const ListResult list = direct_->List({.partition = kPartition, .limit = 10'000}).value();
    for (const ListedRow& row : list.rows) fetch.rows.push_back(row.row);
    const Rows rows = direct_->Fetch(fetch).value();
    std::multiset<int64_t> marks;
    for (size_t row = 0; row < rows.size(); ++row) marks.insert(rows.Get<int64_t>(row, "mark").value().front());
    return marks;
  }
  static std::multiset<int64_t> Numbers(int64_t count) {
    std::multiset<int64_t> numbers;
    for (int64_t i = 0; i < count; ++i) numbers.insert(i);
    return numbers;
  }

  Rng rng_{11};
  std::unique_ptr<Dock> direct_;
  std::unique_ptr<Cutter> cutter_;
  std::unique_ptr<Dock> through_;
};

TEST_P(CutConnection, OnTheWayOfAPutPutsItsRowsOnce) { Puts(40, /*to_server=*/true); }
TEST_P(CutConnection, OnTheWayOfThePutsAnswerPutsItsRowsOnce) { Puts(40, /*to_server=*/false); }
TEST_P(CutConnection, OnTheWayOfATakeTakesOnce) { Takes(40, /*to_server=*/true); }
TEST_P(CutConnection, OnTheWayOfTheTakesAnswerTakesOnce) { Takes(40, /*to_server=*/false); }

TEST_P(CutConnection, AtAnyByteOfAPutPutsItsRowsOnce) {
  ASSERT_EQ(CreateAll(*direct_), absl::OkStatus());
  int64_t count = 0;
  for (const bool to_server : {true, false}) {
    const int64_t calls = CallCutAtEveryByte(to_server, [&](int64_t) {
      return through_->Put({.partition = kPartition, .batch = MakeBatch(1, 16, count++)}).status();
    });
    EXPECT_GT(calls, to_server ? 200 : 20);
  }
  EXPECT_EQ(MarksThere(), Numbers(count));
  EXPECT_TRUE(HasWholeRowsOnly(direct_->GetStatus(kPartition).value()));
}

TEST_P(CutConnection, AtAnyByteOfATakeTakesOnce) {
  ASSERT_EQ(CreateAll(*direct_), absl::OkStatus());
  ASSERT_EQ(direct_->Put({.partition = kPartition, .batch = MakeBatch(2000, 32'000)}).status(), absl::OkStatus());
  std::multiset<int64_t> taken;
  for (const bool to_server : {true, false}) {
    const int64_t calls = CallCutAtEveryByte(to_server, [&](int64_t) {
      const absl::StatusOr<Taken> row = through_->Take({.partition = kPartition, .consumer = kConsumer});
      if (row.ok()) taken.insert(row->rows.Get<int64_t>(0, "mark").value().front());
      return row.status();
    });
    // A request to take has 47 bytes and its answer 263 or more. The release of the row before may add bytes.
    EXPECT_GT(calls, to_server ? 40 : 200);
  }
  const auto count = static_cast<int64_t>(taken.size());
  EXPECT_EQ(taken, Numbers(count));
  EXPECT_EQ(direct_->GetConsumerStatus(kPartition, kConsumer)->leased, count);
  EXPECT_EQ(direct_->GetConsumerStatus(kPartition, kConsumer)->expired, 0);
}

TEST_P(CutConnection, DISABLED_ThousandsOfTimesOnTheWayOfAPutPutsItsRowsOnce) { Puts(1000, /*to_server=*/true); }
TEST_P(CutConnection, DISABLED_ThousandsOfTimesOnTheWayOfTheTakesAnswerTakesOnce) { Takes(1000, /*to_server=*/false); }

INSTANTIATE_TEST_SUITE_P(Each, CutConnection, testing::Values(Over::kUnix, Over::kTcp, Over::kTls), NameOfParam);

}  // namespace
}  // namespace tdock::fault
