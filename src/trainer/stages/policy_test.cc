#include "trainer/stages/policy.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "core/base/rng.h"
#include "dock/table/rows_data.h"
#include "model/decoder/testing/devices.h"

namespace tdock::trainer {
namespace {

struct Fixture {
  explicit Fixture(const at::Device& device) : decoder(Make(device)) {
    decoder.SetTrainable(true);
    Rng rng(9);
    for (int i = 0; i < 13; ++i) {
      prompts.push_back({static_cast<int32_t>(i / 4), 3, 5});
      auto& response = responses.emplace_back();
      for (uint64_t n = 1 + rng.Below(5); n > 0; --n) response.push_back(static_cast<int32_t>(rng.Below(9)));
    }
    for (size_t i = 0; i < prompts.size(); ++i) samples.push_back({prompts[i], responses[i]});
  }

  static model::Decoder Make(const at::Device& device) {
    model::ModelConfig config;
    config.vocab_size = 9;
    config.hidden_size = 16;
    config.intermediate_size = 32;
    config.num_layers = 2;
    config.num_heads = config.num_kv_heads = 2;
    config.head_dim = 8;
    config.max_positions = 16;
    config.tied_head = true;
    return model::Decoder::Random(config, 2, device);
  }

  // The gradients of the token mean of the log-probabilities.
  std::vector<at::Tensor> Gradients(const ForwardOptions& options) {
    const std::vector<MicroBatch> micro_batches = CutMicroBatches(samples, options);
    const double tokens = static_cast<double>(micro_batches.back().first_token + micro_batches.back().tokens);
    Backward(decoder, options.workers, micro_batches.size(), [&](size_t i) {
      const Layout layout = MakeLayout(micro_batches[i].samples, options.max_row_tokens, decoder.device());
      return ResponseLogProbs(decoder, layout, options.temperature).sum() / tokens;
    });
    std::vector<at::Tensor> gradients;
    for (const at::Tensor& parameter : decoder.parameters()) {
      gradients.push_back(parameter.grad());
      at::Tensor(parameter).mutable_grad() = at::Tensor();
    }
    return gradients;
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

TEST_P(PolicyTest, LogProbsComeInTheOrderOfTheSamples) {
  Fixture fixture(GetParam());
  Workers one(1), two(2);
  const at::Tensor expected = LogProbs(fixture.decoder, fixture.samples, {.workers = one, .micro_batch_size = 1});
  const at::Tensor actual = LogProbs(fixture.decoder, fixture.samples, {.workers = two, .micro_batch_size = 3});
  EXPECT_TRUE(at::allclose(actual, expected, 1e-5, 1e-6));
  EXPECT_FALSE(actual.requires_grad());
}

TEST(Policy, AnExceptionInAMicroBatchReachesTheCaller) {
  Fixture fixture(at::kCPU);
  Workers two(2);
  EXPECT_THROW(Backward(fixture.decoder, two, 4,
                        [](size_t i) -> at::Tensor {
                          if (i == 3) throw std::runtime_error("micro-batch 3");
                          return at::zeros({}).set_requires_grad(true);
                        }),
               std::exception);
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
