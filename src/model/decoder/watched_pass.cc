#include "model/decoder/watched_pass.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/custom_class.h>

#include <utility>

namespace tdock::model {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

struct WatchedUnit final : torch::CustomClassHolder {
  WatchedUnit(PassWatch& w, size_t u) : watch(w), unit(u) {}
  PassWatch& watch;
  const size_t unit;
};

void Keep(AutogradContext* context, const c10::intrusive_ptr<WatchedUnit>& unit) {
  context->saved_data["unit"] = c10::IValue::make_capsule(unit);
}

WatchedUnit& UnitOf(AutogradContext* context) {
  return *c10::static_intrusive_pointer_cast<WatchedUnit>(context->saved_data["unit"].toCapsule());
}

struct WeightsFunction final : torch::autograd::Function<WeightsFunction> {
  static variable_list forward(AutogradContext* context, const c10::intrusive_ptr<WatchedUnit>& unit,
                               at::TensorList weights) {
    Keep(context, unit);
    variable_list same;
    same.reserve(weights.size());
    for (const at::Tensor& weight : weights) same.push_back(weight.detach());
    return same;
  }

  static variable_list backward(AutogradContext* context, variable_list gradients) {
    const size_t arguments = 1 + gradients.size();
    WatchedUnit& unit = UnitOf(context);
    unit.watch.TakeGradients(unit.unit, std::move(gradients));
    return variable_list(arguments);
  }
};

struct OutputFunction final : torch::autograd::Function<OutputFunction> {
  static at::Tensor forward(AutogradContext* context, const c10::intrusive_ptr<WatchedUnit>& unit,
                            const at::Tensor& x) {
    Keep(context, unit);
    return x.view_as(x);
  }

  static variable_list backward(AutogradContext* context, variable_list gradients) {
    WatchedUnit& unit = UnitOf(context);
    unit.watch.BeforeGradients(unit.unit);
    return {at::Tensor(), std::move(gradients[0])};
  }
};

}  // namespace

std::vector<at::Tensor> WatchedWeights(const std::vector<at::Tensor>& trained, size_t unit, PassWatch& watch) {
  if (trained.empty()) return {};
  return WeightsFunction::apply(c10::make_intrusive<WatchedUnit>(watch, unit), at::TensorList(trained));
}

at::Tensor WatchedOutput(const at::Tensor& x, size_t layer, PassWatch& watch) {
  return OutputFunction::apply(c10::make_intrusive<WatchedUnit>(watch, layer), x);
}

}  // namespace tdock::model
