#include "model/decoder/product.h"

#include <ATen/ATen.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/grad_mode.h>
#include <ATen/cpu/Utils.h>
#include <torch/csrc/autograd/custom_function.h>

#include <optional>

#include "kernels/elementwise.h"
#include "kernels/limits.h"
#include "kernels/products.h"

namespace tdock::model {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

// Whether libtorch multiplies tensors of this dtype at least as fast as in float32. Processors without instructions for
// half precision multiply it element by element, hundreds of times slower, and some have slow ones.
bool IsMultipliedFast(const at::Tensor& x) {
  if (!x.is_cpu() || !c10::isReducedFloatingType(x.scalar_type())) return true;
  const auto asks = [](const char* name) {
    return c10::Dispatcher::singleton().findSchemaOrThrow(name, "").typed<bool()>().call();
  };
  static const bool bfloat16 =
      asks("mkldnn::_is_mkldnn_bf16_supported") && (kernels::MultipliesBFloat16Fast() || at::cpu::init_amx());
  static const bool float16 = asks("mkldnn::_is_mkldnn_fp16_supported");
  return x.scalar_type() == at::kBFloat16 ? bfloat16 : float16;
}

at::Tensor LibtorchProduct(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias) {
  if (IsMultipliedFast(x)) return at::linear(x, As(weight, x), As(bias, x));
  // The same numbers go in, rounded alike, and are summed up in float32, as the instructions do.
  const auto wide = [&](const at::Tensor& tensor) { return tensor.defined() ? As(tensor, x).to(at::kFloat) : tensor; };
  return at::linear(wide(x), wide(weight), wide(bias)).to(x.scalar_type());
}

bool IsPortable() { return kernels::Instructions() == kernels::kPortable; }

// a · b. Libtorch's products are the faster ones on many processors, and have other bits on each.
at::Tensor Multiplied(const at::Tensor& a, const at::Tensor& b) {
  const bool by_kernels = IsPortable() || kernels::MultipliesFloatFast();
  return by_kernels && a.is_cpu() && a.scalar_type() == at::kFloat ? kernels::Multiply(a, b) : a.mm(b);
}

// With y = x · wᵀ + b: dx = dy · w, dw = dyᵀ · x, db = Σ dy.
struct ProductFunction final : torch::autograd::Function<ProductFunction> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& x, const at::Tensor& weight,
                            const std::optional<at::Tensor>& bias) {
    context->save_for_backward({x, weight});
    if (bias) context->saved_data["bias"] = bias->scalar_type();
    return kernels::Product(x, weight, bias ? As(*bias, x) : at::Tensor());
  }

  static variable_list backward(AutogradContext* context, variable_list outgoing) {
    const variable_list saved = context->get_saved_variables();
    const at::Tensor &x = saved[0], &weight = saved[1];
    const at::Tensor dy = outgoing[0].reshape({-1, weight.size(0)});
    const bool widens = IsPortable() ? x.scalar_type() == at::kBFloat16 : !IsMultipliedFast(x);
    const auto factor = [&](const at::Tensor& tensor) { return widens ? tensor.to(at::kFloat) : tensor; };
    const at::Tensor dy_factor = factor(dy);
    variable_list gradients(3);
    if (context->needs_input_grad(0)) {
      gradients[0] = Multiplied(dy_factor, factor(As(weight, x))).to(x.scalar_type()).view(x.sizes());
    }
    if (context->needs_input_grad(1)) {
      gradients[1] = Multiplied(dy_factor.t(), factor(x.reshape({-1, weight.size(1)}))).to(weight.scalar_type());
    }
    if (context->saved_data.count("bias") > 0 && context->needs_input_grad(2)) {
      gradients[2] = dy.sum(0, /*keepdim=*/false, at::kFloat).to(context->saved_data["bias"].toScalarType());
    }
    return gradients;
  }
};

}  // namespace

at::Tensor As(const at::Tensor& tensor, const at::Tensor& like) {
  return tensor.defined() ? tensor.to(like.scalar_type()) : tensor;
}

at::Tensor Product(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias, Arithmetic arithmetic) {
  const bool has_kernel = !x.is_meta() && kernels::IsElementwise(x) && kernels::IsElementwise(weight);
  if (arithmetic == Arithmetic::kLibtorch || !has_kernel) {
    return LibtorchProduct(x, weight, bias);
  }
  return at::GradMode::is_enabled()
             ? ProductFunction::apply(x, weight, bias.defined() ? std::optional(bias) : std::nullopt)
             : kernels::Product(x, weight, As(bias, x));
}

}  // namespace tdock::model
