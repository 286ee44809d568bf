// The nodes of a graph of gradients that tell a PassWatch how far a pass has got.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <vector>

#include "model/decoder/pass_watch.h"

namespace tdock::model {

// Others in the place of these trained weights of a unit, with the same memory. Their gradients go to the watch, once
// all of them are there, and not to the weights.
std::vector<at::Tensor> WatchedWeights(const std::vector<at::Tensor>& trained, size_t unit, PassWatch& watch);

// `x`, what a layer gives: calls BeforeGradients() once the gradients have come as far as that.
at::Tensor WatchedOutput(const at::Tensor& x, size_t layer, PassWatch& watch);

}  // namespace tdock::model
