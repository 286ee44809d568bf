// The batch-invariant mode of a decoder.
#include <ATen/ATen.h>
#include <ATen/Parallel.h>

#include <algorithm>
#include <vector>

#include "kernels/attention.h"
#include "model/decoder/decoder.h"
#include "model/decoder/with_gradients.h"

namespace tdock::model {
namespace {

// Tokens that attend to each other: `length` of a row, from `begin` on.
struct AttentionPart {
  int64_t row, begin, length;
  at::Tensor visible;  // bool [length, length], or undefined: all preceding, within the window
};

// What token t sees; a list of positions is kept in *positions.
kernels::Visible VisibleTo(int64_t t, const AttentionPart& part, int64_t window, std::vector<int64_t>* positions) {
  if (!part.visible.defined()) {
    const int64_t first = window == 0 ? 0 : std::max<int64_t>(t - window + 1, 0);
    return {.first = first, .count = t + 1 - first, .positions = nullptr};
  }
  const bool* const seen = part.visible.const_data_ptr<bool>() + t * part.visible.stride(0);
  positions->clear();
  for (int64_t p = 0; p < part.length; ++p) {
    if (seen[p]) positions->push_back(p);
  }
  TORCH_CHECK(!positions->empty(), "token ", t, " of row ", part.row, " attends to none, not even itself");
  return {.first = 0, .count = static_cast<int64_t>(positions->size()), .positions = positions->data()};
}

// queries, keys, values: [B, T, heads, head dim], contiguous in the last dimension, queries and output in the last two.
template <class T>
void Attend(const at::Tensor& queries, const at::Tensor& keys, const at::Tensor& values, const AttentionPart& part,
            int64_t window, at::Tensor& output) {
  const kernels::AttentionShape shape = {queries.size(2), keys.size(2), queries.size(3)};
  const auto start = [&](const at::Tensor& x) {
    return x.const_data_ptr<T>() + part.row * x.stride(0) + part.begin * x.stride(1);
  };
  const T* const key_block = start(keys);
  const T* const value_block = start(values);
  const kernels::BlockedRows<T> key_rows = {&key_block, part.length, keys.stride(2), keys.stride(1)};
  const kernels::BlockedRows<T> value_rows = {&value_block, part.length, values.stride(2), values.stride(1)};
  at::parallel_for(0, part.length, std::max<int64_t>(1024 / part.length, 1), [&](int64_t begin, int64_t end) {
    std::vector<float> scratch(static_cast<size_t>(kernels::AttentionScratch(shape, part.length)));
    std::vector<int64_t> positions;
    for (int64_t t = begin; t < end; ++t) {
      T* const to = output.mutable_data_ptr<T>() + part.row * output.stride(0) + (part.begin + t) * output.stride(1);
      kernels::Attend(start(queries) + t * queries.stride(1), key_rows, value_rows,
                      VisibleTo(t, part, window, &positions), shape, to, scratch.data());
    }
  });
}

at::Tensor AttendInParts(const std::vector<at::Tensor>& inputs, const std::vector<AttentionPart>& parts,
                         int64_t window) {
  const at::Tensor queries = inputs[0].contiguous(), keys = inputs[1].contiguous(), values = inputs[2].contiguous();
  at::Tensor output = at::empty(queries.sizes(), queries.options());
  for (const AttentionPart& part : parts) {
    if (queries.scalar_type() == at::kFloat) {
      Attend<float>(queries, keys, values, part, window, output);
    } else {
      Attend<at::BFloat16>(queries, keys, values, part, window, output);
    }
  }
  return output;
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
  std::vector<AttentionPart> parts;
  const auto add = [&](int64_t row, int64_t begin, int64_t length, const at::Tensor& mask) {
    if (length == 0) return;
    const at::Tensor of_row = mask.defined() ? mask.select(0, mask.size(0) == 1 ? 0 : row).select(0, 0) : mask;
    parts.push_back({row, begin, length, of_row.defined() ? of_row.contiguous() : of_row});
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
      [&](const std::vector<at::Tensor>& in) { return AttendInParts(in, parts, window); }, {queries, keys, values});
}

}  // namespace tdock::model
