// `tdock chat --server`: the chat with a model that a server has.
#pragma once

#include <optional>
#include <string>

#include "absl/status/status.h"
#include "cli/sampling_options.h"
#include "core/command/command.h"
#include "inference/client/chat_client.h"

namespace tdock::cli {

struct ServerChatArguments {
  std::string url = {}, api_key_env = {}, ca_file = {};
  double connect_timeout = 10, timeout = 300;  // seconds
};

// --server, and what goes only with it; `arguments` must live until the command line has been parsed. The option
// --server itself.
CLI::Option* AddServerOptions(CLI::App& command, ServerChatArguments& arguments);

// Of the parameters those that the command line of `command` gives, as fields of a request, and the length of an
// answer. The errors of ReadSampling().
absl::StatusOr<nlohmann::ordered_json> GivenSampling(const CLI::App& command, const SamplingArguments& arguments);

// `model` is its name there; where it is empty, the first that the server lists. `sampling` are fields of each request.
// A message without an answer is left out of the conversation, which goes on; standard input that is no terminal then
// ends with an error.
absl::Status ChatWithServer(const ServerChatArguments& arguments, std::string model,
                            const std::optional<std::string>& system, const nlohmann::ordered_json& sampling);

}  // namespace tdock::cli
