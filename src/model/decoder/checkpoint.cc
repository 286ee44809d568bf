#include "model/decoder/checkpoint.h"

#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "absl/strings/str_cat.h"
#include "core/base/json_text.h"
#include "core/base/status.h"
#include "core/base/utf8.h"
#include "model/decoder/device.h"
#include "model/decoder/weight_check.h"
#include "model/decoder/weight_names.h"
#include "model/decoder/weights.h"
#include "model/files/weight_files.h"
#include "model/tensor_torch/convert.h"

namespace tdock::model {
namespace {

constexpr const char* kTokenizerFiles[] = {
    "tokenizer.json", "tokenizer.model", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json",
    "vocab.json",     "merges.txt",      "tekken.json",           "chat_template.jinja",     "chat_template.json"};
// A folder of templates beside the first.
constexpr char kMoreTemplates[] = "additional_chat_templates";
constexpr char kConfig[] = "config.json", kGenerationConfig[] = "generation_config.json";

// Where the weights of a decoder are in the files.
class Placement {
 public:
  // `head` is what the files have behind the layers, `config` what is wanted.
  Placement(const WeightFiles& files, const ModelConfig& config, Head head)
      : files_(files), config_(config), head_(head) {
    const std::string prefix = WeightPrefix(config.architecture);
    const std::vector<std::string> names = files.names();
    bare_ = std::none_of(names.begin(), names.end(), [&](const std::string& name) { return name.starts_with(prefix); });
  }

  // What the files call this weight.
  std::string NameThere(const std::string& name) const {
    const std::string prefix = WeightPrefix(config_.architecture);
    return bare_ && name.starts_with(prefix) ? name.substr(prefix.size()) : name;
  }

  // A weight that the files do not have and need not have.
  bool IsNew(const std::string& name) const { return head_ != config_.head && name == HeadName(config_.head); }

  // Whether the files hold what the configuration asks for, and nothing else.
  absl::Status Check() const {
    std::vector<std::string> names = files_.names();
    std::erase_if(names, IsKnownBuffer);
    WeightCheck check(names);
    const auto shapes = Decoder::WeightShapes(config_);
    for (const auto& [name, shape] : shapes) {
      const std::string there = NameThere(name);
      const SafetensorsFile* file = files_.Find(there);
      if (!IsNew(name)) check.Expect(name, there, shape, file == nullptr ? nullptr : &file->Info(there));
    }
    const std::string head = HeadName(Head::kTokens);
    if (head_ != config_.head) check.Allow(HeadName(head_));
    // Of a model whose head is its embedding, a file may have both, as long as they are the same.
    if (!config_.has_own_head() && check.Allow(head)) {
      TDOCK_RETURN_IF_ERROR(CheckTiedHead(head, NameThere(shapes.front().first)));
    }
    return check.Status("config.json");
  }

  // The dtype of the first weight, which a model's others share.
  DType dtype() const {
    const std::string there = NameThere(Decoder::WeightShapes(config_).front().first);
    return files_.Find(there)->Info(there).dtype;
  }

  absl::Status Read(const std::string& name, at::Tensor& weight) const {
    const std::string there = NameThere(name);
    return CopyWeight(*files_.Find(there), there, weight);
  }

 private:
  absl::Status CheckTiedHead(const std::string& head, const std::string& embedding) const {
    if (files_.Find(embedding) == nullptr) return absl::OkStatus();  // is listed as missing
    TDOCK_ASSIGN_OR_RETURN(const at::Tensor a, ReadTensor(*files_.Find(head), head));
    TDOCK_ASSIGN_OR_RETURN(const at::Tensor b, ReadTensor(*files_.Find(embedding), embedding));
    const bool equal = a.scalar_type() == b.scalar_type() && at::equal(a, b);
    files_.Find(head)->mapping()->Release(files_.Find(head)->Bytes(head));
    if (equal) return absl::OkStatus();
    return absl::InvalidArgumentError(
        absl::StrCat(head, " is not the embedding, but config.json says tie_word_embeddings: true"));
  }

  const WeightFiles& files_;
  const ModelConfig& config_;
  const Head head_;
  bool bare_ = false;
};

absl::StatusOr<ModelConfig> ReadConfig(Env& env, const std::string& folder) {
  const std::string path = JoinPath(folder, kConfig);
  TDOCK_ASSIGN_OR_RETURN(const std::string json, ReadFileUpTo(env, path, kMaxConfigBytes));
  absl::StatusOr<ModelConfig> config = ParseModelConfig(json);
  if (!config.ok()) return Annotate(config.status(), path);
  return config;
}

std::string GenerationConfigJson(const ModelConfig& config) {
  nlohmann::ordered_json generation = {{"_from_model_config", true}, {"do_sample", false}};
  if (!config.other_eos_token_ids.empty()) {
    generation["eos_token_id"] = EosTokenIds(config);
  } else if (config.eos_token_id) {
    generation["eos_token_id"] = *config.eos_token_id;
  }
  if (config.pad_token_id) generation["pad_token_id"] = *config.pad_token_id;
  return JsonText(generation, 2) + "\n";
}

}  // namespace

absl::StatusOr<Decoder> LoadCheckpoint(Env& env, const std::string& folder, const at::Device& device,
                                       const LoadOptions& options) {
  at::NoGradGuard no_grad;
  TDOCK_ASSIGN_OR_RETURN(ModelConfig config, ReadConfig(env, folder));
  if (!options.rope_scaling.empty()) {
    TDOCK_RETURN_IF_ERROR(Annotate(OverrideRope(options.rope_scaling, &config), "rope_scaling"));
  }
  const Head stored_head = config.head;
  if (options.value_head) config.head = Head::kValue;
  TDOCK_ASSIGN_OR_RETURN(const WeightFiles files, WeightFiles::Open(env, folder));
  const Placement placement(files, config, stored_head);
  if (absl::Status status = placement.Check(); !status.ok()) return Annotate(status, files.path());
  Decoder decoder = Decoder::Uninitialised(config, device, options.dtype.value_or(FastType(placement.dtype(), device)));
  for (auto& [name, weight] : decoder.NamedWeights()) {
    if (placement.IsNew(name)) {
      Decoder::InitialiseValueHead(options.seed, weight);
    } else {
      TDOCK_RETURN_IF_ERROR(placement.Read(name, weight));
    }
  }
  return decoder;
}

absl::Status ReloadWeights(Env& env, const std::string& folder, Decoder* decoder) {
  at::NoGradGuard no_grad;
  TDOCK_ASSIGN_OR_RETURN(const WeightFiles files, WeightFiles::Open(env, folder));
  const Placement placement(files, decoder->config(), decoder->config().head);
  if (absl::Status status = placement.Check(); !status.ok()) return Annotate(status, files.path());
  for (auto& [name, weight] : decoder->NamedWeights()) TDOCK_RETURN_IF_ERROR(placement.Read(name, weight));
  return absl::OkStatus();
}

std::vector<std::string> TokenizerFileNames() { return {std::begin(kTokenizerFiles), std::end(kTokenizerFiles)}; }

absl::Status CopyTokenizerFiles(Env& env, const std::string& from, const std::string& to) {
  std::vector<std::string> names = TokenizerFileNames();
  if (env.Exists(JoinPath(from, kMoreTemplates))) {
    TDOCK_ASSIGN_OR_RETURN(const std::vector<std::string> templates, env.List(JoinPath(from, kMoreTemplates)));
    for (const std::string& name : templates) names.push_back(JoinPath(kMoreTemplates, name));
    TDOCK_RETURN_IF_ERROR(env.CreateFolders(JoinPath(to, kMoreTemplates)));
  }
  if (env.Exists(JoinPath(to, kMoreTemplates))) {
    TDOCK_ASSIGN_OR_RETURN(const std::vector<std::string> templates, env.List(JoinPath(to, kMoreTemplates)));
    for (const std::string& name : templates) names.push_back(JoinPath(kMoreTemplates, name));
  }
  for (const std::string& name : names) {
    if (env.Exists(JoinPath(from, name))) {
      TDOCK_ASSIGN_OR_RETURN(const std::string bytes, env.ReadFile(JoinPath(from, name)));
      TDOCK_RETURN_IF_ERROR(WriteFileAtomically(env, JoinPath(to, name), bytes));
    } else if (env.Exists(JoinPath(to, name))) {
      TDOCK_RETURN_IF_ERROR(env.Remove(JoinPath(to, name)));  // of another tokenizer
    }
  }
  return absl::OkStatus();
}

absl::Status SaveCheckpoint(Env& env, const std::string& folder, const Decoder& decoder, const SaveOptions& options) {
  if (decoder.lora()) {
    return absl::FailedPreconditionError(
        absl::StrCat(EscapeUnprintable(folder),
                     ": a checkpoint cannot hold adapters; save the merged weights, or the adapters separately"));
  }
  TDOCK_RETURN_IF_ERROR(env.CreateFolders(folder));
  // config.json goes first and comes last: a folder that has one is complete, and of one model.
  const std::string config_path = JoinPath(folder, kConfig);
  if (env.Exists(config_path)) TDOCK_RETURN_IF_ERROR(env.Remove(config_path));
  TDOCK_RETURN_IF_ERROR(WriteWeights(env, folder, decoder.NamedWeights(), options.max_file_bytes, options.dtype));
  return SaveConfig(env, folder, decoder, options);
}

absl::Status SaveConfig(Env& env, const std::string& folder, const Decoder& decoder, const SaveOptions& options) {
  ModelConfig config = decoder.config();
  TDOCK_ASSIGN_OR_RETURN(config.dtype, ToDType(options.dtype.value_or(decoder.dtype())));
  TDOCK_RETURN_IF_ERROR(env.CreateFolders(folder));
  std::string generation = GenerationConfigJson(config);
  if (const std::string theirs = JoinPath(options.tokenizer_from, kGenerationConfig);
      !options.tokenizer_from.empty() && env.Exists(theirs)) {
    TDOCK_ASSIGN_OR_RETURN(generation, ReadFileUpTo(env, theirs, kMaxConfigBytes));
  }
  if (!options.tokenizer_from.empty() && options.tokenizer_from != folder) {
    TDOCK_RETURN_IF_ERROR(CopyTokenizerFiles(env, options.tokenizer_from, folder));
  }
  TDOCK_RETURN_IF_ERROR(WriteFileAtomically(env, JoinPath(folder, kGenerationConfig), generation));
  return WriteFileAtomically(env, JoinPath(folder, kConfig), ModelConfigJson(config));
}

}  // namespace tdock::model
