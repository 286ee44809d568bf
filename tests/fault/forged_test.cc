// Clients that lie about what they share, and claim what is not theirs.
#include <fcntl.h>
#include <gmock/gmock.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <thread>

#include "core/base/testing/fails.h"
#include "dock/service/wire/field_codec.h"
#include "dock/service/wire/messages.h"
#include "fault_fixture.h"
#include "raw_client.h"
#include "tdock/verbs.h"

namespace tdock::fault {
namespace {

using service::message::Reply;
using service::message::Request;

class Forged : public OverEach {
 protected:
  void SetUp() override {
    OverEach::SetUp();
    dock_ = Connect();
    ASSERT_EQ(CreateAll(*dock_), absl::OkStatus());
  }

  static Request PutRequestOf(RawClient& raw, const std::string& partition = kPartition) {
    Request request = raw.Numbered(service::RequestOf<verbs::Put>({.partition = partition}, absl::Now()));
    service::AppendNumber(request.body, service::NumberOf(&PutRequest::batch), 1);
    return request;
  }
  static Request FetchRequestOf(RawClient& raw, uint64_t row) {
    return raw.Numbered(
        service::RequestOf<verbs::Fetch>({.partition = kPartition, .rows = {row}, .columns = {"text"}}));
  }
  static size_t RowsOfPut(const Reply& reply) { return std::get<service::message::PutResult>(reply.body).rows.size(); }

  std::unique_ptr<Dock> dock_;
};

// What only a Unix socket has.
class ForgedMemory : public Forged {};

TEST_P(ForgedMemory, SlotsThatAreNotThereEndTheConnection) {
  for (const auto& [slot, bytes] : std::vector<std::pair<uint32_t, uint32_t>>{
           {16, 1}, {0xffffffff, 1}, {0, (1 << 20) + 1}, {0, 0xffffffff}, {0x80000000, 0x80000000}}) {
    RawClient raw(target());
    raw.Hello();
    const Request put = PutRequestOf(raw);
    ASSERT_TRUE(raw.SendCall(put));
    ASSERT_TRUE(raw.Send(net::NumbersMessage(service::kSlot, put.call, slot, bytes)));
    const absl::Status status = raw.Receive().status();
    EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
  }
  EXPECT_EQ(dock_->ListPartitions().status(), absl::OkStatus());
}

TEST_P(ForgedMemory, SlotsThatChangeWhileTheyAreReadHarmNothingButTheirPut) {
#if defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "it is a race by intent";
#endif
  PartitionOptions options = Columns("flags");
  options.columns = {{"flag", ColumnType::Dense(DType::kBool)}, {"text", ColumnType::Bytes()}};
  ASSERT_EQ(dock_->CreatePartition(options), absl::OkStatus());
  RawClient raw(target());
  raw.Hello();
  Batch batch;
  Buffer flags = Buffer::Allocate(50'000);
  std::fill_n(flags.mutable_data(), flags.size(), std::byte{1});
  ASSERT_EQ(batch.Add("flag", Column::MakeDense(DType::kBool, {}, 50'000, flags)), absl::OkStatus());
  ASSERT_EQ(batch.Add("text", Column::FromStrings(std::vector<std::string>(50'000, "x"))), absl::OkStatus());
  const std::string frame = FrameOf(batch);
  ASSERT_LT(frame.size(), size_t{1} << 20);
  const std::span<std::byte> slot = raw.area().Slot(0, frame.size()).value();
  std::atomic<bool> over = false;
  std::atomic<int> passes = 0;
  // Behind the header, which has a checksum.
  std::thread scribbler([&] {
    for (uint8_t value = 0; !over; ++value) {
      for (size_t at = 300 + value; at < slot.size(); at += 997) slot[at] = std::byte{value};
      ++passes;
    }
  });
  int accepted = 0, refused = 0;
  constexpr int kPuts = 60;
  for (int i = 0; i < kPuts; ++i) {
    std::copy_n(reinterpret_cast<const std::byte*>(frame.data()), frame.size(), slot.data());
    // On a loaded machine, the scribbler may not have run yet. After some of its passes, flags are neither 0 nor 1.
    const int before = passes;
    while (i == kPuts - 1 && refused == 0 && passes < before + 5) std::this_thread::yield();
    const Request put = PutRequestOf(raw, "flags");
    const auto size = static_cast<uint32_t>(frame.size());
    ASSERT_TRUE(raw.SendCall(put) && raw.Send(net::NumbersMessage(service::kSlot, put.call, uint32_t{0}, size)));
    const absl::StatusOr<Reply> reply = raw.ReplyTo(put.call);
    ASSERT_EQ(reply.status(), absl::OkStatus());
    (reply->code == 0 ? accepted : refused) += 1;
  }
  over = true;
  scribbler.join();
  EXPECT_GT(refused, 0);
  EXPECT_EQ(dock_->GetStatus("flags")->rows, accepted * 50'000);
  // What was let in was looked at as it is kept.
  const absl::StatusOr<ListResult> list = dock_->List({.partition = "flags"});
  ASSERT_EQ(list.status(), absl::OkStatus());
  FetchRequest fetch{.partition = "flags", .columns = {"flag", "text"}};
  for (const ListedRow& row : list->rows) fetch.rows.push_back(row.row);
  if (fetch.rows.empty()) return;
  const absl::StatusOr<Rows> rows = dock_->Fetch(fetch);
  ASSERT_EQ(rows.status(), absl::OkStatus());
  for (size_t row = 0; row < rows->size(); ++row) {
    EXPECT_LE(static_cast<uint8_t>(rows->cell(row, 0).bytes.front()), 1);
  }
}

TEST_P(Forged, SessionsThatAreGuessedAreNotThere) {
  RawClient raw(target());
  raw.Hello(std::string(16, '\x42'));
  EXPECT_FALSE(raw.welcome().resumed);
  EXPECT_NE(raw.session(), std::string(16, '\x42'));
}

TEST_P(Forged, PinsOfOthersAndOfNobodyStayAsTheyAre) {
  ASSERT_EQ(dock_->Put({.partition = kPartition, .batch = MakeBatch(2, 2'000'000)}).status(), absl::OkStatus());
  RawClient holder(target()), other(target());
  holder.Hello();
  other.Hello();
  const Request fetch = FetchRequestOf(holder, 0);
  const absl::StatusOr<Reply> reply = holder.Call(fetch);
  ASSERT_EQ(reply.status(), absl::OkStatus());
  ASSERT_EQ(service::RowsIn(*reply)->pin, fetch.call);
  const service::message::Release pins{{0, fetch.call, 77, ~uint64_t{0}}};
  Request release{.verb = service::message::kAcknowledge, .body = service::Serialize(pins)};
  ASSERT_TRUE(other.SendCall(release));
  const Request ping = other.Numbered({.verb = service::message::kPing});
  ASSERT_EQ(other.Call(ping).status(), absl::OkStatus());
  ASSERT_EQ(dock_->Clear({.partition = kPartition, .everything = true}).value_or(0), 2);
  EXPECT_GT(dock_->GetStatus(kPartition)->held_bytes, 0) << "the holder looks at them";
  // The holder's own, twice.
  ASSERT_TRUE(holder.SendCall(release) && holder.SendCall(release));
  // Its answer, which it has, is remembered until it says so.
  release.answered_below = fetch.call + 1;
  ASSERT_TRUE(holder.SendCall(release));
  EXPECT_TRUE(Eventually([&] { return dock_->GetStatus(kPartition)->held_bytes == 0; }));
}

TEST_P(Forged, NumbersOfCallsThatWereAnsweredAreAnsweredAsBefore) {
  RawClient first(target());
  first.Hello();
  const Request put = PutRequestOf(first);
  const std::string bytes = DataMessages(put.call, FrameOf(MakeBatch(2, 2000)));
  ASSERT_TRUE(first.SendCall(put) && first.Send(bytes));
  const absl::StatusOr<Reply> reply = first.ReplyTo(put.call);
  ASSERT_EQ(reply.status(), absl::OkStatus());
  ASSERT_EQ(RowsOfPut(*reply), 2u);
  RawClient second(target());
  second.Hello(first.session());
  ASSERT_TRUE(second.welcome().resumed);
  ASSERT_TRUE(second.SendCall(put) && second.Send(bytes));
  EXPECT_EQ(service::Serialize(*second.ReplyTo(put.call)), service::Serialize(*reply));
  EXPECT_EQ(dock_->GetStatus(kPartition)->rows, 2);
  const Request told{.answered_below = put.call + 1, .verb = service::message::kAcknowledge};
  ASSERT_TRUE(second.SendCall(told) && second.SendCall(put) && second.Send(bytes));
  const absl::StatusOr<Reply> again = second.ReplyTo(put.call);
  ASSERT_EQ(again.status(), absl::OkStatus());
  EXPECT_EQ(again->code, static_cast<uint32_t>(absl::StatusCode::kFailedPrecondition)) << again->message;
  EXPECT_EQ(dock_->GetStatus(kPartition)->rows, 2);
}

TEST_P(Forged, PutsThatBreakOffAnywhereAreDoneOnceOrNot) {
  const std::string frame = FrameOf(MakeBatch(1, 1000));
  for (size_t sent : {size_t{0}, size_t{1}, frame.size() / 2, frame.size() - 1, frame.size()}) {
    auto first = std::make_unique<RawClient>(target());
    first->Hello();
    const Request put = PutRequestOf(*first);
    const std::string bytes = DataMessages(put.call, frame);
    ASSERT_TRUE(first->SendCall(put) && first->Send(bytes.substr(0, bytes.size() - frame.size() + sent)));
    const std::string session = first->session();
    RawClient second(target());
    second.Hello(session);
    first.reset();
    ASSERT_TRUE(second.SendCall(put) && second.Send(bytes));
    const absl::StatusOr<Reply> reply = second.ReplyTo(put.call);
    ASSERT_EQ(reply.status(), absl::OkStatus());
    EXPECT_EQ(RowsOfPut(*reply), 1u) << reply->message;
  }
  EXPECT_EQ(dock_->GetStatus(kPartition)->rows, 5);
}

TEST_P(ForgedMemory, DescriptorsCannotBeResizedAndSegmentsNotWritten) {
  ASSERT_EQ(dock_->Put({.partition = kPartition, .batch = MakeBatch(1, 200'000)}).status(), absl::OkStatus());
  RawClient raw(target());
  raw.Hello();
  ASSERT_EQ(raw.Call(FetchRequestOf(raw, 0)).status(), absl::OkStatus());
  ASSERT_TRUE(raw.segment().has_value());
  const int segment = raw.segment_file().fd();
  for (int fd : {segment, raw.area_fd()}) {
    EXPECT_EQ(ftruncate(fd, 0), -1);
    EXPECT_EQ(ftruncate(fd, int64_t{1} << 32), -1);
    EXPECT_EQ(fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, 4096), fd == segment ? -1 : 0);
  }
  const char byte = 1;
  EXPECT_EQ(pwrite(segment, &byte, 1, 0), -1);
  EXPECT_EQ(mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, segment, 0), MAP_FAILED);
  void* const read_only = mmap(nullptr, 4096, PROT_READ, MAP_SHARED, segment, 0);
  ASSERT_NE(read_only, MAP_FAILED);
  EXPECT_EQ(mprotect(read_only, 4096, PROT_READ | PROT_WRITE), -1);
  const pid_t child = fork();
  if (child == 0) {
    signal(SIGSEGV, SIG_DFL);
    *static_cast<volatile char*>(read_only) = 1;
    _exit(0);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFSIGNALED(status) && WTERMSIG(status) == SIGSEGV);
  munmap(read_only, 4096);
  const absl::StatusOr<Rows> rows = dock_->Fetch({.partition = kPartition, .rows = {0}, .columns = {"text"}});
  ASSERT_EQ(rows.status(), absl::OkStatus());
  EXPECT_EQ(rows->Text(0, "text").value(), std::string(100'000, 'a'));
}

INSTANTIATE_TEST_SUITE_P(Each, Forged, testing::Values(Over::kUnix, Over::kTcp, Over::kTls), NameOfParam);
INSTANTIATE_TEST_SUITE_P(One, ForgedMemory, testing::Values(Over::kUnix), NameOfParam);

}  // namespace
}  // namespace tdock::fault
