#include "kernels/elementwise.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <ATen/core/grad_mode.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include <cmath>
#include <functional>
#include <utility>
#include <vector>

#include "kernels/loops.h"
#include "kernels/testing/tensors.h"

namespace tdock::kernels {
namespace {

using Tensors = std::vector<at::Tensor>;
using Function = std::function<at::Tensor(const Tensors&)>;

// Bounds of what rounding adds to numbers near 1.
double Near(at::ScalarType type) { return type == at::kFloat ? 1e-5 : 2e-2; }

// ours(inputs) and its gradients are those of plain(inputs) in float64, and are the same bits without gradients.
void ExpectEqual(const Function& ours, const Function& plain, const Tensors& inputs, const char* what) {
  Tensors given, wide;
  for (const at::Tensor& input : inputs) {
    given.push_back(input.detach().requires_grad_());
    wide.push_back(input.detach().to(at::kDouble).requires_grad_());
  }
  const at::ScalarType type = inputs[0].scalar_type();
  const at::Tensor y = ours(given), expected = plain(wide);
  const auto is_near = [&](const at::Tensor& a, const at::Tensor& b) {
    return at::allclose(a.to(at::kDouble), b, Near(type), Near(type));
  };
  EXPECT_EQ(y.scalar_type(), type) << what;
  EXPECT_TRUE(is_near(y, expected)) << what << " " << type << " " << y.sizes();
  const at::Tensor outgoing = Normal(y.sizes(), 9, type);
  const auto found = torch::autograd::grad({y}, given, {outgoing});
  const auto wanted = torch::autograd::grad({expected}, wide, {outgoing.to(at::kDouble)});
  for (size_t i = 0; i < inputs.size(); ++i) {
    EXPECT_EQ(found[i].scalar_type(), inputs[i].scalar_type()) << what;
    EXPECT_TRUE(is_near(found[i], wanted[i])) << what << " " << type << ": gradient of input " << i;
  }
  const at::NoGradGuard no_grad;
  EXPECT_TRUE(SameBits(ours(given), y.detach())) << what;
}

at::Tensor PlainActivation(Activation activation, const at::Tensor& x) {
  switch (activation) {
    case Activation::kSilu:
      return at::silu(x);
    case Activation::kRelu:
      return at::relu(x);
    case Activation::kGelu:
      return at::gelu(x);
    case Activation::kGeluTanh:
      return at::gelu(x, "tanh");
  }
  return x;
}

constexpr std::pair<Activation, const char*> kActivations[] = {{Activation::kSilu, "silu"},
                                                               {Activation::kRelu, "relu"},
                                                               {Activation::kGelu, "gelu"},
                                                               {Activation::kGeluTanh, "gelu_tanh"}};

TEST(Activations, AndGatesAndTheirGradientsAreThoseOfFloat64) {
  for (const at::ScalarType type : kTypes) {
    for (const auto& [kind, name] : kActivations) {
      const auto activation = kind;
      for (const int64_t size : {1, 16, 37}) {
        const at::Tensor x = (Normal({3, 2 * size}, 1) * 3).to(type);
        ExpectEqual([&](const Tensors& in) { return Activate(activation, in[0]); },
                    [&](const Tensors& in) { return PlainActivation(activation, in[0]); }, {x}, name);
        const auto plain_gate = [&](const Tensors& in) {
          const Tensors halves = in[0].chunk(2, -1);
          return PlainActivation(activation, halves[0]) * halves[1];
        };
        ExpectEqual([&](const Tensors& in) { return Gate(activation, in[0]); }, plain_gate, {x}, name);
      }
    }
  }
}

TEST(Activations, GiveTheSameBitsAtAnyPlace) {
  for (const at::ScalarType type : kTypes) {
    const at::Tensor x = (Normal({2, 37}, 1) * 5).to(type), up = Normal({2, 37}, 2).to(type);
    for (const auto& [activation, name] : kActivations) {
      const at::Tensor all = Activate(activation, x), gated = Gate(activation, at::cat({x, up}, 1));
      for (int64_t i = 0; i < 37; ++i) {
        const auto at_i = [i](const at::Tensor& of) { return of.narrow(1, i, 1).contiguous(); };
        EXPECT_TRUE(SameBits(Activate(activation, at_i(x)), at_i(all))) << name << " " << type << " at " << i;
        EXPECT_TRUE(SameBits(Gate(activation, at::cat({at_i(x), at_i(up)}, 1)), at_i(gated))) << name << " at " << i;
      }
    }
  }
}

TEST(Activations, OfLargeNumbersAndOfNoneAreRight) {
  const at::Tensor x = at::tensor({-3e38F, -200.0F, 200.0F, 3e38F, NAN});
  for (const auto& [activation, name] : kActivations) {
    const at::Tensor y = Activate(activation, x);
    EXPECT_TRUE(at::equal(y.narrow(0, 0, 2).abs(), at::zeros({2}))) << name << y;
    EXPECT_TRUE(at::equal(y.narrow(0, 2, 2), x.narrow(0, 2, 2))) << name << y;
    EXPECT_TRUE(y.narrow(0, 4, 1).isnan().item<bool>()) << name;
    EXPECT_TRUE(Activate(activation, x.to(at::kBFloat16)).narrow(0, 4, 1).isnan().item<bool>()) << name;
    EXPECT_EQ(Gate(activation, at::zeros({0, 8})).sizes(), at::IntArrayRef({0, 4}));
  }
}

at::Tensor PlainRmsNorm(const at::Tensor& x, const at::Tensor& weight) {
  const at::Tensor normed = x / (x.square().mean(-1, true) + 1e-3).sqrt();
  return weight.defined() ? normed * weight : normed;
}

TEST(Norms, AndTheirGradientsAreThoseOfFloat64) {
  for (const at::ScalarType type : kTypes) {
    for (const int64_t size : {1, 15, 16, 67}) {
      const at::Tensor weight = Normal({size}, 2, type), bias = Normal({size}, 3, type);
      // More rows than are summed up together, as a part of a wider tensor, and not side by side.
      const at::Tensor wide = (Normal({2, 17, 5, 2 * size}, 1) + 0.5).to(type);
      for (const at::Tensor& x : {wide.narrow(2, 1, 4).narrow(3, 0, size), wide.slice(3, 0, 2 * size, 2)}) {
        ExpectEqual([](const Tensors& in) { return RmsNorm(in[0], in[1], 1e-3); },
                    [](const Tensors& in) { return PlainRmsNorm(in[0], in[1]); }, {x.contiguous(), weight}, "rms");
        EXPECT_TRUE(SameBits(RmsNorm(x, weight, 1e-3), RmsNorm(x.contiguous(), weight, 1e-3)));
        if (size == 1) continue;  // the gradients of its layer norm are rounding errors
        ExpectEqual([](const Tensors& in) { return LayerNorm(in[0], in[1], in[2], 1e-3); },
                    [&](const Tensors& in) { return at::layer_norm(in[0], {size}, in[1], in[2], 1e-3); },
                    {x.contiguous(), weight, bias}, "layer");
        EXPECT_TRUE(SameBits(LayerNorm(x, weight, bias, 1e-3), LayerNorm(x.contiguous(), weight, bias, 1e-3)));
        ExpectEqual([](const Tensors& in) { return RmsNorm(in[0], {}, 1e-3); },
                    [](const Tensors& in) { return PlainRmsNorm(in[0], {}); }, {x.contiguous()}, "rms alone");
        ExpectEqual([](const Tensors& in) { return LayerNorm(in[0], {}, {}, 1e-3); },
                    [&](const Tensors& in) { return at::layer_norm(in[0], {size}, {}, {}, 1e-3); }, {x.contiguous()},
                    "layer alone");
      }
    }
  }
}

TEST(Norms, OfARowDoNotDependOnOthers) {
  for (const at::ScalarType type : kTypes) {
    const at::Tensor x = Normal({9, 100}, 1, type), weight = Normal({100}, 2), bias = Normal({100}, 3);
    for (int64_t row = 0; row < 9; ++row) {
      const auto alone = [&](const at::Tensor& of) { return of.narrow(0, row, 1); };
      EXPECT_TRUE(SameBits(RmsNorm(alone(x), weight, 1e-5), alone(RmsNorm(x, weight, 1e-5))));
      EXPECT_TRUE(SameBits(LayerNorm(alone(x), weight, bias, 1e-5), alone(LayerNorm(x, weight, bias, 1e-5))));
    }
  }
}

TEST(Norms, AndTheirGradientsDoNotDependOnTheNumberOfThreads) {
  const at::Tensor x = Normal({700, 96}, 1).requires_grad_(), weight = Normal({96}, 2).requires_grad_();
  const at::Tensor outgoing = Normal({700, 96}, 3);
  const auto results = [&](int threads) {
    at::set_num_threads(threads);
    const at::Tensor y = RmsNorm(x, weight, 1e-5);
    const auto gradients = torch::autograd::grad({y}, {x, weight}, {outgoing});
    at::set_num_threads(1);
    return Tensors{y.detach(), gradients[0], gradients[1]};
  };
  const Tensors one = results(1), two = results(2);
  for (size_t i = 0; i < one.size(); ++i) EXPECT_TRUE(SameBits(one[i], two[i])) << i;
}

TEST(Norms, OfNoRowsHaveNone) {
  const at::Tensor x = at::zeros({0, 8}).requires_grad_(), weight = at::ones({8}).requires_grad_();
  const auto gradients = torch::autograd::grad({RmsNorm(x, weight, 1e-6).sum()}, {x, weight});
  EXPECT_EQ(gradients[0].sizes(), at::IntArrayRef({0, 8}));
  EXPECT_TRUE(at::equal(gradients[1], at::zeros({8})));
}

at::Tensor PlainRotation(const at::Tensor& x, const at::Tensor& cos, const at::Tensor& sin) {
  const Tensors halves = x.chunk(2, -1);
  return x * cos + at::cat({-halves[1], halves[0]}, -1) * sin;
}

TEST(Rotate, AndItsGradientAreThoseOfFloat64AndOfATokenAlone) {
  for (const at::ScalarType type : kTypes) {
    for (const int64_t size : {2, 24, 32, 64}) {
      const at::Tensor angles = Normal({2, 5, 1, size / 2}, 2) * 3;
      const at::Tensor cos = at::cat({angles.cos(), angles.cos()}, -1), sin = at::cat({angles.sin(), angles.sin()}, -1);
      const at::Tensor wide = Normal({2, 5, 7, size}, 1, type), x = wide.narrow(2, 0, 4);
      ExpectEqual([&](const Tensors& in) { return Rotate(in[0], cos, sin); },
                  [&](const Tensors& in) { return PlainRotation(in[0], cos, sin); }, {x}, "rotation");
      const at::Tensor all = Rotate(x, cos, sin);
      EXPECT_TRUE(SameBits(Rotate(x.contiguous(), cos, sin), all));
      for (int64_t t = 0; t < 5; ++t) {
        const auto alone = [&](const at::Tensor& of) { return of.narrow(0, 1, 1).narrow(1, t, 1).contiguous(); };
        EXPECT_TRUE(SameBits(Rotate(alone(x), alone(cos), alone(sin)), alone(all))) << type << " " << size;
      }
    }
  }
}

// Each instruction set has its own loops; others than the best would otherwise run on other machines only.
TEST(ElementwiseLoops, OfEveryInstructionSetGiveTheSameWithinRounding) {
  const int64_t size = 101;
  const at::Tensor x = Normal({size + 1}, 1) * 2, dy = Normal({size + 1}, 2), weight = Normal({size}, 3);
  const auto data = [](const at::Tensor& of) { return of.const_data_ptr<float>(); };
  const NormParameters parameters = {data(weight), data(weight), 1e-5F};
  for (const Loops* loops : AllLoops()) {
    SCOPED_TRACE(loops->instructions);
    const auto expect_as_best = [&](const auto& compute) {
      at::Tensor here = at::zeros({2, size + 1}), best = at::zeros({2, size + 1});
      compute(loops->of_float, here.mutable_data_ptr<float>());
      compute(LoopsInUse().of_float, best.mutable_data_ptr<float>());
      EXPECT_TRUE(at::allclose(here, best, 1e-5, 1e-5));
    };
    using Typed = TypedLoops<float>;
    for (const auto activation : {&Typed::silu, &Typed::relu, &Typed::gelu, &Typed::gelu_tanh}) {
      expect_as_best([&](const Typed& of, float* y) { (of.*activation).apply(data(x), y, size); });
      expect_as_best([&](const Typed& of, float* y) { (of.*activation).gradient(data(x), data(dy), y, size); });
      expect_as_best([&](const Typed& of, float* y) { (of.*activation).gate(data(x), data(dy), y, size); });
      expect_as_best([&](const Typed& of, float* y) {
        (of.*activation).gate_gradient(data(x), data(dy), data(weight), y, y + size, size);
      });
    }
    expect_as_best([&](const Typed& of, float* y) { of.rms_norm(data(x), parameters, y, size); });
    expect_as_best([&](const Typed& of, float* y) { of.layer_norm(data(x), parameters, y, size); });
    expect_as_best([&](const Typed& of, float* y) {
      of.layer_norm_gradient(data(x), data(dy), parameters, {0.1F, 0.5F}, y, y + size, nullptr, size);
    });
    expect_as_best([&](const Typed& of, float* y) { of.rotate(data(x), data(dy), data(dy) + 1, 1, y, size - 1); });
    const at::Tensor halves = x.to(at::kBFloat16);
    at::Tensor narrow = at::empty({size}, at::kBFloat16);
    loops->of_bfloat16.relu.apply(halves.const_data_ptr<at::BFloat16>(), narrow.mutable_data_ptr<at::BFloat16>(), size);
    EXPECT_TRUE(at::equal(narrow, halves.narrow(0, 0, size).relu()));
  }
}

TEST(Elementwise, OfTensorsWithoutDataGivesShapes) {
  const auto options = at::TensorOptions().device(at::kMeta);
  const at::Tensor x = at::empty({1, 3, 2, 8}, options), angles = at::empty({1, 3, 1, 8}, options);
  EXPECT_EQ(Rotate(x, angles, angles).sizes(), x.sizes());
  EXPECT_EQ(Gate(Activation::kSilu, x).sizes(), at::IntArrayRef({1, 3, 2, 4}));
  EXPECT_EQ(RmsNorm(x, at::empty({8}, options), 1e-5).sizes(), x.sizes());
}

TEST(Elementwise, SaysWhatItDoesNotTake) {
  const at::Tensor x = at::zeros({2, 8}), wide = at::zeros({2, 8}, at::kDouble);
  EXPECT_FALSE(IsElementwise(wide));
  EXPECT_THROW(Activate(Activation::kSilu, wide), c10::Error);
  EXPECT_THROW(Gate(Activation::kSilu, at::zeros({2, 7})), c10::Error);
  EXPECT_THROW(RmsNorm(wide, at::ones({8}), 1e-6), c10::Error);
  EXPECT_THROW(RmsNorm(x, at::ones({7}), 1e-6), c10::Error);
  EXPECT_THROW(LayerNorm(x, at::ones({8}), at::ones({8}, at::kDouble), 1e-6), c10::Error);
  EXPECT_THROW(Rotate(at::zeros({1, 2, 3, 8}), at::zeros({1, 2, 1, 4}), at::zeros({1, 2, 1, 8})), c10::Error);
}

}  // namespace
}  // namespace tdock::kernels
