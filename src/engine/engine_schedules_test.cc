// Whatever else an engine does, in whatever order and with whatever memory, an answer is the same.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "core/base/rng.h"
#include "core/base/workers.h"
#include "engine/cache/paged_cache.h"
#include "engine/engine.h"
#include "model/decoder/testing/devices.h"
#include "model/decoder/testing/models.h"

namespace tdock::engine {
namespace {

using model::Decoder;

struct Mode {
  at::Device device;
  bool batch_invariant;
  std::string name;
};

std::vector<Mode> Modes() {
  std::vector<Mode> modes = {{at::kCPU, true, "BatchInvariant"}};
  for (const at::Device& device : model::TestDevices())
    modes.push_back({device, false, device.is_cpu() ? "Cpu" : "Gpu"});
  return modes;
}

class Schedules : public testing::TestWithParam<Mode> {
 protected:
  static constexpr size_t kQuestions = 16;

  Schedules()
      : decoder_(model::TinyDecoder(Small(), 21, GetParam().device)),
        another_(model::TinyDecoder(Small(), 22, GetParam().device)) {
    for (Decoder* decoder : {&decoder_, &another_}) decoder->SetBatchInvariant(GetParam().batch_invariant);
    Rng rng(3);
    for (size_t i = 0; i < kQuestions; ++i) questions_.push_back(Question(i, rng));
    EngineOptions plain;
    plain.dense_cache = true;
    Engine engine(decoder_, plain);
    for (const Request& question : questions_) {
      std::vector<Completion>& answers = expected_.emplace_back(static_cast<size_t>(question.prompt.samples));
      const absl::Status status = engine.AnswerAll({question}, [&](std::span<Answer> ended) {
        for (Answer& answer : ended) answers[static_cast<size_t>(answer.sample)] = std::move(answer.completion);
        return absl::OkStatus();
      });
      EXPECT_TRUE(status.ok()) << status;
    }
  }

  static model::ModelConfig Small() {
    model::ModelConfig config = model::TinyConfig(model::Architecture::kQwen2, false);
    config.num_layers = 1;
    return config;
  }

  // Half of them begin alike.
  Request Question(size_t number, Rng& rng) const {
    const auto vocab_size = static_cast<uint64_t>(decoder_.config().vocab_size);
    Request request;
    Prompt& prompt = request.prompt;
    prompt.tokens.resize(1 + rng.Below(24));
    for (size_t i = 0; i < prompt.tokens.size(); ++i) {
      prompt.tokens[i] = number % 2 == 0 ? static_cast<int32_t>(i % 5) : static_cast<int32_t>(rng.Below(vocab_size));
    }
    prompt.tokens.back() = static_cast<int32_t>(rng.Below(vocab_size));
    prompt.samples = static_cast<int64_t>(1 + rng.Below(3));
    prompt.identity = number;
    request.sampling = {.temperature = number % 5 == 0 ? 0.0 : 1.5,
                        .max_new_tokens = static_cast<int64_t>(1 + rng.Below(18)),
                        .seed = 11};
    if (number % 3 == 0) request.sampling.frequency_penalty = 0.5;
    if (number % 4 == 1) request.sampling.top_k = 9;
    if (number % 2 == 1) request.sampling.stop_tokens = {4, 6};
    if (number % 4 >= 2) request.prompt_log_probs = static_cast<int64_t>(number % 3);
    return request;
  }

  EngineOptions RandomOptions(Rng& rng) const {
    EngineOptions options;
    options.max_rows = static_cast<int64_t>(1 + rng.Below(8));
    options.max_step_tokens = static_cast<int64_t>(1 + rng.Below(40));
    options.dense_cache = rng.Below(5) == 0;
    options.one_batch_at_a_time = rng.Below(6) == 0;
    options.speculative_tokens = static_cast<int64_t>(rng.Below(3) * rng.Below(8));
    // One that is always right, or one that seldom is.
    if (options.speculative_tokens > 0 && rng.Below(2) == 0) options.draft = rng.Below(2) == 0 ? &decoder_ : &another_;
    if (rng.Below(3) != 0) {
      options.cache_bytes =
          static_cast<int64_t>(3 + rng.Below(8)) * PagedCache::PageBytes(decoder_.config(), decoder_.compute_type());
    }
    return options;
  }

  // Whether the first tokens of an answer are as they must be.
  void Check(const Completion& given, const Completion& expected, bool whole, const std::string& what) const {
    ASSERT_LE(given.tokens.size(), expected.tokens.size()) << what;
    if (whole) {
      ASSERT_EQ(given.tokens.size(), expected.tokens.size()) << what;
      ASSERT_EQ(given.finish_reason, expected.finish_reason) << what;
    }
    for (size_t i = 0; i < given.tokens.size(); ++i) {
      ASSERT_EQ(given.tokens[i], expected.tokens[i]) << what << ", token " << i;
      if (GetParam().batch_invariant) {
        ASSERT_EQ(given.log_probs[i], expected.log_probs[i]) << what << ", token " << i;
      } else {
        ASSERT_NEAR(given.log_probs[i], expected.log_probs[i], 1e-4) << what << ", token " << i;
      }
    }
    if (given.prompt_log_probs != nullptr) CheckPrompt(*given.prompt_log_probs, *expected.prompt_log_probs, what);
    ASSERT_TRUE(given.prompt_log_probs != nullptr || !whole || expected.prompt_log_probs == nullptr) << what;
  }

  void CheckPrompt(const std::vector<PromptToken>& given, const std::vector<PromptToken>& expected,
                   const std::string& what) const {
    ASSERT_EQ(given.size(), expected.size()) << what;
    for (size_t i = 0; i < given.size(); ++i) {
      ASSERT_NEAR(given[i].log_prob, expected[i].log_prob, GetParam().batch_invariant ? 0 : 1e-4) << what;
      ASSERT_EQ(given[i].top.size(), expected[i].top.size()) << what;
    }
  }

  void Run(uint64_t seed, EngineStats& total);

  Decoder decoder_, another_;
  std::vector<Request> questions_;
  std::vector<std::vector<Completion>> expected_;
};
INSTANTIATE_TEST_SUITE_P(Modes, Schedules, testing::ValuesIn(Modes()),
                         [](const auto& mode) { return mode.param.name; });

void Schedules::Run(uint64_t seed, EngineStats& total) {
  Rng rng(seed);
  EngineOptions options = RandomOptions(rng);
  Workers workers(rng.Below(4) == 0 ? 2 : 1);
  options.workers = &workers;
  Engine engine(decoder_, options);
  std::map<RequestId, size_t> asked;  // which question
  std::set<RequestId> aborted;
  size_t left = 4 + rng.Below(5), ended = 0, wanted = 0;
  for (int step = 0; left > 0 || engine.HasWork(); ++step) {
    ASSERT_LT(step, 3000) << "seed " << seed << " does not get on";
    while (left > 0 && rng.Below(3) == 0) {
      const size_t number = rng.Below(kQuestions);
      Request request = questions_[number];
      request.priority = static_cast<int64_t>(rng.Below(3));
      if (rng.Below(4) == 0) request.token_budget = static_cast<int64_t>(1 + rng.Below(6));
      wanted += static_cast<size_t>(request.prompt.samples);
      const auto id = engine.Add(std::move(request));
      ASSERT_TRUE(id.ok()) << id.status();
      asked[*id] = number;
      --left;
    }
    if (!asked.empty() && rng.Below(25) == 0) {
      const RequestId id = asked.rbegin()->first;
      if (engine.Abort(id).ok()) aborted.insert(id);
    }
    if (rng.Below(60) == 0) engine.Update([] {}, step);
    for (Answer& answer : engine.Step()) {
      ++ended;
      ASSERT_TRUE(answer.status.ok()) << answer.status;
      const size_t number = asked.at(answer.request);
      const Completion& expected = expected_[number][static_cast<size_t>(answer.sample)];
      const FinishReason reason = answer.completion.finish_reason;
      const bool whole = reason != FinishReason::kAborted && reason != FinishReason::kBudget;
      ASSERT_TRUE(reason != FinishReason::kAborted || aborted.contains(answer.request));
      Check(answer.completion, expected, whole,
            "seed " + std::to_string(seed) + ", question " + std::to_string(number));
      if (HasFatalFailure()) return;
    }
    const EngineStats stats = engine.stats();
    ASSERT_LE(stats.cache.held_bytes, stats.cache.budget_bytes);
    ASSERT_LE(stats.running, options.max_rows);
  }
  ASSERT_EQ(ended, wanted) << "seed " << seed;
  const EngineStats stats = engine.stats();
  ASSERT_EQ(stats.cache.held_bytes, stats.cache.kept_bytes) << "seed " << seed << ": nobody has it any more";
  total.preemptions += stats.preemptions;
  total.shared_tokens += stats.shared_tokens;
  total.guessed_tokens += stats.guessed_tokens;
  total.right_guesses += stats.right_guesses;
}

TEST_P(Schedules, OfRequestsPreemptionsSharedPrefixesAndAbortsAtRandomChangeNoToken) {
  EngineStats total;
  for (uint64_t seed = 0; seed < 1000; ++seed) {
    Run(seed, total);
    if (HasFatalFailure()) return;
  }
  EXPECT_GT(total.preemptions, 100);
  EXPECT_GT(total.shared_tokens, 1000);
  EXPECT_GT(total.right_guesses, 200);
  EXPECT_GT(total.guessed_tokens - total.right_guesses, 200) << "wrong ones";
}

}  // namespace
}  // namespace tdock::engine
