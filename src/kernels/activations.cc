#include <ATen/ATen.h>
#include <torch/csrc/autograd/custom_function.h>

#include "kernels/elementwise.h"
#include "kernels/loops.h"
#include "kernels/typed_data.h"

namespace tdock::kernels {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

template <class T>
const ActivationLoops<T>& LoopsOf(Activation activation) {
  const TypedLoops<T>& loops = LoopsInUse().of<T>();
  switch (activation) {
    case Activation::kSilu:
      return loops.silu;
    case Activation::kRelu:
      return loops.relu;
    case Activation::kGelu:
      return loops.gelu;
    case Activation::kGeluTanh:
      return loops.gelu_tanh;
  }
  TORCH_CHECK(false, "there is no activation number ", static_cast<int>(activation));
}

void CheckActivated(const at::Tensor& x) {
  TORCH_CHECK(IsElementwise(x), "activations of kernels are on the CPU, in float32 or bfloat16, not on ", x.device(),
              " in ", x.scalar_type());
}

at::Tensor Activated(Activation activation, const at::Tensor& x) {
  at::Tensor y = at::empty_like(x);
  if (x.is_meta()) return y;
  WithTypeOf(x, [&](auto type) {
    using T = decltype(type);
    const auto& loops = LoopsOf<T>(activation);
    InParts(x.numel(), 1, [&](int64_t begin, int64_t end) {
      loops.apply(x.const_data_ptr<T>() + begin, y.mutable_data_ptr<T>() + begin, end - begin);
    });
  });
  return y;
}

struct ActivateFunction final : torch::autograd::Function<ActivateFunction> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& x, int64_t activation) {
    context->save_for_backward({x});
    context->saved_data["activation"] = activation;
    return Activated(static_cast<Activation>(activation), x);
  }

  static variable_list backward(AutogradContext* context, variable_list outgoing) {
    const at::Tensor x = context->get_saved_variables()[0], dy = outgoing[0].contiguous();
    const auto activation = static_cast<Activation>(context->saved_data["activation"].toInt());
    at::Tensor dx = at::empty_like(x);
    if (x.is_meta()) return {dx, at::Tensor()};
    WithTypeOf(x, [&](auto type) {
      using T = decltype(type);
      const auto& loops = LoopsOf<T>(activation);
      InParts(x.numel(), 1, [&](int64_t begin, int64_t end) {
        loops.gradient(x.const_data_ptr<T>() + begin, dy.const_data_ptr<T>() + begin, dx.mutable_data_ptr<T>() + begin,
                       end - begin);
      });
    });
    return {dx, at::Tensor()};
  }
};

// x: [..., 2·I], contiguous.
at::Tensor Gated(Activation activation, const at::Tensor& x) {
  std::vector<int64_t> shape = x.sizes().vec();
  const int64_t size = shape.back() /= 2;
  at::Tensor y = at::empty(shape, x.options());
  if (x.is_meta() || y.numel() == 0) return y;
  WithTypeOf(x, [&](auto type) {
    using T = decltype(type);
    const auto& loops = LoopsOf<T>(activation);
    InParts(y.numel() / size, size, [&](int64_t begin, int64_t end) {
      for (int64_t row = begin; row < end; ++row) {
        const T* const gate = x.const_data_ptr<T>() + 2 * row * size;
        loops.gate(gate, gate + size, y.mutable_data_ptr<T>() + row * size, size);
      }
    });
  });
  return y;
}

struct GateFunction final : torch::autograd::Function<GateFunction> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& x, int64_t activation) {
    context->save_for_backward({x});
    context->saved_data["activation"] = activation;
    return Gated(static_cast<Activation>(activation), x);
  }

  static variable_list backward(AutogradContext* context, variable_list outgoing) {
    const at::Tensor x = context->get_saved_variables()[0], dy = outgoing[0].contiguous();
    const auto activation = static_cast<Activation>(context->saved_data["activation"].toInt());
    at::Tensor dx = at::empty_like(x);
    const int64_t size = dy.size(-1);
    if (x.is_meta() || dy.numel() == 0) return {dx, at::Tensor()};
    WithTypeOf(x, [&](auto type) {
      using T = decltype(type);
      const auto& loops = LoopsOf<T>(activation);
      InParts(dy.numel() / size, size, [&](int64_t begin, int64_t end) {
        for (int64_t row = begin; row < end; ++row) {
          const T* const gate = x.const_data_ptr<T>() + 2 * row * size;
          T* const dgate = dx.mutable_data_ptr<T>() + 2 * row * size;
          loops.gate_gradient(gate, gate + size, dy.const_data_ptr<T>() + row * size, dgate, dgate + size, size);
        }
      });
    });
    return {dx, at::Tensor()};
  }
};

}  // namespace

bool IsElementwise(const at::Tensor& x) {
  return (x.is_cpu() || x.is_meta()) && (x.scalar_type() == at::kFloat || x.scalar_type() == at::kBFloat16);
}

at::Tensor Activate(Activation activation, const at::Tensor& given) {
  CheckActivated(given);
  const at::Tensor x = given.contiguous();
  return NeedsGradients({&x}) ? ActivateFunction::apply(x, static_cast<int64_t>(activation)) : Activated(activation, x);
}

at::Tensor Gate(Activation activation, const at::Tensor& given) {
  CheckActivated(given);
  TORCH_CHECK(given.dim() >= 1 && given.size(-1) % 2 == 0, "a gate and what it is for have the same size; ",
              given.sizes(), " cannot be halved");
  const at::Tensor x = given.contiguous();
  return NeedsGradients({&x}) ? GateFunction::apply(x, static_cast<int64_t>(activation)) : Gated(activation, x);
}

}  // namespace tdock::kernels
