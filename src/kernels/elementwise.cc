#include "kernels/elementwise.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>

#include <algorithm>

#include "kernels/loops.h"
#include "kernels/typed_data.h"

namespace tdock::kernels {
namespace {

// Calls body(T(), begin, end) for parts of `count` pieces of work of about `size` numbers each.
template <class Body>
void InParts(const at::Tensor& x, int64_t count, int64_t size, Body&& body) {
  WithTypeOf(x, [&](auto type) {
    at::parallel_for(0, count, std::max<int64_t>(32768 / std::max<int64_t>(size, 1), 1),
                     [&](int64_t begin, int64_t end) { body(type, begin, end); });
  });
}

template <class Choose>
at::Tensor MapAll(const at::Tensor& given, Choose&& loop_of) {
  CheckKernelTensor(given, "activations");
  const at::Tensor x = given.contiguous();
  at::Tensor y = at::empty_like(x);
  InParts(x, x.numel(), 1, [&](auto type, int64_t begin, int64_t end) {
    using T = decltype(type);
    loop_of(BestLoops().of<T>())(x.const_data_ptr<T>() + begin, y.mutable_data_ptr<T>() + begin, end - begin);
  });
  return y;
}

const float* DataOrNull(const at::Tensor& parameter, const at::Tensor& x) {
  if (!parameter.defined()) return nullptr;
  TORCH_CHECK(parameter.is_cpu() && parameter.scalar_type() == at::kFloat &&
                  parameter.sizes() == at::IntArrayRef({x.size(-1)}) && parameter.is_contiguous(),
              "weight and bias of a norm of ", x.sizes(), " are float32 [", x.size(-1), "], not ",
              parameter.scalar_type(), " ", parameter.sizes());
  return parameter.const_data_ptr<float>();
}

}  // namespace

at::Tensor Silu(const at::Tensor& x) {
  return MapAll(x, [](const auto& loops) { return loops.silu; });
}

at::Tensor Gelu(const at::Tensor& x) {
  return MapAll(x, [](const auto& loops) { return loops.gelu; });
}

at::Tensor GeluTanh(const at::Tensor& x) {
  return MapAll(x, [](const auto& loops) { return loops.gelu_tanh; });
}

at::Tensor LayerNorm(const at::Tensor& given, const at::Tensor& weight, const at::Tensor& bias, double eps) {
  CheckKernelTensor(given, "norms");
  const at::Tensor x = given.contiguous();
  at::Tensor y = at::empty_like(x);
  const float* const weights = DataOrNull(weight, x);
  const float* const biases = DataOrNull(bias, x);
  const int64_t size = x.size(-1);
  if (x.numel() == 0) return y;
  InParts(x, x.numel() / size, size, [&](auto type, int64_t begin, int64_t end) {
    using T = decltype(type);
    for (int64_t row = begin; row < end; ++row) {
      BestLoops().of<T>().layer_norm(x.const_data_ptr<T>() + row * size, weights, biases, static_cast<float>(eps),
                                     y.mutable_data_ptr<T>() + row * size, size);
    }
  });
  return y;
}

}  // namespace tdock::kernels
