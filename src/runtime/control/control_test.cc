// Controllers and workers over real connections, each with threads of its own in this process.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "core/base/status.h"
#include "core/base/testing/fails.h"
#include "core/base/testing/patience.h"
#include "core/net/channel.h"
#include "core/net/endpoint.h"
#include "runtime/control/messages.h"
#include "runtime/control/parcel_connection.h"
#include "runtime/control/processes.h"
#include "tdock/column.h"

namespace tdock::runtime {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::IsSupersetOf;
using testing::StartsWith;
using testing::UnorderedElementsAre;

constexpr Method<PerRank<int64_t>(PerRank<int64_t>)> kDouble{"double", Mode::kDpCompute};
constexpr Method<MetaBatch(MetaBatch)> kEcho{"echo", Mode::kDpComputeProto};
constexpr Method<PerRank<int64_t>(int64_t)> kWait{"wait", Mode::kOneToAll};

absl::Time Late() { return absl::Now() + kPatience; }

MetaBatch Numbers(int64_t rows, int64_t per_row = 1) {
  std::vector<int64_t> values(static_cast<size_t>(rows * per_row));
  for (size_t i = 0; i < values.size(); ++i) values[i] = static_cast<int64_t>(i);
  Batch batch;
  EXPECT_TRUE(batch.Add("number", Column::FromValues<int64_t>(values, {per_row})).ok());
  return MetaBatch(batch, {{"step", 7}});
}

// A data message.
std::string Data(const std::string& bytes) {
  return net::MessageOf(net::kData, 0, std::string(sizeof(net::DataPrefix), '\0') + bytes);
}

class Nobody final : public net::Recipient {
 public:
  uint32_t MaxBytes(uint8_t type) const override { return type == net::kGoodbye ? net::kMaxWelcomeBytes : 0; }
  absl::Status OnData(uint64_t, uint64_t, std::span<const std::byte>) override { return absl::UnknownError("data"); }
};

// What a reader makes of bytes: the last parcel that is complete.
absl::StatusOr<std::optional<Parcel>> Read(std::span<const std::byte> bytes) {
  ParcelReader reader;
  absl::StatusOr<std::optional<Parcel>> read = std::nullopt;
  while (read.ok() && !bytes.empty()) {
    const std::span<std::byte> room = reader.Room(bytes.size());
    std::copy_n(bytes.begin(), room.size(), room.begin());
    bytes = bytes.subspan(room.size());
    read = reader.Fill(room.size());
  }
  return read;
}

std::string BytesOf(const Parcel& parcel) {
  std::string bytes;
  const PackedParcel packed = *Pack(parcel);
  for (const auto piece : packed.pieces) bytes.append(reinterpret_cast<const char*>(piece.data()), piece.size());
  return bytes;
}

// A worker with a thread.
class TestWorker {
 public:
  explicit TestWorker(WorkerOptions options) {
    TDOCK_CHECK(table_.Serve(kDouble, [](int64_t x) { return 2 * x; }).ok(), "");
    TDOCK_CHECK(table_.Serve(kEcho, [](MetaBatch batch) { return batch; }).ok(), "");
    TDOCK_CHECK(table_
                    .Serve(kWait,
                           [this](int64_t) -> absl::StatusOr<int64_t> {
                             waits_ = true;
                             while (!let_go_ && session_->status().ok()) absl::SleepFor(absl::Milliseconds(1));
                             return let_go_ ? absl::StatusOr<int64_t>(1) : session_->status();
                           })
                    .ok(),
                "");
    auto joined = JoinController(options);
    TDOCK_CHECK(joined.ok(), joined.status().ToString());
    session_ = *std::move(joined);
    thread_ = std::thread([this] {
      welcome_ = session_->AwaitWelcome(Late());
      end_ = welcome_.ok() ? session_->Serve(table_) : welcome_.status();
    });
  }
  ~TestWorker() {
    let_go_ = true;
    if (thread_.joinable()) thread_.join();
  }
  // How its session has ended.
  absl::Status End() {
    thread_.join();
    return end_;
  }
  WorkerSession& session() { return *session_; }
  void Leave() {
    session_.reset();
    thread_.join();
  }
  bool waits() const { return waits_; }
  void LetGo() { let_go_ = true; }
  const absl::StatusOr<Value>& welcome() const { return welcome_; }

 private:
  MethodTable table_;
  std::unique_ptr<WorkerSession> session_;
  std::atomic<bool> let_go_ = false, waits_ = false;
  absl::StatusOr<Value> welcome_ = absl::UnknownError("none");
  absl::Status end_;
  std::thread thread_;
};

class Control : public testing::Test {
 protected:
  ~Control() override {
    if (controller_ != nullptr) controller_->End(absl::OkStatus());
  }
  // A controller, and workers that have joined and serve.
  void Begin(int workers, ControllerOptions options = {}) {
    options.world_size = workers + 1;
    options.token = "secret";
    options.silence = kNever;
    auto opened = OpenController(options);
    ASSERT_TRUE(opened.ok()) << opened.status();
    controller_ = *std::move(opened);
    for (int rank = 1; rank <= workers; ++rank) workers_.push_back(Join(rank));
    ASSERT_TRUE(controller_->AwaitWorkers(Late()).ok());
    ASSERT_TRUE(controller_->Welcome(Value("hello")).ok());
    const absl::Status serving = controller_->AwaitServing(Late());
    ASSERT_TRUE(serving.ok()) << serving;
  }
  WorkerOptions OptionsOf(int rank) const {
    return {.controller = controller_->address(),
            .token = "secret",
            .rank = rank,
            .world_size = world_size_,
            .name = "ref",
            .connect_timeout = kPatience,
            .silence = kNever};
  }
  net::ServerAddress Server(net::Role role = net::Role::kWorkers) const {
    return {.address = controller_->address(),
            .credentials = *net::Credentials::Load({.token = "secret"}, net::Tls::Side::kClient),
            .role = role};
  }
  std::unique_ptr<TestWorker> Join(int rank) {
    WorkerOptions options = OptionsOf(rank);
    return std::make_unique<TestWorker>(std::move(options));
  }
  WorkerGroup Group() {
    std::vector<std::shared_ptr<WorkerLink>> links;
    for (size_t i = 0; i < workers_.size(); ++i) links.push_back(controller_->worker(static_cast<int>(i) + 1));
    return *WorkerGroup::Of(std::move(links), {.role = "ref"});
  }

  int world_size_ = 3;
  std::unique_ptr<Controller> controller_;
  std::vector<std::unique_ptr<TestWorker>> workers_;
};

TEST_F(Control, CallsAreDividedOverProcessesAndTheirResultsPutTogether) {
  Begin(2);
  EXPECT_EQ(*Group().Call(kDouble, std::vector<int64_t>{3, 4}), (std::vector<int64_t>{6, 8}));
  const MetaBatch batch = Numbers(10);
  EXPECT_EQ(*Group().Call(kEcho, batch), batch);
}

TEST_F(Control, BatchesOfManyMessagesArrive) {
  Begin(2);
  const MetaBatch large = Numbers(64, 1 << 16);  // 32 MiB
  EXPECT_EQ(*Group().Call(kEcho, large), large);
}

TEST_F(Control, AWelcomeIsForAllAndTheEndIsOk) {
  Begin(2);
  controller_->End(absl::OkStatus());
  for (const auto& worker : workers_) {
    EXPECT_TRUE(worker->End().ok());
    EXPECT_EQ(*worker->welcome(), Value("hello"));
  }
}

TEST_F(Control, AnErrorOfTheRunIsThatOfEveryWorker) {
  Begin(2);
  controller_->End(absl::DataLossError("the model is not what it was"));
  for (const auto& worker : workers_) EXPECT_EQ(worker->End(), absl::DataLossError("the model is not what it was"));
}

TEST_F(Control, CallsOfAWorkerThatGoesFailAtOnceWithItsLastLines) {
  Begin(2);
  workers_[0]->session().Notify("log", "loading the model");
  workers_[0]->session().Notify("log", "the disk is full");
  const Future<std::vector<int64_t>> future = Group().Start(kWait, int64_t{0});
  while (!workers_[0]->waits()) absl::SleepFor(absl::Milliseconds(1));
  // As if it was killed: its connection is gone without a word.
  workers_[0]->LetGo();
  workers_[1]->LetGo();
  EXPECT_TRUE(future.Get().ok());
  workers_[0]->Leave();
  const auto result = Group().Call(kDouble, std::vector<int64_t>{3, 4});
  EXPECT_TRUE(absl::IsUnavailable(result.status())) << result.status();
  EXPECT_THAT(std::string(result.status().message()),
              AllOf(HasSubstr("rank 1 (ref) is gone"), HasSubstr("the disk is full"), HasSubstr("double")));
  EXPECT_FALSE(controller_->status().ok());
}

TEST_F(Control, CallsAreToldOfAsTheyBeginAndEnd) {
  std::mutex mu;
  std::vector<std::string> lines;
  Begin(2, {.on_call = [&](int rank, const std::string& line) {
          const std::lock_guard lock(mu);
          lines.push_back(absl::StrCat(rank, " ", line));
        }});
  const Future<std::vector<int64_t>> waiting = Group().Start(kWait, int64_t{0});
  while (!workers_[0]->waits() || !workers_[1]->waits()) absl::SleepFor(absl::Milliseconds(1));
  {
    const std::lock_guard lock(mu);
    EXPECT_THAT(lines, UnorderedElementsAre("1 wait begins", "2 wait begins"));
    lines.clear();
  }
  for (const auto& worker : workers_) worker->LetGo();
  EXPECT_TRUE(waiting.Get().ok());
  workers_[0]->Leave();
  EXPECT_FALSE(Group().Call(kDouble, std::vector<int64_t>{3, 4}).ok());
  const std::lock_guard lock(mu);
  EXPECT_THAT(lines, IsSupersetOf({StartsWith("1 wait has ended after"), StartsWith("2 wait has ended after"),
                                   StartsWith("1 double has failed after"), StartsWith("2 double has ended after")}));
}

TEST_F(Control, DifferentMethodsRunAtTheSameTime) {
  Begin(2);
  const Future<std::vector<int64_t>> waiting = Group().Start(kWait, int64_t{0});
  EXPECT_EQ(*Group().Call(kDouble, std::vector<int64_t>{1, 2}), (std::vector<int64_t>{2, 4}));
  for (const auto& worker : workers_) worker->LetGo();
  EXPECT_TRUE(waiting.Get().ok());
}

TEST_F(Control, AControllerThatIsNoRankHasWorkersFromRankZeroOnWhichMayKeepTheOrderOfCalls) {
  controller_ = *OpenController({.token = "secret", .world_size = 2, .is_rank_zero = false, .silence = kNever});
  world_size_ = 2;
  std::vector<std::shared_ptr<WorkerLink>> links;
  for (const int rank : {0, 1}) {
    WorkerOptions options = OptionsOf(rank);
    options.in_order = true;
    workers_.push_back(std::make_unique<TestWorker>(std::move(options)));
  }
  ASSERT_TRUE(controller_->AwaitWorkers(Late()).ok());
  ASSERT_TRUE(controller_->Welcome(Value("hello")).ok());
  ASSERT_TRUE(controller_->AwaitServing(Late()).ok());
  for (const int rank : {0, 1}) links.push_back(controller_->worker(rank));
  const WorkerGroup group = *WorkerGroup::Of(std::move(links), {.role = "ref"});
  const Future<std::vector<int64_t>> waiting = group.Start(kWait, int64_t{0});
  const Future<std::vector<int64_t>> doubled = group.Start(kDouble, std::vector<int64_t>{1, 2});
  while (!workers_[0]->waits() || !workers_[1]->waits()) absl::SleepFor(absl::Milliseconds(1));
  EXPECT_FALSE(doubled.ready());
  for (const auto& worker : workers_) worker->LetGo();
  EXPECT_TRUE(waiting.Get().ok());
  EXPECT_EQ(*doubled.Get(), (std::vector<int64_t>{2, 4}));
}

TEST_F(Control, ACallEndsAtItsDeadlineAndItsLateResultIsIgnored) {
  Begin(2);
  const auto result = Group().WithTimeout(absl::Milliseconds(100)).Call(kWait, int64_t{0});
  EXPECT_TRUE(absl::IsDeadlineExceeded(result.status())) << result.status();
  EXPECT_THAT(std::string(result.status().message()), HasSubstr("rank 1 (ref)"));
  for (const auto& worker : workers_) worker->LetGo();
  EXPECT_EQ(*Group().Call(kDouble, std::vector<int64_t>{1, 2}), (std::vector<int64_t>{2, 4}));
}

TEST_F(Control, RanksThatDisagreeAreRefusedWithOneErrorForAll) {
  world_size_ = 3;
  controller_ = *OpenController(
      {.token = "secret", .world_size = 3, .setup = {{"actor.lr", "1e-6"}, {"seed", "1"}}, .silence = kNever});
  WorkerOptions same = OptionsOf(1), other = OptionsOf(2);
  same.setup = {{"actor.lr", "1e-6"}, {"seed", "1"}};
  other.setup = {{"actor.lr", "1e-5"}, {"seed", "1"}};
  TestWorker first(same), second(other);
  const absl::Status refused = controller_->AwaitWorkers(Late());
  EXPECT_TRUE(absl::IsFailedPrecondition(refused)) << refused;
  EXPECT_THAT(std::string(refused.message()),
              AllOf(HasSubstr("rank 2 (ref)"), HasSubstr("actor.lr is 1e-6 on rank 0 and 1e-5 there")));
  EXPECT_EQ(first.End(), refused);
  EXPECT_EQ(second.End(), refused);
}

TEST_F(Control, AnotherSizeOfTheWorldAndARankThatIsTakenAreRefused) {
  controller_ = *OpenController({.token = "secret", .world_size = 3, .silence = kNever});
  WorkerOptions options = OptionsOf(1);
  options.world_size = 4;
  TestWorker wrong(options), right(OptionsOf(2));
  const absl::Status refused = controller_->AwaitWorkers(Late());
  EXPECT_THAT(std::string(refused.message()), AllOf(HasSubstr("WORLD_SIZE=4"), HasSubstr("WORLD_SIZE=3")));
  EXPECT_EQ(wrong.End(), refused);
  EXPECT_EQ(right.End(), refused);

  controller_ = *OpenController({.token = "secret", .world_size = 3, .silence = kNever});
  TestWorker first(OptionsOf(1)), again(OptionsOf(1));
  const absl::Status twice = controller_->AwaitWorkers(Late());
  EXPECT_TRUE(absl::IsAlreadyExists(twice)) << twice;
}

TEST_F(Control, RanksThatDoNotComeAreNamed) {
  controller_ = *OpenController({.token = "secret", .world_size = 4, .silence = kNever});
  world_size_ = 4;
  TestWorker second(OptionsOf(2));
  EXPECT_TRUE(Eventually([&] { return controller_->name(2) == "ref"; }));
  const absl::Status missing = controller_->AwaitWorkers(absl::Now() + absl::Milliseconds(200));
  EXPECT_THAT(missing, Fails(absl::StatusCode::kDeadlineExceeded, {"4 ranks", ": 1, 3."}));
  EXPECT_EQ(second.End(), missing);
}

TEST_F(Control, AWorkerWithoutTheTokenDoesNotJoin) {
  controller_ = *OpenController({.token = "secret", .world_size = 2, .silence = kNever});
  WorkerOptions options = OptionsOf(1);
  options.world_size = 2;
  options.token = "guess";
  EXPECT_THAT(JoinController(options).status(), Fails(absl::StatusCode::kUnauthenticated, {"rank 1", "the token"}));
  options.token = "";
  EXPECT_THAT(JoinController(options).status(), Fails(absl::StatusCode::kUnauthenticated, {"has none"}));
  EXPECT_TRUE(absl::IsDeadlineExceeded(controller_->AwaitWorkers(absl::Now() + absl::Milliseconds(100))));
}

TEST_F(Control, AWorkerWaitsForItsControllerToBegin) {
  net::Endpoint endpoint{.host = "127.0.0.1"};
  net::ListeningSockets before = *net::ListenOn(endpoint);
  endpoint.port = before.port;
  WorkerOptions options{
      .controller = endpoint.ToString(), .token = "secret", .world_size = 2, .connect_timeout = kPatience};
  absl::StatusOr<std::unique_ptr<WorkerSession>> joined = absl::UnknownError("not yet");
  std::thread worker([&] { joined = JoinController(options); });
  // Its first attempt is not answered.
  EXPECT_TRUE(Eventually([&] {
    const FileDescriptor attempt(accept(before.sockets[0]->fd(), nullptr, nullptr));
    return attempt.fd() >= 0;
  }));
  before.sockets.clear();
  auto opened = OpenController({.listen = endpoint.ToString(), .token = "secret", .world_size = 2, .silence = kNever});
  ASSERT_TRUE(opened.ok()) << opened.status();
  controller_ = *std::move(opened);
  worker.join();
  EXPECT_TRUE(joined.ok()) << joined.status();
  EXPECT_TRUE(controller_->AwaitWorkers(Late()).ok());
  options.controller = "127.0.0.1:1";
  options.connect_timeout = absl::Milliseconds(50);
  EXPECT_THAT(JoinController(options).status(), Fails(absl::StatusCode::kUnavailable, {"127.0.0.1:1"}));
}

TEST_F(Control, AClientOfADockIsRefused) {
  controller_ = *OpenController({.token = "secret", .world_size = 2, .silence = kNever});
  const auto channel = net::Channel::Connect(Server(net::Role::kDock), "", Late());
  EXPECT_THAT(channel.status(), Fails(absl::StatusCode::kFailedPrecondition, {"controller", "dock server"}));
}

TEST_F(Control, BytesOfSomethingElseDoNoHarm) {
  controller_ = *OpenController({.token = "secret", .world_size = 2, .silence = kNever});
  world_size_ = 2;
  const net::Endpoint endpoint = *net::ParseEndpoint(controller_->address(), "");
  std::string garbage(1 << 16, '\0');
  std::generate(garbage.begin(), garbage.end(), [state = uint32_t{1}]() mutable {
    return static_cast<char>((state = state * 1664525 + 1013904223) >> 24);
  });
  for (const std::string& bytes : {garbage, std::string("GET / HTTP/1.1\r\n\r\n"), std::string()}) {
    const auto socket = *net::ConnectTo(endpoint, Late());
    send(socket->fd(), bytes.data(), bytes.size(), MSG_NOSIGNAL);
    shutdown(socket->fd(), SHUT_WR);
    std::array<char, 1024> answer;
    EXPECT_TRUE(Eventually([&] {
      const ssize_t got = recv(socket->fd(), answer.data(), answer.size(), 0);
      return got == 0 || (got < 0 && errno == ECONNRESET);
    }));
  }
  // The same by one who has the token: messages with no place here, data of no parcel, and parcels of other bytes.
  const std::string parcel = net::MessageOf(kParcel, 0, "");
  for (const std::string& bytes : {net::MessageOf(99, 0, ""), net::MessageOf(kParcel, 0, "?"), Data("?"),
                                   parcel + Data(garbage.substr(0, 1 << 15)), parcel + parcel}) {
    const auto channel = *net::Channel::Connect(Server(), "", Late());
    channel->out().Add(bytes);
    ASSERT_TRUE(channel->Flush(Late()).ok());
    Nobody nobody;
    const absl::Status refused = channel->Receive(nobody, Late()).status();
    EXPECT_TRUE(absl::IsInvalidArgument(refused)) << refused;
  }
  workers_.push_back(Join(1));
  EXPECT_TRUE(controller_->AwaitWorkers(Late()).ok());
  ASSERT_TRUE(controller_->Welcome(Value("hello")).ok());
  EXPECT_EQ(*Group().Call(kDouble, std::vector<int64_t>{3}), (std::vector<int64_t>{6}));
}

TEST_F(Control, AWorkerThatSaysNothingForLongIsGone) {
  controller_ = *OpenController({.token = "secret", .world_size = 2, .silence = absl::Milliseconds(200)});
  // Speaks the protocol, but shows no sign of life after its hello.
  const auto channel = *net::Channel::Connect(Server(), "", Late());
  PackedParcel hello =
      *Pack(MessageOf("hello", {{"protocol", kWorkersProtocol}, {"rank", 1}, {"world_size", 2}, {"name", "ref"}}));
  channel->out().Add(net::MessageOf(kParcel, 0, ""));
  channel->out().AddData(0, 0, std::move(hello.pieces), std::move(hello.owner));
  ASSERT_TRUE(channel->Flush(Late()).ok());
  // On a loaded machine, it may be gone as soon as it has joined.
  ASSERT_TRUE(Eventually([&] { return controller_->name(1) == "ref"; }));
  const FutureValue called(Clock::Real());
  controller_->worker(1)->Invoke("double", {Value(1)}, absl::InfiniteFuture(),
                                 [called](const absl::StatusOr<Value>& value) { called.Set(value); });
  EXPECT_THAT(called.Get(Late()).status(), Fails(absl::StatusCode::kUnavailable, {"rank 1 (ref)", "no sign"}));
}

TEST_F(Control, AWorkerLeavesAControllerThatIsGone) {
  world_size_ = 2;
  Begin(1);
  controller_.reset();
  EXPECT_TRUE(workers_[0]->End().ok());  // it was told that the run is over
}

TEST_F(Control, AWorkerMayLeaveWhileItGivesASignOfLife) {
  for (int round = 0; round < 100; ++round) {
    const auto controller = *OpenController({.token = "secret", .world_size = 2});
    const auto session = *JoinController({.controller = controller->address(),
                                          .token = "secret",
                                          .rank = 1,
                                          .world_size = 2,
                                          .connect_timeout = kPatience});
    ASSERT_TRUE(controller->AwaitWorkers(Late()).ok());
    ASSERT_TRUE(controller->Welcome(Value("hello")).ok());  // its first sign of life follows
    ASSERT_TRUE(session->AwaitWelcome(Late()).ok());
  }
}

TEST(Values, ComeBackAsTheyWere) {
  const RowsRef rows{
      .partition = "train", .rows = {1, 2, ~uint64_t{0}}, .columns = {"a"}, .meta = {{"x", 1}}, .real_rows = 2};
  const Value value = Value::Object{{"nothing", Value()},
                                    {"flag", true},
                                    {"integer", int64_t{-1}},
                                    {"number", 0.1},
                                    {"text", "a\0b"},
                                    {"list", Value::List{1, Value::List{}, Value::Object{}}},
                                    {"object", Value::Object{{"batch", Numbers(3)}}},
                                    {"rows", rows},
                                    {"another batch", Numbers(2)}};
  Parcel parcel = MessageOf("test");
  SetValue("value", value, parcel);
  const std::string bytes = BytesOf(parcel);
  const std::optional<Parcel> read = *Read(std::as_bytes(std::span(bytes)));
  ASSERT_TRUE(read.has_value());
  EXPECT_EQ(*ValueIn(*read, "value"), value);
}

TEST(Parcels, AreRefusedWhereverOneBitOutsideOfTheirBlocksIsWrong) {
  Parcel parcel = MessageOf("test", {{"number", 1}});
  SetValue("value", Value(Numbers(0)), parcel);  // without blocks, whose checksums are those of data messages
  const std::string bytes = BytesOf(parcel);
  int refused = 0;
  for (size_t bit = 0; bit < bytes.size() * 8; bit += 3) {
    std::string damaged = bytes;
    damaged[bit / 8] = static_cast<char>(damaged[bit / 8] ^ (1 << (bit % 8)));
    const auto read = Read(std::as_bytes(std::span(damaged)));
    if (!read.ok() || !read->has_value()) ++refused;  // or more is awaited
  }
  EXPECT_GT(refused, static_cast<int>(bytes.size() * 8 / 3 * 9 / 10));  // but the header's zeros mean nothing
}

TEST(Parcels, TakeMemoryAsTheirBytesArrive) {
  ParcelReader reader;
  std::span<std::byte> room = reader.Room(SIZE_MAX);
  const uint64_t length = uint64_t{3} << 30;
  ASSERT_GE(room.size(), sizeof(length));
  std::memset(room.data(), 0, room.size());
  std::memcpy(room.data(), &length, sizeof(length));
  size_t arrived = room.size();
  ASSERT_TRUE(reader.Fill(arrived).ok());
  for (int i = 0; i < 8; ++i) {
    room = reader.Room(SIZE_MAX);
    EXPECT_LE(arrived + room.size(), std::max<size_t>(1 << 20, 2 * arrived));
    std::memset(room.data(), 0, room.size());
    arrived += room.size();
    ASSERT_TRUE(reader.Fill(room.size()).ok());
  }
}

}  // namespace
}  // namespace tdock::runtime
