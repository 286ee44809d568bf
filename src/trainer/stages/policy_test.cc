#include "trainer/stages/policy.h"

#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "core/base/rng.h"
#include "core/base/testing/fails.h"
#include "dock/table/rows_data.h"
#include "engine/engine.h"
#include "model/decoder/testing/devices.h"
#include "trainer/stages/actor_objective.h"
#include "trainer/stages/supervised_objective.h"

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

  using LossOf = std::function<at::Tensor(const ResponseFigures&, const MicroBatch&)>;

  std::vector<at::Tensor> Gradients(const ForwardOptions& options, const LossOf& loss,
                                    Entropy entropy = Entropy::kNone) {
    const std::vector<MicroBatch> micro_batches = CutMicroBatches(samples, options, decoder.device());
    Backward(decoder, options.workers, micro_batches.size(), [&](const model::Decoder& pass, size_t i) {
      const Layout layout = MakeLayout(micro_batches[i].samples, options.max_row_tokens, decoder.device());
      return loss(ScoreResponses(pass, layout, options.temperature, entropy), micro_batches[i]);
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
    return Gradients(options, [this](const ResponseFigures& figures, const MicroBatch&) {
      return figures.log_probs.sum() / static_cast<double>(tokens());
    });
  }

  // Of an objective, on columns that are random, with a third of the tokens masked and ratios that are clipped.
  std::vector<at::Tensor> Gradients(const ForwardOptions& options, const Objective& objective) {
    TokenBatch all;
    at::Generator generator = at::detail::createCPUGenerator(4);
    const auto random = [&] { return at::randn({tokens()}, generator, at::kFloat); };
    std::vector<int64_t> lengths;
    for (const Sequence& sample : samples) lengths.push_back(static_cast<int64_t>(sample.response.size()));
    all.tokens = algo::MakeTokens((random() > -0.4).to(at::kFloat), lengths);
    all.counts = algo::CountsOf(all.tokens);
    for (const std::string& column : objective.columns()) all.columns[column] = {random() - 2, false};
    StepMetrics metrics;
    objective.Prepare(all, 7, metrics);
    const auto loss = [&](const ResponseFigures& figures, const MicroBatch& micro) {
      TokenBatch batch = PartOf(all, micro);
      batch.log_probs = figures.log_probs;
      batch.entropy = figures.entropy;
      StepMetrics of_micro_batch;
      return objective.Loss(batch, of_micro_batch);
    };
    return Gradients(options, loss, objective.entropy());
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

// Each kind of loss with an aggregation that it takes, entropy and the KL among them.
std::vector<std::shared_ptr<const Objective>> AllObjectives() {
  using Kind = algo::PolicyLossKind;
  using How = algo::Aggregation;
  const ActorObjectiveOptions ppo{.loss = {.clip_high = 0.3, .kl_coef = 0.1}};
  std::vector<std::shared_ptr<const Objective>> objectives = {MakeSupervisedObjective(), MakeActorObjective(ppo)};
  const std::pair<Kind, How> losses[] = {{Kind::kPpoClip, How::kSeqMeanTokenSum},
                                         {Kind::kPpoClip, How::kSeqMeanTokenMean},
                                         {Kind::kPpoClip, How::kSeqMeanTokenSumNorm},
                                         {Kind::kGspo, How::kSeqMeanTokenMean},
                                         {Kind::kSequenceClip, How::kSeqMeanTokenMean},
                                         {Kind::kCispo, How::kTokenMean},
                                         {Kind::kGpg, How::kTokenMean},
                                         {Kind::kClipCov, How::kTokenMean},
                                         {Kind::kKlCov, How::kTokenMean},
                                         {Kind::kGmpo, How::kSeqMeanTokenMean},
                                         {Kind::kSapo, How::kTokenMean},
                                         {Kind::kVespo, How::kTokenMean}};
  for (const auto& [kind, how] : losses) {
    ActorObjectiveOptions options = ppo;
    options.loss.kind = kind;
    options.loss.reduction = {how, 8};
    options.loss.entropy_coef = 0.01;
    options.loss.dual_clip = 3;
    options.rollout_weights = algo::ImportanceOptions{.level = algo::ImportanceLevel::kSequence};
    options.clip_cov = {.low = -10, .high = 10, .fraction = 0.3};
    options.kl_cov_fraction = 0.3;
    objectives.push_back(MakeActorObjective(options));
  }
  return objectives;
}

TEST(Policy, InFloat64EachLossHasTheSameGradientForEverySplitTokenCapPackingAndNumberOfThreads) {
  Fixture fixture(at::kCPU, at::kDouble);
  Workers one(1), two(2), five(5);
  int number = 0;
  for (const auto& objective : AllObjectives()) {
    const auto expected = fixture.Gradients({.workers = one, .micro_batch_size = 13, .max_row_tokens = 1}, *objective);
    const auto check = [&](Workers& workers, int64_t max_row_tokens, int64_t cut) {
      const ForwardOptions options{.workers = workers,
                                   .micro_batch_size = std::max<int64_t>(cut, 0),
                                   .max_tokens = std::max<int64_t>(-cut, 0),
                                   .max_row_tokens = max_row_tokens};
      const auto actual = fixture.Gradients(options, *objective);
      for (size_t i = 0; i < expected.size(); ++i) {
        ASSERT_LT((actual[i] - expected[i]).norm().item<double>(), 1e-12 * expected[i].norm().item<double>())
            << "objective " << number << ", cut " << cut << ", rows of " << max_row_tokens << ", parameter " << i;
      }
    };
    const bool all_cuts = number < 2;
    for (Workers* workers : {&one, &two, &five}) {
      for (int64_t max_row_tokens : {1, 8, 20, 1000}) {
        for (int64_t cut : {-40, -11, -7, 1, 2, 3, 5, 13}) {
          if (all_cuts || (workers == &two && max_row_tokens != 8 && (cut == -11 || cut == 2)))
            check(*workers, max_row_tokens, cut);
        }
      }
    }
    ++number;
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

TEST_P(PolicyTest, LogProbsDropNothing) {
  Workers one(1);
  Fixture fixture(GetParam());
  const ForwardOptions options{.workers = one};
  const at::Tensor expected = LogProbs(fixture.decoder, fixture.samples, options);
  fixture.decoder.SetDropout(0.5);
  EXPECT_TRUE(at::equal(LogProbs(fixture.decoder, fixture.samples, options), expected));
}

TEST_P(PolicyTest, OnTheFirstPassTheRatioOfWhatTheEngineWroteIsOne) {
  const Fixture fixture(GetParam());
  const int64_t count = static_cast<int64_t>(fixture.prompts.size());
  std::vector<engine::Prompt> prompts;
  for (const std::vector<int32_t>& tokens : fixture.prompts) prompts.push_back({.tokens = tokens, .samples = 3});
  engine::Engine rollout(fixture.decoder, {.end_tokens = {8}});
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
      Backward(fixture.decoder, two, 4, [&](const model::Decoder& pass, size_t i) -> at::Tensor {
        if (i == bad) throw std::runtime_error("a bad micro-batch");
        const Layout layout = MakeLayout(std::span(fixture.samples).subspan(i, 1), 64, fixture.decoder.device());
        return ScoreResponses(pass, layout, 1.0).log_probs.sum();
      });
      ADD_FAILURE() << "micro-batch " << bad << " threw";
    } catch (const std::runtime_error& e) {
      EXPECT_STREQ(e.what(), "a bad micro-batch");
    }
  }
}

TEST(Policy, GradientsComeAlsoWhereTheCallerComputesNone) {
  Fixture fixture(at::kCPU);
  Workers one(1);
  const ForwardOptions options{.workers = one};
  const std::vector<at::Tensor> expected = fixture.Gradients(options);
  at::NoGradGuard no_grad;
  const std::vector<at::Tensor> found = fixture.Gradients(options);
  for (size_t i = 0; i < expected.size(); ++i) EXPECT_TRUE(at::equal(found[i], expected[i]));
}

TEST(Policy, ALossWithoutSomeLayersIsRefused) {
  Fixture fixture(at::kCPU);
  Workers two(2);
  const auto loss = [](const model::Decoder& pass, size_t) { return pass.parameters().front().sum(); };
  EXPECT_THROW(Backward(fixture.decoder, two, 5, loss), c10::Error);
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
  EXPECT_THAT(TokenColumn(rows, order, "old_log_probs", samples).status(),
              Fails(absl::StatusCode::kInvalidArgument, {"column 'old_log_probs'", "row 42", "1 values", "2 tokens"}));
}

TEST(LogProbs, OfABatchInvariantDecoderAreThoseOfTheRolloutToTheLastBit) {
  for (const at::ScalarType type : {at::kFloat, at::kBFloat16}) {
    Fixture fixture(at::kCPU, type);
    fixture.decoder.SetBatchInvariant(true);
    std::vector<engine::Prompt> prompts;
    for (const std::vector<int32_t>& tokens : fixture.prompts) prompts.push_back({.tokens = tokens, .samples = 3});
    engine::Engine rollout(fixture.decoder, {.end_tokens = {8}});
    const auto completions = rollout.Generate(prompts, {.temperature = 0.7, .max_new_tokens = 10, .seed = 3}).value();
    std::vector<Sequence> samples;
    std::vector<float> recorded;
    for (size_t i = 0; i < completions.size(); ++i) {
      samples.push_back({fixture.prompts[i / 3], completions[i].tokens});
      recorded.insert(recorded.end(), completions[i].log_probs.begin(), completions[i].log_probs.end());
    }
    Workers two(2);
    for (const int64_t max_row_tokens : {1, 64}) {
      const at::Tensor own =
          LogProbs(fixture.decoder, samples, {.workers = two, .temperature = 0.7, .max_row_tokens = max_row_tokens});
      EXPECT_TRUE(own.equal(at::tensor(recorded))) << type << ", rows of " << max_row_tokens;
    }
  }
}

TEST(LogProbs, OfABatchInvariantDecoderAreThoseOfTheEnginesPromptsToTheLastBit) {
  for (const at::ScalarType type : {at::kFloat, at::kBFloat16}) {
    Fixture fixture(at::kCPU, type);
    fixture.decoder.SetBatchInvariant(true);
    // The engine takes a prompt and its response for one prompt.
    std::vector<engine::Request> requests;
    for (size_t i = 0; i < fixture.samples.size(); ++i) {
      engine::Request& request = requests.emplace_back();
      request.prompt.tokens = fixture.prompts[i];
      request.prompt.tokens.insert(request.prompt.tokens.end(), fixture.responses[i].begin(),
                                   fixture.responses[i].end());
      request.prompt_log_probs = 0;
    }
    std::vector<engine::PromptLogProbs> found(requests.size());
    engine::Engine scorer(fixture.decoder, {.max_step_tokens = 11});
    const absl::Status status = scorer.AnswerAll(requests, [&](std::span<engine::Answer> ended) {
      for (const engine::Answer& answer : ended) found[answer.request] = answer.completion.prompt_log_probs;
      return absl::OkStatus();
    });
    ASSERT_TRUE(status.ok()) << status;
    std::vector<float> scored;
    for (size_t i = 0; i < found.size(); ++i) {
      for (size_t t = fixture.prompts[i].size() - 1; t < found[i]->size(); ++t)
        scored.push_back((*found[i])[t].log_prob);
    }
    Workers two(2);
    const at::Tensor own = LogProbs(fixture.decoder, fixture.samples, {.workers = two});
    EXPECT_TRUE(own.equal(at::tensor(scored))) << type;
  }
}

TEST(LogProbs, OfABatchInvariantDecoderAreTheSameBitsForAnyCut) {
  for (const at::ScalarType type : {at::kFloat, at::kBFloat16}) {
    Fixture fixture(at::kCPU, type);
    fixture.decoder.SetBatchInvariant(true);
    Workers workers(2);
    const auto log_probs = [&](int64_t micro_batch_size, int64_t max_row_tokens, int64_t max_shared_row_tokens) {
      return LogProbs(fixture.decoder, fixture.samples,
                      {.workers = workers,
                       .temperature = 0.7,
                       .micro_batch_size = micro_batch_size,
                       .max_row_tokens = max_row_tokens,
                       .max_shared_row_tokens = max_shared_row_tokens});
    };
    const at::Tensor alone = log_probs(1, 1, 0);
    for (const int64_t micro_batch_size : {1, 2, 5, 13}) {
      for (const int64_t max_row_tokens : {1, 10, 24, 1000}) {
        for (const int64_t shared : {0, 24, 1000}) {
          EXPECT_TRUE(log_probs(micro_batch_size, max_row_tokens, shared).equal(alone))
              << micro_batch_size << " samples, rows of " << max_row_tokens << " or " << shared << ", " << type;
        }
      }
    }
  }
}

}  // namespace
}  // namespace tdock::trainer
