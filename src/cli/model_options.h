// The options of a command that say which model answers, and where.
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "core/base/workers.h"
#include "core/command/command.h"
#include "engine/engine.h"
#include "engine/model_folder.h"

namespace tdock::cli {

struct ModelArguments {
  std::string model;
  std::string adapter;
  bool unmerged = false;
  std::string dtype = "auto";
  bool int8 = false;
  std::string kernels = "auto";
  std::string device = "cpu";
  int threads = 0;
  int64_t max_rows = engine::EngineOptions().max_rows;
  int64_t cache_mib = 0;
  int64_t speculative_tokens = 7;
  std::string draft;
};

// `names` are those of the option for the model's folder, such as "--model". `arguments` must live until the command
// line has been parsed.
void AddModelOptions(CLI::App& command, const char* names, ModelArguments& arguments);

// Those for a command that works on many answers at the same time.
void AddBatchOptions(CLI::App& command, ModelArguments& arguments);

// The errors of LoadModelFolder(), LoadAdapters() and LoadDraft(); InvalidArgument for --int8 on a GPU, and for --dtype
// float16 on the CPU. Throws c10::Error if memory is exhausted.
absl::StatusOr<engine::ModelFolder> LoadModel(const ModelArguments& arguments);

// An engine with the threads that it uses. From the first one on, libtorch's own threads are one for each of these.
class ServedModel {
 public:
  // `folder` must outlive it.
  ServedModel(const ModelArguments& arguments, const engine::ModelFolder& folder);

  engine::Engine& engine() { return engine_; }

 private:
  Workers workers_;
  engine::Engine engine_;
};

}  // namespace tdock::cli
