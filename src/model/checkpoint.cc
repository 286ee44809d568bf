#include "model/checkpoint.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <iterator>
#include <set>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/status.h"
#include "model/safetensors.h"
#include "nlohmann/json.hpp"

namespace tdock::model {
namespace {

constexpr size_t kNamesShown = 10;

template <class Names>
std::string Listed(const Names& names) {
  const size_t shown = std::min(names.size(), kNamesShown);
  std::string text = absl::StrJoin(names.begin(), std::next(names.begin(), static_cast<std::ptrdiff_t>(shown)), ", ");
  if (names.size() > shown) absl::StrAppend(&text, " and ", names.size() - shown, " more");
  return text;
}

std::string ShapeText(at::IntArrayRef shape) { return absl::StrCat("[", absl::StrJoin(shape, ", "), "]"); }

// Whether the file holds what the configuration asks for, and nothing else.
absl::Status CheckWeights(const SafetensorsFile& file, const ModelConfig& config) {
  std::vector<std::string> missing, misshapen;
  const std::vector<std::string> names = file.names();
  std::set<std::string> unexpected(names.begin(), names.end());
  for (const auto& [name, shape] : Decoder::WeightShapes(config)) {
    const absl::StatusOr<at::Tensor> stored = file.Get(name);
    if (!stored.ok()) {
      missing.push_back(name);
      continue;
    }
    unexpected.erase(name);
    if (stored->sizes() != shape) {
      misshapen.push_back(
          absl::StrCat(name, " is ", ShapeText(stored->sizes()), ", config.json makes it ", ShapeText(shape)));
    }
  }
  std::vector<std::string> complaints;
  if (!missing.empty()) complaints.push_back(absl::StrCat("missing weights: ", Listed(missing)));
  if (!unexpected.empty()) complaints.push_back(absl::StrCat("unexpected weights: ", Listed(unexpected)));
  if (!misshapen.empty()) complaints.push_back(absl::StrCat("wrong shapes: ", Listed(misshapen)));
  if (complaints.empty()) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrJoin(complaints, "; "));
}

}  // namespace

absl::StatusOr<Decoder> LoadCheckpoint(Env& env, const std::string& folder, const at::Device& device) {
  const std::string config_path = JoinPath(folder, "config.json");
  const std::string weights_path = JoinPath(folder, "model.safetensors");
  TDOCK_ASSIGN_OR_RETURN(const std::string json, env.ReadFile(config_path));
  const absl::StatusOr<ModelConfig> config = ParseModelConfig(json);
  if (!config.ok()) return Annotate(config.status(), config_path);
  if (!env.Exists(weights_path) && env.Exists(weights_path + ".index.json")) {
    return absl::UnimplementedError(
        absl::StrCat(folder, ": weights in several files (model.safetensors.index.json) are not supported; ",
                     "save them as one model.safetensors"));
  }
  TDOCK_ASSIGN_OR_RETURN(const SafetensorsFile file, SafetensorsFile::Open(env, weights_path));
  if (absl::Status status = CheckWeights(file, *config); !status.ok()) return Annotate(status, weights_path);
  Decoder decoder = Decoder::Uninitialised(*config, device);
  for (auto& [name, weight] : decoder.NamedWeights()) {
    TDOCK_ASSIGN_OR_RETURN(const at::Tensor stored, file.Get(name));
    weight.copy_(stored);
  }
  return decoder;
}

absl::Status SaveCheckpoint(Env& env, const std::string& folder, const Decoder& decoder) {
  TDOCK_RETURN_IF_ERROR(env.CreateFolders(folder));
  TDOCK_RETURN_IF_ERROR(WriteSafetensors(env, JoinPath(folder, "model.safetensors"), decoder.NamedWeights()));
  nlohmann::ordered_json generation = {{"_from_model_config", true}, {"do_sample", false}};
  if (decoder.config().eos_token_id) generation["eos_token_id"] = *decoder.config().eos_token_id;
  if (decoder.config().pad_token_id) generation["pad_token_id"] = *decoder.config().pad_token_id;
  TDOCK_RETURN_IF_ERROR(
      WriteFileAtomically(env, JoinPath(folder, "generation_config.json"), generation.dump(2) + "\n"));
  // config.json goes last: a folder that has one is complete.
  return WriteFileAtomically(env, JoinPath(folder, "config.json"), ModelConfigJson(decoder.config()));
}

}  // namespace tdock::model
