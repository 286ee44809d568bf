#include "trainer/merge/low_rank.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <map>
#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/strip.h"
#include "core/base/status.h"

namespace tdock::trainer {
namespace {

using model::ShowName;

constexpr absl::string_view kPeftModel = "base_model.model.", kDefaultA = ".lora_A.default.weight",
                            kDefaultB = ".lora_B.default.weight";

// A weight of the model among those that are stored, and where its factors are.
struct AdaptedWeight {
  std::string name;
  size_t base = 0;
  std::optional<size_t> a, b;
};

std::string BareName(absl::string_view name) {
  absl::ConsumePrefix(&name, kPeftModel);
  return absl::StrReplaceAll(name, {{".base_layer.", "."}});
}

bool Fit(const std::vector<int64_t>& weight, const std::vector<int64_t>& a, const std::vector<int64_t>& b) {
  return weight.size() == 2 && a.size() == 2 && b.size() == 2 && a[0] > 0 && a[0] == b[1] && a[1] == weight[1] &&
         b[0] == weight[0];
}

absl::StatusOr<std::vector<AdaptedWeight>> FindAdapted(const WeightSource& stored) {
  std::map<std::string, AdaptedWeight> found;
  for (size_t i = 0; i < stored.weights.size(); ++i) {
    absl::string_view name = stored.weights[i].name;
    const bool is_a = absl::ConsumeSuffix(&name, kDefaultA), is_b = !is_a && absl::ConsumeSuffix(&name, kDefaultB);
    const std::string bare = is_a || is_b ? absl::StrCat(BareName(name), ".weight") : BareName(name);
    AdaptedWeight& weight = found[bare];
    weight.name = bare;
    if (is_a || is_b) {
      std::optional<size_t>& factor = is_a ? weight.a : weight.b;
      if (factor) {
        return absl::InvalidArgumentError(absl::StrCat("tensors '", ShowName(stored.weights[*factor].name), "' and '",
                                                       ShowName(stored.weights[i].name), "' are the same factor of '",
                                                       ShowName(bare), "'"));
      }
      factor = i;
    } else if (absl::StrContains(name, ".modules_to_save.") || absl::StrContains(name, ".original_module.")) {
      return absl::UnimplementedError(
          absl::StrCat("tensor '", ShowName(name),
                       "' belongs to a module that was trained beside the adapters; that is not merged"));
    } else if (weight.base != 0) {
      return absl::InvalidArgumentError(absl::StrCat("tensors '", ShowName(stored.weights[weight.base - 1].name),
                                                     "' and '", ShowName(name), "' are both the weight '",
                                                     ShowName(bare), "'"));
    } else if (absl::StrContains(name, "lora_")) {
      return absl::UnimplementedError(
          absl::StrCat("tensor '", ShowName(name), "' is neither …", kDefaultA, " nor …", kDefaultB, " of an adapter"));
    } else {
      weight.base = i + 1;
    }
  }
  std::vector<AdaptedWeight> weights;
  for (auto& [name, weight] : found) {
    const auto shape = [&](size_t i) { return stored.weights[i].info.shape; };
    if (weight.base == 0 || weight.a.has_value() != weight.b.has_value() ||
        (weight.a && !Fit(shape(weight.base - 1), shape(*weight.a), shape(*weight.b)))) {
      return absl::InvalidArgumentError(
          absl::StrCat("weight '", ShowName(name),
                       "' has an adapter of which a factor, or the weight itself, is missing or of ", "another shape"));
    }
    --weight.base;
    weights.push_back(std::move(weight));
  }
  std::sort(weights.begin(), weights.end(),
            [](const auto& one, const auto& other) { return NameBefore(one.name, other.name); });
  return weights;
}

}  // namespace

absl::Status ReadAdapted(const std::function<absl::Status(const at::Tensor& into)>& read, const LowRank& adapter,
                         const at::Tensor& into) {
  const at::ScalarType type = adapter.a.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
  const at::Tensor whole = at::empty(into.sizes(), at::TensorOptions().dtype(type));
  TDOCK_RETURN_IF_ERROR(read(whole));
  const at::Tensor rows = adapter.inputs_first ? whole.t() : whole;
  const at::Tensor merged = rows + adapter.scale * adapter.b.to(type).mm(adapter.a.to(type));
  into.copy_(adapter.inputs_first ? merged.t() : merged);
  return absl::OkStatus();
}

bool HasNamedAdapters(const WeightSource& source) {
  return std::any_of(source.weights.begin(), source.weights.end(),
                     [](const auto& weight) { return absl::StrContains(weight.name, ".lora_"); });
}

absl::Status MergeNamedAdapters(double alpha, WeightSource& source) {
  TDOCK_ASSIGN_OR_RETURN(std::vector<AdaptedWeight> adapted, FindAdapted(source));
  const std::vector<model::NamedInfo> stored = std::exchange(source.weights, {});
  for (const AdaptedWeight& weight : adapted) source.weights.push_back({weight.name, stored[weight.base].info});
  source.read = [read = std::move(source.read), stored, adapted = std::move(adapted), alpha](
                    size_t index, const at::Tensor& into) -> absl::Status {
    const AdaptedWeight& weight = adapted[index];
    const auto read_base = [&](const at::Tensor& to) { return read(weight.base, to); };
    if (!weight.a) return read_base(into);
    LowRank adapter{.a = at::empty(stored[*weight.a].info.shape, at::kFloat),
                    .b = at::empty(stored[*weight.b].info.shape, at::kFloat),
                    .scale = alpha / static_cast<double>(stored[*weight.a].info.shape[0])};
    TDOCK_RETURN_IF_ERROR(read(*weight.a, adapter.a));
    TDOCK_RETURN_IF_ERROR(read(*weight.b, adapter.b));
    return ReadAdapted(read_base, adapter, into);
  };
  return absl::OkStatus();
}

}  // namespace tdock::trainer
