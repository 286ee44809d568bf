// `tdock generate` from a file of prompts to a file of answers, or of scores.
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "cli/prompt_options.h"
#include "core/base/json_text.h"
#include "core/command/command.h"
#include "engine/engine.h"
#include "engine/model_folder.h"

namespace tdock::cli {

struct FileArguments {
  std::string input;
  std::string output;
  bool overwrite = false;
  bool in_order = false;
  bool skip_bad = false;
  bool score = false;  // what there is, instead of answering it
};

// `arguments` must live until the command line has been parsed.
void AddFileOptions(CLI::App& command, FileArguments& arguments);

struct FileWork {
  const FileArguments& arguments;
  const PromptArguments& prompts;
  const std::string& folder;  // of the model
  const engine::ModelFolder& model;
  const engine::SamplingParams& sampling;  // to score, without new tokens
  int64_t samples = 1;
  int64_t max_rows = 0;     // of the engine
  int64_t cache_bytes = 0;  // the same
  bool int8 = false;        // the same
};

// Reads the whole input first, and refuses it with the number of the line that cannot be answered; then answers it with
// the engine, of which nothing else may be asked. Cancelled where a signal has ended it: what had been answered is in
// the output, and the same call goes on from there.
absl::Status GenerateFile(const FileWork& work, engine::Engine& engine);

}  // namespace tdock::cli
