#include "model/decoder/recompute.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/custom_class.h>

#include <utility>

namespace tdock::model {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

struct Segment final : torch::CustomClassHolder {
  Segment(std::function<at::Tensor(const at::Tensor&)> r, std::vector<at::Tensor> p)
      : run(std::move(r)), parameters(std::move(p)) {}
  std::function<at::Tensor(const at::Tensor&)> run;
  std::vector<at::Tensor> parameters;
};

// The parameters are inputs, so that gradients flow to them through this node, whatever asks for them.
struct RecomputeFunction final : torch::autograd::Function<RecomputeFunction> {
  static at::Tensor forward(AutogradContext* context, const c10::intrusive_ptr<Segment>& segment, const at::Tensor& x,
                            at::TensorList /*parameters*/) {
    context->save_for_backward({x});
    context->saved_data["segment"] = c10::IValue::make_capsule(segment);
    at::NoGradGuard no_grad;
    return segment->run(x);
  }

  static variable_list backward(AutogradContext* context, variable_list outgoing) {
    const auto segment = c10::static_intrusive_pointer_cast<Segment>(context->saved_data["segment"].toCapsule());
    const at::Tensor x = context->get_saved_variables()[0];
    const at::Tensor input = x.detach().requires_grad_(x.requires_grad());
    at::AutoGradMode with_gradients(true);
    const at::Tensor output = segment->run(input);
    std::vector<at::Tensor> wanted;
    if (input.requires_grad()) wanted.push_back(input);
    for (const at::Tensor& parameter : segment->parameters) {
      if (parameter.requires_grad()) wanted.push_back(parameter);
    }
    variable_list found = torch::autograd::grad({output}, wanted, {outgoing[0]}, /*retain_graph=*/std::nullopt,
                                                /*create_graph=*/false, /*allow_unused=*/true);
    // One for each argument of forward.
    variable_list gradients = {at::Tensor()};
    size_t next = 0;
    gradients.push_back(input.requires_grad() ? found[next++] : at::Tensor());
    for (const at::Tensor& parameter : segment->parameters) {
      gradients.push_back(parameter.requires_grad() ? found[next++] : at::Tensor());
    }
    return gradients;
  }
};

}  // namespace

at::Tensor Recompute(std::function<at::Tensor(const at::Tensor&)> run, const at::Tensor& x,
                     const std::vector<at::Tensor>& parameters) {
  if (!at::GradMode::is_enabled()) return run(x);
  return RecomputeFunction::apply(c10::make_intrusive<Segment>(std::move(run), parameters), x,
                                  at::TensorList(parameters));
}

}  // namespace tdock::model
