#include "dock/service/remote/answer_gate.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <vector>

namespace tdock::service {
namespace {

using testing::ElementsAre;

class AnswerGateTest : public testing::Test {
 protected:
  // Every call ends at some time.
  ~AnswerGateTest() override {
    for (const auto& call : calls_) call->End();
  }

  std::shared_ptr<AnswerGate::Call> Answer(int number, int64_t bytes) {
    auto call = std::make_shared<AnswerGate::Call>(gate_);
    calls_.push_back(call);
    AnswerGate::Call::Answer(call, bytes, [this, number] { sent_.push_back(number); });
    return call;
  }

  std::shared_ptr<AnswerGate> gate_ = std::make_shared<AnswerGate>(100);
  std::vector<int> sent_;
  std::vector<std::shared_ptr<AnswerGate::Call>> calls_;
};

TEST_F(AnswerGateTest, SendsAnswersAtOnceWhileThereIsRoom) {
  const auto first = Answer(1, 40), second = Answer(2, 60), third = Answer(3, 1);
  EXPECT_THAT(sent_, ElementsAre(1, 2));
  first->End();
  EXPECT_THAT(sent_, ElementsAre(1, 2, 3));
}

TEST_F(AnswerGateTest, SendsALargeAnswerWhenItIsAlone) {
  const auto large = Answer(1, 1000), second = Answer(2, 1);
  EXPECT_THAT(sent_, ElementsAre(1));
  large->End();
  EXPECT_THAT(sent_, ElementsAre(1, 2));
}

TEST_F(AnswerGateTest, LetsNoneOvertakeALargeAnswer) {
  const auto first = Answer(1, 50), large = Answer(2, 1000), small = Answer(3, 1);
  EXPECT_THAT(sent_, ElementsAre(1));
  first->End();
  EXPECT_THAT(sent_, ElementsAre(1, 2));
  large->End();
  EXPECT_THAT(sent_, ElementsAre(1, 2, 3));
}

TEST_F(AnswerGateTest, DoesNotSendWhatNobodyWaitsForAnyMore) {
  const auto first = Answer(1, 100), second = Answer(2, 100), third = Answer(3, 100);
  second->End();
  EXPECT_THAT(sent_, ElementsAre(1));
  first->End();
  EXPECT_THAT(sent_, ElementsAre(1, 3));
}

TEST_F(AnswerGateTest, GivesRoomBackOnce) {
  const auto first = Answer(1, 100), second = Answer(2, 100), third = Answer(3, 100);
  first->End();
  first->End();
  EXPECT_THAT(sent_, ElementsAre(1, 2));
}

TEST_F(AnswerGateTest, SendsNothingForACallThatEndedBeforeItsAnswer) {
  const auto call = std::make_shared<AnswerGate::Call>(gate_);
  call->End();
  AnswerGate::Call::Answer(call, 100, [this] { sent_.push_back(1); });
  const auto second = Answer(2, 100);
  EXPECT_THAT(sent_, ElementsAre(2));
}

TEST(AnswerGatesTest, GiveASessionTheSameGateWhileItIsUsed) {
  AnswerGates gates(100);
  const auto* const one = reinterpret_cast<const Session*>(1);
  const auto* const other = reinterpret_cast<const Session*>(2);
  const std::shared_ptr<AnswerGate> gate = gates.For(one);
  EXPECT_EQ(gates.For(one), gate);
  EXPECT_NE(gates.For(other), gate);
}

}  // namespace
}  // namespace tdock::service
