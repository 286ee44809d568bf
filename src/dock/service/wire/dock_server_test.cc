#include "tdock/dock_server.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <future>
#include <thread>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "core/base/mutex.h"
#include "core/base/status.h"
#include "core/base/testing/fails.h"
#include "core/base/testing/patience.h"
#include "core/base/testing/sanitized.h"
#include "dock/service/wire/testing/loop_cpu.h"
#include "dock/service/wire/testing/serve.h"
#include "dock/store/testing/open_files.h"
#include "tdock/remote_dock.h"
#include "tdock/sampler.h"

namespace tdock::service {
namespace {

using Code = absl::StatusCode;
using testing::HasSubstr;

// What the server reports. Thread-safe.
class Reports {
 public:
  void Add(const std::string& text) TDOCK_EXCLUDES(mu_) {
    MutexLock lock(mu_);
    absl::StrAppend(&all_, text, "\n");
    changed_.NotifyAll();
  }
  // All, once there is this among it.
  std::string AwaitPart(absl::string_view part) TDOCK_EXCLUDES(mu_) {
    MutexLock lock(mu_);
    while (!absl::StrContains(all_, part)) changed_.Wait(mu_);
    return all_;
  }

 private:
  Mutex mu_;
  CondVar changed_;
  std::string all_ TDOCK_GUARDED_BY(mu_);
};

// A server, and a client over each of a Unix socket and TCP.
class DockServerTest : public testing::Test {
 protected:
  void Start(DockServerOptions options = {}) {
    options.listen = "127.0.0.1:0";
    options.socket = folder_.File("dock.sock");
    absl::StatusOr<std::unique_ptr<DockServer>> server = DockServer::Start(options);
    ASSERT_EQ(server.status(), absl::OkStatus());
    server_ = *std::move(server);
    for (const std::string& address : {server_->tcp_address(), server_->address()}) {
      absl::StatusOr<std::unique_ptr<Dock>> client =
          ConnectDock({.address = address, .reconnect_for = kPatience, .answer_within = kPatience});
      ASSERT_EQ(client.status(), absl::OkStatus());
      clients_.push_back(*std::move(client));
    }
  }

  // Over the Unix socket, where rows are views.
  Dock& client() { return *clients_.back(); }

  // A row of a column "a".
  absl::StatusOr<RowId> PutOne(const std::string& partition, const Column& column) {
    PutRequest put{.partition = partition};
    TDOCK_RETURN_IF_ERROR(put.batch.Add("a", column));
    TDOCK_ASSIGN_OR_RETURN(const PutResult result, client().Put(put));
    return result.rows.front();
  }
  static Column Number(int64_t value) { return *Column::FromValues<int64_t>(std::vector<int64_t>{value}); }
  static Column Text(size_t bytes) { return Column::FromStrings(std::vector<std::string>{std::string(bytes, 'x')}); }

  // Rows of so many bytes, put one by one until there is no more room.
  std::vector<RowId> FillWith(const std::string& partition, size_t bytes) {
    std::vector<RowId> rows;
    const Column text = Text(bytes);
    absl::StatusOr<RowId> row = PutOne(partition, text);
    for (; row.ok(); row = PutOne(partition, text)) rows.push_back(*row);
    EXPECT_THAT(row.status(), Fails(Code::kResourceExhausted, {"--memory"}));
    return rows;
  }
  static std::vector<std::string> Texts(int count) {
    std::vector<std::string> texts;
    for (int i = 0; i < count; ++i) texts.emplace_back(100'000, static_cast<char>('a' + i % 26));
    return texts;
  }
  absl::StatusOr<PutResult> PutAtOnce(const std::string& partition, const std::vector<std::string>& texts) {
    PutRequest put{.partition = partition};
    TDOCK_RETURN_IF_ERROR(put.batch.Add("a", Column::FromStrings(texts)));
    return client().Put(put);
  }
  void ClearEverySecond(const std::string& partition, const std::vector<RowId>& rows) {
    ClearRequest clear{.partition = partition};
    for (size_t i = 0; i < rows.size(); i += 2) clear.rows.push_back(rows[i]);
    EXPECT_EQ(client().Clear(clear).status(), absl::OkStatus());
  }
  void Create(const std::string& partition) {
    ASSERT_EQ(client().CreatePartition({.name = partition, .growing = true}), absl::OkStatus());
  }

  ScratchFolder folder_;
  Reports reports_;  // outlives the server
  std::unique_ptr<DockServer> server_;
  std::vector<std::unique_ptr<Dock>> clients_;
};

TEST_F(DockServerTest, SaysThatTheMemoryOfItsOptionIsUsedUp) {
  Start({.memory_bytes = uint64_t{4} << 20});
  ASSERT_EQ(server_->dock().CreatePartition({.name = "p", .columns = {{"text", {}}}}), absl::OkStatus());
  PutRequest put{.partition = "p"};
  const Column text = Column::FromStrings(std::vector<std::string>{std::string(6 << 20, 'x')});
  ASSERT_EQ(put.batch.Add("text", text), absl::OkStatus());
  for (const auto& client : clients_) {
    EXPECT_THAT(client->Put(put).status(), Fails(Code::kResourceExhausted, {"4194304 bytes", "--memory"}));
    EXPECT_EQ(client->ListPartitions().status(), absl::OkStatus());
  }
}

TEST_F(DockServerTest, MessagesThatAreTooLongAreRefusedAlikeOverBothTransports) {
  Start();
  Create("p");
  ASSERT_EQ(client().RegisterConsumer("p", {.name = "c", .reads = {"a"}}), absl::OkStatus());
  // Each row has a mebibyte of tags, which no other row has.
  const auto tagged = [](int rows) {
    PutRequest put{.partition = "p"};
    EXPECT_EQ(put.batch.Add("a", Column::FromValues<int64_t>(std::vector<int64_t>(static_cast<size_t>(rows), 7))),
              absl::OkStatus());
    for (int row = 0; row < rows; ++row) {
      Tags& tags = put.tags.emplace_back();
      for (int i = 0; i < 1024; ++i) tags[absl::StrCat(i)] = std::string(1024, static_cast<char>('!' + row));
    }
    return put;
  };
  const PutRequest long_put = tagged(70), first = tagged(50), second = tagged(20);
  for (const auto& each : clients_) {
    EXPECT_THAT(each->Put(long_put).status(), Fails(Code::kInvalidArgument, {"request", "less"}));
  }
  EXPECT_EQ(client().GetStatus("p")->rows, 0);
  ASSERT_EQ(client().Put(first).status(), absl::OkStatus());
  PutRequest other = second;
  // They differ from those of the first put.
  for (Tags& tags : other.tags) tags["0"] = "other";
  ASSERT_EQ(client().Put(other).status(), absl::OkStatus());

  FetchRequest fetch{.partition = "p", .columns = {"a"}};
  for (RowId row = 0; row < 70; ++row) fetch.rows.push_back(row);
  FetchRequest half = fetch;
  half.rows.resize(35);
  for (const auto& each : clients_) {
    EXPECT_THAT(each->Fetch(fetch).status(), Fails(Code::kResourceExhausted, {"answer", "less"}));
    EXPECT_EQ(each->Fetch(half).status(), absl::OkStatus());
    // The rows of a take that cannot be answered were not handed to anybody.
    EXPECT_THAT(each->Take({.partition = "p", .consumer = "c", .min = 70, .max = 70}).status(),
                Fails(Code::kResourceExhausted, {"answer", "less"}));
    const ConsumerStatus consumer = each->GetConsumerStatus("p", "c").value();
    EXPECT_EQ(consumer.ready, 70);
    EXPECT_EQ(consumer.expired, 0);
  }
}

TEST_F(DockServerTest, LeavesTheSocketOfAnotherServerWhereItIs) {
  Start();
  const std::string path = folder_.File("dock.sock");
  ASSERT_EQ(unlink(path.c_str()), 0);
  const auto other = DockServer::Start({.socket = path});
  ASSERT_EQ(other.status(), absl::OkStatus());
  clients_.clear();
  server_.reset();
  const auto client = ConnectDock({.address = (*other)->address(), .reconnect_for = kPatience});
  ASSERT_EQ(client.status(), absl::OkStatus());
  EXPECT_EQ((*client)->ListPartitions().status(), absl::OkStatus());
}

TEST_F(DockServerTest, TakesTokensWithLineEndsAndRefusesWhatHttpCannotCarry) {
  DockServerOptions options{.listen = "127.0.0.1:0", .token = "a-secret\n"};
  const auto server = DockServer::Start(options);
  ASSERT_EQ(server.status(), absl::OkStatus());
  const std::string address = (*server)->tcp_address();
  for (const std::string token : {"a-secret", "a-secret\n", "a-secret\r\n\n"}) {
    EXPECT_EQ(ConnectDock({.address = address, .token = token, .reconnect_for = kPatience}).status(), absl::OkStatus());
  }
  const std::vector<std::string> wrong = {"a-secret\nb", std::string("a-secret\0b", 10), "a-secr\xc3\xa9t", "a secret",
                                          "\n",          std::string(5000, 'x')};
  for (const std::string& token : wrong) {
    options.token = token;
    for (const absl::Status& status :
         {ConnectDock({.address = address, .token = token}).status(), DockServer::Start(options).status()}) {
      EXPECT_EQ(status.code(), Code::kInvalidArgument) << status;
      EXPECT_THAT(std::string(status.message()), HasSubstr("token"));
      EXPECT_THAT(std::string(status.message()), testing::Not(HasSubstr("secr")));
    }
  }
}

TEST_F(DockServerTest, RefusesNamesAndPathsThatHoldZerosOrLineEnds) {
  for (const std::string address : {"127.0.0.1\n:7", "local host:7", "h\xc3\xb6st:7", "a/b:7"}) {
    EXPECT_EQ(ConnectDock({.address = address}).status().code(), Code::kInvalidArgument) << address;
    EXPECT_EQ(DockServer::Start({.listen = address}).status().code(), Code::kInvalidArgument) << address;
  }
  const std::string zero("/tmp/a\0b", 8);
  EXPECT_EQ(ConnectDock({.address = "unix:" + zero}).status().code(), Code::kInvalidArgument);
  EXPECT_EQ(DockServer::Start({.socket = zero}).status().code(), Code::kInvalidArgument);
  EXPECT_EQ(ConnectDock({.address = "127.0.0.1:7", .token_file = zero}).status().code(), Code::kInvalidArgument);
  EXPECT_EQ(ConnectDock({.address = "127.0.0.1:7", .tls_ca = zero}).status().code(), Code::kInvalidArgument);
}

TEST_F(DockServerTest, HundredsOfPartitionsWithOneRowOfEightBytesFitInto256Mebibytes) {
  Start({.memory_bytes = uint64_t{256} << 20});
  int64_t held = 0;
  for (int64_t i = 0; i < 300; ++i) {
    const std::string partition = absl::StrCat("p", i);
    Create(partition);
    const absl::StatusOr<RowId> row = PutOne(partition, Number(i));
    ASSERT_EQ(row.status(), absl::OkStatus());
    // The cells lie on the heap, so the client is sent copies.
    const absl::StatusOr<Rows> rows = client().Fetch({.partition = partition, .rows = {*row}, .columns = {"a"}});
    ASSERT_EQ(rows.status(), absl::OkStatus());
    EXPECT_EQ(rows->Get<int64_t>(0, "a")->front(), i);
    const int64_t of_partition = client().GetStatus(partition)->held_bytes;
    EXPECT_LE(of_partition, 64 << 10);
    held += of_partition;
  }
  // The same is reported as is counted, when the last put has let go of what it brought.
  EXPECT_TRUE(Eventually([&] { return server_->counts().memory_bytes == held; })) << server_->counts().memory_bytes;
  EXPECT_EQ(server_->counts().arena_bytes, held);
}

TEST_F(DockServerTest, CellsOf150KilobytesFitWhereEverySecondOf100WasCleared) {
  Start({.memory_bytes = uint64_t{64} << 20});
  Create("p");
  const std::vector<RowId> rows = FillWith("p", 100'000);
  EXPECT_GE(rows.size(), 600u);
  ClearEverySecond("p", rows);
  EXPECT_GE(FillWith("p", 150'000).size(), 200u);
  EXPECT_LE(server_->counts().memory_bytes, int64_t{64} << 20);
  EXPECT_LE(server_->counts().arena_bytes, int64_t{128} << 20);
}

TEST_F(DockServerTest, RowsThatWereClearedFromAPutMakeRoomWhereMemoryIsScarce) {
  Start({.memory_bytes = uint64_t{64} << 20});
  Create("p");
  const std::vector<std::string> texts = Texts(600);
  const absl::StatusOr<PutResult> result = PutAtOnce("p", texts);
  ASSERT_EQ(result.status(), absl::OkStatus());
  ClearEverySecond("p", result->rows);
  EXPECT_GE(FillWith("p", 150'000).size(), 200u);
  const absl::StatusOr<Rows> left =
      client().Fetch({.partition = "p", .rows = {result->rows[1], result->rows[599]}, .columns = {"a"}});
  ASSERT_EQ(left.status(), absl::OkStatus());
  EXPECT_EQ(*left->Text(1, "a"), texts[599]);
}

TEST_F(DockServerTest, ClearingRowsWhereMemoryIsScarceHoldsNoEventLoop) {
  Start({.memory_bytes = uint64_t{256} << 20});
  Create("p");
  const absl::StatusOr<PutResult> result = PutAtOnce("p", Texts(2'400));
  ASSERT_EQ(result.status(), absl::OkStatus());
  const int64_t before = server_->counts().memory_bytes;
  ASSERT_GT(before, int64_t{225} << 20);
  LoopCost cost;
  ClearEverySecond("p", result->rows);
  cost.Stop();
  // More than a hundred megabytes were copied together before the answer.
  EXPECT_LT(server_->counts().memory_bytes, before * 2 / 3);
  EXPECT_TRUE(cost.IsLittle(kSanitized ? 0.1 : 0.02));
}

TEST_F(DockServerTest, DroppedPartitionsCountAsTheViewsThatAreLeft) {
  Start({.memory_bytes = uint64_t{64} << 20});
  std::vector<Rows> views;
  for (int64_t round = 0; round < 8; ++round) {
    Create("p");
    for (int i = 0; i < 200; ++i) ASSERT_EQ(PutOne("p", Text(100'000)).status(), absl::OkStatus());
    Create("numbers");
    const absl::StatusOr<RowId> row = PutOne("numbers", Number(round));
    ASSERT_EQ(row.status(), absl::OkStatus());
    const absl::StatusOr<RowId> last = PutOne("p", Text(8));
    ASSERT_EQ(last.status(), absl::OkStatus());
    views.push_back(*client().Fetch({.partition = "p", .rows = {*last}, .columns = {"a"}}));
    views.push_back(*client().Fetch({.partition = "numbers", .rows = {*row}, .columns = {"a"}}));
    ASSERT_EQ(client().DropPartition("p"), absl::OkStatus());
    ASSERT_EQ(client().DropPartition("numbers"), absl::OkStatus());
  }
  // When the last put has let go of what it brought.
  EXPECT_TRUE(Eventually([&] { return server_->counts().memory_bytes <= 8 * (64 << 10); }))
      << server_->counts().memory_bytes;
  for (size_t round = 0; round < 8; ++round) {
    EXPECT_EQ(*views[2 * round].Text(0, "a"), "xxxxxxxx");
    EXPECT_EQ(views[2 * round + 1].Get<int64_t>(0, "a")->front(), static_cast<int64_t>(round));
  }
  Create("p");
  EXPECT_GE(FillWith("p", 100'000).size(), 600u);
}

TEST_F(DockServerTest, ThousandsOfPartitionsWithDataNeedNoDescriptors) {
  Start();
  const dock::DescriptorLimit few(256);
  for (int64_t i = 0; i < 2'000; ++i) {
    const std::string partition = absl::StrCat("p", i);
    Create(partition);
    ASSERT_EQ(PutOne(partition, Number(i)).status(), absl::OkStatus());
  }
  for (const auto& client : clients_) {
    EXPECT_EQ(client->Fetch({.partition = "p1999", .rows = {0}, .columns = {"a"}})->Get<int64_t>(0, "a")->front(),
              1'999);
  }
}

TEST_F(DockServerTest, RunningOutOfDescriptorsNamesTheirLimitAndLeavesSomeToClients) {
  Start();
  const dock::DescriptorLimit few(256);
  absl::Status status;
  int count = 0;
  for (; status.ok() && count < 1'000; ++count) {
    Create(absl::StrCat("p", count));
    status = PutOne(absl::StrCat("p", count), Text(300'000)).status();
  }
  EXPECT_THAT(status, Fails(Code::kResourceExhausted, {"may have 256", "RLIMIT_NOFILE"}));
  EXPECT_GT(count, 50);
  // Small partitions, and clients, still find room.
  Create("small");
  EXPECT_EQ(PutOne("small", Number(1)).status(), absl::OkStatus());
  EXPECT_EQ(ConnectDock({.address = server_->address(), .reconnect_for = kPatience}).status(), absl::OkStatus());
}

// Does not choose before it is let.
class HeldSampler final : public CustomSampler {
 public:
  int64_t Window(int64_t max) const override { return max; }
  std::vector<size_t> Choose(std::span<const Candidate>, int64_t, int64_t, uint64_t) override {
    asked_.set_value();
    go_.get_future().wait();
    return {0};
  }
  void AwaitAsked() { asked_.get_future().wait(); }
  void Go() { go_.set_value(); }

 private:
  std::promise<void> asked_, go_;
};

TEST_F(DockServerTest, ATakeThatHangsWithALockHeldIsReportedAndFailsTheHealthCheckUntilItGoesOn) {
  const auto sampler = std::make_shared<HeldSampler>();
  DockServerOptions options{.on_stall = [&](const std::string& text) { reports_.Add(text); },
                            .stall_after = absl::Milliseconds(300)};
  options.dock.samplers["held"] = sampler;
  Start(options);
  // On a loaded machine, anything may stand still for longer than stall_after, and goes on.
  const auto is_healthy = [&] { return server_->CheckHealth(kPatience).ok(); };
  EXPECT_TRUE(Eventually(is_healthy));
  Dock& dock = *clients_.back();
  ASSERT_EQ(dock.CreatePartition({.name = "p", .columns = {{"text", {}}}}), absl::OkStatus());
  ASSERT_EQ(dock.RegisterConsumer(
                "p", {.name = "c", .reads = {"text"}, .sampler = Sampler::kCustom, .custom_sampler = "held"}),
            absl::OkStatus());
  PutRequest put{.partition = "p"};
  ASSERT_EQ(put.batch.Add("text", Column::FromStrings(std::vector<std::string>{"x"})), absl::OkStatus());
  ASSERT_EQ(dock.Put(put).status(), absl::OkStatus());
  std::thread taker([&] { EXPECT_EQ(dock.Take({.partition = "p", .consumer = "c"}).status(), absl::OkStatus()); });
  sampler->AwaitAsked();
  // The call of the watchdog may not have come to the lock yet.
  EXPECT_TRUE(Eventually([&] {
    const absl::Status status = server_->CheckHealth(absl::Milliseconds(1500));
    EXPECT_EQ(status.code(), Code::kUnavailable);
    return absl::StrContains(status.message(), "a call");
  }));
  reports_.AwaitPart("it does a take for client '");
  EXPECT_THAT(reports_.AwaitPart("it waits for partition 'p'"), HasSubstr("event loop"));
  EXPECT_FALSE(server_->CurrentStalls().empty());
  EXPECT_GE(server_->stalls(), 2);
  sampler->Go();
  taker.join();
  reports_.AwaitPart("a call continues");
  EXPECT_TRUE(Eventually(is_healthy));
}

// An answer of a row without a cell in a column whose cells have 64 TiB, which are zeros in a frame.
class ImmenseAnswer : public testing::Test {
 protected:
  void Prepare(Dock& dock) {
    ASSERT_EQ(dock.CreatePartition(
                  {.name = "p", .columns = {{"text", {}}, {"immense", ColumnType::Dense(DType::kF32, {1l << 44})}}}),
              absl::OkStatus());
    ASSERT_EQ(dock.RegisterConsumer("p", {.name = "c", .reads = {"text"}, .reads_optional = {"immense"}}),
              absl::OkStatus());
    PutRequest put{.partition = "p"};
    ASSERT_EQ(put.batch.Add("text", Column::FromStrings(std::vector<std::string>{"seven"})), absl::OkStatus());
    ASSERT_EQ(dock.Put(put).status(), absl::OkStatus());
  }
};

TEST_F(ImmenseAnswer, IsRefusedIfItIsLongerThanTheLimit) {
  TestServer server(Over::kTcp, {}, {}, {.max_frame_bytes = 4});
  Prepare(*server.dock);
  const auto client = ConnectThrough(std::make_unique<Transport>(server.address()), Clock::Real());
  EXPECT_THAT(client->Take({.partition = "p", .consumer = "c"}).status(),
              Fails(Code::kResourceExhausted, {"more than 4 bytes"}));
  // Others may have the row at once.
  const ConsumerStatus consumer = client->GetConsumerStatus("p", "c").value();
  EXPECT_EQ(consumer.leased, 0);
  EXPECT_EQ(consumer.ready, 1);
}

TEST_F(ImmenseAnswer, HasNoBytesForCellsThatAreAbsent) {
  for (const Over over : {Over::kUnix, Over::kTcp}) {
    TestServer server(over);
    Prepare(*server.dock);
    const auto client = ConnectThrough(std::make_unique<Transport>(server.address()), Clock::Real());
    const absl::StatusOr<Taken> taken = client->Take({.partition = "p", .consumer = "c"});
    ASSERT_EQ(taken.status(), absl::OkStatus());
    EXPECT_FALSE(taken->rows.Has(0, 1));
  }
}

}  // namespace
}  // namespace tdock::service
