// The batch-invariant mode of a decoder.
#include <ATen/ATen.h>

#include <utility>
#include <vector>

#include "kernels/attention_in_rows.h"
#include "model/decoder/attend_with_gradients.h"
#include "model/decoder/decoder.h"

namespace tdock::model {

bool Decoder::HasKernels() const {
  return (device().is_cpu() || device().is_meta()) && (compute_type_ == at::kFloat || compute_type_ == at::kBFloat16);
}

void Decoder::Unpack() {
  project_in_.packed = project_out_.packed = packed_head_ = nullptr;
  for (Layer& layer : layers_) {
    for (Linear Layer::*const linear : kLinears) (layer.*linear).packed = nullptr;
  }
}

void Decoder::SetComputeType(at::ScalarType dtype) {
  compute_type_ = dtype;
  Unpack();
}

void Decoder::SetBatchInvariant(bool batch_invariant) {
  Unpack();
  arithmetic_ = batch_invariant ? Arithmetic::kBatchInvariant : Arithmetic::kLibtorch;
  project_in_.arithmetic = project_out_.arithmetic = arithmetic_;
  for (Layer& layer : layers_) {
    for (Linear Layer::*const linear : kLinears) (layer.*linear).arithmetic = arithmetic_;
  }
}

void Decoder::PackWeights(bool int8) {
  TORCH_CHECK(HasKernels() && !device().is_meta(),
              "weights are packed for the CPU with activations in float32 or bfloat16, not for ", device(), " in ",
              compute_type_);
  SetBatchInvariant(true);
  if (project_in_.weight.defined()) project_in_.Pack(compute_type_, int8);
  if (project_out_.weight.defined()) project_out_.Pack(compute_type_, int8);
  for (Layer& layer : layers_) {
    for (Linear Layer::*const linear : kLinears) (layer.*linear).Pack(compute_type_, int8);
  }
  if (config_.head != Head::kTokens) return;
  Linear head = TokenHead();
  head.Pack(compute_type_, int8);
  packed_head_ = head.packed;
}

int64_t Decoder::PackedBytes(const ModelConfig& config, at::ScalarType compute_type, bool int8) {
  const kernels::PackedFormat format = int8                         ? kernels::PackedFormat::kInt8
                                       : compute_type == at::kFloat ? kernels::PackedFormat::kFloat
                                                                    : kernels::PackedFormat::kBFloat16;
  Decoder decoder(config, at::kMeta, at::kFloat);  // tensors of this device have shapes and no memory
  int64_t bytes = 0;
  const auto add = [&](const Linear& linear) {
    if (!linear.weight.defined()) return;
    bytes += kernels::PackedMatrix::BytesFor(linear.weight.size(0), linear.weight.size(1), format);
  };
  add(decoder.project_in_);
  add(decoder.project_out_);
  for (const Layer& layer : decoder.layers_) {
    for (Linear Layer::*const linear : kLinears) add(layer.*linear);
  }
  if (config.head == Head::kTokens) add(decoder.TokenHead());
  return bytes;
}

at::Tensor Decoder::MixInvariantly(const at::Tensor& queries, const at::Tensor& keys, const at::Tensor& values,
                                   const Pass& pass, int64_t window) const {
  const std::vector<at::Tensor>& visible = pass.visible.at(window);
  std::vector<kernels::SequencePart> parts;
  const auto add = [&](int64_t row, int64_t begin, int64_t length, const at::Tensor& mask) {
    if (length == 0) return;
    const at::Tensor of_row = mask.defined() ? mask.select(0, mask.size(0) == 1 ? 0 : row).select(0, 0) : mask;
    const int64_t first = row * queries.size(1) + begin;
    parts.push_back({.first_query = first,
                     .first_key = first,
                     .count = length,
                     .positions = length,
                     .visible = of_row.defined() ? of_row.contiguous() : of_row});
  };
  if (pass.lengths.empty()) {
    for (int64_t row = 0; row < queries.size(0); ++row) add(row, 0, queries.size(1), visible[0]);
  }
  int64_t begin = 0;
  for (size_t i = 0; i < pass.lengths.size(); begin += pass.lengths[i++]) add(0, begin, pass.lengths[i], visible[i]);
  const auto rows = [](const at::Tensor& x) { return x.reshape({-1, x.size(2), x.size(3)}); };
  return AttendWithGradients(rows(queries), rows(keys), rows(values), std::move(parts), window).view(queries.sizes());
}

}  // namespace tdock::model
