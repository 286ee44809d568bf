// For tests: compares autograd's gradients with central differences.
#pragma once

#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/core/grad_mode.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <vector>

namespace tdock::algo {

struct GradientCheckOptions {
  double step = 1e-6;       // of the central difference
  double tolerance = 1e-7;  // of |autograd − difference|, absolute, or relative where the gradient is larger than 1
};

// Compares the gradient of every element of every input with (f(x + step) − f(x − step)) / (2·step), where f is the sum
// of the function's outputs, each with a weight of its own. The inputs are float64; the function must be smooth within
// a step of each. A failure names the input, the element and both values.
inline testing::AssertionResult GradientsMatch(
    const std::function<at::Tensor(const std::vector<at::Tensor>&)>& function, const std::vector<at::Tensor>& inputs,
    const GradientCheckOptions& options = {}) {
  std::vector<at::Tensor> x;
  for (const at::Tensor& input : inputs) {
    if (input.scalar_type() != at::kDouble) return testing::AssertionFailure() << "inputs must be float64";
    x.push_back(input.detach().clone().contiguous().set_requires_grad(true));
  }
  at::Tensor weights;
  const auto f = [&] {
    const at::Tensor output = function(x);
    if (!weights.defined()) {
      weights = at::rand(output.sizes(), at::make_generator<at::CPUGeneratorImpl>(1), at::kDouble) + 0.5;
    }
    return (output * weights).sum();
  };
  const std::vector<at::Tensor> gradients =
      torch::autograd::grad({f()}, x, /*grad_outputs=*/{}, /*retain_graph=*/std::nullopt, /*create_graph=*/false,
                            /*allow_unused=*/true);
  at::NoGradGuard no_grad;
  for (size_t i = 0; i < x.size(); ++i) {
    double* const values = x[i].mutable_data_ptr<double>();
    const at::Tensor by_autograd = gradients[i].defined() ? gradients[i].contiguous() : at::zeros_like(x[i]);
    for (int64_t e = 0; e < x[i].numel(); ++e) {
      const double before = values[e];
      values[e] = before + options.step;
      const double above = f().item<double>();
      values[e] = before - options.step;
      const double below = f().item<double>();
      values[e] = before;
      const double expected = (above - below) / (2 * options.step);
      const double given = by_autograd.const_data_ptr<double>()[e];
      const double bound = options.tolerance * std::max(1.0, std::abs(expected));
      if (!(std::abs(given - expected) <= bound)) {
        return testing::AssertionFailure() << "input " << i << ", element " << e << ": autograd gives " << given
                                           << ", the central difference is " << expected;
      }
    }
  }
  return testing::AssertionSuccess();
}

}  // namespace tdock::algo
