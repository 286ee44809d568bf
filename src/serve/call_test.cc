#include "serve/call.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <c10/util/Exception.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <limits>
#include <memory>
#include <stdexcept>
#include <thread>
#include <utility>
#include <vector>

#include "core/base/mutex.h"
#include "core/base/testing/fails.h"
#include "core/base/testing/patience.h"
#include "engine/engine.h"
#include "model/decoder/testing/models.h"
#include "serve/failure.h"
#include "serve/replica.h"
#include "text/char_tokenizer.h"

namespace tdock::serve {
namespace {

using testing::HasSubstr;
using testing::Not;

// Waits for what comes from the replica's thread.
class Ends {
 public:
  void Add(engine::Answer answer) {
    const MutexLock lock(mu_);
    answers_.push_back(std::move(answer));
    changed_.NotifyAll();
  }
  std::vector<engine::Answer> Await(size_t count) {
    const auto deadline = std::chrono::steady_clock::now() + absl::ToChronoNanoseconds(kPatience);
    const MutexLock lock(mu_);
    while (answers_.size() < count && std::chrono::steady_clock::now() < deadline) changed_.WaitUntil(mu_, deadline);
    return std::exchange(answers_, {});
  }

 private:
  Mutex mu_;
  CondVar changed_;
  std::vector<engine::Answer> answers_ TDOCK_GUARDED_BY(mu_);
};

// Keeps the whole answer.
class OneExchange final : public http::Exchange {
 public:
  const http::Request& request() const override { return request_; }
  void DropBody() override {}
  void Send(http::Response response) override {
    const MutexLock lock(mu_);
    response_ = std::move(response);
  }
  void Begin(http::Response) override {}
  void Write(absl::string_view) override {}
  void End(absl::string_view) override {}
  size_t unread_bytes() const override { return 0; }
  void OnGone(std::function<void()>) override {}
  bool gone() const override { return false; }
  void Note(std::string) override {}
  http::Response response() {
    const MutexLock lock(mu_);
    return response_;
  }

 private:
  const http::Request request_;
  Mutex mu_;
  http::Response response_ TDOCK_GUARDED_BY(mu_);
};

class CallTest : public testing::Test {
 protected:
  static engine::Request Ask(int64_t max_new_tokens) {
    return {.prompt = {.tokens = {1, 2}}, .sampling = {.max_new_tokens = max_new_tokens, .ignore_eos = true}};
  }

  const model::Decoder decoder_ =
      model::TinyDecoder(model::TinyConfig(model::Architecture::kQwen2, false), 21, at::kCPU);
  engine::Engine engine_{decoder_, {}};
};

TEST_F(CallTest, AFailedStepFailsWhatItLostAndNothingElse) {
  Ends lost, kept, broken;
  Replica replica(engine_);
  engine::Request fails = Ask(4);
  fails.on_token = [&](int64_t, const engine::NewToken&) {
    std::thread([&] {  // adds another one during the step, which is not lost with it
      EXPECT_TRUE(replica.Add(Ask(5), [&](engine::Answer answer) { kept.Add(std::move(answer)); }).ok());
    })
        .join();
    throw std::runtime_error("no more");
  };
  ASSERT_TRUE(replica.Add(std::move(fails), [&](engine::Answer answer) { lost.Add(std::move(answer)); }).ok());
  const auto failed = lost.Await(1);
  ASSERT_EQ(failed.size(), 1U);
  EXPECT_THAT(failed[0].status.message(), Mentions({"no more"}));
  const auto whole = kept.Await(1);
  ASSERT_EQ(whole.size(), 1U);
  EXPECT_TRUE(whole[0].status.ok());
  EXPECT_EQ(whole[0].completion.tokens.size(), 5U);
  EXPECT_EQ(whole[0].completion.finish_reason, engine::FinishReason::kLength);
  ASSERT_TRUE(replica.Add(Ask(1), [&](engine::Answer) { throw std::runtime_error("no memory"); }).ok());
  ASSERT_TRUE(replica.Add(Ask(3), [&](engine::Answer answer) { broken.Add(std::move(answer)); }).ok());
  const auto after = broken.Await(1);
  ASSERT_EQ(after.size(), 1U);
  EXPECT_TRUE(after[0].status.ok());
}

TEST_F(CallTest, AReplicaIsHealthyAgainOnceItsEngineAnswers) {
  model::Decoder decoder = decoder_.Clone();
  const at::Tensor embedding = decoder.parameters().front(), whole = embedding.clone();
  const auto set = [&](bool broken) {
    const at::NoGradGuard no_grad;
    embedding.copy_(whole);
    if (broken) embedding.fill_(std::numeric_limits<float>::quiet_NaN());
  };
  set(true);
  engine::Engine engine(decoder, {});
  Replica replica(engine);
  EXPECT_TRUE(replica.health().ok());
  Ends ends;
  ASSERT_TRUE(replica.Add(Ask(3), [&](engine::Answer answer) { ends.Add(std::move(answer)); }).ok());
  ASSERT_EQ(ends.Await(1).size(), 1U);
  ASSERT_TRUE(Eventually([&] { return !replica.health().ok(); }));
  EXPECT_THAT(replica.health(), Fails(absl::StatusCode::kInternal, {"not finite"}));
  replica.BetweenSteps([&] { engine.Update([&] { set(false); }, 1); });
  EXPECT_TRUE(Eventually([&] { return replica.health().ok(); }));
}

TEST_F(CallTest, AReplicaIsHealthyWhereOnlyOneAnswerFails) {
  model::Decoder decoder = decoder_.Clone();
  {
    const at::NoGradGuard no_grad;
    decoder.parameters().front()[2].fill_(std::numeric_limits<float>::quiet_NaN());  // the embedding of token 2
  }
  engine::Engine engine(decoder, {});
  Replica replica(engine);
  Ends ends;
  ASSERT_TRUE(replica.Add(Ask(3), [&](engine::Answer answer) { ends.Add(std::move(answer)); }).ok());
  const auto failed = ends.Await(1);
  ASSERT_EQ(failed.size(), 1U);
  EXPECT_FALSE(failed[0].status.ok());
  for (int i = 0; i < 4; ++i) replica.BetweenSteps([] {});  // it asks itself, which takes a step
  EXPECT_EQ(replica.health(), absl::OkStatus());
}

TEST_F(CallTest, AbortedBeforeItStartsEndsAtOnce) {
  const auto tokenizer = *text::CharTokenizer::Create("abcdef");
  const ServedModel model{
      .names = {"m"}, .tokenizer = tokenizer.get(), .texts = std::make_shared<TokenTexts>(*tokenizer)};
  Metrics metrics;
  WorkQueue writers(1);
  Replica replica(engine_);
  const auto exchange = std::make_shared<OneExchange>();
  Ends ends;
  const auto call = std::make_shared<Call>(serve::Ask{.form = Form::kGenerate}, "id", exchange, model, metrics, writers,
                                           [&] { ends.Add({}); });
  call->Abort();
  engine::Request request = Ask(20);
  request.sampling.allowed_tokens = {1, 2};
  std::vector<engine::Request> requests;
  requests.push_back(std::move(request));
  call->Start(std::move(requests), replica);
  ASSERT_EQ(ends.Await(1).size(), 1U);
  replica.BetweenSteps([] {});
  writers.AwaitIdle();
  EXPECT_EQ(exchange->response().status, 200);
  EXPECT_THAT(exchange->response().body, HasSubstr(R"("finish_reason":{"type":"abort"})"));
}

TEST(WhatOf, HasNoStack) {
  try {
    TORCH_CHECK(false, "no index 64");
  } catch (const std::exception& error) {
    EXPECT_THAT(std::string(error.what()), HasSubstr("Exception raised from"));
    EXPECT_THAT(WhatOf(error), HasSubstr("index 64"));
    EXPECT_THAT(WhatOf(error), Not(HasSubstr("raised from")));
    return;
  }
  FAIL();
}

}  // namespace
}  // namespace tdock::serve
