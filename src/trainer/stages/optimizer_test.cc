#include "trainer/stages/optimizer.h"

#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/core/grad_mode.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <memory>
#include <vector>

#include "absl/strings/match.h"
#include "model/decoder/testing/devices.h"
#include "model/decoder/testing/models.h"
#include "trainer/stages/rounding.h"
#include "trainer/stages/shard.h"

namespace tdock::trainer {
namespace {

// One parameter followed by hand, in float64, from the formula of the paper.
struct Reference {
  double x, m = 0, v = 0;
  int step = 0;
  void Step(double g, double lr, double beta1, double beta2, double eps, double decay) {
    ++step;
    x -= lr * decay * x;
    m = beta1 * m + (1 - beta1) * g;
    v = beta2 * v + (1 - beta2) * g * g;
    x -= lr * (m / (1 - std::pow(beta1, step))) / (std::sqrt(v / (1 - std::pow(beta2, step))) + eps);
  }
};

class AdamWTest : public testing::TestWithParam<at::Device> {};
INSTANTIATE_TEST_SUITE_P(Devices, AdamWTest, testing::ValuesIn(model::TestDevices()), model::DeviceName);

TEST_P(AdamWTest, FollowsTheFormulaAndDecaysMatricesOnly) {
  const auto options = at::TensorOptions().device(GetParam());
  const at::Tensor matrix = at::full({1, 1}, 2.0, options).set_requires_grad(true);
  const at::Tensor vector = at::full({1}, 2.0, options).set_requires_grad(true);
  AdamW optimizer({matrix, vector}, {.beta1 = 0.9, .beta2 = 0.99, .weight_decay = 0.1, .clip_grad = 0});
  Reference with_decay{2.0}, without{2.0};
  for (int i = 0; i < 20; ++i) {
    const double gradient = std::sin(i) * 3;
    const double lr = 0.1 / (1 + i);
    at::Tensor(matrix).mutable_grad() = at::full({1, 1}, gradient, options);
    at::Tensor(vector).mutable_grad() = at::full({1}, gradient, options);
    EXPECT_NEAR(optimizer.Step(lr), std::abs(gradient) * std::sqrt(2.0), 1e-5);
    with_decay.Step(gradient, lr, 0.9, 0.99, 1e-8, 0.1);
    without.Step(gradient, lr, 0.9, 0.99, 1e-8, 0.0);
    EXPECT_NEAR(matrix.item<double>(), with_decay.x, 1e-5) << "step " << i;
    EXPECT_NEAR(vector.item<double>(), without.x, 1e-5) << "step " << i;
    EXPECT_FALSE(matrix.grad().defined());
  }
}

// The groups of DeepSpeed-Chat (get_optimizer_grouped_parameters): weights, adapters with a learning rate of their own,
// and what does not decay.
TEST_P(AdamWTest, AGroupWithALearningRateOfItsOwnFollowsTheFormulaWithIt) {
  const auto parameter = [&](std::vector<int64_t> shape) {
    return at::full(shape, 2.0, at::TensorOptions().device(GetParam())).set_requires_grad(true);
  };
  for (const MomentType moments : {MomentType::kFloat32, MomentType::kInt8}) {
    const at::Tensor weight = parameter({64, 64}), bias = parameter({64}), adapter = parameter({64, 64});
    AdamW optimizer({{{weight, bias}}, {{adapter}, 50.0}}, {.weight_decay = 0.1, .clip_grad = 0, .moments = moments});
    Reference of_weight{2.0}, of_bias{2.0}, of_adapter{2.0};
    for (const double lr : {1e-3, 5e-4}) {
      for (const at::Tensor& each : {weight, bias, adapter}) {
        at::Tensor(each).mutable_grad() = at::full_like(each.detach(), 0.25);
      }
      optimizer.Step(lr);
      of_weight.Step(0.25, lr, 0.9, 0.999, 1e-8, 0.1);
      of_bias.Step(0.25, lr, 0.9, 0.999, 1e-8, 0.0);
      of_adapter.Step(0.25, 50 * lr, 0.9, 0.999, 1e-8, 0.1);
    }
    EXPECT_TRUE(at::allclose(weight.detach(), at::full_like(weight.detach(), of_weight.x), 0, 1e-6));
    EXPECT_TRUE(at::allclose(bias.detach(), at::full_like(bias.detach(), of_bias.x), 0, 1e-6));
    EXPECT_TRUE(at::allclose(adapter.detach(), at::full_like(adapter.detach(), of_adapter.x), 0, 1e-6));
  }
}

TEST(AdamW, DecaysNeitherBiasesNorNormsOfADecoder) {
  for (const model::ModelConfig& config : model::TinyConfigs()) {
    model::Decoder decoder = model::TinyDecoder(config, 1, at::kCPU);
    decoder.SetTrainable(true);
    const model::Decoder before = decoder.Clone();
    AdamW optimizer(decoder.trainable(), {.weight_decay = 0.5});
    for (at::Tensor parameter : decoder.trainable()) parameter.mutable_grad() = at::zeros_like(parameter.detach());
    optimizer.Step(0.1);
    const auto old = before.NamedWeights();
    const auto now = decoder.NamedWeights();
    for (size_t i = 0; i < now.size(); ++i) {
      const auto& [name, weight] = now[i];
      const bool exempt = absl::StrContains(name, "norm") || absl::StrContains(name, "ln_") || name.ends_with(".bias");
      EXPECT_TRUE(at::allclose(weight.detach(), old[i].second * (exempt ? 1.0 : 0.95), 1e-6, 0)) << name;
    }
  }
}

// Least squares: rows of a matrix, with gradients of very different sizes.
double LossAfter(const at::Device& device, int steps, MomentType moments) {
  at::manual_seed(3);
  const at::Tensor inputs = (at::randn({256, 128}) * at::logspace(-1.5, 0.5, 128)).to(device);
  const at::Tensor targets = inputs.mm(at::randn({128, 64}).to(device));
  const at::Tensor weights = at::zeros({128, 64}, device).set_requires_grad(true);
  AdamW optimizer({weights}, {.weight_decay = 0.0, .moments = moments});
  double loss = 0;
  for (int i = 0; i < steps; ++i) {
    const at::Tensor errors = inputs.mm(weights.detach()) - targets;
    loss = errors.square().mean().item<double>();
    at::Tensor(weights).mutable_grad() = 2 * inputs.t().mm(errors) / static_cast<double>(errors.numel());
    optimizer.Step(0.03);
  }
  return loss;
}

TEST_P(AdamWTest, MomentsOfEightBitsLearnAsThoseOfFloat32Do) {
  const double before = LossAfter(GetParam(), 1, MomentType::kInt8);
  const double exact = LossAfter(GetParam(), 300, MomentType::kFloat32);
  const double rough = LossAfter(GetParam(), 300, MomentType::kInt8);
  EXPECT_LT(exact, 0.01 * before);
  EXPECT_LT(rough, 0.012 * before);
  EXPECT_NE(rough, exact) << "the moments were not stored in bytes";
}

TEST_P(AdamWTest, AFirstStepIsTheSameWithMomentsOfEitherTypeAndASecondNearlySo) {
  const auto steps = [](MomentType moments) {
    // More than one stretch, and no whole number of blocks.
    const at::Tensor x = at::zeros({3, 400'001}, GetParam()).set_requires_grad(true);
    AdamW optimizer({x}, {.clip_grad = 0, .moments = moments});
    std::vector<at::Tensor> after;
    for (const double factor : {1.0, 0.5}) {
      at::Tensor(x).mutable_grad() = at::linspace(-1, 1, x.numel(), GetParam()).mul_(factor).view(x.sizes());
      optimizer.Step(0.1);
      after.push_back(x.detach().clone());
    }
    return after;
  };
  const auto exact = steps(MomentType::kFloat32), rough = steps(MomentType::kInt8);
  EXPECT_TRUE(at::equal(exact[0], rough[0]));
  // But where a gradient next to 0 lies in one block with larger ones.
  const at::Tensor error = ((exact[1] - rough[1]) / exact[1]).abs();
  EXPECT_LT((error > 0.02).to(at::kFloat).mean().item<double>(), 0.001);
}

TEST_P(AdamWTest, SecondMomentsOfEightBitsFallWhereGradientsDo) {
  // Gradients of half of each block become a tenth of what they were. With β₁ = 0 and a gradient of one size, a step
  // is the learning rate times |g| / √v, which tells v.
  const auto step = [](MomentType moments) {
    const at::Tensor x = at::zeros({64, 128}, GetParam()).set_requires_grad(true);
    AdamW optimizer({x}, {.beta1 = 0, .beta2 = 0.99, .weight_decay = 0, .clip_grad = 0, .moments = moments});
    for (int i = 0; i < 1000; ++i) {
      const at::Tensor gradient = at::ones({64, 128}, GetParam());
      if (i >= 100) gradient.narrow(1, 0, 64).mul_(0.1);
      at::Tensor(x).mutable_grad() = gradient;
      optimizer.Step(i == 999 ? 1.0 : 0.0);
    }
    return x.detach().narrow(1, 0, 64).abs();
  };
  const at::Tensor exact = step(MomentType::kFloat32), rough = step(MomentType::kInt8);
  EXPECT_NEAR(exact.mean().item<double>(), 1.0, 0.02);
  EXPECT_NEAR(rough.square().reciprocal().mean().item<double>(), 1.0, 0.1) << "the mean of v, 0.01 of that of before";
  EXPECT_LT((rough - exact).abs().max().item<double>(), 0.5);
  EXPECT_TRUE(at::equal(rough, step(MomentType::kInt8))) << "a run does not repeat itself";
}

TEST_P(AdamWTest, SmallStepsOfBfloat16WeightsCountOnAverageWhereTheNearestNumberWouldStay) {
  const auto train = [](at::ScalarType dtype, MomentType moments, uint64_t seed) {
    const at::Tensor x = at::ones({96, 128}, at::TensorOptions(GetParam()).dtype(dtype)).set_requires_grad(true);
    AdamW optimizer({x}, {.weight_decay = 0, .clip_grad = 0, .moments = moments, .seed = seed});
    for (int i = 0; i < 100; ++i) {
      at::Tensor(x).mutable_grad() = at::ones({96, 128}, GetParam());
      optimizer.Step(1e-4);
    }
    return x.detach().to(at::kFloat).mean().item<double>();
  };
  const at::Tensor one = at::ones({}, at::kBFloat16);
  ASSERT_TRUE(at::equal((one.to(at::kFloat) - 1e-4).to(at::kBFloat16), one));
  const double exact = train(at::kFloat, MomentType::kFloat32, 1);
  EXPECT_NEAR(exact, 0.99, 1e-5);
  for (const MomentType moments : {MomentType::kFloat32, MomentType::kInt8}) {
    const double mean = train(at::kBFloat16, moments, 1);
    // Each step is a draw of 0 or 2⁻⁸, the latter with probability 0.0256: five deviations of the mean.
    EXPECT_NEAR(mean, exact, 5 * std::sqrt(100 * 0.0256 / (96 * 128)) / 256);
    EXPECT_EQ(mean, train(at::kBFloat16, moments, 1)) << "a run does not repeat itself";
    EXPECT_NE(mean, train(at::kBFloat16, moments, 2)) << "the seed has no effect";
  }
}

TEST_P(AdamWTest, WeightsOfBfloat16FollowTheFormula) {
  // One stretch and a part of another; a gradient of half precision, too.
  const at::Tensor x =
      at::full({2, 600'000}, 2.0, at::TensorOptions(GetParam()).dtype(at::kBFloat16)).set_requires_grad(true);
  AdamW optimizer({x}, {.weight_decay = 0.1, .clip_grad = 0});
  Reference reference{2.0};
  for (int i = 0; i < 5; ++i) {
    at::Tensor(x).mutable_grad() = at::full_like(x.detach(), 0.5 + i);
    optimizer.Step(0.1);
    reference.Step(0.5 + i, 0.1, 0.9, 0.999, 1e-8, 0.1);
  }
  EXPECT_EQ(x.scalar_type(), at::kBFloat16);
  const at::Tensor wide = x.detach().to(at::kDouble);
  EXPECT_NEAR(wide.mean().item<double>(), reference.x, 1e-4);
  EXPECT_LT((wide - reference.x).abs().max().item<double>(), 5.0 / 128);  // a neighbour's distance in each step
}

TEST_P(AdamWTest, StateOnTheCpuChangesNoStep) {
  const auto train = [](const AdamWOptions& options, at::ScalarType dtype) {
    const auto where = at::TensorOptions(GetParam()).dtype(dtype);
    const at::Tensor matrix = at::full({70, 80}, 2.0, where).set_requires_grad(true);
    const at::Tensor vector = at::full({80}, -1.0, where).set_requires_grad(true);
    AdamW optimizer({matrix, vector}, options);
    for (int i = 0; i < 4; ++i) {
      at::Tensor(matrix).mutable_grad() = at::linspace(-1, 1 + i, 5600, GetParam()).view({70, 80});
      at::Tensor(vector).mutable_grad() = at::linspace(-2, 1 + i, 80, GetParam());
      optimizer.Step(0.01);
    }
    return at::cat({matrix.detach().view({-1}), vector.detach()}).to(at::kCPU, at::kDouble);
  };
  for (const MomentType moments : {MomentType::kFloat32, MomentType::kInt8}) {
    AdamWOptions options{.weight_decay = 0.1, .clip_grad = 0.5, .moments = moments};
    const at::Tensor expected = train(options, at::kFloat);
    options.offload = true;
    const at::Tensor given = train(options, at::kFloat);
    EXPECT_TRUE(at::allclose(given, expected, 0, 1e-6));
    // The copy is in float32, and the weights are rounded to the nearest.
    EXPECT_TRUE(at::equal(train(options, at::kBFloat16), given.to(at::kBFloat16).to(at::kDouble)));
  }
}

TEST_P(AdamWTest, WeightsOfFloat64HaveMomentsOfEightBitsToo) {
  const at::Tensor x = at::zeros({64, 128}, at::TensorOptions(GetParam()).dtype(at::kDouble)).set_requires_grad(true);
  AdamW optimizer({x}, {.weight_decay = 0, .clip_grad = 0, .moments = MomentType::kInt8});
  for (int i = 0; i < 2; ++i) {
    at::Tensor(x).mutable_grad() = at::ones_like(x.detach());
    optimizer.Step(0.1);
  }
  EXPECT_TRUE(at::allclose(x.detach().cpu(), at::full({64, 128}, -0.2, at::kDouble), 0, 1e-6));
}

TEST(AdamW, ClipsTheNormOfAllGradientsTogether) {
  // With eps this large a step is proportional to its gradient, so the clipping shows in it.
  const AdamWOptions options{.beta1 = 0, .beta2 = 0, .eps = 1e6, .weight_decay = 0, .clip_grad = 1.0};
  const at::Tensor a = at::zeros({1}).set_requires_grad(true), b = at::zeros({1}).set_requires_grad(true);
  AdamW optimizer({a, b}, options);
  at::Tensor(a).mutable_grad() = at::full({1}, 30.0);
  at::Tensor(b).mutable_grad() = at::full({1}, 40.0);
  EXPECT_NEAR(optimizer.Step(1e6), 50.0, 1e-4);
  EXPECT_NEAR(a.item<double>(), -0.6, 1e-4);
  EXPECT_NEAR(b.item<double>(), -0.8, 1e-4);
}

TEST(AdamW, AScaleOfTheLossChangesNoDigit) {
  const auto steps = [](double scale) {
    const at::Tensor x = at::ones({3, 5}).set_requires_grad(true);
    AdamW optimizer({x}, {.clip_grad = 2.0});
    std::vector<double> norms;
    for (const double size : {1.0, 0.25, 4.0}) {  // the last is clipped
      at::Tensor(x).mutable_grad() = at::linspace(-1, 1, 15).view({3, 5}) * size * scale;
      norms.push_back(optimizer.Step(0.1, scale));
    }
    return std::pair(x.detach().clone(), norms);
  };
  const auto [expected, norms] = steps(1.0);
  EXPECT_GT(norms[2], 2.0);
  for (const double scale : {1024.0, 65536.0, 0.5}) {
    const auto [given, scaled_norms] = steps(scale);
    EXPECT_TRUE(at::equal(given, expected)) << scale;
    EXPECT_EQ(scaled_norms, norms) << scale;
  }
}

TEST(AdamW, AGradientThatIsNotFiniteChangesNoParameter) {
  const at::Tensor x = at::ones({2}).set_requires_grad(true);
  AdamW optimizer({x}, {});
  at::Tensor(x).mutable_grad() = at::tensor({1.0f, std::numeric_limits<float>::quiet_NaN()});
  EXPECT_TRUE(std::isnan(optimizer.Step(0.1)));
  EXPECT_TRUE(at::equal(x.detach(), at::ones({2})));
  EXPECT_FALSE(x.grad().defined());
}

// Saved after some steps and loaded into a new one, it goes on to the bit.
TEST_P(AdamWTest, GoesOnFromItsState) {
  for (const MomentType moments : {MomentType::kFloat32, MomentType::kInt8}) {
    for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
      for (const bool offload : {false, true}) {
        const auto options = at::TensorOptions().device(GetParam()).dtype(dtype);
        const auto weights = [&](double value) {
          return std::vector<at::Tensor>{at::full({80, 60}, value, options).set_requires_grad(true),
                                         at::full({7}, value, options).set_requires_grad(true)};
        };
        const AdamWOptions adamw = {.moments = moments, .offload = offload, .seed = 5};
        const auto step = [&](AdamW& optimizer, const std::vector<at::Tensor>& parameters, int number) {
          for (const at::Tensor& parameter : parameters) {
            const at::Tensor gradient = at::arange(parameter.numel(), at::kFloat).mul(0.37 * number).sin();
            at::Tensor(parameter).mutable_grad() = gradient.view(parameter.sizes()).to(options);
          }
          optimizer.Step(1e-2);
        };
        const std::vector<at::Tensor> parameters = weights(1);
        AdamW optimizer(parameters, adamw);
        for (int i = 1; i <= 3; ++i) step(optimizer, parameters, i);
        State state;
        state.Set("optimizer", optimizer);
        const State saved = state.Snapshot();
        const std::vector<at::Tensor> resumed = weights(1);
        AdamW other(resumed, adamw);
        {
          at::NoGradGuard no_grad;
          for (size_t i = 0; i < resumed.size(); ++i) resumed[i].copy_(parameters[i]);
        }
        ASSERT_EQ(saved.Get("optimizer", other), absl::OkStatus());
        for (int i = 4; i <= 6; ++i) {
          step(optimizer, parameters, i);
          step(other, resumed, i);
        }
        for (size_t i = 0; i < resumed.size(); ++i) {
          EXPECT_TRUE(at::equal(resumed[i], parameters[i])) << "offload " << offload << ", parameter " << i;
        }
        AdamW fewer({resumed[1]}, adamw);
        EXPECT_FALSE(saved.Get("optimizer", fewer).ok());
      }
    }
  }
}

// The parts of each of some ranks, as they would have them.
std::vector<ParameterPart> PartsOfRank(const std::vector<at::Tensor>& parameters, int rank, int ranks) {
  std::vector<ParameterPart> parts = WholeParts({{parameters}});
  for (ParameterPart& part : parts) {
    const Shard shard = ShardOf(part.total, rank, ranks);
    part.begin = shard.begin;
    part.weights = part.weights.detach().view({-1}).narrow(0, shard.begin, shard.size);
  }
  return parts;
}

TEST(AdamW, RanksWithPartsStepAsOneWithAllAndGoOnInAnyNumber) {
  for (const MomentType moments : {MomentType::kFloat32, MomentType::kInt8}) {
    for (const bool offload : {false, true}) {
      const AdamWOptions options{.weight_decay = 0.1, .clip_grad = 1, .moments = moments, .offload = offload};
      const auto make = [] {
        at::Generator generator = at::detail::createCPUGenerator(4);
        return std::vector<at::Tensor>{at::randn({90, 60}, generator), at::randn({300}, generator),
                                       at::randn({7}, generator)};
      };
      const auto gradients = [](int step) {
        at::Generator generator = at::detail::createCPUGenerator(static_cast<uint64_t>(100 + step));
        return std::vector<at::Tensor>{at::randn({90, 60}, generator), at::randn({300}, generator),
                                       at::randn({7}, generator)};
      };
      const std::vector<at::Tensor> alone = make(), divided = make();
      AdamW one(std::vector<ParameterGroup>{{alone}}, options);
      State saved;
      int step = 0;
      for (const int ranks : {1, 3, 4, 2}) {
        std::vector<std::vector<ParameterPart>> parts;
        std::vector<std::unique_ptr<AdamW>> optimizers;
        for (int rank = 0; rank < ranks; ++rank) {
          parts.push_back(PartsOfRank(divided, rank, ranks));
          optimizers.push_back(std::make_unique<AdamW>(parts.back(), options));
          if (step > 0) {
            ASSERT_EQ(optimizers.back()->Load(saved), absl::OkStatus());
          }
        }
        for (int i = 0; i < 2; ++i, ++step) {
          const std::vector<at::Tensor> given = gradients(step);
          for (size_t p = 0; p < alone.size(); ++p) at::Tensor(alone[p]).mutable_grad() = given[p].clone();
          double squares = 0;
          for (int rank = 0; rank < ranks; ++rank) {
            for (ParameterPart& part : parts[static_cast<size_t>(rank)]) {
              part.weights.mutable_grad() =
                  given[part.position].view({-1}).narrow(0, part.begin, part.weights.numel()).clone();
            }
            squares += optimizers[static_cast<size_t>(rank)]->SquaredNorm();
          }
          const double norm = one.Step(0.01);
          EXPECT_NEAR(std::sqrt(squares), norm, 1e-5 * norm);
          for (const auto& optimizer : optimizers) optimizer->StepWithNorm(norm, 0.01);
        }
        saved = State();
        for (const auto& optimizer : optimizers) {
          State of_rank;
          optimizer->Save(of_rank);
          if (saved.empty()) saved.SetInteger("steps", *of_rank.Integer("steps"));
          ASSERT_EQ(saved.Merge(of_rank.Snapshot()), absl::OkStatus());
        }
        for (size_t p = 0; p < alone.size(); ++p) {
          if (moments == MomentType::kFloat32) {
            EXPECT_TRUE(at::equal(alone[p], divided[p])) << ranks << " ranks, parameter " << p;
          } else {  // second moments are rounded at random, each part by itself
            EXPECT_LT((alone[p] - divided[p]).abs().max().item<double>(), 0.01) << ranks << " ranks";
          }
        }
      }
    }
  }
}

// What a checkpoint of before goes on with: the draws of a whole parameter follow from the seed, the step, and how many
// parameters before it are stepped by themselves.
TEST(AdamW, AWholeParameterIsRoundedByItsOwnDraws) {
  const at::Tensor grouped = at::ones({5}).set_requires_grad(true);
  const auto weights = [](at::ScalarType dtype) { return at::full({300}, 1.5, dtype).set_requires_grad(true); };
  const at::Tensor first = weights(at::kBFloat16), second = weights(at::kBFloat16), exact = weights(at::kFloat);
  const AdamWOptions options{.weight_decay = 0, .clip_grad = 0, .seed = 11};
  AdamW rounded({grouped, first, second}, options), wide({exact}, options);
  for (const at::Tensor& each : {grouped, first, second, exact}) {
    at::Tensor(each).mutable_grad() = at::ones_like(each.detach());
  }
  rounded.Step(1e-3);
  wide.Step(1e-3);
  for (const uint64_t i : {0, 1}) {
    Rng rng(DeriveSeed(DeriveSeed(options.seed, 1), i));
    EXPECT_TRUE(at::equal((i == 0 ? first : second).detach(), RoundedAtRandom(exact.detach(), rng.Next()))) << i;
  }
}

TEST(AdamW, PartsOfFloat64StepAsTheWhole) {
  const at::Tensor whole = at::linspace(-1, 1, 1000, at::kDouble).view({10, 100});
  const std::vector<at::Tensor> gradients = {at::linspace(-3, 2, 1000, at::kDouble).sin().view({10, 100})};
  for (const int ranks : {2, 3, 5}) {
    const at::Tensor alone = whole.clone(), divided = whole.clone();
    AdamW one({alone}, {});
    alone.mutable_grad() = gradients[0].clone();
    const double norm = one.Step(0.1);
    for (int rank = 0; rank < ranks; ++rank) {
      const std::vector<ParameterPart> parts = PartsOfRank({divided}, rank, ranks);
      const ParameterPart& part = parts[0];
      at::Tensor(part.weights).mutable_grad() =
          gradients[0].view({-1}).narrow(0, part.begin, part.weights.numel()).clone();
      AdamW(parts, {}).StepWithNorm(norm, 0.1);
    }
    EXPECT_LE((alone - divided).abs().max().item<double>(), 1e-15) << ranks << " ranks";
  }
}

}  // namespace
}  // namespace tdock::trainer
