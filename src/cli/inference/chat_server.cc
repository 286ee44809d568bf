#include "cli/inference/chat_server.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <iostream>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/time/time.h"
#include "cli/commands.h"
#include "cli/inference/chat_console.h"
#include "cli/interrupt.h"
#include "core/base/clock.h"
#include "core/base/status.h"
#include "core/base/utf8.h"
#include "trainer/reward/external/patience.h"

namespace tdock::cli {
namespace {

using Json = nlohmann::ordered_json;

constexpr char kServerGroup[] = "A model that a server has";

class ServerChat {
 public:
  ServerChat(const inference::ChatClient& client, std::string model, const std::optional<std::string>& system,
             const Json& sampling, absl::Duration most_wait)
      : client_(client), system_(system), most_wait_(most_wait), base_(sampling) {
    base_["model"] = std::move(model);
  }

  absl::Status Run() {
    TDOCK_RETURN_IF_ERROR(
        console_.Talk([this](const std::string& message) { return Round(message); }, [this] { turns_.clear(); }));
    if (unanswered_ == 0 || console_.asks()) return absl::OkStatus();
    return absl::UnavailableError(absl::StrCat(unanswered_, " of the messages had no answer, or not all of it"));
  }

 private:
  absl::Status Round(const std::string& message) {
    if (const auto bad = FindInvalidUtf8(message)) {
      std::cerr << "The message is left out: it is not UTF-8\n";
      ++unanswered_;
      return absl::OkStatus();
    }
    turns_.push_back({{"role", "user"}, {"content", message}});
    const InterruptCatcher interrupt;
    const auto check_stop = [&] { return interrupt.caught() ? absl::CancelledError("interrupted") : absl::OkStatus(); };
    // A conversation that is too long for the model's context is asked again without its oldest turns.
    size_t dropped = 0;
    inference::ChatReply reply = AskInTurn(dropped, check_stop);
    while (absl::IsOutOfRange(reply.status) && reply.text.empty() && dropped + 2 < turns_.size()) {
      dropped += 2;
      reply = AskInTurn(dropped, check_stop);
    }
    Take(std::move(reply), dropped);
    return absl::OkStatus();
  }

  // Asks again as often as a busy server says when, if that is not too long.
  inference::ChatReply AskInTurn(size_t dropped, const std::function<absl::Status()>& check_stop) const {
    Clock& clock = Clock::Real();
    const absl::Time limit = clock.Now() + most_wait_;
    for (;;) {
      inference::ChatReply reply = Ask(dropped, check_stop);
      if (reply.status.ok() || !reply.wait) return reply;
      const absl::Duration wait = std::max(*reply.wait, absl::Seconds(1));  // a server may say "at once" all the time
      if (clock.Now() + wait > limit) return reply;
      std::cerr << "The server is busy; it is asked again in " << absl::FormatDuration(wait)
                << ". Ctrl-C takes the message back.\n";
      const reward::Patience patience{.clock = clock, .deadline = limit, .check_stop = check_stop};
      const absl::Status waited = patience.SleepUntil(clock.Now() + wait, "the busy server");
      if (!waited.ok()) return {.status = waited};
    }
  }

  inference::ChatReply Ask(size_t dropped, const std::function<absl::Status()>& check_stop) const {
    Json request = base_;
    Json& messages = request["messages"] = Json::array();
    if (system_) messages.push_back({{"role", "system"}, {"content", *system_}});
    for (size_t i = dropped; i < turns_.size(); ++i) messages.push_back(turns_[i]);
    return client_.Ask(
        std::move(request), [this](absl::string_view text) { console_.Show(text); }, check_stop);
  }

  // Keeps what was said: also an answer that was interrupted or cut off, as far as it came.
  void Take(inference::ChatReply reply, size_t dropped) {
    const bool interrupted = absl::IsCancelled(reply.status);
    if (reply.status.ok() || interrupted || !reply.text.empty()) std::cout << std::endl;
    if (!reply.status.ok() && !interrupted) {
      ++unanswered_;
      std::cerr << (reply.text.empty() ? "The message is left out: " : "The answer is cut off: ")
                << EscapeForTerminal(reply.status.message()) << "\n";
    } else if (!reply.finish_reason.empty() && reply.finish_reason != "stop" && reply.finish_reason != "length") {
      std::cerr << "The server ended the answer: " << EscapeForMessage(reply.finish_reason) << "\n";
    }
    if (reply.text.empty() && !reply.status.ok()) {
      turns_.pop_back();
      return;
    }
    if (dropped > 0) {
      turns_.erase(turns_.begin(), turns_.begin() + static_cast<std::ptrdiff_t>(dropped));
      std::cerr << "The conversation is too long for the model: its oldest " << dropped << " turns are forgotten.\n";
    }
    turns_.push_back({{"role", "assistant"}, {"content", std::move(reply.text)}});
  }

  const inference::ChatClient& client_;
  const ChatConsole console_;
  const std::optional<std::string> system_;
  const absl::Duration most_wait_;  // for a server that is busy
  Json base_;                       // of each request
  std::vector<Json> turns_;         // without the system's
  int64_t unanswered_ = 0;
};

}  // namespace

CLI::Option* AddServerOptions(CLI::App& command, ServerChatArguments& arguments) {
  CLI::Option* const server =
      command
          .add_option("--server", arguments.url,
                      "Address of a server that speaks OpenAI's interface, such as http://127.0.0.1:8000 of 'tdock "
                      "serve'; --model then names a model that it has (the first that it lists)")
          ->group(kServerGroup);
  const auto add = [&](const char* name, auto& value, const char* what) {
    return command.add_option(name, value, what)->group(kServerGroup)->needs(server);
  };
  add("--api-key-env", arguments.api_key_env, "The environment variable that has the key for the server");
  add("--ca-file", arguments.ca_file, "Certificates (PEM) that are trusted for https, instead of the system's");
  add("--connect-timeout", arguments.connect_timeout, "Seconds for a connection to the server")
      ->check(CLI::Range(0.001, 1e6))
      ->capture_default_str();
  add("--timeout", arguments.timeout, "Seconds after which a server that sends nothing, or is busy, is given up")
      ->check(CLI::Range(0.001, 1e6))
      ->capture_default_str();
  return server;
}

absl::StatusOr<Json> GivenSampling(const CLI::App& command, const SamplingArguments& arguments) {
  TDOCK_ASSIGN_OR_RETURN(const engine::SamplingParams params, ReadSampling(arguments));
  Json fields = {{"max_tokens", params.max_new_tokens}};
  const auto add = [&](const char* option, const char* field, const auto& value) {
    if (command.get_option(option)->count() > 0) fields[field] = value;
  };
  add("--temperature", "temperature", params.temperature);
  add("--top-p", "top_p", params.top_p);
  add("--top-k", "top_k", params.top_k);
  add("--min-p", "min_p", params.min_p);
  add("--repetition-penalty", "repetition_penalty", params.repetition_penalty);
  add("--frequency-penalty", "frequency_penalty", params.frequency_penalty);
  add("--presence-penalty", "presence_penalty", params.presence_penalty);
  add("--seed", "seed", params.seed);
  add("--min-new-tokens", "min_tokens", params.min_new_tokens);
  add("--ignore-eos", "ignore_eos", params.ignore_eos);
  add("--stop", "stop", params.stop);
  add("--stop-tokens", "stop_token_ids", params.stop_tokens);
  add("--allowed-tokens", "allowed_token_ids", params.allowed_tokens);
  for (const auto& [token, bias] : params.logit_bias) fields["logit_bias"][absl::StrCat(token)] = bias;
  for (const std::string& stop : params.stop) {
    if (FindInvalidUtf8(stop)) return absl::InvalidArgumentError("--stop has a text that is not UTF-8");
  }
  return fields;
}

absl::Status ChatWithServer(const ServerChatArguments& arguments, std::string model,
                            const std::optional<std::string>& system, const Json& sampling) {
  const absl::StatusOr<inference::ChatClient> client =
      inference::ChatClient::Create({.url = arguments.url,
                                     .api_key_env = arguments.api_key_env,
                                     .ca_file = arguments.ca_file,
                                     .connect_within = absl::Seconds(arguments.connect_timeout),
                                     .silence = absl::Seconds(arguments.timeout)});
  TDOCK_RETURN_IF_ERROR(Refused(client.status()));
  if (model.empty()) {
    const absl::StatusOr<std::vector<std::string>> models = client->Models();
    TDOCK_RETURN_IF_ERROR(Refused(models.status()));
    model = models->front();
    if (models->size() > 1) {
      std::cerr << "Of the server's models (" << EscapeForMessage(absl::StrJoin(*models, ", "), 1000)
                << "), --model chooses another one than " << EscapeForMessage(model) << ".\n";
    }
  } else if (FindInvalidUtf8(model)) {
    return Refused(absl::InvalidArgumentError("--model is not UTF-8"));
  }
  return Failed(ServerChat(*client, std::move(model), system, sampling, absl::Seconds(arguments.timeout)).Run());
}

}  // namespace tdock::cli
