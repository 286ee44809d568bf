// The batch-invariant mode of a decoder.
#include <ATen/ATen.h>

#include <vector>

#include "kernels/attention_in_rows.h"
#include "model/decoder/decoder.h"
#include "model/decoder/with_gradients.h"

namespace tdock::model {
namespace {

// queries, keys, values: [B, T, heads, head dim].
at::Tensor Attend(const std::vector<at::Tensor>& inputs, const std::vector<kernels::SequencePart>& parts,
                  int64_t window) {
  const auto rows = [](const at::Tensor& x) { return x.reshape({-1, x.size(2), x.size(3)}); };
  return kernels::AttendInRows(rows(inputs[0]), rows(inputs[1]), rows(inputs[2]), parts, window)
      .view(inputs[0].sizes());
}

}  // namespace

void Decoder::CheckArithmetic(Arithmetic arithmetic) const {
  if (arithmetic != Arithmetic::kBatchInvariant) return;
  const bool has_loops = device().is_cpu() && (compute_type_ == at::kFloat || compute_type_ == at::kBFloat16);
  TORCH_CHECK(has_loops || device().is_meta(),
              "batch-invariant mode is for the CPU with activations in float32 or bfloat16, not for ", device(), " in ",
              compute_type_);
}

void Decoder::SetBatchInvariant(bool batch_invariant) {
  const Arithmetic arithmetic = batch_invariant ? Arithmetic::kBatchInvariant : Arithmetic::kLibtorch;
  CheckArithmetic(arithmetic);
  arithmetic_ = arithmetic;
  project_in_.arithmetic = project_out_.arithmetic = arithmetic_;
  for (Layer& layer : layers_) {
    for (Linear Layer::*const linear : kLinears) (layer.*linear).arithmetic = arithmetic_;
  }
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
  return WithGradientsOf(
      [this, pass, window](const std::vector<at::Tensor>& in) {
        return Mix(in[0].transpose(1, 2), in[1].transpose(1, 2), in[2].transpose(1, 2), pass, window).transpose(1, 2);
      },
      [&](const std::vector<at::Tensor>& in) { return Attend(in, parts, window); }, {queries, keys, values});
}

}  // namespace tdock::model
