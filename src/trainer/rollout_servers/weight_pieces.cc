#include "trainer/rollout_servers/weight_pieces.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <map>
#include <span>

#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "core/base/status.h"
#include "model/decoder/weight_names.h"
#include "model/tensor_torch/convert.h"

namespace tdock::trainer {
namespace {

constexpr int64_t kChunkBytes = 8 << 20;

}  // namespace

WeightPieces::WeightPieces(const model::Decoder& decoder) {
  std::map<std::string, at::Tensor> adapters;
  for (const auto& [name, factor] : decoder.NamedAdapters()) adapters[name] = factor.detach();
  if (decoder.lora()) scale_ = decoder.lora()->scale();
  const bool inputs_first = model::StoresInputsFirst(decoder.config().architecture);
  for (const auto& [name, values] : decoder.NamedWeights()) {
    Weight& weight = weights_.emplace_back(Weight{name, values.detach(), {}, {}, inputs_first});
    absl::string_view path = name;
    if (!absl::ConsumeSuffix(&path, ".weight")) continue;
    const auto a = adapters.find(absl::StrCat(path, ".lora_A.weight"));
    const auto b = adapters.find(absl::StrCat(path, ".lora_B.weight"));
    if (a == adapters.end() || b == adapters.end()) continue;
    weight.a = a->second;
    weight.b = b->second;
  }
  checksum_.Reset();
}

absl::StatusOr<std::vector<model::NamedInfo>> WeightPieces::Infos() const {
  std::vector<model::NamedInfo> infos;
  for (const Weight& weight : weights_) {
    const absl::StatusOr<DType> dtype = ToDType(weight.values.scalar_type());
    if (!dtype.ok()) return Annotate(dtype.status(), absl::StrCat("tensor '", weight.name, "'"));
    infos.push_back({weight.name, {*dtype, weight.values.sizes().vec()}});
  }
  return infos;
}

bool WeightPieces::MakeChunk() {
  const at::NoGradGuard no_grad;
  chunk_ = at::Tensor();
  used_ = 0;
  while (weight_ < weights_.size() && row_ >= weights_[weight_].values.size(0)) ++weight_, row_ = 0;
  if (weight_ == weights_.size()) return false;
  const Weight& weight = weights_[weight_];
  const int64_t rows = weight.values.size(0);
  const auto row_bytes = std::max<int64_t>(static_cast<int64_t>(weight.values.nbytes()) / rows, 1);
  const int64_t count = std::min(rows - row_, std::max<int64_t>(kChunkBytes / row_bytes, 1));
  at::Tensor values = weight.values.narrow(0, row_, count);
  if (weight.a.defined()) {
    const at::Tensor change = weight.inputs_first ? weight.b.mm(weight.a.narrow(1, row_, count)).t()
                                                  : weight.b.narrow(0, row_, count).mm(weight.a);
    values = (values.to(weight.a.scalar_type()) + scale_ * change).to(weight.values.scalar_type());
  }
  chunk_ = values.to(at::kCPU).contiguous();
  row_ += count;
  return true;
}

absl::string_view WeightPieces::Next(size_t most) {
  piece_.clear();
  while (piece_.size() < most) {
    if ((!chunk_.defined() || used_ == chunk_.nbytes()) && !MakeChunk()) break;
    const size_t size = std::min(most - piece_.size(), chunk_.nbytes() - used_);
    piece_.append(static_cast<const char*>(chunk_.const_data_ptr()) + used_, size);
    used_ += size;
  }
  checksum_.Add(std::as_bytes(std::span(piece_.data(), piece_.size())));
  return piece_;
}

}  // namespace tdock::trainer
