#include "model/decoder/rms_norm.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <torch/csrc/autograd/custom_function.h>

#include <array>
#include <cmath>

namespace tdock::model {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

// Sums that the compiler adds up side by side.
constexpr int64_t kLanes = 16;

template <class Term>
float Sum(int64_t size, Term&& term) {
  std::array<float, kLanes> lanes = {};
  int64_t i = 0;
  for (; i + kLanes <= size; i += kLanes) {
    for (int64_t lane = 0; lane < kLanes; ++lane) lanes[static_cast<size_t>(lane)] += term(i + lane);
  }
  float sum = 0;
  for (; i < size; ++i) sum += term(i);
  for (const float lane : lanes) sum += lane;
  return sum;
}

template <class T>
void NormRow(const T* __restrict x, const float* __restrict weight, T* __restrict y, float* scale, int64_t size,
             float eps) {
  const float squares = Sum(size, [x](int64_t i) { return static_cast<float>(x[i]) * static_cast<float>(x[i]); });
  *scale = 1.0F / std::sqrt(squares / static_cast<float>(size) + eps);
  for (int64_t i = 0; i < size; ++i) y[i] = static_cast<T>(static_cast<float>(x[i]) * *scale * weight[i]);
}

// With n = x·scale: dx = scale·(dy·weight − n·mean(dy·weight·n)), dweight = Σ dy·n over the rows.
template <class T>
void GradientRow(const T* __restrict x, const float* __restrict weight, const T* __restrict dy, float scale,
                 T* __restrict dx, float* __restrict dweight, int64_t size) {
  const float products = Sum(
      size, [x, weight, dy](int64_t i) { return static_cast<float>(dy[i]) * weight[i] * static_cast<float>(x[i]); });
  const float mean = products * scale * scale / static_cast<float>(size);
  for (int64_t i = 0; i < size; ++i) {
    const float wide = static_cast<float>(x[i]), outgoing = static_cast<float>(dy[i]);
    dx[i] = static_cast<T>(scale * (outgoing * weight[i] - wide * mean));
    dweight[i] += outgoing * wide * scale;
  }
}

template <class Body>
void WithType(const at::Tensor& x, Body&& body) {
  if (x.scalar_type() == at::kFloat) {
    body(float());
  } else {
    body(at::BFloat16());
  }
}

struct RmsNormFunction final : torch::autograd::Function<RmsNormFunction> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& given, const at::Tensor& weight, double eps) {
    const at::Tensor x = given.contiguous();
    const int64_t size = x.size(-1), rows = x.numel() / size;
    at::Tensor y = at::empty_like(x);
    at::Tensor scales = at::empty({rows}, x.options().dtype(at::kFloat));
    context->save_for_backward({x, weight, scales});
    if (x.is_meta()) return y;
    WithType(x, [&](auto type) {
      using T = decltype(type);
      const T* const in = x.const_data_ptr<T>();
      T* const out = y.mutable_data_ptr<T>();
      float* const scale = scales.mutable_data_ptr<float>();
      const float* const weights = weight.const_data_ptr<float>();
      at::parallel_for(0, rows, /*grain_size=*/std::max<int64_t>(32768 / size, 1), [&](int64_t begin, int64_t end) {
        for (int64_t row = begin; row < end; ++row) {
          NormRow(in + row * size, weights, out + row * size, scale + row, size, static_cast<float>(eps));
        }
      });
    });
    return y;
  }

  static variable_list backward(AutogradContext* context, variable_list outgoing) {
    const variable_list saved = context->get_saved_variables();
    const at::Tensor &x = saved[0], weight = saved[1], scales = saved[2], dy = outgoing[0].contiguous();
    at::Tensor dx = at::empty_like(x);
    at::Tensor dweight = at::zeros_like(weight);
    if (!x.is_meta()) {
      const int64_t size = x.size(-1);
      WithType(x, [&](auto type) {
        using T = decltype(type);
        for (int64_t row = 0; row < scales.numel(); ++row) {
          GradientRow(x.const_data_ptr<T>() + row * size, weight.const_data_ptr<float>(),
                      dy.const_data_ptr<T>() + row * size, scales.const_data_ptr<float>()[row],
                      dx.mutable_data_ptr<T>() + row * size, dweight.mutable_data_ptr<float>(), size);
        }
      });
    }
    return {dx, dweight, at::Tensor()};
  }
};

}  // namespace

bool HasRmsNormKernel(const at::Tensor& x) {
  return (x.is_cpu() || x.is_meta()) && (x.scalar_type() == at::kFloat || x.scalar_type() == at::kBFloat16);
}

at::Tensor RmsNorm(const at::Tensor& x, const at::Tensor& weight, double eps) {
  TORCH_CHECK(HasRmsNormKernel(x), "norms of ", x.scalar_type(), " on ", x.device(), " are not computed here");
  TORCH_CHECK(weight.scalar_type() == at::kFloat && weight.sizes() == at::IntArrayRef({x.size(-1)}),
              "the weight of a norm of ", x.sizes(), " is float32 [", x.size(-1), "], not ", weight.scalar_type(), " ",
              weight.sizes());
  return RmsNormFunction::apply(x, weight.contiguous(), eps);
}

}  // namespace tdock::model
