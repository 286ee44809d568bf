// Activation checkpointing: activations are recomputed for the gradients, instead of being kept.
// Source: Chen et al. 2016, arXiv:1604.06174.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <vector>

namespace tdock::model {

// The same as run(x), but intermediate results are not kept for the backward pass; they are recomputed. `parameters`
// are the tensors besides x that gradients are needed for; run must be deterministic, and own what it uses.
at::Tensor Recompute(std::function<at::Tensor(const at::Tensor&)> run, const at::Tensor& x,
                     const std::vector<at::Tensor>& parameters);

}  // namespace tdock::model
