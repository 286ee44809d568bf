// Partitions that are exported from one dock and imported into another.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <bit>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <functional>
#include <limits>
#include <memory>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "core/base/testing/fails.h"
#include "core/base/testing/fake_clock.h"
#include "core/tensor/checksum.h"
#include "dock/local/partition_image.h"
#include "tdock/local_dock.h"
#include "tdock/meta_batch.h"

namespace tdock::dock {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

constexpr char kTrain[] = "train";
// Today's version of the format; with TDOCK_WRITE_GOLDEN=1 in the environment it is written instead.
constexpr char kGolden[] = "tests/data/partition_image_1.bin";

FakeClock& TestClock() {
  static FakeClock clock;
  return clock;
}

std::unique_ptr<Dock> NewDock() { return MakeLocalDock({.clock = &TestClock()}); }

// Columns of each kind, a group that is not complete, one whose row is gone, keys, tags, ages, pieces, and three
// consumers: a writer in the middle of a row, one of groups on two ranks that draws, and a checkpointed trainer.
std::unique_ptr<Dock> DockInTheMiddle() {
  std::unique_ptr<Dock> dock = NewDock();
  EXPECT_EQ(dock->CreatePartition({.name = kTrain,
                                   .columns = {{"prompt", ColumnType::Text()},
                                               {"tokens", ColumnType::Ragged(DType::kI32)},
                                               {"reward", ColumnType::Dense(DType::kF32, {2})}},
                                   .growing = true,
                                   .group_size = 2,
                                   .max_rows = 40}),
            absl::OkStatus());
  const PartitionHandle train = dock->partition(kTrain);
  EXPECT_EQ(train.RegisterConsumer({.name = "rollout",
                                    .reads = {"prompt"},
                                    .reads_optional = {"tokens"},
                                    .writes = {"tokens"},
                                    .lease_duration = absl::Seconds(0.3),
                                    .max_deliveries = 2}),
            absl::OkStatus());
  EXPECT_EQ(train.RegisterConsumer({.name = "judge",
                                    .reads = {"prompt"},
                                    .unit = Unit::kGroup,
                                    .sampler = Sampler::kUniform,
                                    .seed = ~uint64_t{0},
                                    .ranks = 2,
                                    .lease_duration = absl::InfiniteDuration()}),
            absl::OkStatus());
  EXPECT_EQ(train.RegisterConsumer({.name = "trainer", .reads = {"prompt"}, .checkpointed = true}), absl::OkStatus());
  PutRequest prompts{.tags = {{{"split", "train"}, {"level", "2"}}}};
  std::vector<std::string> texts;
  for (GroupId i = 0; i < 31; ++i) {
    prompts.groups.push_back(i / 2);
    prompts.keys.push_back(i % 3 == 0 ? "key" + std::to_string(i) : "");
    texts.push_back(std::string(i, 'x') + "ä");
  }
  EXPECT_EQ(prompts.batch.Add("prompt", Column::FromStrings(texts)), absl::OkStatus());
  EXPECT_EQ(train.Put(prompts).status(), absl::OkStatus());
  EXPECT_EQ(train.Clear({.rows = {3}}).status(), absl::OkStatus());
  EXPECT_EQ(train.Drop({.rows = {9}}), absl::OkStatus());

  // A lease that expires, one that goes on with a response later, and one that is held.
  EXPECT_EQ(train.Take({.consumer = "rollout", .min = 2, .max = 2}).status(), absl::OkStatus());
  TestClock().Advance(absl::Seconds(1));
  for (int64_t version : {3, 4}) {
    const Taken taken = *train.Take({.consumer = "rollout", .min = 1, .max = 1});
    FillRequest part{.rows = {taken.rows.ids()[0]}, .lease = taken.lease, .partial = true, .weights_version = version};
    const auto tokens = Column::FromRows<int32_t>({std::vector<int32_t>(static_cast<size_t>(version), 5)});
    EXPECT_EQ(part.batch.Add("tokens", tokens), absl::OkStatus());
    EXPECT_EQ(train.Fill(part), absl::OkStatus());
  }
  EXPECT_EQ(train.Take({.consumer = "rollout", .min = 3, .max = 3}).status(), absl::OkStatus());
  EXPECT_EQ(train.Take({.consumer = "judge", .min = 2, .max = 2, .rank = 1}).status(), absl::OkStatus());

  const Taken step = *train.Take({.consumer = "trainer", .min = 6, .max = 6});
  const std::vector<RowId> first(step.rows.ids().begin(), step.rows.ids().begin() + 2),
      later(step.rows.ids().begin() + 2, step.rows.ids().begin() + 4);
  EXPECT_EQ(train.Complete({.lease = step.lease, .rows = first, .step = 7}), absl::OkStatus());
  EXPECT_EQ(train.Commit({.consumer = "trainer", .step = 7}), absl::OkStatus());
  EXPECT_EQ(train.Complete({.lease = step.lease, .rows = later, .step = 8}), absl::OkStatus());

  FillRequest rewards{.rows = {20, 5}, .weights_version = 4};
  const float odd_nan = std::bit_cast<float>(uint32_t{0xffc12345});
  EXPECT_EQ(rewards.batch.Add("reward", Column::FromValues<float>({odd_nan, -0.0F, 1e-45F, 2}, {2})), absl::OkStatus());
  EXPECT_EQ(rewards.batch.Add("image", Column::FromStrings(std::vector<std::string>{std::string("\0\xff", 2), ""})),
            absl::OkStatus());
  EXPECT_EQ(train.Fill(rewards), absl::OkStatus());
  EXPECT_EQ(train.PublishWeights(5), absl::OkStatus());
  return dock;
}

std::unique_ptr<Dock> Imported(const std::string& image) {
  std::unique_ptr<Dock> dock = NewDock();
  EXPECT_EQ(dock->ImportPartition(image), absl::OkStatus());
  return dock;
}

// What is left to take, each with all that it is handed out with.
std::vector<std::string> TakeAll(Dock& dock, const std::string& consumer, int32_t rank = 0) {
  std::vector<std::string> all;
  for (;;) {
    const auto taken = dock.Take({.partition = kTrain, .consumer = consumer, .min = 1, .max = 3, .rank = rank});
    if (!taken.ok()) return all;
    const Rows& rows = taken->rows;
    std::ostringstream text;
    for (size_t i = 0; i < rows.size(); ++i) {
      text << rows.ids()[i] << " " << rows.groups()[i] << " " << rows.redeliveries(i) << " " << rows.key(i) << " "
           << rows.age(i) << " " << rows.epoch(i);
      for (const auto& [name, value] : rows.tags(i)) text << " " << name << "=" << value;
      for (size_t column = 0; column < rows.columns().size(); ++column) {
        if (!rows.Has(i, column)) continue;
        const auto bytes = rows.cell(i, column).bytes;
        text << " " << rows.columns()[column].name << " " << ToString(rows.columns()[column].type) << " "
             << rows.cell(i, column).partial << rows.cell(i, column).weights_version << " "
             << std::string(reinterpret_cast<const char*>(bytes.data()), bytes.size());
        const std::vector<Piece> pieces = *rows.Pieces(i, rows.columns()[column].name);
        for (const Piece& piece : pieces) {
          text << " " << piece.end << ":" << piece.weights_version;
        }
      }
      text << "\n";
    }
    all.push_back(text.str());
    EXPECT_LT(all.size(), 100u);
  }
}

void EndLeases(Dock& dock, const std::vector<LeaseId>& leases) {
  for (LeaseId lease : leases) dock.Release({.partition = kTrain, .lease = lease}).IgnoreError();
}

TEST(PartitionExport, AnImportedPartitionGoesOnAsTheExportedOne) {
  const std::unique_ptr<Dock> dock = DockInTheMiddle();
  const std::string image = *dock->ExportPartition(kTrain);
  const std::unique_ptr<Dock> next = Imported(image);
  EndLeases(*dock, {1, 2, 3, 4, 5, 6, 7});
  for (Dock* each : {dock.get(), next.get()}) {
    EXPECT_EQ(each->Rollback({.partition = kTrain, .consumer = "trainer", .step = 7}), absl::OkStatus());
  }
  EXPECT_TRUE(*dock->ExportPartition(kTrain) == *next->ExportPartition(kTrain));
  for (const auto& [consumer, rank] : {std::pair("rollout", 0), {"judge", 0}, {"judge", 1}, {"trainer", 0}}) {
    const std::vector<std::string> taken = TakeAll(*dock, consumer, rank);
    EXPECT_GT(taken.size(), 1u) << consumer;
    EXPECT_TRUE(TakeAll(*next, consumer, rank) == taken) << consumer;
  }
  EXPECT_EQ(next->Take({.partition = kTrain, .consumer = "judge", .rank = 0}).status(),
            dock->Take({.partition = kTrain, .consumer = "judge", .rank = 0}).status());
  // The next row, and the row that the incomplete group still gets.
  for (Dock* each : {dock.get(), next.get()}) {
    EXPECT_THAT(each->Put({.partition = kTrain, .new_rows = 2, .groups = {15, 15}}).status(),
                Fails(absl::StatusCode::kInvalidArgument, {"group 15", "takes 2", "has 1", "given 2"}));
    EXPECT_THAT(each->Put({.partition = kTrain, .new_rows = 2, .groups = {15, 1}})->rows, ElementsAre(31, 32));
    EXPECT_EQ(each->Put({.partition = kTrain, .new_rows = 10, .groups = {20, 20, 21, 21, 22, 22, 23, 23, 24, 24}})
                  .status()
                  .code(),
              absl::StatusCode::kDeadlineExceeded);
  }
  EXPECT_EQ(next->Put({.partition = kTrain, .new_rows = 1, .groups = {30}, .keys = {"key6"}}).status().code(),
            absl::StatusCode::kAlreadyExists);
}

TEST(PartitionExport, CellsComeOutBitForBit) {
  const std::unique_ptr<Dock> dock = DockInTheMiddle();
  const std::unique_ptr<Dock> next = Imported(*dock->ExportPartition(kTrain));
  const FetchRequest all{.partition = kTrain, .rows = {5, 20}, .columns = {"reward", "image", "prompt"}};
  const Batch before = *dock->Fetch(all)->ToBatch(), after = *next->Fetch(all)->ToBatch();
  EXPECT_TRUE(MetaBatch(before) == MetaBatch(after));
  EXPECT_EQ(std::bit_cast<uint32_t>((*after.Row<float>("reward", 1))[0]), 0xffc12345u);
}

TEST(PartitionExport, RowsThatWereLeasedAreReadyInTheirOldPlace) {
  const std::unique_ptr<Dock> dock = NewDock();
  ASSERT_EQ(dock->CreatePartition({.name = kTrain, .growing = true}), absl::OkStatus());
  ASSERT_EQ(dock->RegisterConsumer(kTrain, {.name = "x"}), absl::OkStatus());
  ASSERT_EQ(dock->Put({.partition = kTrain, .new_rows = 4}).status(), absl::OkStatus());
  const Taken taken = *dock->Take({.partition = kTrain, .consumer = "x", .min = 2, .max = 2});
  const std::unique_ptr<Dock> next = Imported(*dock->ExportPartition(kTrain));
  EXPECT_EQ(dock->GetConsumerStatus(kTrain, "x")->leased, 2) << "an export takes no lease away";
  EXPECT_EQ(next->GetConsumerStatus(kTrain, "x")->leased, 0);
  EXPECT_EQ(next->Complete({.partition = kTrain, .lease = taken.lease}).code(), absl::StatusCode::kFailedPrecondition);
  const Taken again = *next->Take({.partition = kTrain, .consumer = "x", .min = 3, .max = 3});
  EXPECT_THAT(again.rows.ids(), ElementsAre(0, 1, 2));
  EXPECT_EQ(again.rows.redeliveries(0), 0);
  EXPECT_GT(again.lease, taken.lease);
}

TEST(PartitionExport, IsRefusedWhereThereIsAPartitionOfTheName) {
  const std::unique_ptr<Dock> dock = DockInTheMiddle();
  const std::string image = *dock->ExportPartition(kTrain);
  const absl::Status status = dock->ImportPartition(image);
  EXPECT_EQ(status.code(), absl::StatusCode::kAlreadyExists);
  EXPECT_THAT(std::string(status.message()), HasSubstr("'train'"));
  ASSERT_EQ(dock->DropPartition(kTrain), absl::OkStatus());
  ASSERT_EQ(dock->ImportPartition(image), absl::OkStatus());
  EXPECT_EQ(dock->ExportPartition("other").status().code(), absl::StatusCode::kNotFound);
}

TEST(PartitionExport, LeasesOfAPartitionThatWasDroppedHaveNoNumberInOneThatIsImported) {
  const std::unique_ptr<Dock> dock = NewDock();
  ASSERT_EQ(dock->CreatePartition({.name = kTrain, .growing = true}), absl::OkStatus());
  ASSERT_EQ(dock->RegisterConsumer(kTrain, {.name = "x"}), absl::OkStatus());
  ASSERT_EQ(dock->Put({.partition = kTrain, .new_rows = 4}).status(), absl::OkStatus());
  const std::string image = *dock->ExportPartition(kTrain);
  const LeaseId before = dock->Take({.partition = kTrain, .consumer = "x"})->lease;
  ASSERT_EQ(dock->DropPartition(kTrain), absl::OkStatus());
  ASSERT_EQ(dock->ImportPartition(image), absl::OkStatus());
  EXPECT_GT(dock->Take({.partition = kTrain, .consumer = "x"})->lease, before);
}

TEST(PartitionExport, AnImageMayBeginAnywhereInMemory) {
  const std::string image = *DockInTheMiddle()->ExportPartition(kTrain);
  const std::string shifted = "123" + image;
  const std::unique_ptr<Dock> dock = NewDock();
  ASSERT_EQ(dock->ImportPartition(absl::string_view(shifted).substr(3)), absl::OkStatus());
  EXPECT_TRUE(*dock->ExportPartition(kTrain) == image);
}

TEST(PartitionExport, NoDamagedImageIsImported) {
  std::string image = *DockInTheMiddle()->ExportPartition(kTrain);
  const std::unique_ptr<Dock> dock = NewDock();
  for (size_t byte = 0; byte < image.size(); ++byte) {
    image[byte] = static_cast<char>(image[byte] ^ (1 << byte % 8));
    ASSERT_FALSE(dock->ImportPartition(image).ok()) << byte;
    image[byte] = static_cast<char>(image[byte] ^ (1 << byte % 8));
  }
  for (size_t size = 0; size < image.size(); size += 7) {
    ASSERT_FALSE(dock->ImportPartition(absl::string_view(image).substr(0, size)).ok()) << size;
  }
  EXPECT_EQ(dock->ImportPartition(image + std::string(64, '\0')).code(), absl::StatusCode::kDataLoss);
  EXPECT_THAT(*dock->ListPartitions(), ElementsAre());
  EXPECT_EQ(dock->ImportPartition(image), absl::OkStatus());
}

TEST(PartitionExport, AnImageOfALaterVersionIsRefusedNamingBoth) {
  std::string image = *DockInTheMiddle()->ExportPartition(kTrain);
  image[8] = 9;
  const uint64_t checksum = Checksum(std::as_bytes(std::span(image).first(24)));
  std::memcpy(image.data() + 24, &checksum, sizeof(checksum));
  const absl::Status status = NewDock()->ImportPartition(image);
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(status.message()), HasSubstr("version 9"));
  EXPECT_THAT(std::string(status.message()), HasSubstr("reads version 1"));
}

TEST(PartitionExport, BytesOfSomethingElseAreNoImage) {
  for (const char* bytes : {"", "x", "{\"partition\": \"train\"}"}) {
    EXPECT_EQ(NewDock()->ImportPartition(bytes).code(), absl::StatusCode::kInvalidArgument) << bytes;
  }
}

TEST(PartitionExport, AnImageThatIsWholeAndCannotBeIsRefused) {
  const std::string image = *DockInTheMiddle()->ExportPartition(kTrain);
  struct Wrong {
    std::function<void(PartitionImage&)> make;
    std::vector<std::string> names;
  };
  using Image = PartitionImage;
  const std::vector<Wrong> all = {
      {[](Image& i) { i.options.name = "\n"; }, {"control character"}},
      {[](Image& i) { i.options.group_size = 0; }, {"group_size is 0"}},
      {[](Image& i) { i.options.columns.resize(5); }, {"4 columns", "name 5"}},
      {[](Image& i) { i.table.columns[3].spec.name = "prompt"; }, {"'prompt'", "not where"}},
      {[](Image& i) { i.options.growing = false; }, {"'image'", "not where"}},
      {[](Image& i) { i.gone_bytes = -1; }, {"gone_bytes is -1"}},
      {[](Image& i) { i.writers.push_back("rollout"); }, {"writer 'rollout'", "twice"}},
      {[](Image& i) { i.cells[0].writers[3] = 2; }, {"writer 2 of 1"}},
      {[](Image& i) { i.cells[0].versions[3] = -2; }, {"weights version -2"}},
      {[](Image& i) { i.cells[0].rows[1] = i.cells[0].rows[0]; }, {"cells", "order"}},
      {[](Image& i) { i.cells[0].rows[3] = 3; }, {"'prompt'", "row 3", "gone"}},
      {[](Image& i) { i.table.retained_for = {"trainer"}; }, {"'trainer'", "retain_for"}},
      {[](Image& i) { i.table.next_row = ~RowId{0}; }, {"next row"}},
      {[](Image& i) { i.table.next_row = 4; }, {"before group 16 and row 4"}},
      {[](Image& i) { i.table.last_lease = ~LeaseId{0}; }, {"last lease"}},
      {[](Image& i) { i.table.largest_group = 0; }, {"largest group"}},
      {[](Image& i) { i.table.weights_version = -2; }, {"weights version"}},
      {[](Image& i) { i.table.sealed = true; }, {"group 1 ", "sealed"}},
      {[](Image& i) { i.table.groups_begun = 3; }, {"group 3 ", "before group 3"}},
      {[](Image& i) { i.table.groups[1].leader = 0; }, {"group 1 ", "with row 0;", "before group 16"}},
      {[](Image& i) { i.table.groups[1].size = 0; }, {"size is 0"}},
      {[](Image& i) { i.table.groups[1].arrived = 3; }, {"rows put is 3"}},
      {[](Image& i) { i.table.groups[2].arrived = 1; }, {"of which 1 were put, has 2"}},
      {[](Image& i) { i.table.groups[1].age = -1; }, {"age is -1"}},
      {[](Image& i) { i.table.groups[3].id = 2; }, {"group 2", "twice"}},
      {[](Image& i) { i.table.rows[1].id = 0; }, {"not ascending"}},
      {[](Image& i) { i.table.rows[5].group = kNoGroup; }, {"row 6", "not of"}},
      {[](Image& i) { i.table.rows[6].group = 999; }, {"row 7", "group 999"}},
      {[](Image& i) { i.table.rows[0].history.age = std::numeric_limits<int32_t>::max(); }, {"age is 2147483647"}},
      {[](Image& i) { i.table.rows[0].history.epoch = 5; }, {"epoch is 5"}},
      {[](Image& i) { i.table.rows[3].label.key = "key0"; }, {"another's"}},
      {[](Image& i) {
         i.table.rows[0].label.tags = std::make_shared<Tags>(Tags{{"", "x"}});
       },
       {"tag", "is empty"}},
      {[](Image& i) {
         i.table.rows[0].history.pieces[1] = {{1, 1}};
       },
       {"pieces", "column 1", "row 0"}},
      {[](Image& i) {
         i.table.rows[2].history.pieces[77] = {{1, 1}};
       },
       {"pieces", "column 77", "row 2"}},
      {[](Image& i) { i.table.consumers[1].options.name = "rollout"; }, {"consumer 'rollout'", "twice"}},
      {[](Image& i) { i.table.consumers[1].options.ranks = 1; }, {"takes of 2 ranks"}},
      {[](Image& i) { i.table.consumers[1].options.lease_duration = absl::ZeroDuration(); }, {"lease_duration"}},
      {[](Image& i) { i.table.consumers[1].counts.committed_step = 1; }, {"committed_step is 1"}},
      {[](Image& i) { i.table.consumers[1].counts.completed = -1; }, {"consumer 'judge'", "completed is -1"}},
      {[](Image& i) { i.table.consumers[1].options.custom_sampler = "s"; }, {"custom_sampler", "kCustom"}},
      {[](Image& i) {
         i.table.consumers[1].options.sampler = Sampler::kCustom;
         i.table.consumers[1].options.custom_sampler = "s";
       },
       {"consumer 'judge'", "sampler 's'"}},
      {[](Image& i) { i.table.consumers[2].done[0] = i.table.consumers[2].done[1]; },
       {"consumer 'trainer'", "under step"}},
      {[](Image& i) { i.table.consumers[2].done[3].step = 7; }, {"consumer 'trainer'", "under step 7"}},
      {[](Image& i) { i.table.consumers[2].done[0].row = 3; }, {"row 3 ", "under step"}},
      {[](Image& i) { i.table.consumers[2].done[0].row = 9; }, {"row 9 ", "under step"}},
      {[](Image& i) {
         i.table.consumers[0].done.push_back({4, 1});
       },
       {"consumer 'rollout'", "row 4 ", "under step 1"}},
      {[](Image& i) { i.table.consumers[0].redeliveries[0].count = 3; }, {"expired 3 times"}},
      {[](Image& i) {
         i.table.consumers[0].redeliveries.push_back({3, 1});
       },
       {"row 3"}},
  };
  for (size_t i = 0; i < all.size(); ++i) {
    const std::unique_ptr<Dock> dock = NewDock();
    PartitionImage wrong = *DecodePartitionImage(image);
    all[i].make(wrong);
    const absl::StatusOr<std::string> bytes = EncodePartitionImage(wrong);
    ASSERT_TRUE(bytes.ok()) << i << ": " << bytes.status();
    const absl::Status status = dock->ImportPartition(*bytes);
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << i << ": " << status;
    EXPECT_THAT(std::string(status.message()), Mentions(all[i].names)) << i;
    EXPECT_THAT(*dock->ListPartitions(), ElementsAre());
  }
}

TEST(PartitionExport, AnExportIsOfOneMomentWhileOthersPutAndTake) {
  const std::unique_ptr<Dock> dock = MakeLocalDock();
  ASSERT_EQ(dock->CreatePartition({.name = kTrain,
                                   .columns = {{"a", ColumnType::Dense(DType::kI64)}, {"b", ColumnType::Bytes()}},
                                   .retain_for = {"x"}}),
            absl::OkStatus());
  ASSERT_EQ(dock->RegisterConsumer(kTrain, {.name = "x", .reads = {"a", "b"}}), absl::OkStatus());
  // Each put is of four rows with its number, and each take is of the rows of a put.
  const auto put_and_take = [&] {
    for (int64_t put = 0; put < 3000; ++put) {
      PutRequest request{.partition = kTrain};
      ASSERT_EQ(request.batch.Add("a", Column::FromValues(std::vector<int64_t>(4, put))), absl::OkStatus());
      const std::vector<std::string> texts(4, std::string(static_cast<size_t>(put % 300), 'b') + std::to_string(put));
      ASSERT_EQ(request.batch.Add("b", Column::FromStrings(texts)), absl::OkStatus());
      ASSERT_EQ(dock->Put(request).status(), absl::OkStatus());
      if (put < 20) continue;  // so many are there
      const Taken taken = *dock->Take({.partition = kTrain, .consumer = "x", .min = 4, .max = 4});
      ASSERT_EQ(dock->Complete({.partition = kTrain, .lease = taken.lease}), absl::OkStatus());
    }
  };
  std::atomic<bool> over = false;
  std::jthread putter([&] {
    put_and_take();
    over = true;
  });
  while (!over) {
    const std::unique_ptr<Dock> next = MakeLocalDock();
    ASSERT_EQ(next->ImportPartition(*dock->ExportPartition(kTrain)), absl::OkStatus());
    for (;;) {
      const auto taken = next->Take({.partition = kTrain, .consumer = "x", .min = 1, .max = 4});
      if (!taken.ok()) break;
      ASSERT_EQ(taken->rows.size(), 4u);
      const int64_t put = (*taken->rows.Get<int64_t>(0, "a"))[0];
      ASSERT_EQ(static_cast<int64_t>(taken->rows.ids()[0]), 4 * put);
      for (size_t row = 0; row < 4; ++row) {
        ASSERT_EQ((*taken->rows.Get<int64_t>(row, "a"))[0], put);
        ASSERT_EQ(*taken->rows.Text(row, "b"), std::string(static_cast<size_t>(put % 300), 'b') + std::to_string(put));
      }
      ASSERT_EQ(next->Complete({.partition = kTrain, .lease = taken->lease}), absl::OkStatus());
    }
    EXPECT_EQ(next->GetStatus(kTrain)->rows, 0);
  }
}

TEST(PartitionExport, ManyCellsLieInBlocksThatCanBeFreed) {
  const std::unique_ptr<Dock> dock = MakeLocalDock();
  ASSERT_EQ(dock->CreatePartition({.name = kTrain, .growing = true, .max_bytes = int64_t{16} << 20}), absl::OkStatus());
  PutRequest request{.partition = kTrain};
  ASSERT_EQ(request.batch.Add("a", Column::FromValues(std::vector<int64_t>(400'000, 7), {100})), absl::OkStatus());
  ASSERT_EQ(dock->Put(request).status(), absl::OkStatus());
  const std::unique_ptr<Dock> next = MakeLocalDock();
  ASSERT_EQ(next->ImportPartition(*dock->ExportPartition(kTrain)), absl::OkStatus());
  EXPECT_LE(next->GetStatus(kTrain)->held_bytes, 3'400'000);
  std::vector<RowId> all(4000);
  for (RowId row = 0; row < all.size(); ++row) all[row] = row;
  const std::vector<RowId> half(all.begin(), all.begin() + 2048);
  ASSERT_EQ(next->Clear({.partition = kTrain, .rows = half}).status(), absl::OkStatus());
  EXPECT_LE(next->GetStatus(kTrain)->held_bytes, 1'700'000);
  // What the rows that are gone had is an estimate for those that come.
  const std::string image = *next->ExportPartition(kTrain);
  EXPECT_EQ(DecodePartitionImage(image)->gone_bytes, 2048 * 800);
  EXPECT_TRUE(*Imported(image)->ExportPartition(kTrain) == image);
}

TEST(PartitionExport, TheGoldenImageIsStillRead) {
  if (std::getenv("TDOCK_WRITE_GOLDEN") != nullptr) {
    std::ofstream(kGolden, std::ios::binary) << *DockInTheMiddle()->ExportPartition(kTrain);
  }
  std::ifstream file(kGolden, std::ios::binary);
  ASSERT_TRUE(file) << "missing " << kGolden << ": TDOCK_WRITE_GOLDEN=1 writes it";
  std::stringstream golden;
  golden << file.rdbuf();
  const std::unique_ptr<Dock> dock = Imported(golden.str());
  EXPECT_EQ(dock->GetStatus(kTrain)->rows, 30);
  EXPECT_TRUE(*dock->ExportPartition(kTrain) == golden.str()) << "today's images are others";
  EXPECT_TRUE(*DockInTheMiddle()->ExportPartition(kTrain) == golden.str()) << "today's images are others";
}

}  // namespace
}  // namespace tdock::dock
