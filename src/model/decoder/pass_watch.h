// What someone is told of a pass with gradients, unit by unit: each layer of the decoder is one, and, after them, all
// its other weights together.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <vector>

namespace tdock::model {

// Called by the threads that compute. What it throws ends the pass. Layers come in their order, and with gradients in
// the reverse one.
class PassWatch {
 public:
  virtual ~PassWatch() = default;

  // Before and after a pass computes with the weights of a layer.
  virtual void BeforeUse(size_t /*layer*/) {}
  virtual void AfterUse(size_t /*layer*/) {}
  // Before the gradients of a layer are computed, for which its weights are needed once more.
  virtual void BeforeGradients(size_t /*layer*/) {}
  // The gradients of the unit's trained parameters in this pass, all that there are: as Decoder::TrainedOf() lists
  // them.
  virtual void TakeGradients(size_t unit, std::vector<at::Tensor> gradients) = 0;
};

}  // namespace tdock::model
