#include "trainer/merge/open_source.h"

#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "core/base/status.h"
#include "core/base/utf8.h"
#include "trainer/checkpoint/checkpoint_folder.h"
#include "trainer/merge/own_sources.h"
#include "trainer/merge/pickled_sources.h"

namespace tdock::trainer {
namespace {

absl::StatusOr<WeightSource> OpenOwn(Env& env, const std::string& folder, const OpenOptions& options) {
  const auto has = [&](const char* name) { return env.Exists(JoinPath(folder, name)); };
  if (has("manifest.json")) return OpenCheckpoint(env, folder, options.base);
  if (has("adapter_config.json")) return OpenAdapters(env, folder, options.base);
  if (has("config.json")) return OpenModelFolder(env, folder);
  const CheckpointFolder checkpoints(env, JoinPath(folder, "checkpoints"));
  TDOCK_ASSIGN_OR_RETURN(const std::vector<CheckpointPlace> places, checkpoints.List());
  if (!places.empty()) return OpenCheckpoint(env, checkpoints.PathOf(places.back()), options.base);
  if (has("checkpoint")) return OpenModelFolder(env, JoinPath(folder, "checkpoint"));
  return absl::NotFoundError(
      absl::StrCat(EscapeUnprintable(folder),
                   " is neither a run or a checkpoint of one, nor a model with config.json, nor adapters with ",
                   "adapter_config.json"));
}

// As the folder looks.
absl::StatusOr<std::string> BackendOf(Env& env, const std::string& folder) {
  for (const char* name : {"manifest.json", "checkpoints"}) {
    if (env.Exists(JoinPath(folder, name))) return "tdock";
  }
  for (const char* name : {"dist_ckpt", "model/dist_ckpt", ".metadata"}) {
    if (env.Exists(JoinPath(folder, name))) return "megatron";
  }
  TDOCK_ASSIGN_OR_RETURN(const std::vector<std::string> names, env.List(folder));
  for (const std::string& name : names) {
    if (absl::StartsWith(name, "model_world_size_")) return "fsdp";
  }
  return "tdock";
}

absl::StatusOr<WeightSource> OpenAs(Env& env, const std::string& folder, const OpenOptions& options) {
  std::string backend = options.backend;
  if (backend == "auto") {
    TDOCK_ASSIGN_OR_RETURN(backend, BackendOf(env, folder));
  }
  if (backend == "tdock") return OpenOwn(env, folder, options);
  if (backend == "fsdp") return OpenFsdpShards(env, folder, options.python);
  if (backend == "megatron" && options.is_value_model) {
    return absl::UnimplementedError("--is-value-model: value models of Megatron are not read");
  }
  if (backend == "megatron") return OpenMegatronCheckpoint(env, folder, options.python);
  return absl::InvalidArgumentError(
      absl::StrCat("--backend ", EscapeForMessage(backend), ": known are auto, tdock, fsdp and megatron"));
}

}  // namespace

absl::StatusOr<WeightSource> OpenSource(Env& env, const std::string& folder, const OpenOptions& options) {
  if (!env.Exists(folder)) return absl::NotFoundError(absl::StrCat("there is no folder ", EscapeUnprintable(folder)));
  TDOCK_ASSIGN_OR_RETURN(WeightSource source, OpenAs(env, folder, options));
  TDOCK_RETURN_IF_ERROR(ApplyTying(env, source));
  return source;
}

}  // namespace tdock::trainer
