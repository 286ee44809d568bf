// The parts that decoders are built from. On the CPU in float32 and bfloat16, norms, activations and rotations are
// those of kernels/elementwise.h, whatever the arithmetic.
//
// Shapes: [..., C] activations, C their size. Weights keep their dtype; they are converted to that of the activations
// where the two differ, so that float32 weights can be trained on bfloat16 activations (mixed precision).
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "kernels/packed_matrix.h"
#include "model/decoder/product.h"
#include "model/files/config.h"

namespace tdock::model {

// By their names in the Hugging Face layout.
using NamedTensors = std::vector<std::pair<std::string, at::Tensor>>;
using NamedShapes = std::vector<std::pair<std::string, std::vector<int64_t>>>;

// A low-rank change of some rows of a linear layer's weight: weight[begin : begin + out] + scale · b · a.
// Source: Hu et al. 2021, arXiv:2106.09685.
struct Adapter {
  std::string path;   // of the part that it changes, in the Hugging Face layout: "model.layers.0.self_attn.q_proj"
  int64_t begin = 0;  // its first row
  at::Tensor a;       // [rank, in]
  at::Tensor b;       // [out, rank]
  double scale = 1.0;
};

// The probability and the seed of Drop().
struct Dropout {
  double probability = 0;
  uint64_t seed = 0;
};

// Training with noise: each number is zero with the probability, 0 ≤ p < 1, and otherwise divided by 1 − p, so that
// their expectation stays (Srivastava et al. 2014, JMLR 15). Which ones follows from the seed and the shape, on a
// device always the same, whatever else is computed.
at::Tensor Drop(const at::Tensor& x, const Dropout& dropout);

// Copies of the weights of a linear layer, laid out for products.
struct PackedLinear {
  kernels::PackedMatrix weight;
  std::vector<std::pair<kernels::PackedMatrix, kernels::PackedMatrix>> adapters;  // a and b of each
};

struct Linear {
  at::Tensor weight;  // [out, in]
  at::Tensor bias;    // [out], or undefined
  std::vector<Adapter> adapters = {};
  Arithmetic arithmetic = Arithmetic::kBatchInvariant;
  std::shared_ptr<const PackedLinear> packed = nullptr;  // what products without gradients use instead, if it is there

  // What goes into adapters is dropped as `into_adapters` says, for each of them with a seed of its own.
  at::Tensor operator()(const at::Tensor& x, const Dropout& into_adapters = {}) const;

  // Makes `packed`, for the CPU with activations in float32 or bfloat16; the weight, but not its adapters, in int8 if
  // that is wanted. Later changes of the weights are not seen by products that use it.
  void Pack(at::ScalarType compute_type, bool int8);

 private:
  at::Tensor ProductOfPacked(const at::Tensor& x) const;
};

struct Norm {
  NormKind kind = NormKind::kRms;
  double eps = 0.0;
  at::Tensor weight;  // [C], or undefined
  at::Tensor bias;    // [C], or undefined

  at::Tensor operator()(const at::Tensor& x) const;
};

at::Tensor Activate(Activation activation, const at::Tensor& x);
// activation(gate) · up of a fused projection [..., 2·I] that has the gate first, to [..., I].
at::Tensor Gate(Activation activation, const at::Tensor& gate_and_up);

// Rotates pairs of coordinates, which are the halves of the last dimension, as Hugging Face stores weights. x: [B, T,
// heads, head dim]; cos, sin: [B, T, 1, head dim], in float32 at least, in which it computes.
at::Tensor Rotate(const at::Tensor& x, const at::Tensor& cos, const at::Tensor& sin);

}  // namespace tdock::model
