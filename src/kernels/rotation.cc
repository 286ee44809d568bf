#include <ATen/ATen.h>
#include <torch/csrc/autograd/custom_function.h>

#include "kernels/elementwise.h"
#include "kernels/loops.h"
#include "kernels/typed_data.h"

namespace tdock::kernels {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

// direction: 1, or -1 to turn back.
at::Tensor Rotated(const at::Tensor& x, const at::Tensor& cos, const at::Tensor& sin, float direction) {
  at::Tensor y = at::empty(x.sizes(), x.options());
  if (x.is_meta() || x.numel() == 0) return y;
  const Rows rows(x);
  const int64_t size = rows.size(), heads = x.size(2);
  WithTypeOf(x, [&](auto type) {
    using T = decltype(type);
    const auto rotate = LoopsInUse().of<T>().rotate;
    InParts(rows.count(), size, [&](int64_t begin, int64_t end) {
      for (int64_t row = begin; row < end; ++row) {
        const int64_t angles = row / heads * size;
        rotate(rows.row<T>(row), cos.const_data_ptr<float>() + angles, sin.const_data_ptr<float>() + angles, direction,
               y.mutable_data_ptr<T>() + row * size, size);
      }
    });
  });
  return y;
}

struct RotateFunction final : torch::autograd::Function<RotateFunction> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& x, const at::Tensor& cos,
                            const at::Tensor& sin) {
    context->save_for_backward({cos, sin});
    return Rotated(x, cos, sin, 1);
  }

  static variable_list backward(AutogradContext* context, variable_list outgoing) {
    const variable_list saved = context->get_saved_variables();
    return {Rotated(outgoing[0], saved[0], saved[1], -1), at::Tensor(), at::Tensor()};
  }
};

}  // namespace

at::Tensor Rotate(const at::Tensor& x, const at::Tensor& cos, const at::Tensor& sin) {
  TORCH_CHECK(IsElementwise(x) && x.dim() == 4 && x.size(3) % 2 == 0,
              "rotations of kernels are of [B, T, heads, D] on the CPU, in float32 or bfloat16, with D even, not of ",
              x.sizes(), " on ", x.device(), " in ", x.scalar_type());
  const std::vector<int64_t> shape = {x.size(0), x.size(1), 1, x.size(3)};
  for (const at::Tensor* angles : {&cos, &sin}) {
    TORCH_CHECK(angles->scalar_type() == at::kFloat && angles->device() == x.device() && angles->sizes() == shape &&
                    angles->is_contiguous(),
                "the cosines and sines for a rotation of ", x.sizes(), " are contiguous float32 ", shape, ", not ",
                angles->scalar_type(), " ", angles->sizes());
  }
  return NeedsGradients({&x}) ? RotateFunction::apply(x, cos, sin) : Rotated(x, cos, sin, 1);
}

}  // namespace tdock::kernels
