// Results that are computed by other code than what their gradients follow from.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <vector>

namespace tdock::model {

using Operation = std::function<at::Tensor(const std::vector<at::Tensor>&)>;

// compute(inputs), with the gradients of differentiable(inputs): the same function, of operations that libtorch
// differentiates, called again in the backward pass. Both must be deterministic and own what they use; all inputs are
// defined. Gradients flow once.
at::Tensor WithGradientsOf(Operation differentiable, const Operation& compute, const std::vector<at::Tensor>& inputs);

}  // namespace tdock::model
