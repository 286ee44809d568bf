#include "dock/service/wire/client_session.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <deque>
#include <thread>

#include "absl/synchronization/notification.h"
#include "core/base/testing/fails.h"
#include "core/base/testing/patience.h"
#include "dock/service/wire/field_codec.h"
#include "dock/service/wire/messages.h"
#include "tdock/verbs.h"

namespace tdock::service {
namespace {

using Code = absl::StatusCode;

// What a scripted server does next: to a hello, and to a call.
struct Script {
  std::deque<std::string> sessions = {};  // of the next hellos; "" refuses
  std::deque<ClientAnswer> answers = {};
  std::vector<message::Request> calls = {};
  std::vector<std::string> sessions_of_calls = {};
  std::vector<message::Request> told = {};
};

class ScriptedTransport final : public ClientTransport {
 public:
  explicit ScriptedTransport(Script& script) : script_(script) {}

  absl::StatusOr<message::Welcome> Connect(const message::Hello&, absl::Time) override {
    if (script_.sessions.empty()) return absl::UnavailableError("nobody listens");
    const std::string session = script_.sessions.front();
    script_.sessions.pop_front();
    if (session.empty()) return absl::UnavailableError("nobody listens yet");
    const message::Welcome welcome{.session = session};
    return welcome;
  }
  ClientAnswer Call(const std::string& session, const message::Request& request, const Batch&, absl::Time) override {
    script_.calls.push_back(request);
    script_.sessions_of_calls.push_back(session);
    ClientAnswer answer = script_.answers.front();
    script_.answers.pop_front();
    return answer;
  }
  bool Tell(const message::Request& request, absl::Duration) override {
    script_.told.push_back(request);
    return !script_.sessions.empty();
  }

 private:
  Script& script_;
};

ClientAnswer Good(const std::string& text) {
  ClientAnswer answer{.sent = true};
  answer.reply.body = message::Encoded{message::Encoded::kText, text};
  return answer;
}
std::string TextOf(const ClientAnswer& answer) { return std::get<message::Encoded>(answer.reply.body).bytes; }
ClientAnswer Lost(bool sent) { return {.status = absl::UnavailableError("reset by peer"), .sent = sent}; }

class ClientSessionTest : public testing::Test {
 protected:
  absl::StatusOr<ClientAnswer> Ask(bool repeatable) {
    return session_->Call({.verb = message::kPing}, Batch(), {.repeatable = repeatable});
  }

  Script script_{.sessions = {"one"}};
  std::shared_ptr<ClientSession> session_;

  void SetUp() override { Connect(kNever); }
  void Connect(absl::Duration reconnect_for) {
    session_ =
        std::make_shared<ClientSession>(std::make_unique<ScriptedTransport>(script_),
                                        ClientSessionOptions{.address = "somewhere:1", .reconnect_for = reconnect_for});
    ASSERT_EQ(session_->Connect(), absl::OkStatus());
  }
};

TEST_F(ClientSessionTest, RepeatsACallUnderItsNumberWhenTheConnectionBreaks) {
  script_.answers = {Good("a"), Lost(true), Good("b")};
  script_.sessions = {"one"};
  ASSERT_TRUE(Ask(false).ok());
  const auto answer = Ask(false);
  ASSERT_EQ(answer.status(), absl::OkStatus());
  EXPECT_EQ(TextOf(*answer), "b");
  ASSERT_EQ(script_.calls.size(), 3u);
  EXPECT_EQ(script_.calls[1].call, script_.calls[2].call);
  EXPECT_EQ(script_.sessions_of_calls[2], "one");
  // That of the first call has arrived.
  EXPECT_EQ(script_.calls[2].answered_below, 2u);
}

TEST_F(ClientSessionTest, DoesNotRepeatWhatMayHaveHappenedInASessionThatIsGone) {
  script_.answers = {Lost(true)};
  script_.sessions = {"two"};
  EXPECT_THAT(Ask(false).status(), Fails(Code::kUnavailable, {"somewhere:1", "may not"}));
}

TEST_F(ClientSessionTest, DoesNotForgetThatACallWasSentBeforeTheSessionWasFoundToBeGone) {
  script_.answers = {Lost(true), Lost(false)};
  script_.sessions = {"one", "two"};
  EXPECT_THAT(Ask(false).status(), Fails(Code::kUnavailable, {"somewhere:1", "may not"}));
}

TEST_F(ClientSessionTest, RepeatsInAnotherSessionWhatWasNotSentOrDoesNoHarm) {
  script_.answers = {Lost(false), Good("a"), Lost(true), Good("b")};
  script_.sessions = {"two", "three"};
  EXPECT_EQ(TextOf(*Ask(false)), "a");
  EXPECT_EQ(script_.sessions_of_calls[1], "two");
  EXPECT_EQ(TextOf(*Ask(true)), "b");
  EXPECT_EQ(script_.sessions_of_calls[3], "three");
}

TEST_F(ClientSessionTest, WhatIsRepeatedWaitsNoLongerThanTheCallHasLeft) {
  constexpr absl::Duration kHour = absl::Hours(1);
  for (const bool for_ever : {false, true}) {
    script_ = {.sessions = {"another"}, .answers = {Lost(true), Good("a")}};
    const absl::Duration wait = for_ever ? absl::InfiniteDuration() : kHour;
    const absl::Time begin = absl::Now();
    const message::Request take = RequestOf<verbs::Take>({.deadline = begin + wait}, begin);
    ASSERT_EQ(session_->Call(take, Batch(), {.wait = wait, .repeatable = true}).status(), absl::OkStatus());
    ASSERT_EQ(script_.calls.size(), 2u);
    const absl::Duration again =
        DurationFromWire(static_cast<int64_t>(NumberIn(script_.calls[1].body, NumberOf(&TakeRequest::deadline))));
    if (for_ever) {
      EXPECT_EQ(again, absl::InfiniteDuration());
    } else {
      EXPECT_LT(again, kHour);
      EXPECT_GE(again, kHour - (absl::Now() - begin));
    }
  }
}

TEST_F(ClientSessionTest, LooksForTheServerForAWhile) {
  script_.answers = {Lost(true), Good("a")};
  script_.sessions = {"", "", "one"};
  EXPECT_EQ(TextOf(*Ask(false)), "a");
}

TEST_F(ClientSessionTest, GivesUpWhereThereIsNoServerForAWhile) {
  script_.sessions = {"one"};
  Connect(/*reconnect_for=*/absl::Milliseconds(100));
  script_.answers = {Lost(true)};
  EXPECT_THAT(Ask(true).status(), Fails(Code::kUnavailable, {"somewhere:1", "100ms", "nobody listens"}));
}

// A server that was killed while two calls waited. The first one's loss is noticed before the session's, so that the
// session seems to continue; the second one's is noticed only when the server is being looked for.
class KilledTransport final : public ClientTransport {
 public:
  absl::StatusOr<message::Welcome> Connect(const message::Hello&, absl::Time) override {
    const message::Welcome welcome{.session = "one"};
    if (++connects_ <= 2) return welcome;
    if (connects_ == 3) {
      looked_for_.Notify();
      tried_meanwhile_ = second_tried_.WaitForNotificationWithTimeout(kPatience);
    }
    return absl::UnauthenticatedError("whoever answers now is another");
  }
  ClientAnswer Call(const std::string&, const message::Request& request, const Batch&, absl::Time) override {
    const bool second = request.call == 2;
    if (second && !second_waits_.HasBeenNotified()) {
      second_waits_.Notify();
      looked_for_.WaitForNotification();
    } else if (second) {
      if (!second_tried_.HasBeenNotified()) second_tried_.Notify();
    } else {
      second_waits_.WaitForNotification();
    }
    return Lost(true);
  }
  bool Tell(const message::Request&, absl::Duration) override { return false; }

  bool tried_meanwhile() const { return tried_meanwhile_; }

 private:
  std::atomic<int> connects_ = 0;
  absl::Notification second_waits_, looked_for_, second_tried_;
  std::atomic<bool> tried_meanwhile_ = false;
};

TEST(ClientSession, ACallThatNoticesItsLossLateTriesTheConnectionThereIsBeforeItWaitsForAnother) {
  auto owned = std::make_unique<KilledTransport>();
  const KilledTransport& transport = *owned;
  ClientSession session(std::move(owned), {.address = "somewhere:1", .reconnect_for = kNever});
  ASSERT_EQ(session.Connect(), absl::OkStatus());
  const message::Request request{.verb = message::kPing};
  std::vector<std::thread> calls;
  for (int i = 0; i < 2; ++i) {
    calls.emplace_back(
        [&] { EXPECT_EQ(session.Call(request, Batch(), {.repeatable = true}).status().code(), Code::kUnavailable); });
  }
  for (std::thread& call : calls) call.join();
  EXPECT_TRUE(transport.tried_meanwhile());
}

TEST_F(ClientSessionTest, GivesTheServersErrorsAsTheyAre) {
  ClientAnswer refused{.sent = true};
  Encode(absl::NotFoundError("no partition 'x' here"), &refused.reply);
  script_.answers = {refused, {.status = absl::DeadlineExceededError("nothing came"), .sent = true}};
  EXPECT_EQ(Ask(false).status(), absl::NotFoundError("no partition 'x' here"));
  EXPECT_THAT(Ask(false).status(), Fails(Code::kDeadlineExceeded, {"somewhere:1", "nothing came"}));
}

TEST_F(ClientSessionTest, SaysAgainWithTheNextCallWhichViewsAreGone) {
  session_->Unpin(7);
  session_->Unpin(8);
  ASSERT_EQ(script_.told.size(), 2u);
  EXPECT_THAT(Parse<message::Release>(script_.told[1].body)->pins, testing::ElementsAre(8));
  script_.answers = {Good("a"), Good("b")};
  ASSERT_TRUE(Ask(true).ok());
  ASSERT_TRUE(Ask(true).ok());
  EXPECT_THAT(script_.calls[0].released, testing::ElementsAre(7, 8));
  EXPECT_THAT(script_.calls[1].released, testing::IsEmpty());
}

}  // namespace
}  // namespace tdock::service
