#include "dock/service/wire/service.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <stop_token>
#include <thread>

#include "absl/strings/str_cat.h"
#include "core/base/testing/fails.h"
#include "core/base/testing/patience.h"
#include "dock/service/wire/field_codec.h"
#include "dock/service/wire/messages.h"
#include "dock/service/wire/rows_codec.h"
#include "dock/service/wire/testing/serve.h"
#include "tdock/verbs.h"

namespace tdock::service {
namespace {

using Code = absl::StatusCode;

// A partition with a row, and a consumer that reads it.
void Prepare(Dock& dock, const std::string& text = "seven") {
  ASSERT_EQ(dock.CreatePartition({.name = "p", .columns = {{"text", {}}}}), absl::OkStatus());
  ASSERT_EQ(dock.RegisterConsumer("p", {.name = "c", .reads = {"text"}}), absl::OkStatus());
  PutRequest put{.partition = "p"};
  ASSERT_EQ(put.batch.Add("text", Column::FromStrings(std::vector<std::string>{text})), absl::OkStatus());
  ASSERT_EQ(dock.Put(put).status(), absl::OkStatus());
}

class ServiceTest : public testing::Test {
 protected:
  void SetUp() override { Prepare(*test_.dock); }

  // What comes of a call that needs no wait.
  std::shared_ptr<const Answer> Take(uint64_t call) {
    message::Request request = RequestOf<verbs::Take>({.partition = "p", .consumer = "c"}, absl::Now());
    request.call = call;
    request.answered_below = 1;
    std::shared_ptr<const Answer> answer;
    test_.service.Call(session(), std::move(request), Batch(), [&](const auto& got) { answer = got; });
    return answer;
  }
  const std::shared_ptr<Session>& session() const { return welcomed_.connection->session(); }

  TestService test_;
  Service::Welcomed welcomed_ = test_.service.Connect({}).value();
};

TEST_F(ServiceTest, AnAnswerThatCannotBeSentGivesItsRowsBackAtOnce) {
  const std::shared_ptr<const Answer> answer = Take(1);
  ASSERT_TRUE(std::holds_alternative<message::Taken>(answer->reply.body));
  EXPECT_EQ(Take(2)->reply.code, static_cast<uint32_t>(Code::kDeadlineExceeded));
  const absl::Status why = absl::ResourceExhaustedError("too long");
  EXPECT_EQ(test_.service.Refuse(*session(), 1, *answer, why)->reply.message, "too long");
  // Whoever asks for the answer again is told the same.
  EXPECT_EQ(Take(1)->reply.code, static_cast<uint32_t>(Code::kResourceExhausted));
  const ConsumerStatus status = test_.dock->GetConsumerStatus("p", "c").value();
  EXPECT_EQ(status.leased, 0);
  EXPECT_EQ(status.expired, 0);
  const std::shared_ptr<const Answer> again = Take(3);
  EXPECT_TRUE(std::holds_alternative<message::Taken>(again->reply.body));
  EXPECT_EQ(again->rows.redeliveries(0), 0) << "nobody has had it";
}

TEST_F(ServiceTest, ConsecutiveRowsOfAPutAreARangeForClientsThatReadThose) {
  const auto put = [&](uint64_t call, bool reads_range) {
    message::Request request = RequestOf<verbs::Put>({.partition = "p", .new_rows = 3}, absl::Now());
    request.call = call;
    AppendNumber(request.body, kReadsRange, reads_range);
    message::PutResult result;
    test_.service.Call(session(), std::move(request), Batch(),
                       [&](const auto& got) { result = std::get<message::PutResult>(got->reply.body); });
    return result;
  };
  EXPECT_THAT(put(1, false).rows, testing::ElementsAre(1u, 2u, 3u));
  const message::PutResult range = put(2, true);
  EXPECT_THAT(range.rows, testing::IsEmpty());
  EXPECT_EQ(range.first, 4u);
  EXPECT_EQ(range.count, 3u);
}

TEST(SocketService, ScatteredCellsAreCopiedTogetherForTheirClientAndFreedAfterIt) {
  TestServer server(Over::kUnix, {}, {.max_view_runs = 8});
  const std::unique_ptr<Dock> client = ConnectThrough(std::make_unique<Transport>(server.address()), Clock::Real());
  ASSERT_NE(client, nullptr);
  ASSERT_EQ(client->CreatePartition({.name = "p", .growing = true}), absl::OkStatus());
  std::vector<int64_t> numbers;
  std::vector<std::vector<int32_t>> lists;
  FetchRequest fetch{.partition = "p", .columns = {"n", "t"}};
  for (int32_t i = 0; i < 100'000; ++i) {
    numbers.push_back(int64_t{i} * i);
    lists.emplace_back(static_cast<size_t>(i % 3), i);
    fetch.rows.push_back(static_cast<RowId>(99'999 - i));
  }
  PutRequest put{.partition = "p"};
  ASSERT_EQ(put.batch.Add("n", Column::FromValues<int64_t>(numbers)), absl::OkStatus());
  ASSERT_EQ(put.batch.Add("t", Column::FromRows(lists)), absl::OkStatus());
  ASSERT_EQ(client->Put(put).status(), absl::OkStatus());
  const int64_t held = client->GetStatus("p")->held_bytes;
  // Buffers are rounded up.
  const auto beyond = [&] { return static_cast<int64_t>(server.pool.held_bytes()) - held; };
  const auto is_settled = [&] { return beyond() < 4096; };
  EXPECT_TRUE(Eventually(is_settled));
  {
    const absl::StatusOr<Rows> rows = client->Fetch(fetch);
    ASSERT_EQ(rows.status(), absl::OkStatus());
    for (size_t i = 0; i < rows->size(); i += 997) {
      const size_t row = 99'999 - i;
      EXPECT_EQ(rows->Get<int64_t>(i, "n")->front(), numbers[row]);
      EXPECT_THAT(*rows->Get<int32_t>(i, "t"), testing::ElementsAreArray(lists[row]));
    }
    EXPECT_GT(beyond(), 1'000'000);
    EXPECT_EQ(client->GetStatus("p")->held_bytes, held) << "they are not the partition's";
  }
  EXPECT_TRUE(Eventually(is_settled));
}

TEST(SocketService, RowsThatTheClientCannotLookAtAreGivenBackAtOnce) {
  // Its cells lie in no segment, and are too many for a message.
  const std::unique_ptr<dock::ServedDock> dock = dock::MakeServedDock();
  Prepare(*dock, std::string(kMaxInlineBytes + 1, 'x'));
  Service service(*dock, {});
  dock::SegmentPool pool;
  const ScratchFolder folder;
  const std::string path = folder.File("dock.sock");
  const auto server = net::Server::Make({.welcome = [&](const auto& connection, absl::string_view rest) {
                        return WelcomeToDock({service, pool}, connection, rest);
                      }}).value();
  ASSERT_EQ(server->ListenOnSocket(path), absl::OkStatus());
  const std::unique_ptr<Dock> client =
      ConnectThrough(std::make_unique<Transport>(net::ServerAddress{.address = "unix:" + path}), Clock::Real());
  ASSERT_NE(client, nullptr);
  EXPECT_THAT(client->Take({.partition = "p", .consumer = "c"}).status(),
              Fails(Code::kResourceExhausted, {"no segment", absl::StrCat(kMaxInlineBytes)}));
  const ConsumerStatus status = dock->GetConsumerStatus("p", "c").value();
  EXPECT_EQ(status.leased, 0);
  EXPECT_EQ(status.ready, 1);
}

TEST(SocketService, ACallThatWaitsKeepsNoAnswersOfOthersInTheSession) {
  TestServer server;
  Prepare(*server.dock);
  const std::unique_ptr<Dock> client = ConnectThrough(std::make_unique<Transport>(server.address()), Clock::Real());
  ASSERT_NE(client, nullptr);
  std::stop_source stop;
  std::thread waiting([&] {
    const TakeRequest take{.partition = "p",
                           .consumer = "c",
                           .min = 2,
                           .max = 2,
                           .deadline = absl::InfiniteFuture(),
                           .cancel = stop.get_token()};
    EXPECT_EQ(client->Take(take).status().code(), Code::kCancelled);
  });
  while (server.service.counts().calls_under_way == 0) std::this_thread::yield();
  for (size_t call = 0; call < Session::kMaxCalls + 100; ++call) {
    ASSERT_EQ(client->ListPartitions().status(), absl::OkStatus()) << call;
  }
  stop.request_stop();
  waiting.join();
}

}  // namespace
}  // namespace tdock::service
