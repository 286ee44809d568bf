#include "trainer/stages/policy.h"

#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "core/base/rng.h"
#include "dock/table/rows_data.h"
#include "engine/engine.h"
#include "model/decoder/testing/devices.h"
#include "trainer/stages/objectives.h"

namespace tdock::trainer {
namespace {

struct Fixture {
  explicit Fixture(const at::Device& device, at::ScalarType dtype = at::kFloat) : decoder(Make(device, dtype)) {
    decoder.SetTrainable(true);
    Rng rng(9);
    for (int i = 0; i < 13; ++i) {
      prompts.push_back({static_cast<int32_t>(i / 4), 3, 5});
      auto& response = responses.emplace_back();
      for (uint64_t n = 1 + rng.Below(5); n > 0; --n) response.push_back(static_cast<int32_t>(rng.Below(9)));
    }
    for (size_t i = 0; i < prompts.size(); ++i) samples.push_back({prompts[i], responses[i]});
  }

  static model::Decoder Make(const at::Device& device, at::ScalarType dtype) {
    model::ModelConfig config;
    config.vocab_size = 9;
    config.hidden_size = 16;
    config.intermediate_size = 32;
    config.num_layers = 2;
    config.num_heads = config.num_kv_heads = 2;
    config.head_dim = 8;
    config.max_positions = 16;
    config.tied_head = true;
    return model::Decoder::Random(config, 2, device, dtype);
  }

  using LossOf = std::function<at::Tensor(const at::Tensor& log_probs, const MicroBatch&)>;

  std::vector<at::Tensor> Gradients(const ForwardOptions& options, const LossOf& loss) {
    const std::vector<MicroBatch> micro_batches = CutMicroBatches(samples, options, decoder.device());
    Backward(decoder, options.workers, micro_batches.size(), [&](size_t i) {
      const Layout layout = MakeLayout(micro_batches[i].samples, options.max_row_tokens, decoder.device());
      return loss(ResponseLogProbs(decoder, layout, options.temperature), micro_batches[i]);
    });
    std::vector<at::Tensor> gradients;
    for (const at::Tensor& parameter : decoder.parameters()) {
      gradients.push_back(parameter.grad());
      at::Tensor(parameter).mutable_grad() = at::Tensor();
    }
    return gradients;
  }

  // Of the token mean of the log-probabilities.
  std::vector<at::Tensor> Gradients(const ForwardOptions& options) {
    return Gradients(options, [this](const at::Tensor& log_probs, const MicroBatch&) {
      return log_probs.sum() / static_cast<double>(tokens());
    });
  }

  // Of an objective, on columns that are random, with a third of the tokens masked and ratios that are clipped.
  std::vector<at::Tensor> Gradients(const ForwardOptions& options, const Objective& objective) {
    TokenBatch all;
    at::Generator generator = at::detail::createCPUGenerator(4);
    const auto random = [&] { return at::randn({tokens()}, generator, at::kFloat); };
    all.mask = (random() > -0.4).to(at::kFloat);
    all.token_count = all.mask.sum().item<double>();
    for (const std::string& column : objective.columns()) all.columns[column] = {random() - 2, false};
    return Gradients(options, [&](const at::Tensor& log_probs, const MicroBatch& micro) {
      const auto part = [&](const at::Tensor& values) { return values.narrow(0, micro.first_token, micro.tokens); };
      TokenBatch batch{.log_probs = log_probs,
                       .entropy = log_probs.detach(),
                       .mask = part(all.mask),
                       .token_count = all.token_count,
                       .columns = {}};
      for (const auto& [name, column] : all.columns) batch.columns[name] = {part(column.values), false};
      StepMetrics metrics;
      return objective.Loss(batch, metrics);
    });
  }

  int64_t tokens() const {
    int64_t count = 0;
    for (const std::vector<int32_t>& response : responses) count += static_cast<int64_t>(response.size());
    return count;
  }

  model::Decoder decoder;
  std::vector<std::vector<int32_t>> prompts, responses;
  std::vector<Sequence> samples;
};

class PolicyTest : public testing::TestWithParam<at::Device> {};
INSTANTIATE_TEST_SUITE_P(Devices, PolicyTest, testing::ValuesIn(model::TestDevices()), model::DeviceName);

TEST_P(PolicyTest, GradientsDoNotDependOnHowTheBatchIsCut) {
  Fixture fixture(GetParam());
  Workers one(1), three(3);
  const auto expected = fixture.Gradients({.workers = one, .micro_batch_size = 13, .max_row_tokens = 1});
  for (Workers* workers : {&one, &three}) {
    for (int64_t micro : {0, 1, 2, 5, 100}) {
      for (int64_t max_row_tokens : {1, 64}) {
        const auto actual =
            fixture.Gradients({.workers = *workers, .micro_batch_size = micro, .max_row_tokens = max_row_tokens});
        for (size_t i = 0; i < expected.size(); ++i) {
          EXPECT_TRUE(at::allclose(actual[i], expected[i], 1e-4, 1e-6)) << "micro-batches of " << micro;
        }
      }
    }
  }
}

TEST(Policy, InFloat64TheLossHasTheSameGradientForEverySplitTokenCapPackingAndNumberOfThreads) {
  Fixture fixture(at::kCPU, at::kDouble);
  for (const auto& objective :
       {MakeSupervisedObjective(), MakeClippedObjective({.clip_low = 0.2, .clip_high = 0.3, .kl_coef = 0.1})}) {
    Workers one(1);
    const auto expected = fixture.Gradients({.workers = one, .micro_batch_size = 13, .max_row_tokens = 1}, *objective);
    for (int threads : {1, 2, 5}) {
      Workers workers(threads);
      for (int64_t max_row_tokens : {1, 8, 20, 1000}) {
        for (int64_t cut : {-40, -11, -7, 1, 2, 3, 5, 13}) {
          const ForwardOptions options{.workers = workers,
                                       .micro_batch_size = std::max<int64_t>(cut, 0),
                                       .max_tokens = std::max<int64_t>(-cut, 0),
                                       .max_row_tokens = max_row_tokens};
          const auto actual = fixture.Gradients(options, *objective);
          for (size_t i = 0; i < expected.size(); ++i) {
            ASSERT_LT((actual[i] - expected[i]).norm().item<double>(), 1e-12 * expected[i].norm().item<double>())
                << "cut " << cut << ", rows of " << max_row_tokens << ", " << threads << " threads, parameter " << i;
          }
        }
      }
    }
  }
}

// On the CPU: a GPU adds up in an order of its own.
TEST(Policy, GradientsAreEqualToTheBitWheneverTheyAreComputed) {
  Fixture fixture(at::kCPU);
  Workers three(3);
  const ForwardOptions options{.workers = three, .micro_batch_size = 2};
  const auto expected = fixture.Gradients(options);
  for (int round = 0; round < 10; ++round) {
    const auto actual = fixture.Gradients(options);
    for (size_t i = 0; i < expected.size(); ++i) EXPECT_TRUE(at::equal(actual[i], expected[i]));
  }
}

TEST(Policy, NeitherCutNorGradientsDependOnTheNumberOfThreads) {
  Fixture fixture(at::kCPU);
  std::vector<at::Tensor> expected;
  for (int threads : {1, 2, 3, 7}) {
    Workers workers(threads);
    const auto gradients = fixture.Gradients({.workers = workers, .max_tokens = 12});
    if (expected.empty()) expected = gradients;
    for (size_t i = 0; i < expected.size(); ++i) EXPECT_TRUE(at::equal(gradients[i], expected[i])) << threads;
  }
}

TEST(Policy, NoMicroBatchHasMoreTokensThanAllowedUnlessItIsOneSample) {
  Workers one(1);
  const std::vector<int32_t> prompt(4), response(6), longer(30);
  std::vector<Sequence> samples(20, Sequence{prompt, response});
  samples[7].response = longer;
  const auto cut = CutMicroBatches(samples, {.workers = one, .max_tokens = 32}, at::kCPU);
  int64_t tokens = 0;
  size_t count = 0;
  for (const MicroBatch& micro : cut) {
    EXPECT_EQ(micro.first_token, tokens);
    EXPECT_LE(micro.samples.size() * 10, micro.samples.size() == 1 ? 34u : 32u);
    tokens += micro.tokens;
    count += micro.samples.size();
  }
  EXPECT_EQ(count, samples.size());
  EXPECT_EQ(tokens, 19 * 6 + 30);
  EXPECT_EQ(CutMicroBatches(std::span(samples).first(6), {.workers = one, .max_tokens = 32}, at::kCPU).size(), 2u);
}

TEST_P(PolicyTest, LogProbsComeInTheOrderOfTheSamples) {
  Fixture fixture(GetParam());
  Workers one(1), two(2);
  const at::Tensor expected = LogProbs(fixture.decoder, fixture.samples, {.workers = one, .micro_batch_size = 1});
  const at::Tensor actual = LogProbs(fixture.decoder, fixture.samples, {.workers = two, .micro_batch_size = 3});
  EXPECT_TRUE(at::allclose(actual, expected, 1e-5, 1e-6));
  EXPECT_FALSE(actual.requires_grad());
}

TEST_P(PolicyTest, OnTheFirstPassTheRatioOfWhatTheEngineWroteIsOne) {
  const Fixture fixture(GetParam());
  const int64_t count = static_cast<int64_t>(fixture.prompts.size());
  std::vector<engine::Prompt> prompts;
  for (const std::vector<int32_t>& tokens : fixture.prompts) prompts.push_back({.tokens = tokens, .samples = 3});
  const engine::Engine rollout(fixture.decoder, {.end_tokens = {8}});
  Workers two(2);
  for (const double temperature : {0.7, 1.0, 1.3}) {
    const auto completions =
        rollout.Generate(prompts, {.temperature = temperature, .max_new_tokens = 10, .seed = 3}).value();
    ASSERT_EQ(static_cast<int64_t>(completions.size()), 3 * count);
    std::vector<Sequence> samples;
    std::vector<float> old;
    for (size_t i = 0; i < completions.size(); ++i) {
      samples.push_back({fixture.prompts[i / 3], completions[i].tokens});
      old.insert(old.end(), completions[i].log_probs.begin(), completions[i].log_probs.end());
    }
    for (const int64_t max_row_tokens : {1, 64}) {  // 1: every sample in a row of its own
      const at::Tensor own = LogProbs(fixture.decoder, samples,
                                      {.workers = two, .temperature = temperature, .max_row_tokens = max_row_tokens});
      const at::Tensor ratio = (own.cpu() - at::tensor(old)).exp();
      EXPECT_LT((ratio - 1).abs().max().item<double>(), 1e-5)
          << "temperature " << temperature << ", rows of " << max_row_tokens;
    }
  }
}

TEST(Policy, AnExceptionInAMicroBatchReachesTheCallerAndEndsTheWaitsOfOthers) {
  Fixture fixture(at::kCPU);
  for (const size_t bad : {0, 3}) {
    Workers two(2);
    try {
      Backward(fixture.decoder, two, 4, [&](size_t i) -> at::Tensor {
        if (i == bad) throw std::runtime_error("a bad micro-batch");
        const Layout layout = MakeLayout(std::span(fixture.samples).subspan(i, 1), 64, fixture.decoder.device());
        return ResponseLogProbs(fixture.decoder, layout, 1.0).sum();
      });
      ADD_FAILURE() << "micro-batch " << bad << " threw";
    } catch (const std::runtime_error& e) {
      EXPECT_STREQ(e.what(), "a bad micro-batch");
    }
  }
}

TEST(TokenColumn, ALengthThatDoesNotFitTheResponseNamesTheRow) {
  Rows::Data data;
  const std::vector<float> values = {0.5f, 0.25f};
  data.ids = {41, 42};
  data.groups = {0, 0};
  data.columns = std::make_shared<std::vector<ColumnSpec>>(
      std::vector<ColumnSpec>{{"old_log_probs", ColumnType::Ragged(DType::kF32)}});
  data.cells = {{std::as_bytes(std::span(values).first(1))}, {std::as_bytes(std::span(values).last(1))}};
  const Rows rows = std::move(data).ToRows();
  const std::vector<int32_t> prompt = {1}, one = {2}, two = {2, 3};
  const std::vector<Sequence> samples = {{prompt, one}, {prompt, two}};
  const int64_t order[] = {0, 1};
  EXPECT_EQ(TokenColumn(rows, order, "old_log_probs", samples).status().message(),
            "column 'old_log_probs' of row 42 has 1 values for a response of 2 tokens");
}

}  // namespace
}  // namespace tdock::trainer
