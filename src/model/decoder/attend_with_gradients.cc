#include "model/decoder/attend_with_gradients.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/custom_class.h>

#include <array>
#include <utility>

namespace tdock::model {
namespace {

struct AttentionPlan final : torch::CustomClassHolder {
  AttentionPlan(std::vector<kernels::SequencePart> p, int64_t w) : parts(std::move(p)), window(w) {}
  const std::vector<kernels::SequencePart> parts;
  const int64_t window;
};

struct AttentionFunction final : torch::autograd::Function<AttentionFunction> {
  static at::Tensor forward(torch::autograd::AutogradContext* context, const at::Tensor& queries,
                            const at::Tensor& keys, const at::Tensor& values,
                            const c10::intrusive_ptr<AttentionPlan>& plan) {
    const at::NoGradGuard no_grad;
    const kernels::Attended attended = kernels::AttendInRows(queries, keys, values, plan->parts, plan->window);
    context->save_for_backward({queries, keys, values, attended.output, attended.log_sums});
    context->saved_data["plan"] = c10::IValue::make_capsule(plan);
    return attended.output;
  }

  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 torch::autograd::variable_list outgoing) {
    const auto plan = c10::static_intrusive_pointer_cast<AttentionPlan>(context->saved_data["plan"].toCapsule());
    const torch::autograd::variable_list saved = context->get_saved_variables();
    const at::NoGradGuard no_grad;
    const std::array<at::Tensor, 3> gradients = kernels::AttentionGradients(
        saved[0], saved[1], saved[2], {saved[3], saved[4]}, outgoing[0], plan->parts, plan->window);
    return {gradients[0], gradients[1], gradients[2], at::Tensor()};
  }
};

}  // namespace

at::Tensor AttendWithGradients(const at::Tensor& queries, const at::Tensor& keys, const at::Tensor& values,
                               std::vector<kernels::SequencePart> parts, int64_t window) {
  const bool needs_gradients =
      at::GradMode::is_enabled() && (queries.requires_grad() || keys.requires_grad() || values.requires_grad());
  if (!needs_gradients) return kernels::AttendInRows(queries, keys, values, parts, window).output;
  return AttentionFunction::apply(queries, keys, values, c10::make_intrusive<AttentionPlan>(std::move(parts), window));
}

}  // namespace tdock::model
