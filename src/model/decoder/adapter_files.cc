#include "model/decoder/adapter_files.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <set>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "core/base/status.h"
#include "core/base/utf8.h"
#include "model/decoder/finite_numbers.h"
#include "model/decoder/weight_check.h"
#include "model/decoder/weight_names.h"
#include "model/decoder/weights.h"
#include "model/files/safetensors.h"

namespace tdock::model {
namespace {

constexpr char kConfigName[] = "adapter_config.json";
constexpr char kWeightsName[] = "adapter_model.safetensors";
constexpr char kPrefix[] = "base_model.model.";

// The factors and the modules saved with them, under the names that the weight file has for them.
NamedTensors SavedTensors(const Decoder& decoder, const LoraConfig& config) {
  NamedTensors named;
  for (auto& [name, factor] : decoder.NamedAdapters()) named.emplace_back(kPrefix + name, factor);
  for (auto& [name, weight] : decoder.SavedWeights(config)) named.emplace_back(kPrefix + name, weight);
  return named;
}

// InvalidArgument unless the file holds factors of these shapes, the modules saved with them, and nothing else, and all
// its numbers are finite.
absl::Status CheckFile(const SafetensorsFile& file, NamedShapes wanted, const LoraConfig& config,
                       const Decoder& decoder) {
  for (const auto& [name, weight] : decoder.SavedWeights(config)) wanted.emplace_back(name, weight.sizes().vec());
  WeightCheck check(file.names());
  for (const auto& [bare, shape] : wanted) {
    const std::string name = kPrefix + bare;
    check.Expect(name, name, shape, file.Has(name) ? &file.Info(name) : nullptr);
  }
  TDOCK_RETURN_IF_ERROR(check.Status(kConfigName));
  for (const auto& [bare, shape] : wanted) {
    TDOCK_ASSIGN_OR_RETURN(const at::Tensor stored, ReadTensor(file, kPrefix + bare));
    TDOCK_RETURN_IF_ERROR(Annotate(CheckFinite(stored, {.shape = stored.sizes(), .begin = 0}, stored.scalar_type()),
                                   absl::StrCat("the tensor '", ShowName(kPrefix + bare), "'")));
  }
  return absl::OkStatus();
}

absl::Status CopyInto(const SafetensorsFile& file, const NamedTensors& into) {
  at::NoGradGuard no_grad;
  for (const auto& [name, tensor] : into) {
    TDOCK_ASSIGN_OR_RETURN(const at::Tensor stored, ReadTensor(file, name));
    tensor.copy_(stored);
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status LoadAdapters(Env& env, const std::string& folder, Decoder* decoder) {
  const std::string path = JoinPath(folder, kConfigName);
  TDOCK_ASSIGN_OR_RETURN(const std::string json, ReadFileUpTo(env, path, kMaxConfigBytes));
  const absl::StatusOr<LoraConfig> config = ParseLoraConfig(json);
  if (!config.ok()) return Annotate(config.status(), path);
  if (config->saves("score") && decoder->config().head != Head::kValue) {
    return absl::InvalidArgumentError(
        absl::StrCat(EscapeUnprintable(path), ": the adapters include a value head, which the model lacks"));
  }
  // The file is checked before there is memory for what it should hold: a rank is a few bytes of text.
  absl::StatusOr<NamedShapes> shapes = decoder->AdapterShapes(*config);
  if (!shapes.ok()) return Annotate(shapes.status(), path);
  const std::string weights = JoinPath(folder, kWeightsName);
  TDOCK_ASSIGN_OR_RETURN(const SafetensorsFile file, SafetensorsFile::Open(env, weights));
  TDOCK_RETURN_IF_ERROR(Annotate(CheckFile(file, *std::move(shapes), *config, *decoder), weights));
  TDOCK_RETURN_IF_ERROR(decoder->AddAdapters(*config, 0));
  return CopyInto(file, SavedTensors(*decoder, *config));
}

absl::Status ReloadAdapters(Env& env, const std::string& folder, Decoder* decoder) {
  if (!decoder->lora())
    return absl::FailedPreconditionError(absl::StrCat(EscapeUnprintable(folder), ": the model has no adapters"));
  const std::string path = JoinPath(folder, kWeightsName);
  TDOCK_ASSIGN_OR_RETURN(const SafetensorsFile file, SafetensorsFile::Open(env, path));
  NamedShapes shapes;
  for (const auto& [name, factor] : decoder->NamedAdapters()) shapes.emplace_back(name, factor.sizes().vec());
  const LoraConfig& config = *decoder->lora();
  TDOCK_RETURN_IF_ERROR(Annotate(CheckFile(file, std::move(shapes), config, *decoder), path));
  return CopyInto(file, SavedTensors(*decoder, config));
}

absl::Status SaveAdapters(Env& env, const std::string& folder, const Decoder& decoder, const std::string& base_model) {
  if (!decoder.lora())
    return absl::FailedPreconditionError(
        absl::StrCat(EscapeUnprintable(folder), ": the model has no adapters to save"));
  TDOCK_RETURN_IF_ERROR(env.CreateFolders(folder));
  // As with checkpoints, the description goes first and comes last.
  const std::string path = JoinPath(folder, kConfigName);
  if (env.Exists(path)) TDOCK_RETURN_IF_ERROR(env.Remove(path));
  TDOCK_RETURN_IF_ERROR(WriteTensors(env, JoinPath(folder, kWeightsName), SavedTensors(decoder, *decoder.lora())));
  const ModelConfig& config = decoder.config();
  LoraConfig lora = *decoder.lora();
  if (lora.targets.empty()) {
    // By name: PEFT's "all-linear" takes projections around the layers too, and no list of layers.
    std::set<std::string> names;
    for (const auto& [name, factor] : decoder.NamedAdapters()) {
      const std::vector<std::string> parts = absl::StrSplit(name, '.');
      names.insert(parts[parts.size() - 3]);
    }
    lora.targets.assign(names.begin(), names.end());
  }
  const AdapterFacts facts = {.base_model = base_model, .inputs_first = StoresInputsFirst(config.architecture)};
  return WriteFileAtomically(env, path, LoraConfigJson(lora, facts));
}

}  // namespace tdock::model
