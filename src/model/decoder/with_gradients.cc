#include "model/decoder/with_gradients.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/custom_class.h>

#include <algorithm>
#include <utility>

namespace tdock::model {
namespace {

struct Differentiable final : torch::CustomClassHolder {
  explicit Differentiable(Operation o) : operation(std::move(o)) {}
  Operation operation;
};

struct WithGradientsFunction final : torch::autograd::Function<WithGradientsFunction> {
  static at::Tensor forward(torch::autograd::AutogradContext* context,
                            const c10::intrusive_ptr<Differentiable>& differentiable, const Operation& compute,
                            at::TensorList inputs) {
    context->save_for_backward(inputs.vec());
    context->saved_data["differentiable"] = c10::IValue::make_capsule(differentiable);
    const at::NoGradGuard no_grad;
    return compute(inputs.vec());
  }

  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 torch::autograd::variable_list outgoing) {
    const auto differentiable =
        c10::static_intrusive_pointer_cast<Differentiable>(context->saved_data["differentiable"].toCapsule());
    std::vector<at::Tensor> inputs, wanted;
    for (const at::Tensor& saved : context->get_saved_variables()) {
      inputs.push_back(saved.detach().requires_grad_(saved.requires_grad()));
      if (saved.requires_grad()) wanted.push_back(inputs.back());
    }
    const at::AutoGradMode with_gradients(true);
    const torch::autograd::variable_list found =
        torch::autograd::grad({differentiable->operation(inputs)}, wanted, {outgoing[0]});
    torch::autograd::variable_list gradients(2);  // of the operations there are none
    size_t next = 0;
    for (const at::Tensor& input : inputs) {
      gradients.push_back(input.requires_grad() ? found[next++] : at::Tensor());
    }
    return gradients;
  }
};

}  // namespace

at::Tensor WithGradientsOf(Operation differentiable, const Operation& compute, const std::vector<at::Tensor>& inputs) {
  const bool needs_gradients =
      at::GradMode::is_enabled() &&
      std::any_of(inputs.begin(), inputs.end(), [](const at::Tensor& x) { return x.requires_grad(); });
  if (!needs_gradients) return compute(inputs);
  return WithGradientsFunction::apply(c10::make_intrusive<Differentiable>(std::move(differentiable)), compute,
                                      at::TensorList(inputs));
}

}  // namespace tdock::model
