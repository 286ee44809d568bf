// Requests that come, go on and end beside one another.
#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <map>
#include <set>
#include <span>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "core/base/rng.h"
#include "core/base/testing/fails.h"
#include "core/base/testing/fake_clock.h"
#include "engine/cache/paged_cache.h"
#include "engine/engine.h"
#include "model/decoder/testing/devices.h"
#include "model/decoder/testing/models.h"

namespace tdock::engine {
namespace {

using model::Architecture;
using model::Decoder;
using testing::ElementsAre;

using Answers = std::map<std::pair<RequestId, int64_t>, Completion>;

// Steps until all have ended.
Answers Finish(Engine& engine, Answers answers = {}) {
  for (int step = 0; engine.HasWork(); ++step) {
    EXPECT_LT(step, 10'000) << "does not get on";
    if (step == 10'000) break;
    for (Answer& answer : engine.Step()) {
      EXPECT_TRUE(answer.status.ok()) << answer.status;
      answers[{answer.request, answer.sample}] = std::move(answer.completion);
    }
  }
  return answers;
}

// In batch-invariant mode, so that equal answers are equal to the bit.
class RequestsTest : public testing::Test {
 protected:
  RequestsTest() { decoder_.SetBatchInvariant(true); }

  Request Ask(std::vector<int32_t> prompt, int64_t max_new_tokens, int64_t samples = 1) const {
    Request request;
    request.prompt = {.tokens = std::move(prompt), .samples = samples, .identity = 77};
    request.sampling = {.temperature = 1.2, .max_new_tokens = max_new_tokens, .seed = 5};
    return request;
  }
  // The answers of a request that has an engine for itself.
  std::vector<Completion> Alone(const Request& request) const {
    Engine engine(decoder_, {});
    std::vector<Completion> completions(static_cast<size_t>(request.prompt.samples));
    EXPECT_TRUE(engine
                    .AnswerAll({request},
                               [&](std::span<Answer> ended) {
                                 for (Answer& answer : ended) {
                                   completions[static_cast<size_t>(answer.sample)] = std::move(answer.completion);
                                 }
                                 return absl::OkStatus();
                               })
                    .ok());
    return completions;
  }
  static void ExpectEqual(const Completion& given, const Completion& expected) {
    EXPECT_EQ(given.tokens, expected.tokens);
    EXPECT_EQ(given.log_probs, expected.log_probs);
    EXPECT_EQ(given.finish_reason, expected.finish_reason);
  }

  Decoder decoder_ = model::TinyDecoder(model::TinyConfig(Architecture::kQwen2, false), 21, at::kCPU);
};

TEST_F(RequestsTest, AreAnsweredBesideOthersAsAlone) {
  Engine engine(decoder_, {.max_rows = 3});
  const Request a = Ask({1, 2, 3}, 10), b = Ask({4, 5}, 3, 2), c = Ask({1, 2, 3, 4}, 6);
  const RequestId first = *engine.Add(a);
  engine.Step();
  engine.Step();
  const RequestId second = *engine.Add(b);
  engine.Step();
  const RequestId third = *engine.Add(c);
  const Answers answers = Finish(engine);
  ASSERT_EQ(answers.size(), 4u);
  ExpectEqual(answers.at({first, 0}), Alone(a)[0]);
  for (int64_t sample : {0, 1}) ExpectEqual(answers.at({second, sample}), Alone(b)[static_cast<size_t>(sample)]);
  ExpectEqual(answers.at({third, 0}), Alone(c)[0]);
  EXPECT_NE(answers.at({second, 0}).tokens, answers.at({second, 1}).tokens);
}

TEST_F(RequestsTest, TellEachTokenAsItComes) {
  Engine engine(decoder_, {});
  Request request = Ask({1, 2}, 4, 2);
  std::map<int64_t, std::vector<int32_t>> told;
  std::vector<size_t> by_step;
  std::map<int64_t, std::vector<float>> told_log_probs;
  request.on_token = [&](int64_t sample, const NewToken& token) {
    told[sample].push_back(token.token);
    told_log_probs[sample].push_back(token.log_prob);
    EXPECT_EQ(token.version, 0);
  };
  const RequestId id = *engine.Add(request);
  Answers answers;
  while (engine.HasWork()) {
    for (Answer& answer : engine.Step()) answers[{answer.request, answer.sample}] = std::move(answer.completion);
    by_step.push_back(told[0].size());
  }
  EXPECT_THAT(by_step, ElementsAre(1, 2, 3, 4));
  for (const int64_t sample : {0, 1}) {
    EXPECT_EQ(told[sample], answers.at({id, sample}).tokens);
    EXPECT_EQ(told_log_probs[sample], answers.at({id, sample}).log_probs);
  }
}

// Even tokens and odd ones in turn, up to so many.
class InTurn final : public TokenConstraint {
 public:
  explicit InTurn(int64_t most) : most_(most) {}
  std::span<const uint64_t> Allowed() override {
    bits_ = came_ == most_ ? 0 : came_ % 2 == 0 ? 0x555 : 0xAAA;  // of tokens 0 to 11
    return std::span(&bits_, 1);
  }
  void Accept(int32_t) override { ++came_; }

 private:
  const int64_t most_;
  int64_t came_ = 0;
  uint64_t bits_ = 0;
};

TEST_F(RequestsTest, AConstraintLimitsItsOwnAnswersOnly) {
  Engine engine(decoder_, {});
  const Request free = Ask({1, 2}, 8);
  Request limited = Ask({1, 2}, 4, 2);
  limited.constrain = [](int64_t) { return std::make_unique<InTurn>(4); };
  const RequestId a = *engine.Add(free), b = *engine.Add(limited);
  const Answers answers = Finish(engine);
  ExpectEqual(answers.at({a, 0}), Alone(free)[0]);
  for (const int64_t sample : {0, 1}) {
    const std::vector<int32_t>& tokens = answers.at({b, sample}).tokens;
    ASSERT_EQ(tokens.size(), 4u);
    for (size_t i = 0; i < tokens.size(); ++i) EXPECT_TRUE(tokens[i] < 12 && tokens[i] % 2 == static_cast<int>(i % 2));
  }
}

TEST_F(RequestsTest, AnAnswerThatMayNotGoOnIsAnError) {
  Engine engine(decoder_, {});
  Request limited = Ask({1, 2}, 8);
  limited.constrain = [](int64_t) { return std::make_unique<InTurn>(2); };
  ASSERT_TRUE(engine.Add(limited).ok());
  std::vector<Answer> ended;
  for (int step = 0; step < 10 && ended.empty(); ++step) ended = engine.Step();
  ASSERT_EQ(ended.size(), 1u);
  EXPECT_THAT(ended[0].status, Fails(absl::StatusCode::kResourceExhausted, {"grammar", "position 4"}));
}

// As InTurn, and whole once it has so many.
class WholeInTurn final : public TokenConstraint {
 public:
  explicit WholeInTurn(int64_t most) : most_(most), in_turn_(most) {}
  std::span<const uint64_t> Allowed() override { return in_turn_.Allowed(); }
  void Accept(int32_t token) override {
    in_turn_.Accept(token);
    ++came_;
  }
  bool complete() const override { return came_ == most_; }
  bool may_end() const override { return complete(); }

 private:
  const int64_t most_;
  int64_t came_ = 0;
  InTurn in_turn_;
};

TEST_F(RequestsTest, AnAnswerEndsWhereItsConstraintIsComplete) {
  Engine engine(decoder_, {});
  // With room for more tokens and without, and one that is cut off.
  std::map<int64_t, RequestId> ids;
  for (const int64_t room : {2, 3, 8}) {
    Request limited = Ask({1, 2}, room);
    limited.constrain = [](int64_t) { return std::make_unique<WholeInTurn>(3); };
    ids[room] = *engine.Add(limited);
  }
  const Answers answers = Finish(engine);
  for (const auto& [room, id] : ids) {
    const Completion& completion = answers.at({id, 0});
    EXPECT_EQ(static_cast<int64_t>(completion.tokens.size()), std::min<int64_t>(room, 3));
    EXPECT_EQ(completion.finished, room >= 3);
    EXPECT_EQ(completion.finish_reason, room >= 3 ? FinishReason::kStop : FinishReason::kLength);
  }
}

TEST_F(RequestsTest, NoEndTokenAndNoStopTokenEndsAnAnswerBeforeItsConstraintLetsIt) {
  Engine engine(decoder_, {.end_tokens = {0, 1, 2, 3}});
  Request whole = Ask({1, 2}, 8), any = Ask({1, 2}, 8);
  for (Request* const request : {&whole, &any}) {
    request->sampling.ignore_eos = false;
    request->sampling.stop_tokens = {4, 5, 6, 7, 8, 9, 10, 11};
  }
  whole.constrain = [](int64_t) { return std::make_unique<WholeInTurn>(3); };
  any.constrain = [](int64_t) { return std::make_unique<InTurn>(8); };
  const RequestId a = *engine.Add(whole), b = *engine.Add(any);
  const Answers answers = Finish(engine);
  EXPECT_EQ(answers.at({a, 0}).tokens.size(), 3u);
  EXPECT_EQ(answers.at({a, 0}).finish_reason, FinishReason::kStop);
  EXPECT_EQ(answers.at({b, 0}).tokens.size(), 1u);
}

TEST_F(RequestsTest, AbortedKeepWhatTheyHaveAndLeaveTheOthersAlone) {
  Engine engine(decoder_, {});
  const Request kept = Ask({1, 2, 3}, 12), aborted = Ask({3, 2, 1}, 12, 3);
  const RequestId a = *engine.Add(kept), b = *engine.Add(aborted);
  for (int i = 0; i < 4; ++i) engine.Step();
  ASSERT_TRUE(engine.Abort(b).ok());
  ASSERT_TRUE(engine.Abort(b).ok()) << "it is still open";
  const Answers answers = Finish(engine);
  ASSERT_EQ(answers.size(), 4u);
  ExpectEqual(answers.at({a, 0}), Alone(kept)[0]);
  const std::vector<Completion> whole = Alone(aborted);
  for (const int64_t sample : {0, 1, 2}) {
    const Completion& given = answers.at({b, sample});
    EXPECT_EQ(given.finish_reason, FinishReason::kAborted);
    EXPECT_FALSE(given.finished);
    ASSERT_EQ(given.tokens.size(), 4u);
    EXPECT_TRUE(
        std::equal(given.tokens.begin(), given.tokens.end(), whole[static_cast<size_t>(sample)].tokens.begin()));
  }
  EXPECT_THAT(engine.Abort(b), Fails(absl::StatusCode::kNotFound, {absl::StrCat("request ", b)}));
  EXPECT_EQ(engine.stats().running, 0);
}

TEST_F(RequestsTest, MayBeAbortedBeforeTheyBeginAndFromATokenOfTheirOwn) {
  Engine engine(decoder_, {});
  const RequestId early = *engine.Add(Ask({1}, 5));
  ASSERT_TRUE(engine.Abort(early).ok());
  Request request = Ask({2}, 50);
  RequestId own = 0;
  int tokens = 0;
  request.on_token = [&](int64_t, const NewToken&) {
    if (++tokens == 3) {
      EXPECT_TRUE(engine.Abort(own).ok());
    }
  };
  own = *engine.Add(request);
  const Answers answers = Finish(engine);
  EXPECT_TRUE(answers.at({early, 0}).tokens.empty());
  EXPECT_EQ(answers.at({own, 0}).tokens.size(), 3u);
}

TEST_F(RequestsTest, EndAtTheirDeadlineAsTheyAre) {
  FakeClock clock;
  Engine engine(decoder_, {.clock = &clock});
  Request late = Ask({1, 2}, 40, 2);
  late.deadline = clock.Now() + absl::Seconds(5);
  const RequestId id = *engine.Add(late), other = *engine.Add(Ask({1, 2}, 6));
  engine.Step();
  engine.Step();
  clock.Advance(absl::Seconds(5));
  const Answers answers = Finish(engine);
  for (const int64_t sample : {0, 1}) {
    EXPECT_EQ(answers.at({id, sample}).finish_reason, FinishReason::kDeadline);
    EXPECT_EQ(answers.at({id, sample}).tokens.size(), 2u);
  }
  EXPECT_EQ(answers.at({other, 0}).finish_reason, FinishReason::kLength);
}

TEST_F(RequestsTest, ThatStopAtABudgetGoOnAsIfTheyHadNot) {
  Engine engine(decoder_, {});
  Request request = Ask({1, 2, 3, 4, 5}, 30, 4);
  request.sampling.repetition_penalty = 1.3;
  request.sampling.stop_tokens = {7, 9};
  const std::vector<Completion> whole = Alone(request);
  for (const int64_t budget : {1, 4, 17}) {
    request.token_budget = budget;
    request.so_far.clear();
    for (bool open = true; open;) {
      std::vector<Completion> so_far(4);
      const RequestId id = *engine.Add(request);
      open = false;
      for (auto& [key, completion] : Finish(engine)) {
        ASSERT_EQ(key.first, id);
        open = open || completion.finish_reason == FinishReason::kBudget;
        so_far[static_cast<size_t>(key.second)] = std::move(completion);
      }
      request.so_far = std::move(so_far);
    }
    for (size_t sample = 0; sample < 4; ++sample) ExpectEqual(request.so_far[sample], whole[sample]);
  }
  const std::set<size_t> lengths = {whole[0].tokens.size(), whole[1].tokens.size(), whole[2].tokens.size(),
                                    whole[3].tokens.size()};
  EXPECT_GT(lengths.size(), 1u) << "they must end at different places";
}

TEST_F(RequestsTest, WithAHigherPriorityGoFirst) {
  Engine engine(decoder_, {.max_rows = 1});
  const RequestId slow = *engine.Add(Ask({1}, 20));
  engine.Step();
  Request urgent = Ask({2}, 2);
  urgent.priority = 1;
  const RequestId fast = *engine.Add(urgent);
  std::vector<RequestId> order;
  while (engine.HasWork()) {
    for (const Answer& answer : engine.Step()) order.push_back(answer.request);
  }
  EXPECT_THAT(order, ElementsAre(fast, slow));
  EXPECT_EQ(engine.stats().preemptions, 1);
}

TEST_F(RequestsTest, ReadAPromptOnceForAllItsSamplesAndForThoseThatBeginAlike) {
  Engine engine(decoder_, {});
  std::vector<int32_t> prompt(37, 3);
  *engine.Add(Ask(prompt, 2, 8));
  engine.Step();
  EXPECT_EQ(engine.stats().unused_places, 8 * (48 - 37));
  Finish(engine);
  EXPECT_EQ(engine.stats().unused_places, 0);
  EXPECT_EQ(engine.stats().computed_tokens, 37 + 8);
  prompt.push_back(5);
  *engine.Add(Ask(prompt, 1));
  Finish(engine);
  EXPECT_EQ(engine.stats().shared_tokens, 32);
  EXPECT_EQ(engine.stats().computed_tokens, 37 + 8 + 6);
}

TEST_F(RequestsTest, StayWithinTheBudgetOfTheCacheAndAreAnsweredAllTheSame) {
  const int64_t page = PagedCache::PageBytes(decoder_.config(), at::kFloat);
  Engine engine(decoder_, {.cache_bytes = 5 * page});
  std::vector<Request> requests;
  std::vector<RequestId> ids;
  for (int32_t i = 0; i < 6; ++i) {
    requests.push_back(Ask({i, 1, 2}, 20 + i, 3));
    ids.push_back(*engine.Add(requests.back()));
  }
  Answers answers;
  while (engine.HasWork()) {
    for (Answer& answer : engine.Step()) answers[{answer.request, answer.sample}] = std::move(answer.completion);
    EXPECT_LE(engine.stats().cache.held_bytes, 5 * page);
  }
  EXPECT_GT(engine.stats().preemptions, 0);
  for (size_t i = 0; i < requests.size(); ++i) {
    const std::vector<Completion> alone = Alone(requests[i]);
    for (size_t sample = 0; sample < 3; ++sample) {
      ExpectEqual(answers.at({ids[i], static_cast<int64_t>(sample)}), alone[sample]);
    }
  }
}

TEST_F(RequestsTest, GoOnWithOtherWeightsAndSayWhichMadeWhichToken) {
  Decoder other = model::TinyDecoder(decoder_.config(), 99, at::kCPU);
  other.SetBatchInvariant(true);
  Engine engine(decoder_, {});
  const Request request = Ask({1, 2, 3}, 6);
  const RequestId id = *engine.Add(request);
  engine.Step();
  engine.Step();
  engine.Serve(std::make_shared<const Decoder>(other.Clone()), 7);
  const Completion given = Finish(engine).at({id, 0});
  EXPECT_THAT(given.weights, ElementsAre(WeightsSpan{0, 2}, WeightsSpan{7, 4}));
  // As if the other weights had been given what there was.
  Engine fresh(other, {});
  Request rest = request;
  rest.so_far = {given};
  rest.so_far[0].tokens.resize(2);
  rest.so_far[0].log_probs.resize(2);
  rest.so_far[0].finish_reason = FinishReason::kAborted;
  const RequestId again = *fresh.Add(rest);
  ExpectEqual(Finish(fresh).at({again, 0}), given);
}

// The log-probabilities of an answer whose first `old` tokens were passed through one decoder, and the rest through
// another, over one cache.
std::vector<float> LogProbsOverOneCache(const Decoder& before, const Decoder& after, const Request& request,
                                        const std::vector<int32_t>& answer, size_t old) {
  const at::NoGradGuard no_grad;
  PagedCache cache(before.config(), at::TensorOptions().dtype(at::kFloat), 16);
  const int64_t sequence = cache.Add();
  std::vector<int32_t> tokens = request.prompt.tokens;
  int64_t cached = 0;
  std::vector<float> log_probs;
  for (size_t i = 0; i < answer.size(); ++i) {
    const auto size = static_cast<int64_t>(tokens.size());
    EXPECT_TRUE(cache.Reserve(sequence, size));
    const auto pass = cache.Begin({{sequence, cached, size - cached}});
    const Decoder& decoder = i < old ? before : after;
    const at::Tensor hidden = decoder.Hidden({.tokens = at::tensor(tokens, at::kLong).slice(0, cached).unsqueeze(0),
                                              .positions = at::arange(cached, size).unsqueeze(0)},
                                             pass.get());
    const at::Tensor logits = decoder.Logits(hidden)[0][-1] / request.sampling.temperature;
    log_probs.push_back(at::log_softmax(logits, 0)[answer[i]].item<float>());
    cached = size;
    tokens.push_back(answer[i]);
  }
  return log_probs;
}

TEST_F(RequestsTest, GoOnFromTheKeysAndValuesThatTheyHave) {
  Decoder other = model::TinyDecoder(decoder_.config(), 99, at::kCPU);
  other.PackWeights();
  for (const bool packed : {false, true}) {
    Engine engine(decoder_, {});
    const Request request = Ask({1, 2, 3}, 6, 2);
    const RequestId id = *engine.Add(request);
    engine.Step();
    engine.Step();
    const auto next = std::make_shared<const Decoder>(packed ? other : other.Clone());
    EXPECT_EQ(engine.Serve(next, 7, InProgress::kGoOn), nullptr) << "the first decoder is somebody else's";
    const int64_t computed = engine.stats().computed_tokens;
    const Answers answers = Finish(engine);
    EXPECT_EQ(engine.stats().computed_tokens - computed, 8) << "nothing is read again";
    for (int64_t sample = 0; sample < 2; ++sample) {
      const Completion& given = answers.at({id, sample});
      EXPECT_THAT(given.weights, ElementsAre(WeightsSpan{0, 2}, WeightsSpan{7, 4}));
      const std::vector<float> expected = LogProbsOverOneCache(decoder_, other, request, given.tokens, 2);
      ASSERT_EQ(given.log_probs.size(), expected.size());
      for (size_t i = 0; i < expected.size(); ++i) EXPECT_NEAR(given.log_probs[i], expected[i], 1e-5) << i;
    }
    EXPECT_EQ(engine.Serve(std::make_shared<const Decoder>(decoder_.Clone()), 8), next);
  }
}

TEST_F(RequestsTest, NeverShareWhatOlderWeightsHaveMade) {
  Decoder other = model::TinyDecoder(decoder_.config(), 99, at::kCPU);
  other.SetBatchInvariant(true);
  Engine engine(decoder_, {}), fresh(other, {});
  std::vector<int32_t> prompt(17);
  for (size_t i = 0; i < prompt.size(); ++i) prompt[i] = static_cast<int32_t>(1 + i % 7);
  const Request request = Ask(prompt, 26, 2);
  const RequestId id = *engine.Add(request);
  for (int step = 0; step < 5; ++step) engine.Step();
  engine.Serve(std::make_shared<const Decoder>(other.Clone()), 1, InProgress::kGoOn);
  const RequestId beside = *engine.Add(request);  // while the first goes on, and its pages fill up
  Answers answers = Finish(engine);
  // One that begins with all of the first, pages that were filled since included.
  Request longer = Ask(prompt, 3);
  const std::vector<int32_t>& first = answers.at({id, 0}).tokens;
  longer.prompt.tokens.insert(longer.prompt.tokens.end(), first.begin(), first.end());
  const int64_t shared = engine.stats().shared_tokens;
  const RequestId after = *engine.Add(longer);
  answers = Finish(engine, std::move(answers));
  EXPECT_EQ(engine.stats().shared_tokens - shared, 16) << "a page of the prompt, as the second has read it";
  const RequestId expected = *fresh.Add(request), expected_longer = *fresh.Add(longer);
  const Answers others = Finish(fresh);
  for (int64_t sample = 0; sample < 2; ++sample) {
    ExpectEqual(answers.at({beside, sample}), others.at({expected, sample}));
  }
  ExpectEqual(answers.at({after, 0}), others.at({expected_longer, 0}));
  EXPECT_EQ(engine.stats().cache.held_bytes, engine.stats().cache.kept_bytes);
}

TEST_F(RequestsTest, WeightsAreKnownByTheirVersionAndTheirBytes) {
  Engine engine(decoder_, {});
  const ServedWeights first = engine.weights();
  EXPECT_EQ(first.version, 0);
  engine.Update([] {}, 1);
  EXPECT_EQ(engine.weights().hash, first.hash);
  engine.Update(
      [&] {
        const at::NoGradGuard no_grad;
        decoder_.parameters().back().add_(1);
      },
      2);
  EXPECT_EQ(engine.weights().version, 2);
  EXPECT_NE(engine.weights().hash, first.hash);
}

TEST_F(RequestsTest, NeverReadWeightsWhileTheyAreWritten) {
  Engine engine(decoder_, {});
  const at::Tensor weight = decoder_.parameters().back();
  *engine.Add(Ask({1}, 40, 4));
  std::thread writer([&] {
    for (int64_t version = 1; version < 30; ++version) {
      engine.Update(
          [&] {
            const at::NoGradGuard no_grad;
            weight.fill_(std::numeric_limits<float>::quiet_NaN());
            std::this_thread::yield();
            weight.fill_(0.5);
          },
          version);
    }
  });
  for (const auto& [key, completion] : Finish(engine)) {
    for (const float log_prob : completion.log_probs) EXPECT_TRUE(std::isfinite(log_prob));
  }
  writer.join();
}

TEST_F(RequestsTest, AdaptersTravelAloneAndMeanTheSameMerged) {
  const at::NoGradGuard no_grad;
  Decoder adapted = decoder_.Clone();
  ASSERT_TRUE(adapted.AddAdapters({.rank = 2, .alpha = 4, .targets = {"q_proj", "down_proj"}}, 3).ok());
  Decoder trained = adapted.Clone();
  for (const auto& [name, factor] : trained.NamedAdapters()) at::Tensor(factor).normal_(0, 0.3);
  Engine engine(adapted, {});
  ASSERT_TRUE(engine.ServeAdapters(trained.NamedAdapters(), 1).ok());
  const Request request = Ask({1, 2, 3}, 8, 2);
  const RequestId id = *engine.Add(request);
  const Answers given = Finish(engine);
  const Decoder merged = trained.Merged();
  Engine of_merged(merged, {});
  const RequestId again = *of_merged.Add(request);
  const Answers expected = Finish(of_merged);
  Engine of_base(decoder_, {});
  const RequestId base = *of_base.Add(request);
  const Answers without = Finish(of_base);
  for (const int64_t sample : {0, 1}) {
    EXPECT_EQ(given.at({id, sample}).tokens, expected.at({again, sample}).tokens);
    EXPECT_THAT(given.at({id, sample}).log_probs,
                testing::Pointwise(testing::FloatNear(1e-4f), expected.at({again, sample}).log_probs));
    EXPECT_NE(given.at({id, sample}).log_probs, without.at({base, sample}).log_probs);
  }
  EXPECT_THAT(engine.ServeAdapters({{"nothing", at::zeros({1})}}, 2),
              Fails(absl::StatusCode::kInvalidArgument, {"no adapter 'nothing'"}));
  EXPECT_EQ(engine.weights().version, 1);
}

TEST_F(RequestsTest, ThatCannotBeAreRefusedByName) {
  const int64_t page = PagedCache::PageBytes(decoder_.config(), at::kFloat);
  Engine engine(decoder_, {.cache_bytes = 2 * page});
  const auto expect = [&](const Request& request, std::vector<std::string> names) {
    EXPECT_THAT(engine.Add(request).status(), Fails(absl::StatusCode::kInvalidArgument, std::move(names)));
  };
  expect(Ask({}, 1), {"prompt", "empty"});
  expect(Ask({1}, 40), {"41 tokens", absl::StrCat("cache_bytes of ", 2 * page)});
  Request request = Ask({1}, 1);
  request.token_budget = -1;
  expect(request, {"token_budget", "at least 0", "not -1"});
  const auto refused = [&](const EngineOptions& options) {
    return Engine(decoder_, options).Add(Ask({1}, 1)).status();
  };
  EXPECT_THAT(refused({.max_rows = 0}), Fails(absl::StatusCode::kInvalidArgument, {"max_rows", "at least 1", "not 0"}));
  EXPECT_THAT(refused({.max_step_tokens = 0}),
              Fails(absl::StatusCode::kInvalidArgument, {"max_step_tokens", "at least 1", "not 0"}));
  request = Ask({1}, 1, 2);
  request.so_far.resize(1);
  expect(request, {"so_far", "1 answers", "2 samples"});
  request.so_far.resize(2);
  request.so_far[1].tokens = {1000};
  request.so_far[1].log_probs = {0};
  expect(request, {"so_far", "token 1000", absl::StrCat("vocabulary of ", decoder_.config().vocab_size)});
  request.prompt.identity.reset();
  expect(request, {"so_far", "identity"});
  *engine.Add(Ask({1}, 1));
  const std::vector<Prompt> prompts = {{{1}, 1}};
  EXPECT_THAT(engine.Generate(prompts, {.max_new_tokens = 1}).status(),
              Fails(absl::StatusCode::kFailedPrecondition, {"open"}));
}

TEST_F(RequestsTest, ThatHaveNoRoomForMoreTokensComeBackAsTheyAre) {
  const int64_t positions = decoder_.config().max_positions;
  Engine engine(decoder_, {});
  Request request = Ask(std::vector<int32_t>(static_cast<size_t>(positions - 6), 3), 100, 2);
  request.so_far.resize(2);
  for (size_t sample : {0, 1}) {
    Completion& so_far = request.so_far[sample];
    so_far.tokens.assign(sample == 0 ? 6 : 2, 1);
    so_far.log_probs.assign(so_far.tokens.size(), -1);
    so_far.finish_reason = sample == 0 ? FinishReason::kLength : FinishReason::kBudget;
  }
  const RequestId id = *engine.Add(request);
  const Answers answers = Finish(engine);
  EXPECT_EQ(answers.at({id, 0}).tokens, request.so_far[0].tokens);
  EXPECT_EQ(answers.at({id, 1}).tokens.size(), 6u);
  request.sampling.max_new_tokens = 2;  // less than there is
  const RequestId again = *engine.Add(request);
  EXPECT_EQ(Finish(engine).at({again, 1}).tokens.size(), 2u);
}

TEST_F(RequestsTest, AddedWhileACallHasTheEngineForItselfAreAnsweredByLaterSteps) {
  Engine engine(decoder_, {});
  Request outer = Ask({1, 2}, 5);
  std::vector<RequestId> added;
  outer.on_token = [&](int64_t, const NewToken&) { added.push_back(*engine.Add(Ask({3}, 2))); };
  int64_t ended = 0;
  ASSERT_TRUE(engine
                  .AnswerAll({outer},
                             [&](std::span<Answer> answers) {
                               for (const Answer& answer : answers) EXPECT_EQ(answer.request, 0u);
                               ended += static_cast<int64_t>(answers.size());
                               return absl::OkStatus();
                             })
                  .ok());
  EXPECT_EQ(ended, 1);
  EXPECT_EQ(added.size(), 5u);
  EXPECT_TRUE(engine.HasWork());
  const Answers answers = Finish(engine);
  for (const RequestId id : added) ExpectEqual(answers.at({id, 0}), Alone(Ask({3}, 2))[0]);
}

TEST_F(RequestsTest, ThatNeverFitTheCacheEndWithAnErrorAndTheBudgetHolds) {
  const int64_t page = PagedCache::PageBytes(decoder_.config(), at::kFloat);
  Engine engine(decoder_, {.cache_bytes = 2 * page + 1});
  const RequestId fits = *engine.Add(Ask({1}, 31));
  EXPECT_EQ(Finish(engine).at({fits, 0}).tokens.size(), 31u);
  EXPECT_LE(engine.stats().cache.budget_bytes, 2 * page + 1) << "the model has positions for three pages";
  EXPECT_THAT(engine.Add(Ask({1}, 32)).status(),
              Fails(absl::StatusCode::kInvalidArgument, {"33 tokens", absl::StrCat("cache_bytes of ", 2 * page + 1)}));
}

TEST_F(RequestsTest, AStepThatThrowsLosesItsRequestsAndNoOthers) {
  Engine engine(decoder_, {});
  Request request = Ask({1}, 3);
  request.on_token = [](int64_t, const NewToken&) { throw std::runtime_error("no more"); };
  *engine.Add(request);
  EXPECT_THROW(engine.Step(), std::runtime_error);
  EXPECT_FALSE(engine.HasWork());
  const RequestId id = *engine.Add(Ask({1}, 3));
  ExpectEqual(Finish(engine).at({id, 0}), Alone(Ask({1}, 3))[0]);
  EXPECT_THROW(engine.AnswerAll({request}, [](std::span<Answer>) { return absl::OkStatus(); }).IgnoreError(),
               std::runtime_error);
  EXPECT_FALSE(engine.HasWork());
}

TEST_F(RequestsTest, WithPositionsThatDependOnTheirLengthShareNothingWithOthers) {
  model::ModelConfig config = model::TinyConfig(Architecture::kLlama, false);
  config.rope.type = model::RopeType::kDynamic;
  config.rope.factor = 4;
  decoder_ = model::TinyDecoder(config, 21, at::kCPU);
  decoder_.SetBatchInvariant(true);
  Engine engine(decoder_, {});
  const std::vector<int32_t> prompt(40, 3);
  const Request shorter = Ask(prompt, 20), longer = Ask(prompt, 60, 2);
  const RequestId a = *engine.Add(shorter);
  engine.Step();
  const RequestId b = *engine.Add(longer);
  const Answers answers = Finish(engine);
  ExpectEqual(answers.at({a, 0}), Alone(shorter)[0]);
  for (const int64_t sample : {0, 1}) {
    ExpectEqual(answers.at({b, sample}), Alone(longer)[static_cast<size_t>(sample)]);
  }
}

TEST_F(RequestsTest, OneWhoseLogitsAreNotFiniteEndsAloneWithAnError) {
  decoder_.parameters().front()[7].fill_(std::numeric_limits<float>::quiet_NaN());  // the embedding of token 7
  Engine engine(decoder_, {});
  Request good = Ask({1, 2}, 3);
  good.sampling.allowed_tokens = {1, 2, 3};
  const RequestId a = *engine.Add(good), b = *engine.Add(Ask({7}, 3, 2));
  std::map<RequestId, std::vector<absl::Status>> ended;
  while (engine.HasWork()) {
    for (const Answer& answer : engine.Step()) ended[answer.request].push_back(answer.status);
  }
  EXPECT_THAT(ended[a], ElementsAre(absl::OkStatus()));
  ASSERT_EQ(ended[b].size(), 2u);
  for (const absl::Status& status : ended[b]) {
    EXPECT_THAT(status, Fails(absl::StatusCode::kInternal, {"position 1"}));
  }
}

}  // namespace
}  // namespace tdock::engine
