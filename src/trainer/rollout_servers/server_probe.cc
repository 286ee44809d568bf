// Looks before a run begins for what its first step needs of servers.
#include <algorithm>
#include <atomic>
#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "core/base/clock.h"
#include "core/base/status.h"
#include "core/base/utf8.h"
#include "trainer/rollout_servers/server_client.h"
#include "trainer/rollout_servers/server_engine.h"
#include "trainer/rollout_servers/server_list.h"
#include "trainer/rollout_servers/tasks.h"

namespace tdock::trainer {
namespace {

constexpr absl::Duration kCheckWithin = absl::Seconds(60);

// A server while it is looked at.
class ServerProbe {
 public:
  ServerProbe(const ServerClient& server, const ServerEngineOptions& options, const reward::Patience& patience)
      : server_(server), options_(options), patience_(patience) {}

  absl::Status Run(int64_t longest) {
    const ServerClient::Described described = server_.Card(options_.wanted, nullptr, patience_);
    TDOCK_RETURN_IF_ERROR(described.sent.status);
    card_ = described.card;
    if (card_.max_model_len > 0 && card_.max_model_len < longest) {
      return absl::InvalidArgumentError(absl::StrCat(server_.shown(), ": its context has ", card_.max_model_len,
                                                     " tokens, and prompts with their answers have up to ", longest));
    }
    TDOCK_RETURN_IF_ERROR(TakesWeights());
    return Answers();
  }

 private:
  bool is_foreign() const { return card_.kind == ServerKind::kVllm || card_.kind == ServerKind::kSglang; }

  // "vLLM 0.32.0".
  std::string Program() const {
    std::string program(KindName(card_.kind));
    if (!is_foreign()) return program;
    const bool is_vllm = card_.kind == ServerKind::kVllm;
    const Sent sent = server_.Call({.method = "GET", .target = is_vllm ? "/version" : "/server_info"}, patience_);
    const auto version = sent.status.ok() ? ReadProgramVersion(sent.body) : sent.status;
    return version.ok() ? absl::StrCat(program, " ", *version) : program;
  }

  absl::Status TakesNone(absl::string_view way, const std::vector<std::string>& tried, absl::string_view right) const {
    return absl::FailedPreconditionError(
        absl::StrCat(server_.shown(), ": it is ", Program(), ", and takes no weights ", way,
                     tried.empty() ? "" : absl::StrCat(": ", absl::StrJoin(tried, ", ")), "; ", right));
  }

  // Asks for calls with an empty body, which change nothing. Returns what each that is missing was answered with. A
  // program that does not expect such a body may cut the connection, which says nothing of the call.
  absl::StatusOr<std::vector<std::string>> Missing(const std::vector<WireCall>& calls) const {
    std::vector<std::string> missing;
    for (const WireCall& call : calls) {
      const Sent sent = server_.Call(call, patience_);
      if (sent.trouble == Trouble::kOverload) return sent.status;
      if (IsMissing(sent.code)) missing.push_back(absl::StrCat(call.shown(), " was answered with ", sent.code));
    }
    return missing;
  }

  absl::Status TakesWeights() const {
    switch (options_.weights) {
      case ServerWeights::kStream:
        if (card_.is_tdock()) return absl::OkStatus();
        return TakesNone("straight from memory (rollout.server_weights: stream)", {},
                         "only `tdock serve` does: choose folder, or none");
      case ServerWeights::kFolder:
        return TakesFolders();
      case ServerWeights::kNccl:
        return TakesBroadcasts();
      case ServerWeights::kNone:
        break;
    }
    return absl::OkStatus();
  }

  absl::Status TakesFolders() const {
    const bool is_own = HasOwnFolderCall(card_.kind, options_.weights_path);
    TDOCK_ASSIGN_OR_RETURN(const std::vector<std::string> missing,
                           Missing(is_own ? FolderProbes(card_.kind)
                                          : std::vector<WireCall>{{.target = options_.weights_path, .body = "{}"}}));
    if (missing.empty()) return absl::OkStatus();
    absl::string_view right =
        "name what it is told of a folder with rollout.server_weights_path, or choose rollout.server_weights: none";
    if (is_own && card_.kind == ServerKind::kVllm) {
      right =
          "start it with VLLM_SERVER_DEV_MODE=1 in its environment (vLLM since 0.32), or choose "
          "rollout.server_weights: none";
    } else if (is_own) {
      right =
          "SGLang since 0.5.23 takes them; if it has an --admin-api-key, that is the one that rollout.server_key_env "
          "must name";
    }
    return TakesNone("from a folder (rollout.server_weights: folder)", missing, right);
  }

  absl::Status TakesBroadcasts() const {
    constexpr absl::string_view kWay = "by NCCL";
    if (!is_foreign()) return TakesNone(kWay, {}, "vLLM and SGLang do: choose stream or folder");
    if (!options_.open_group) {
      return absl::UnimplementedError(
          absl::StrCat(server_.shown(), ": nothing here connects GPUs with ", KindName(card_.kind),
                       " by NCCL, and the calls for it were never tested with a GPU; choose rollout.server_weights: "
                       "folder"));
    }
    TDOCK_ASSIGN_OR_RETURN(const std::vector<std::string> missing,
                           Missing({RanksCall(card_.kind), LabelCall(card_.kind)}));
    if (missing.empty()) return absl::OkStatus();
    return TakesNone(
        kWay, missing,
        "start a vLLM with VLLM_SERVER_DEV_MODE=1 and --weight-transfer-config '{\"backend\":\"nccl\"}', or "
        "choose folder");
  }

  // Asks for an answer of one token in the way in which the run will ask.
  absl::Status Answers() const {
    const bool sends = options_.weights == ServerWeights::kFolder || options_.weights == ServerWeights::kNccl;
    // A run that was killed while it sent weights has left the server halted.
    if (is_foreign() && sends) server_.Call(GoOnCall(card_.kind), patience_).status.IgnoreError();
    const WireRequest request{.prompt = {static_cast<int32_t>(options_.vocab_size - 1)}, .ends = options_.end_tokens};
    const ServerClient::Completed completed = server_.Complete(request, card_, options_.vocab_size, patience_);
    TDOCK_RETURN_IF_ERROR(completed.sent.status);
    const bool lacks_versions = card_.answers_say_weights && completed.reply.answers[0].weights.empty();
    if (!lacks_versions || !options_.LabelsWeights(card_.kind)) return absl::OkStatus();
    return absl::FailedPreconditionError(
        absl::StrCat(server_.shown(), ": it is ", Program(), ", and its answer to POST ", PathOf(card_.form),
                     " does not say which weights made it (weight_versions): a newer version of it does"));
  }

  const ServerClient& server_;
  const ServerEngineOptions& options_;
  const reward::Patience& patience_;
  ServerCard card_ = {};
};

// True for the error of a server that is away or too busy.
bool MayPass(const absl::Status& status) { return absl::IsUnavailable(status) || absl::IsDeadlineExceeded(status); }

// The troubles of all servers as one error, or as warnings where one server at least can be used.
absl::StatusOr<std::vector<std::string>> Judge(const std::vector<absl::Status>& found) {
  std::vector<std::string> troubles;
  absl::StatusCode code = absl::StatusCode::kOk;
  for (const absl::Status& status : found) {
    if (status.ok()) continue;
    troubles.emplace_back(status.message());
    const bool is_worse = code == absl::StatusCode::kOk || MayPass(absl::Status(code, ""));
    if (is_worse) code = status.code();
  }
  const bool is_one = std::any_of(found.begin(), found.end(), [](const absl::Status& status) { return status.ok(); });
  if (troubles.empty() || (is_one && MayPass(absl::Status(code, "")))) return troubles;
  return absl::Status(code,
                      absl::StrCat("servers of rollout.servers cannot be used:\n  ", absl::StrJoin(troubles, "\n  ")));
}

}  // namespace

absl::StatusOr<std::vector<std::string>> CheckServers(const ServerEngineOptions& options, int64_t longest,
                                                      const std::function<absl::Status()>& check_stop) {
  Env& env = options.env == nullptr ? Env::Real() : *options.env;
  TDOCK_ASSIGN_OR_RETURN(const ServerList list, ServerList::Of(options, env));
  const std::vector<ServerClient>& servers = list.servers();
  Clock& clock = options.clock == nullptr ? Clock::Real() : *options.clock;
  std::vector<absl::Status> found(servers.size());
  const auto stopped = std::make_shared<std::atomic<bool>>(false);
  const reward::Patience patience{.clock = clock, .deadline = clock.Now() + kCheckWithin, .check_stop = [=] {
                                    return *stopped ? absl::CancelledError("stopped") : absl::OkStatus();
                                  }};
  std::atomic<size_t> left = servers.size();
  Tasks tasks;
  for (size_t i = 0; i < servers.size(); ++i) {
    tasks.Run([&, i] {
      found[i] = ServerProbe(servers[i], options, patience).Run(longest);
      --left;
    });
  }
  absl::Status stop;
  while (left > 0) {
    if (stop.ok() && check_stop) stop = check_stop();
    if (!stop.ok()) *stopped = true;
    const reward::Patience pause{.clock = clock, .deadline = absl::InfiniteFuture()};
    pause.SleepUntil(clock.Now() + absl::Milliseconds(20), "servers").IgnoreError();
  }
  TDOCK_RETURN_IF_ERROR(stop);
  return Judge(found);
}

}  // namespace tdock::trainer
