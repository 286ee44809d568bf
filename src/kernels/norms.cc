// Shapes: R rows, C their size.
#include <ATen/ATen.h>
#include <torch/csrc/autograd/custom_function.h>

#include <algorithm>
#include <optional>
#include <vector>

#include "kernels/elementwise.h"
#include "kernels/loops.h"
#include "kernels/typed_data.h"

namespace tdock::kernels {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

// How many rows' gradients of a weight are summed up before those of other rows are added.
constexpr int64_t kRowsOfSum = 64;

// A norm's parameter in float32.
class Parameter {
 public:
  Parameter(const at::Tensor& given, const at::Tensor& x) {
    if (!given.defined()) return;
    TORCH_CHECK(given.device() == x.device() && IsElementwise(given) && given.sizes() == at::IntArrayRef({x.size(-1)}),
                "weight and bias of a norm of ", x.sizes(), " are [", x.size(-1), "] in float32 or bfloat16, not ",
                given.scalar_type(), " ", given.sizes());
    if (x.is_meta()) return;
    tensor_ = given.contiguous();
    if (given.scalar_type() == at::kFloat) {
      data_ = tensor_.const_data_ptr<float>();
    } else {
      wide_.resize(static_cast<size_t>(given.numel()));
      LoopsInUse().widen(tensor_.const_data_ptr<at::BFloat16>(), wide_.data(), given.numel());
      data_ = wide_.data();
    }
  }

  const float* data() const { return data_; }

 private:
  at::Tensor tensor_;
  std::vector<float> wide_;
  const float* data_ = nullptr;
};

struct NormOf {
  at::Tensor x;  // [..., C]
  at::Tensor weight, bias;
  bool centred;
  double eps;
};

// figures: if defined, [R, 2] for the NormFigures of each row.
at::Tensor Normed(const NormOf& norm, const at::Tensor& figures) {
  at::Tensor y = at::empty(norm.x.sizes(), norm.x.options());
  const Parameter weight(norm.weight, norm.x), bias(norm.bias, norm.x);
  if (norm.x.is_meta()) return y;
  const Rows rows(norm.x);
  const NormParameters parameters = {weight.data(), bias.data(), static_cast<float>(norm.eps)};
  WithTypeOf(norm.x, [&](auto type) {
    using T = decltype(type);
    const auto normalise = norm.centred ? LoopsInUse().of<T>().layer_norm : LoopsInUse().of<T>().rms_norm;
    InParts(rows.count(), rows.size(), [&](int64_t begin, int64_t end) {
      for (int64_t row = begin; row < end; ++row) {
        const NormFigures found =
            normalise(rows.row<T>(row), parameters, y.mutable_data_ptr<T>() + row * rows.size(), rows.size());
        if (!figures.defined()) continue;
        float* const kept = figures.mutable_data_ptr<float>() + 2 * row;
        kept[0] = found.mean;
        kept[1] = found.scale;
      }
    });
  });
  return y;
}

// sums: [parts of the rows, 2, C], for the gradients of weight and bias in each part; the rest as for NormRowGradient.
void Differentiate(const NormOf& norm, const at::Tensor& figures, const at::Tensor& outgoing, at::Tensor& dx,
                   at::Tensor& sums) {
  const Rows rows(norm.x), dy(outgoing);
  const int64_t size = rows.size();
  const Parameter weight(norm.weight, norm.x), bias(norm.bias, norm.x);
  const NormParameters parameters = {weight.data(), bias.data(), static_cast<float>(norm.eps)};
  WithTypeOf(norm.x, [&](auto type) {
    using T = decltype(type);
    const auto& loops = LoopsInUse().of<T>();
    const auto differentiate = norm.centred ? loops.layer_norm_gradient : loops.rms_norm_gradient;
    InParts(sums.size(0), kRowsOfSum * size, [&](int64_t begin, int64_t end) {
      float* const of_part = sums.mutable_data_ptr<float>();
      for (int64_t row = begin * kRowsOfSum; row < std::min(end * kRowsOfSum, rows.count()); ++row) {
        float* const to = of_part + row / kRowsOfSum * 2 * size;
        const float* const kept = figures.const_data_ptr<float>() + 2 * row;
        differentiate(rows.row<T>(row), dy.row<T>(row), parameters, {.mean = kept[0], .scale = kept[1]},
                      dx.mutable_data_ptr<T>() + row * size, weight.data() != nullptr ? to : nullptr,
                      bias.data() != nullptr ? to + size : nullptr, size);
      }
    });
  });
}

struct NormFunction final : torch::autograd::Function<NormFunction> {
  // An input of autograd is a defined tensor, or optional.
  static at::Tensor forward(AutogradContext* context, const at::Tensor& x, const std::optional<at::Tensor>& weight,
                            const std::optional<at::Tensor>& bias, bool centred, double eps) {
    const int64_t rows = x.numel() / std::max<int64_t>(x.size(-1), 1);
    const at::Tensor figures = at::empty({rows, 2}, x.options().dtype(at::kFloat));
    const NormOf norm = {x, weight.value_or(at::Tensor()), bias.value_or(at::Tensor()), centred, eps};
    context->save_for_backward({x, norm.weight, norm.bias, figures});
    context->saved_data["centred"] = centred;
    context->saved_data["eps"] = eps;
    return Normed(norm, figures);
  }

  static variable_list backward(AutogradContext* context, variable_list outgoing) {
    const variable_list saved = context->get_saved_variables();
    const NormOf norm = {saved[0], saved[1], saved[2], context->saved_data["centred"].toBool(),
                         context->saved_data["eps"].toDouble()};
    const at::Tensor& figures = saved[3];
    at::Tensor dx = at::empty(norm.x.sizes(), norm.x.options());
    const int64_t parts = (figures.size(0) + kRowsOfSum - 1) / kRowsOfSum;
    at::Tensor sums = at::zeros({parts, 2, norm.x.size(-1)}, figures.options());
    if (!norm.x.is_meta()) Differentiate(norm, figures, outgoing[0], dx, sums);
    at::Tensor total = at::zeros({2, norm.x.size(-1)}, figures.options());
    for (int64_t part = 0; part < parts; ++part) total.add_(sums[part]);
    const auto gradient_of = [&](const at::Tensor& parameter, int64_t place) {
      return parameter.defined() ? total[place].to(parameter.scalar_type()) : parameter;
    };
    return {dx, gradient_of(norm.weight, 0), gradient_of(norm.bias, 1), at::Tensor(), at::Tensor()};
  }
};

at::Tensor Norm(const NormOf& norm) {
  TORCH_CHECK(IsElementwise(norm.x) && norm.x.dim() >= 1,
              "norms of kernels are of tensors on the CPU, in float32 or bfloat16, not on ", norm.x.device(), " in ",
              norm.x.scalar_type(), " ", norm.x.sizes());
  if (!NeedsGradients({&norm.x, &norm.weight, &norm.bias})) return Normed(norm, {});
  const auto optional = [](const at::Tensor& parameter) {
    return parameter.defined() ? std::optional(parameter) : std::nullopt;
  };
  return NormFunction::apply(norm.x, optional(norm.weight), optional(norm.bias), norm.centred, norm.eps);
}

}  // namespace

at::Tensor RmsNorm(const at::Tensor& x, const at::Tensor& weight, double eps) {
  return Norm({x, weight, {}, /*centred=*/false, eps});
}

at::Tensor LayerNorm(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias, double eps) {
  return Norm({x, weight, bias, /*centred=*/true, eps});
}

}  // namespace tdock::kernels
