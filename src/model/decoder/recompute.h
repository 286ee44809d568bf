// Trading time for memory: activations that are computed once more for the gradients, instead of being kept.
// Source: Chen et al. 2016, arXiv:1604.06174.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <vector>

namespace tdock::model {

// The same as run(x), whose intermediate results are not kept for the backward pass, but computed again. `parameters`
// are the tensors besides x that it differentiates by; run must give the same each time, and own what it uses.
at::Tensor Recompute(std::function<at::Tensor(const at::Tensor&)> run, const at::Tensor& x,
                     const std::vector<at::Tensor>& parameters);

}  // namespace tdock::model
