#include "dock/service/wire/session.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "core/base/testing/fails.h"
#include "dock/table/rows_data.h"

namespace tdock::service {
namespace {

using Code = absl::StatusCode;

std::shared_ptr<const Answer> Text(const std::string& text) {
  auto answer = std::make_shared<Answer>();
  answer->reply.body = message::Encoded{message::Encoded::kText, text};
  return answer;
}

class SessionTest : public testing::Test {
 protected:
  // Begins a call whose answer goes to `got`.
  absl::StatusOr<Session::Begun> Begin(uint64_t call, uint64_t answered_below, std::vector<std::string>& got) {
    return session_.Begin(call, {answered_below}, [&got](const auto& answer) {
      got.push_back(std::get<message::Encoded>(answer->reply.body).bytes);
    });
  }

  Session session_{"id", "client"};
};

TEST_F(SessionTest, ACallThatComesAgainIsNotBegunAgain) {
  std::vector<std::string> first, second;
  EXPECT_TRUE(Begin(1, 1, first)->is_new);
  // While it is under way: whoever asks has the answer, in whatever order the connections are read.
  EXPECT_FALSE(Begin(1, 1, second)->is_new);
  session_.Finish(1, Text("a"));
  EXPECT_THAT(first, testing::ElementsAre("a"));
  EXPECT_THAT(second, testing::ElementsAre("a"));
  // Afterwards: the same answer.
  EXPECT_FALSE(Begin(1, 1, first)->is_new);
  EXPECT_THAT(first, testing::ElementsAre("a", "a"));
}

TEST_F(SessionTest, ThoseWhoWaitForOneCallAreBounded) {
  uint32_t first_code = 0;
  std::vector<std::string> got;
  ASSERT_TRUE(session_.Begin(1, {1}, [&](const auto& answer) { first_code = answer->reply.code; }).ok());
  for (size_t i = 1; i < Session::kMaxReplies; ++i) ASSERT_TRUE(Begin(1, 1, got).ok());
  EXPECT_EQ(first_code, 0);
  EXPECT_TRUE(Begin(1, 1, got).ok());
  EXPECT_EQ(first_code, static_cast<uint32_t>(Code::kAborted));
  session_.Finish(1, Text("a"));
  EXPECT_EQ(got.size(), Session::kMaxReplies);
}

TEST_F(SessionTest, AnAnswerIsRememberedUntilItIsAcknowledged) {
  std::vector<std::string> got;
  ASSERT_TRUE(Begin(1, 1, got).ok());
  const auto answer = Text("a");
  const std::weak_ptr<const Answer> remembered = answer;
  session_.Finish(1, answer);
  ASSERT_TRUE(Begin(2, 1, got).ok());
  EXPECT_EQ(remembered.use_count(), 2);
  session_.Acknowledge({2});
  EXPECT_EQ(remembered.use_count(), 1);
  EXPECT_EQ(Begin(1, 2, got).status().code(), Code::kFailedPrecondition);
}

TEST_F(SessionTest, WhatIsUnderWayIsNotForgottenByAnAcknowledgement) {
  std::vector<std::string> got;
  ASSERT_TRUE(Begin(1, 1, got).ok());
  session_.Acknowledge({5});
  const std::shared_ptr<const Answer> late = Text("late");
  session_.Finish(1, late);
  EXPECT_THAT(got, testing::ElementsAre("late"));
  // Nobody asks for it again.
  EXPECT_EQ(late.use_count(), 1);
}

TEST_F(SessionTest, AnswersAreForgottenWhileACallBeforeThemIsUnderWay) {
  std::vector<std::string> got;
  ASSERT_TRUE(Begin(1, 1, got).ok());
  // In an order in which ranges of numbers begin, grow to both sides, and meet.
  const std::vector<uint64_t> calls = {5, 3, 4, 9, 8, 7, 2, 6};
  for (uint64_t call : calls) {
    ASSERT_TRUE(Begin(call, 1, got).ok());
    const std::shared_ptr<const Answer> answer = Text("a");
    session_.Finish(call, answer);
    EXPECT_EQ(answer.use_count(), 2);
    session_.Acknowledge({1, std::span(&call, 1)});
    EXPECT_EQ(answer.use_count(), 1) << call;
    // It is not done again.
    EXPECT_EQ(Begin(call, 1, got).status().code(), Code::kFailedPrecondition) << call;
  }
  EXPECT_TRUE(Begin(10, 1, got)->is_new);
  session_.Finish(1, Text("first"));
  session_.Acknowledge({2});
  for (uint64_t call = 1; call <= 9; ++call) {
    EXPECT_EQ(Begin(call, 1, got).status().code(), Code::kFailedPrecondition) << call;
  }
  EXPECT_FALSE(Begin(10, 1, got)->is_new);
}

TEST_F(SessionTest, AcknowledgementsFarApartAreNotedUpToALimit) {
  std::vector<std::string> got;
  std::vector<uint64_t> far;
  for (uint64_t call = 2; far.size() <= 2 * Session::kMaxCalls; call += 2) far.push_back(call);
  session_.Acknowledge({1, far});
  EXPECT_EQ(Begin(far.front(), 1, got).status().code(), Code::kFailedPrecondition);
  EXPECT_TRUE(Begin(far.back(), 1, got)->is_new);
}

TEST_F(SessionTest, BytesOfAnswersThatAreNotAcknowledgedAreBounded) {
  Session session("id", "client", {.cells = 1000, .messages = 100});
  const auto begin = [&](uint64_t call, uint64_t below) {
    return session.Begin(call, {below}, [](const auto&) {}).status();
  };
  const std::vector<std::byte> bytes(600);
  Rows::Data data{.ids = {1, 2}, .groups = {kNoGroup, kNoGroup}};
  data.columns = std::make_shared<std::vector<ColumnSpec>>(1, ColumnSpec{"a", ColumnType::Bytes()});
  data.cells = {{bytes}, {bytes}};
  ASSERT_EQ(begin(1, 1), absl::OkStatus());
  ASSERT_EQ(begin(2, 1), absl::OkStatus());
  session.Finish(1, std::make_shared<Answer>(Answer{.rows = std::move(data).ToRows()}));
  EXPECT_THAT(begin(3, 1), Fails(Code::kResourceExhausted, {"1200 bytes", "cells", "at most 1000", "acknowledge"}));
  // A call that was begun is answered all the same.
  EXPECT_EQ(begin(2, 1), absl::OkStatus());
  // The message of a call that says what has arrived makes room for it.
  EXPECT_EQ(begin(3, 2), absl::OkStatus());
  session.Finish(2, Text(std::string(200, 'x')));
  EXPECT_THAT(begin(4, 2), Fails(Code::kResourceExhausted, {"messages", "at most 100"}));
  // What takes its place is counted instead.
  session.Replace(2, Text("short"));
  EXPECT_EQ(begin(4, 2), absl::OkStatus());
}

TEST_F(SessionTest, AnotherAnswerTakesThePlaceOfOneThatIsRemembered) {
  std::vector<std::string> got;
  ASSERT_TRUE(Begin(1, 1, got).ok());
  session_.Replace(1, Text("too early"));
  session_.Finish(1, Text("a"));
  session_.Replace(1, Text("b"));
  EXPECT_FALSE(Begin(1, 1, got)->is_new);
  EXPECT_THAT(got, testing::ElementsAre("a", "b"));
}

TEST_F(SessionTest, ACancelMayComeBeforeItsCall) {
  std::vector<std::string> got;
  session_.Cancel(3);
  EXPECT_TRUE(Begin(3, 1, got)->cancel.stop_requested());
  const std::stop_token other = Begin(4, 1, got)->cancel;
  EXPECT_FALSE(other.stop_requested());
  session_.Cancel(4);
  EXPECT_TRUE(other.stop_requested());
}

TEST_F(SessionTest, CallsAreBounded) {
  std::vector<std::string> got;
  for (uint64_t call = 1; call <= Session::kMaxCalls; ++call) ASSERT_TRUE(Begin(call, 1, got).ok());
  EXPECT_EQ(Begin(Session::kMaxCalls + 1, 1, got).status().code(), Code::kResourceExhausted);
  session_.Finish(1, Text("a"));
  session_.Acknowledge({2});
  EXPECT_TRUE(Begin(Session::kMaxCalls + 1, 1, got).ok());
}

TEST_F(SessionTest, EndsOnlyWithoutConnectionsAndAnswersWhoWaits) {
  std::vector<std::string> got;
  session_.Attach();
  session_.Attach();
  EXPECT_EQ(session_.Detach().now, 1);
  EXPECT_FALSE(session_.EndIfAlone(2).has_value());
  const std::stop_token cancel = Begin(1, 1, got)->cancel;
  ASSERT_TRUE(session_.Hold({"train", 7}));
  EXPECT_EQ(session_.Detach().ever, 2u);
  const std::optional<Session::Leftovers> leftovers = session_.EndIfAlone(2);
  ASSERT_TRUE(leftovers.has_value());
  ASSERT_EQ(leftovers->leases.size(), 1u);
  EXPECT_EQ(leftovers->leases[0].lease, 7u);
  ASSERT_EQ(leftovers->under_way.size(), 1u);
  EXPECT_EQ(leftovers->under_way[0].get_token(), cancel);
  session_.Finish(1, Text("cancelled"));
  EXPECT_THAT(got, testing::ElementsAre("cancelled"));
  // What comes too late is refused, so that the caller ends the lease.
  EXPECT_FALSE(session_.Hold({"train", 8}));
  EXPECT_EQ(Begin(2, 1, got).status().code(), Code::kFailedPrecondition);
}

TEST_F(SessionTest, IsNotEndedForAConnectionBeforeTheLast) {
  session_.Attach();
  const uint64_t first = session_.Detach().ever;
  session_.Attach();
  const uint64_t second = session_.Detach().ever;
  // It is alone, but has not been so since the first.
  EXPECT_FALSE(session_.EndIfAlone(first).has_value());
  EXPECT_TRUE(session_.EndIfAlone(second).has_value());
}

TEST_F(SessionTest, PinsKeepViewsUntilTheyAreReleased) {
  auto pin = std::make_shared<int>();
  Rows::Data data{.ids = {1}, .groups = {kNoGroup}};
  data.pins = {pin};
  session_.Pin(5, std::move(data).ToRows());
  EXPECT_EQ(pin.use_count(), 2);
  session_.Unpin(std::vector<uint64_t>{4, 6});
  EXPECT_EQ(pin.use_count(), 2);
  session_.Unpin(std::vector<uint64_t>{5, 5});
  EXPECT_EQ(pin.use_count(), 1);
}

TEST_F(SessionTest, AResponseThatIsSentAgainKeepsTheViewsOfTheFirstTime) {
  const auto first = std::make_shared<int>(), second = std::make_shared<int>();
  const auto rows_with = [](std::shared_ptr<const void> pin) {
    Rows::Data data{.ids = {1}, .groups = {kNoGroup}};
    data.pins = {std::move(pin)};
    return std::move(data).ToRows();
  };
  session_.Pin(5, rows_with(first));
  EXPECT_EQ(Rows::Data::Of(session_.Pin(5, rows_with(second))).pins.front(), first);
  EXPECT_EQ(first.use_count(), 2);
  EXPECT_EQ(second.use_count(), 1);
}

TEST_F(SessionTest, AsksForTwoOfManyLeasesToBeChecked) {
  for (LeaseId lease = 1; lease < 64; ++lease) session_.Hold({"train", lease});
  EXPECT_THAT(session_.TakeLeasesToCheck(), testing::IsEmpty());
  session_.Hold({"train", 64});
  const std::vector<HeldLease> oldest = session_.TakeLeasesToCheck();
  ASSERT_EQ(oldest.size(), 2u);
  EXPECT_EQ(oldest[0].lease, 1u);
  EXPECT_EQ(oldest[1].lease, 2u);
  EXPECT_EQ(session_.counts().leases, 62);
  session_.Hold(oldest[0]);
  EXPECT_EQ(session_.counts().leases, 63);
}

}  // namespace
}  // namespace tdock::service
