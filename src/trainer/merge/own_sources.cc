#include "trainer/merge/own_sources.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "core/base/json_text.h"
#include "core/base/status.h"
#include "core/base/utf8.h"
#include "model/decoder/decoder.h"
#include "model/decoder/weight_names.h"
#include "model/decoder/weights.h"
#include "model/files/adapter_config.h"
#include "model/files/config.h"
#include "model/files/weight_files.h"
#include "model/tensor_torch/convert.h"
#include "trainer/checkpoint/checkpoint_folder.h"
#include "trainer/checkpoint/state_files.h"
#include "trainer/merge/low_rank.h"
#include "trainer/merge/split_weights.h"

namespace tdock::trainer {
namespace {

using model::ShowName;

constexpr char kAdapterConfig[] = "adapter_config.json", kAdapterWeights[] = "adapter_model.safetensors";
constexpr absl::string_view kPeftPrefix = "base_model.model.", kFactorA = ".lora_A.weight", kFactorB = ".lora_B.weight";

void SortWeights(std::vector<model::NamedInfo>& weights) {
  std::sort(weights.begin(), weights.end(),
            [](const auto& one, const auto& other) { return NameBefore(one.name, other.name); });
}

// The two factors of an adapted weight, in the file of the adapters.
struct Factors {
  std::string a, b;
};

struct AdapterFile {
  model::LoraConfig config;
  model::SafetensorsFile file;
  std::map<std::string, Factors> factors;    // by the name of the weight
  std::map<std::string, std::string> whole;  // likewise, the tensors of weights that were trained whole
};

absl::StatusOr<AdapterFile> ReadAdapterFile(Env& env, const std::string& folder) {
  const std::string config_path = JoinPath(folder, kAdapterConfig), path = JoinPath(folder, kAdapterWeights);
  TDOCK_ASSIGN_OR_RETURN(const std::string json, ReadFileUpTo(env, config_path, model::kMaxConfigBytes));
  absl::StatusOr<model::LoraConfig> config = model::ParseLoraConfig(json);
  if (!config.ok()) return Annotate(config.status(), config_path);
  TDOCK_ASSIGN_OR_RETURN(model::SafetensorsFile file, model::SafetensorsFile::Open(env, path));
  AdapterFile adapters{*std::move(config), std::move(file), {}, {}};
  const auto saves = [&](absl::string_view weight) {
    return adapters.config.saves(weight.substr(0, weight.rfind('.')));
  };
  for (const std::string& name : adapters.file.names()) {
    absl::string_view bare = name;
    const bool peft = absl::ConsumePrefix(&bare, kPeftPrefix);
    if (peft && absl::ConsumeSuffix(&bare, kFactorA)) {
      adapters.factors[absl::StrCat(bare, ".weight")].a = name;
    } else if (peft && absl::ConsumeSuffix(&bare, kFactorB)) {
      adapters.factors[absl::StrCat(bare, ".weight")].b = name;
    } else if (peft && saves(bare)) {
      adapters.whole[std::string(bare)] = name;
    } else {
      return absl::InvalidArgumentError(absl::StrCat(EscapeUnprintable(path), ": tensor '", ShowName(name),
                                                     "' is neither ", kPeftPrefix, "…", kFactorA, " nor …", kFactorB,
                                                     " of an adapter"));
    }
  }
  return adapters;
}

// Whether the factors are those of a weight of this shape.
absl::Status CheckFactors(const AdapterFile& adapters, const std::string& name, const Factors& factors,
                          const std::vector<int64_t>& shape, bool inputs_first) {
  if (factors.a.empty() || factors.b.empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat("weight '", ShowName(name), "' has only one of the factors lora_A and lora_B"));
  }
  const auto& a = adapters.file.Info(factors.a).shape;
  const auto& b = adapters.file.Info(factors.b).shape;
  const bool fits = shape.size() == 2 && a.size() == 2 && b.size() == 2 && a[0] == adapters.config.rank &&
                    b[1] == adapters.config.rank && a[1] == shape[inputs_first ? 0 : 1] &&
                    b[0] == shape[inputs_first ? 1 : 0];
  if (fits) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("the factors of weight '", ShowName(name),
                                                 "' do not have its shape and rank ", adapters.config.rank));
}

absl::Status AddFactors(const AdapterFile& adapters, const Factors& factors, const WeightSource& base, size_t index,
                        bool inputs_first, const at::Tensor& into) {
  TDOCK_ASSIGN_OR_RETURN(const at::Tensor a, model::ReadTensor(adapters.file, factors.a));
  TDOCK_ASSIGN_OR_RETURN(const at::Tensor b, model::ReadTensor(adapters.file, factors.b));
  return ReadAdapted([&](const at::Tensor& whole) { return base.read(index, whole); },
                     {.a = a, .b = b, .scale = adapters.config.scale(), .inputs_first = inputs_first}, into);
}

absl::StatusOr<std::string> BaseModelOf(Env& env, const std::string& folder) {
  const std::string path = JoinPath(folder, kAdapterConfig);
  TDOCK_ASSIGN_OR_RETURN(const std::string json, ReadFileUpTo(env, path, model::kMaxConfigBytes));
  const auto config = ReadJson(json);
  const nlohmann::json name = config.is_object() ? config.value("base_model_name_or_path", nlohmann::json()) : config;
  const std::string base = name.is_string() ? name.get<std::string>() : "";
  if (!base.empty() && env.Exists(JoinPath(base, "config.json"))) return base;
  return absl::NotFoundError(absl::StrCat(
      EscapeUnprintable(path),
      base.empty() ? " names no model"
                   : absl::StrCat(" names the model '", EscapeForMessage(base, 500), "', which is no folder here"),
      ": give the folder of the model that is adapted with --base"));
}

absl::StatusOr<bool> StoresInputsFirst(Env& env, const std::string& folder) {
  const std::string path = JoinPath(folder, "config.json");
  TDOCK_ASSIGN_OR_RETURN(const std::string json, ReadFileUpTo(env, path, model::kMaxConfigBytes));
  const absl::StatusOr<model::ModelConfig> config = model::ParseModelConfig(json);
  if (!config.ok()) return Annotate(config.status(), path);
  return model::StoresInputsFirst(config->architecture);
}

}  // namespace

absl::StatusOr<WeightSource> OpenModelFolder(Env& env, const std::string& folder) {
  TDOCK_ASSIGN_OR_RETURN(model::WeightFiles opened, model::WeightFiles::Open(env, folder));
  const auto files = std::make_shared<const model::WeightFiles>(std::move(opened));
  WeightSource source{.what = absl::StrCat("the model ", EscapeUnprintable(folder)),
                      .config_folder = folder,
                      .tokenizer_folder = folder};
  for (const std::string& name : files->names()) source.weights.push_back({name, files->Find(name)->Info(name)});
  SortWeights(source.weights);
  source.read = [files, weights = source.weights](size_t index, const at::Tensor& into) {
    const std::string& name = weights[index].name;
    return model::CopyTensor(*files->Find(name), name, into);
  };
  TDOCK_ASSIGN_OR_RETURN(const std::vector<std::string> names, env.List(folder));
  for (const std::string& name : names) {
    if (absl::EndsWith(name, ".safetensors")) source.files.push_back(JoinPath(folder, name));
  }
  return source;
}

absl::StatusOr<WeightSource> OpenAdapters(Env& env, const std::string& folder, const std::string& given_base) {
  std::string base = given_base;
  if (base.empty()) {
    TDOCK_ASSIGN_OR_RETURN(base, BaseModelOf(env, folder));
  }
  TDOCK_ASSIGN_OR_RETURN(AdapterFile read, ReadAdapterFile(env, folder));
  TDOCK_ASSIGN_OR_RETURN(const bool inputs_first, StoresInputsFirst(env, base));
  TDOCK_ASSIGN_OR_RETURN(const WeightSource whole, OpenModelFolder(env, base));
  const auto adapters = std::make_shared<const AdapterFile>(std::move(read));
  const std::string path = JoinPath(folder, kAdapterWeights);
  for (const auto& [name, factors] : adapters->factors) {
    const size_t index = IndexOf(whole, name);
    if (index == whole.weights.size()) {
      return absl::InvalidArgumentError(absl::StrCat(EscapeUnprintable(path), " adapts weight '", ShowName(name),
                                                     "', which ", EscapeUnprintable(base), " lacks"));
    }
    TDOCK_RETURN_IF_ERROR(
        Annotate(CheckFactors(*adapters, name, factors, whole.weights[index].info.shape, inputs_first), path));
  }
  for (const auto& [name, tensor] : adapters->whole) {
    const size_t index = IndexOf(whole, name);
    if (index < whole.weights.size() && whole.weights[index].info.shape == adapters->file.Info(tensor).shape) continue;
    return absl::UnimplementedError(absl::StrCat(EscapeUnprintable(path), " has a trained weight '", ShowName(name),
                                                 "', for which ", EscapeUnprintable(base),
                                                 " has none of its shape: give a model that has one with --base"));
  }
  WeightSource source = whole;
  source.what = absl::StrCat("the adapters ", EscapeUnprintable(folder), " in ", EscapeUnprintable(base));
  source.files.push_back(path);
  if (env.Exists(JoinPath(folder, "tokenizer_config.json")) || env.Exists(JoinPath(folder, "tokenizer.json"))) {
    source.tokenizer_folder = folder;
  }
  source.read = [whole, adapters, inputs_first](size_t index, const at::Tensor& into) -> absl::Status {
    const std::string& name = whole.weights[index].name;
    if (const auto own = adapters->whole.find(name); own != adapters->whole.end()) {
      return model::CopyTensor(adapters->file, own->second, into);
    }
    const auto found = adapters->factors.find(name);
    if (found == adapters->factors.end()) return whole.read(index, into);
    return AddFactors(*adapters, found->second, whole, index, inputs_first, into);
  };
  return source;
}

absl::StatusOr<WeightSource> OpenCheckpoint(Env& env, const std::string& folder, const std::string& base) {
  TDOCK_RETURN_IF_ERROR(VerifyCheckpoint(env, folder).status());
  TDOCK_ASSIGN_OR_RETURN(const State texts, ReadStateTexts(env, folder));
  absl::StatusOr<WeightSource> source = HasSplitWeights(texts) ? OpenSplitWeights(env, folder, texts, base)
                                        : env.Exists(JoinPath(folder, kAdapterConfig)) ? OpenAdapters(env, folder, base)
                                                                                       : OpenModelFolder(env, folder);
  if (source.ok()) source->what = absl::StrCat("the checkpoint ", EscapeUnprintable(folder));
  return source;
}

}  // namespace tdock::trainer
