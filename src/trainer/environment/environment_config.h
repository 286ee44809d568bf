// What the model of a run talks with while it answers, as the configuration says. docs/environments.md is the
// description for users.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "core/config/spec.h"
#include "text/replies/reply_forms.h"
#include "trainer/environment/environment.h"
#include "trainer/environment/episode_endpoints.h"
#include "trainer/reward/external/log_lines.h"

namespace tdock::environment {

// What becomes of an episode that has failed in all its tries.
enum class OnError {
  kDrop,  // its prompt group is left out of the step
  kZero,  // its reward is 0
  kStop   // the run ends
};

// How turns become tokens.
enum class TurnFormat {
  kChat,  // by the model's chat template
  kText   // as they are
};

// What becomes of a call of a tool that cannot be understood.
enum class OnBadCall {
  kTell,  // the model is told, as the answer of a tool
  kEnd    // the episode is over
};

struct EnvironmentConfig {
  // At most one of them is given.
  std::string program = {};   // a command line
  std::string function = {};  // FILE.py:NAME or MODULE:NAME
  std::string url = {};
  std::string name = {};  // of one that is built in

  std::string python = "python3";
  std::string url_token_env = {};
  std::string url_ca_file = {};
  bool url_verify = true;
  int64_t processes = 1;
  double timeout = 30;  // seconds
  double start_timeout = 60;
  int64_t max_restarts = 5;
  double memory_gb = 8;

  int64_t retries = 2;
  OnError on_error = OnError::kStop;
  int64_t max_turns = 8;
  int64_t max_observation_tokens = 1024;
  TurnFormat format = TurnFormat::kChat;
  std::optional<text::ReplyForm> tool_format = {};  // absent: that of the template
  OnBadCall on_bad_call = OnBadCall::kTell;
  std::vector<std::string> stop = {};  // texts that end a turn of the model, beside its end tokens

  // Whether answers have several turns, or are an agent's.
  bool used() const { return !program.empty() || !function.empty() || !url.empty() || !name.empty(); }
};

// Binds the keys environment.*, with the checks that make MakeEnvironment() succeed as far as it looks at the
// configuration. `config` must outlive `spec`.
void BindEnvironment(config::Spec& spec, EnvironmentConfig& config);

// What environments are told about the run.
struct EnvironmentSetup {
  std::vector<std::string> columns = {};  // the names in EpisodeRow::columns
  std::string model = {};                 // the path of the model's files, for agents that need its tokenizer
  // How agents' completions are sampled.
  double temperature = 1, top_p = 1;
  int64_t max_tokens = 0;  // of an answer with all its turns
  // Opens the endpoints of agents of a URL. Empty: there can be no such agents.
  MakeEndpoints endpoints = {};
  // Gets what programs write to their standard error, and what happens to them. Thread-safe.
  reward::LogSink log = [](const std::string&) {};
};

// The environment of a run; null if none is configured. No program is started and no server asked before
// Environment::Start(). InvalidArgument for what the checks of the configuration refuse, a token that is not there, and
// a file without certificates.
absl::StatusOr<std::unique_ptr<Environment>> MakeEnvironment(const EnvironmentConfig& config,
                                                             const EnvironmentSetup& setup);

}  // namespace tdock::environment
