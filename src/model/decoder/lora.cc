// The low-rank adapters of a decoder.
#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <set>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "core/base/status.h"
#include "core/base/utf8.h"
#include "model/decoder/decoder.h"
#include "model/decoder/weight_names.h"

namespace tdock::model {
namespace {

constexpr char kFactorA[] = ".lora_A.weight";
constexpr char kFactorB[] = ".lora_B.weight";

bool IsAt(absl::string_view path, absl::string_view target) {
  return path == target || absl::EndsWith(path, absl::StrCat(".", target));
}

// The last component of a path.
std::string NameOf(absl::string_view path) { return std::string(path.substr(path.rfind('.') + 1)); }

// The path of the module that a weight or a bias belongs to.
absl::string_view ModuleOf(absl::string_view weight) { return weight.substr(0, weight.rfind('.')); }

bool HasLayer(const LoraConfig& config, size_t layer) {
  return config.layers.empty() ||
         std::find(config.layers.begin(), config.layers.end(), static_cast<int64_t>(layer)) != config.layers.end();
}

}  // namespace

std::vector<const Adapter*> Decoder::Adapters() const {
  std::vector<const Adapter*> adapters;
  for (const Layer& layer : layers_) {
    for (Linear Layer::*const linear : kLinears) {
      for (const Adapter& adapter : (layer.*linear).adapters) adapters.push_back(&adapter);
    }
  }
  return adapters;
}

// All but the linear layers that adapters are for.
NamedTensors Decoder::WholeWeights() const {
  std::set<std::string, std::less<>> linear;
  for (const LinearPart& part : WeightNames(*this).Linears()) linear.insert(part.path);
  NamedTensors whole = NamedWeights();
  std::erase_if(whole, [&](const auto& named) { return linear.contains(ModuleOf(named.first)); });
  return whole;
}

NamedTensors Decoder::SavedWeights(const LoraConfig& config) const {
  if (config.saved.empty()) return {};
  NamedTensors saved = WholeWeights();
  std::erase_if(saved, [&](const auto& named) { return !config.saves(ModuleOf(named.first)); });
  return saved;
}

absl::Status Decoder::CheckSaved(const LoraConfig& config) const {
  if (config.saved.empty()) return absl::OkStatus();
  const NamedTensors whole = WholeWeights();
  std::set<std::string> names;
  for (const auto& [name, weight] : whole) names.insert(NameOf(ModuleOf(name)));
  const std::vector<LinearPart> linears = WeightNames(*this).Linears();
  const bool tied = !head_.defined();
  for (const std::string& name : config.saved) {
    const auto is_end = [&](absl::string_view path) { return absl::EndsWith(path, name); };
    if (tied && (name == "lm_head" || is_end(ModuleOf(whole.front().first)))) {
      return absl::InvalidArgumentError(
          absl::StrCat("'", EscapeForMessage(name),
                       "' cannot be trained whole beside adapters: the head of this model is its embedding, and PEFT "
                       "would part them"));
    }
    if (std::any_of(linears.begin(), linears.end(), [&](const LinearPart& part) { return is_end(part.path); })) {
      return absl::InvalidArgumentError(absl::StrCat("'", EscapeForMessage(name),
                                                     "' is a linear layer, which gets adapters; those that ",
                                                     "can be trained whole are ", absl::StrJoin(names, ", ")));
    }
    if (std::any_of(whole.begin(), whole.end(), [&](const auto& named) { return is_end(ModuleOf(named.first)); })) {
      continue;
    }
    return absl::InvalidArgumentError(absl::StrCat("there is no module '", EscapeForMessage(name),
                                                   "' to train whole; this model has ", absl::StrJoin(names, ", ")));
  }
  return absl::OkStatus();
}

absl::StatusOr<std::vector<Decoder::LinearPart>> Decoder::PartsToAdapt(const LoraConfig& config) const {
  if (lora_) return absl::FailedPreconditionError("the model already has adapters");
  TDOCK_RETURN_IF_ERROR(Validate(config));
  TDOCK_RETURN_IF_ERROR(CheckSaved(config));
  for (const int64_t layer : config.layers) {
    if (layer >= config_.num_layers) {
      return absl::InvalidArgumentError(
          absl::StrCat("there is no layer ", layer, " to adapt: the model has ", config_.num_layers, ", from 0 on"));
    }
  }
  std::vector<LinearPart> parts = WeightNames(*this).Linears();
  for (const std::string& target : config.targets) {
    if (std::any_of(parts.begin(), parts.end(), [&](const LinearPart& part) { return IsAt(part.path, target); })) {
      continue;
    }
    std::set<std::string> names;
    for (const LinearPart& part : parts) names.insert(NameOf(part.path));
    return absl::InvalidArgumentError(absl::StrCat("there is no linear layer '", EscapeForMessage(target),
                                                   "' to adapt; a layer of this model has ",
                                                   absl::StrJoin(names, ", ")));
  }
  std::erase_if(parts, [&](const LinearPart& part) {
    const bool wanted =
        config.targets.empty() || std::any_of(config.targets.begin(), config.targets.end(),
                                              [&](const std::string& target) { return IsAt(part.path, target); });
    return !wanted || !HasLayer(config, part.layer);
  });
  return parts;
}

absl::StatusOr<NamedShapes> Decoder::AdapterShapes(const LoraConfig& config) const {
  TDOCK_ASSIGN_OR_RETURN(const std::vector<LinearPart> parts, PartsToAdapt(config));
  NamedShapes shapes;
  for (const LinearPart& part : parts) {
    const int64_t inputs = (layers_[part.layer].*part.linear).weight.size(1);
    shapes.emplace_back(part.path + kFactorA, std::vector{config.rank, inputs});
    shapes.emplace_back(part.path + kFactorB, std::vector{part.rows, config.rank});
  }
  return shapes;
}

absl::Status Decoder::AddAdapters(const LoraConfig& config, uint64_t seed) {
  Unpack();
  TDOCK_ASSIGN_OR_RETURN(const std::vector<LinearPart> parts, PartsToAdapt(config));
  at::NoGradGuard no_grad;
  at::Generator generator = at::make_generator<at::CPUGeneratorImpl>(seed);
  const at::ScalarType type = dtype() == at::kDouble ? at::kDouble : at::kFloat;
  std::vector<Adapter> made;  // all, before any is added: memory may run out
  for (const LinearPart& part : parts) {
    const int64_t inputs = (layers_[part.layer].*part.linear).weight.size(1);
    const double bound = 1.0 / std::sqrt(static_cast<double>(inputs));
    const at::Tensor a = at::empty({config.rank, inputs}, at::kFloat).uniform_(-bound, bound, generator);
    made.push_back({part.path, part.begin, a.to(device(), type),
                    at::zeros({part.rows, config.rank}, at::TensorOptions(device()).dtype(type)), config.scale()});
  }
  for (size_t i = 0; i < parts.size(); ++i) {
    (layers_[parts[i].layer].*parts[i].linear).adapters.push_back(std::move(made[i]));
  }
  lora_ = config;
  // It is trained, so it will have to be saved.
  if (config_.head == Head::kValue && !lora_->saves("score")) lora_->saved.emplace_back("score");
  CollectParameters();
  return absl::OkStatus();
}

void Decoder::RemoveAdapters() {
  Unpack();
  for (Layer& layer : layers_) {
    for (Linear Layer::*const linear : kLinears) (layer.*linear).adapters.clear();
  }
  lora_.reset();
  CollectParameters();
}

NamedTensors Decoder::NamedAdapters() const {
  NamedTensors named;
  for (const Adapter* adapter : Adapters()) {
    named.emplace_back(adapter->path + kFactorA, adapter->a);
    named.emplace_back(adapter->path + kFactorB, adapter->b);
  }
  return named;
}

Decoder Decoder::Merged() const {
  at::NoGradGuard no_grad;
  Decoder merged = Clone();
  for (Layer& layer : merged.layers_) {
    for (Linear Layer::*const member : kLinears) {
      const Linear& linear = layer.*member;
      for (const Adapter& adapter : linear.adapters) {
        at::Tensor rows = linear.weight.narrow(0, adapter.begin, adapter.b.size(0));
        rows.copy_(rows.to(adapter.a.scalar_type()) + adapter.scale * adapter.b.mm(adapter.a));
      }
    }
  }
  merged.RemoveAdapters();
  return merged;
}

}  // namespace tdock::model
