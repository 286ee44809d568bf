#include "trainer/loop/model_files.h"

#include <ATen/ATen.h>
#include <unistd.h>

#include <filesystem>
#include <optional>

#include "absl/strings/str_cat.h"
#include "core/base/status.h"
#include "model/decoder/adapter_files.h"
#include "model/decoder/checkpoint.h"
#include "model/tensor_torch/convert.h"

namespace tdock::trainer {

absl::Status SaveForUse(Env& env, const std::string& folder, const model::Decoder& decoder,
                        const text::Tokenizer& tokenizer, const ModelSection& section) {
  if (section.path.empty()) TDOCK_RETURN_IF_ERROR(tokenizer.Save(env, folder));
  if (decoder.lora()) {
    TDOCK_RETURN_IF_ERROR(model::SaveAdapters(env, JoinPath(folder, "adapter"), decoder, section.path));
  }
  std::optional<at::ScalarType> dtype = section.save_dtype;
  if (!dtype) {
    TDOCK_ASSIGN_OR_RETURN(dtype, ToScalarType(decoder.config().dtype));
  }
  const auto save = [&](const model::Decoder& whole) {
    return model::SaveCheckpoint(env, folder, whole, {.dtype = dtype, .tokenizer_from = section.path});
  };
  return decoder.lora() ? save(decoder.Merged()) : save(decoder);
}

absl::Status SaveToGoOn(Env& env, const std::string& folder, const model::Decoder& decoder,
                        const text::Tokenizer& tokenizer, const ModelSection& section) {
  if (section.path.empty()) TDOCK_RETURN_IF_ERROR(tokenizer.Save(env, folder));
  if (!decoder.lora()) return model::SaveCheckpoint(env, folder, decoder, {.tokenizer_from = section.path});
  if (!section.path.empty()) TDOCK_RETURN_IF_ERROR(model::CopyTokenizerFiles(env, section.path, folder));
  return model::SaveAdapters(env, folder, decoder, section.path);
}

absl::Status SaveConfigToGoOn(Env& env, const std::string& folder, const model::Decoder& decoder,
                              const text::Tokenizer& tokenizer, const ModelSection& section) {
  if (section.path.empty()) TDOCK_RETURN_IF_ERROR(tokenizer.Save(env, folder));
  return model::SaveConfig(env, folder, decoder, {.tokenizer_from = section.path});
}

absl::Status LoadToGoOn(Env& env, const std::string& folder, model::Decoder& decoder) {
  return decoder.lora() ? model::ReloadAdapters(env, folder, &decoder) : model::ReloadWeights(env, folder, &decoder);
}

uint64_t BytesToGoOn(const model::Decoder& decoder) {
  model::NamedTensors saved = decoder.lora() ? decoder.NamedAdapters() : decoder.NamedWeights();
  if (decoder.lora()) {
    for (auto& whole : decoder.SavedWeights(*decoder.lora())) saved.push_back(std::move(whole));
  }
  uint64_t bytes = 0;
  for (const auto& [name, weight] : saved) bytes += weight.nbytes();
  return bytes;
}

std::vector<std::string> RescueFolders(Env& env, const std::string& run_dir) {
  std::filesystem::path run = std::filesystem::path(run_dir).lexically_normal();
  if (!run.has_filename()) run = run.parent_path();  // a slash at the end
  const std::string name = absl::StrCat(run.filename().string(), "-rescued-", ::getpid());
  std::vector<std::string> folders;
  for (const std::string& folder : {(run.parent_path() / name).string(), name}) {
    std::string free = folder;
    // Processes of other containers have the same numbers.
    for (int number = 2; env.Exists(free); ++number) free = absl::StrCat(folder, "-", number);
    folders.push_back(free);
  }
  return folders;
}

}  // namespace tdock::trainer
