// rollout.servers, and what belongs to it: servers that answer the prompts of a run.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "core/base/clock.h"
#include "core/base/env.h"
#include "core/config/spec.h"
#include "model/decoder/decoder.h"
#include "trainer/rollout_servers/server_engine.h"

namespace tdock::trainer {

struct RolloutServersSection {
  std::vector<std::string> urls;
  std::string file;
  ServerWeights weights = ServerWeights::kStream;
  std::string weights_path = "/update_weights";
  std::string weights_folder;  // empty: server_weights in the run's folder
  std::string model, key_env, ca_file;
  int64_t connections = 64;
  double timeout = 300, answer_timeout = 7200;  // seconds
  int64_t retries = 4;

  bool used() const { return !urls.empty() || !file.empty(); }
};

// Binds its keys.
void BindRolloutServers(config::Spec& spec, RolloutServersSection& section);

// Options of an engine of these servers. Folders of weights are in `run_dir` unless the section says otherwise, and
// have the tokenizer of `model_path`, if there is one. Servers compute as `policy` does: in its dtype, with its
// kernels.
ServerEngineOptions ServerOptions(const RolloutServersSection& section, const std::string& run_dir,
                                  const std::string& model_path, const model::Decoder& policy,
                                  const std::vector<int32_t>& end_tokens);

}  // namespace tdock::trainer
