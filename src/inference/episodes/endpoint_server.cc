#include "inference/episodes/endpoint_server.h"

#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <deque>
#include <exception>
#include <map>
#include <optional>
#include <random>
#include <set>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "absl/time/clock.h"
#include "core/base/json_text.h"
#include "core/base/mutex.h"
#include "core/base/status.h"
#include "core/base/utf8.h"
#include "core/http/server.h"
#include "engine/sampling/token_constraint.h"
#include "inference/call.h"
#include "inference/constraints.h"
#include "inference/episodes/chat_asks.h"
#include "inference/failure.h"
#include "inference/replies.h"
#include "inference/requests.h"

namespace tdock::inference {
namespace {

using environment::ChatRequest;
using environment::EndpointOptions;
using environment::EpisodeId;
using environment::Generated;
using Json = nlohmann::ordered_json;
using Exchange = std::shared_ptr<http::Exchange>;

constexpr size_t kMaxOpenRequests = 64;  // of an episode
constexpr size_t kRemembered = 1 << 16;  // keys of episodes that are over
constexpr char kChat[] = "/v1/chat/completions", kModels[] = "/v1/models";

std::string RandomKey() {
  std::random_device device;
  std::string key;
  for (int i = 0; i < 4; ++i) absl::StrAppend(&key, absl::Hex(device(), absl::kZeroPad8));
  return key;
}

// The key of the episode that a request is for, and the rest of its path.
struct Place {
  std::string key = {};
  absl::string_view path = {};
};

Place PlaceOf(const http::Request& request) {
  absl::string_view path = request.path;
  if (absl::ConsumePrefix(&path, "/episode/")) {
    const size_t end = std::min(path.find('/'), path.size());
    return {.key = std::string(path.substr(0, end)), .path = path.substr(end)};
  }
  absl::string_view given = request.Header("authorization");
  return {.key = absl::ConsumePrefix(&given, "Bearer ") ? std::string(given) : "", .path = path};
}

ServedModel ModelOf(const EndpointOptions& options) {
  ServedModel model{.names = {options.model}, .tokenizer = options.tokenizer};
  model.texts = std::make_shared<const TokenTexts>(*options.tokenizer);
  if (options.chat_template != nullptr) {
    model.chat_template = *options.chat_template;
    model.reply_form = options.reply_form.value_or(text::ReplyFormOf(*options.chat_template));
    model.has_reasoning = text::HasReasoning(model.reply_form, *options.chat_template);
  }
  model.end_tokens = options.end_tokens;
  return model;
}

engine::FinishReason FinishOf(const std::string& name) {
  using engine::FinishReason;
  for (const FinishReason reason : {FinishReason::kEndToken, FinishReason::kStop}) {
    if (name == engine::NameOf(reason)) return reason;
  }
  return FinishReason::kLength;
}

Problem OfEpisode(int status, std::string message, std::string code) {
  return {.status = status, .message = std::move(message), .code = std::move(code)};
}

Problem Ended() {
  return OfEpisode(410, "the episode of this key is over: nothing answers it any more", "episode_ended");
}

// A request that waits for its reply.
struct OpenRequest {
  Ask ask = {};
  Exchange exchange = {};
};

struct Episode {
  std::string key = {};
  std::map<int64_t, OpenRequest> open = {};  // by number
};

class EndpointServer final : public environment::EpisodeEndpoints {
 public:
  EndpointServer(const EndpointOptions& options, int descriptor)
      : options_(options), model_(ModelOf(options)), descriptor_(descriptor) {}
  ~EndpointServer() override {
    server_.reset();
    close(descriptor_);
  }

  absl::Status Listen() {
    http::ServerOptions options;
    options.admit = [this](const http::Request& request) { return Admit(request); };
    options.describe = [](int status, absl::string_view message) {
      return ResponseOf({.status = status, .message = std::string(message)});
    };
    options.on_trouble = [this](const std::string& what) { options_.log(absl::StrCat("endpoints of agents: ", what)); };
    TDOCK_ASSIGN_OR_RETURN(
        server_, http::Server::Start(std::move(options), [this](Exchange exchange) {
          try {
            Handle(exchange);
          } catch (const std::exception& error) {
            exchange->Send(ResponseOf({.status = 500, .message = WhatOf(error), .type = "server_error"}));
          }
        }));
    return absl::OkStatus();
  }

  environment::Endpoint Open(EpisodeId episode) override {
    const std::string key = RandomKey();
    {
      const MutexLock lock(mu_);
      episodes_[episode].key = key;
      by_key_[key] = episode;
    }
    return {.base_url = absl::StrCat("http://127.0.0.1:", server_->port(), "/episode/", key, "/v1"),
            .api_key = key,
            .model = options_.model};
  }

  void Close(EpisodeId episode) override {
    Episode closed;
    {
      const MutexLock lock(mu_);
      const auto found = episodes_.find(episode);
      if (found == episodes_.end()) return;
      closed = std::move(found->second);
      episodes_.erase(found);
      by_key_.erase(closed.key);
      std::erase_if(come_, [episode](const environment::Event& event) { return event.episode == episode; });
      over_.insert(closed.key);
      over_order_.push_back(closed.key);
      if (over_order_.size() > kRemembered) {
        over_.erase(over_order_.front());
        over_order_.pop_front();
      }
    }
    for (const auto& [number, request] : closed.open) request.exchange->Send(ResponseOf(Ended()));
  }

  std::vector<environment::Event> Take() override {
    const MutexLock lock(mu_);
    uint64_t count = 0;
    while (read(descriptor_, &count, sizeof count) < 0 && errno == EINTR) {
    }
    return std::exchange(come_, {});
  }

  int descriptor() const override { return descriptor_; }
  void Wake() override {
    const uint64_t one = 1;
    TDOCK_CHECK(write(descriptor_, &one, sizeof one) == sizeof one, "an eventfd takes a count");
  }

  void Answer(EpisodeId episode, int64_t number, const absl::StatusOr<Generated>& generated) override {
    std::optional<OpenRequest> request;
    {
      const MutexLock lock(mu_);
      const auto found = episodes_.find(episode);
      if (found == episodes_.end()) return;
      auto node = found->second.open.extract(number);
      if (node.empty()) return;
      request = std::move(node.mapped());
    }
    if (generated.ok()) return Reply(*request, number, *generated);
    Problem problem = ProblemOf(generated.status());
    if (absl::IsOutOfRange(generated.status())) problem.code = "context_length_exceeded";  // as clients know it
    request->exchange->Send(ResponseOf(problem));
  }

 private:
  // A problem where the key or the path names nothing.
  std::optional<http::Response> Admit(const http::Request& request) const {
    const Place place = PlaceOf(request);
    if (place.key.empty()) {
      http::Response refused = ResponseOf(
          {.status = 401,
           .message = "give the key of an episode: in the path, /episode/KEY/v1, or as Authorization: Bearer KEY",
           .type = "authentication_error",
           .code = "invalid_api_key"});
      refused.headers.emplace_back("WWW-Authenticate", "Bearer");
      return refused;
    }
    {
      const MutexLock lock(mu_);
      if (over_.contains(place.key)) return ResponseOf(Ended());
      if (!by_key_.contains(place.key)) {
        return ResponseOf(
            OfEpisode(404, "no episode has this key; use the base_url that the agent was given", "unknown_episode"));
      }
    }
    const bool is_chat = place.path == kChat;
    if (!is_chat && place.path != kModels) {
      return ResponseOf(OfEpisode(404,
                                  absl::StrCat("the endpoint of an episode has ", kChat, " and ", kModels, ", and not ",
                                               EscapeForMessage(place.path, 200)),
                                  "not_found"));
    }
    if (request.method == (is_chat ? "POST" : "GET")) return std::nullopt;
    http::Response refused = ResponseOf(
        OfEpisode(405, absl::StrCat(place.path, " is for ", is_chat ? "POST" : "GET"), "method_not_allowed"));
    refused.headers.emplace_back("Allow", is_chat ? "POST" : "GET");
    return refused;
  }

  void Handle(const Exchange& exchange) {
    const Place place = PlaceOf(exchange->request());
    if (place.path == kModels) {
      const Json model = {{"id", options_.model}, {"object", "model"}, {"created", 0}, {"owned_by", "tdock"}};
      return exchange->Send({.body = JsonText(Json{{"object", "list"}, {"data", Json::array({model})}})});
    }
    auto read = ReadAsk(Form::kChat, exchange->request().body);
    const std::string key = place.key;
    exchange->DropBody();
    if (const auto* problem = std::get_if<Problem>(&read)) return exchange->Send(ResponseOf(*problem));
    Ask& ask = std::get<Ask>(read);
    if (const auto problem = Check(ask)) return exchange->Send(ResponseOf(*problem));
    Warn(ask);
    if (ask.grammar) {  // made here once, and found again for each prompt
      const auto made = constraints_.For(ask, {});
      if (const auto* problem = std::get_if<Problem>(&made)) return exchange->Send(ResponseOf(*problem));
    }
    if (ask.log_probs) model_.texts->AllBytes();  // before the thread that plays episodes has to
    if (const auto problem = Add(key, std::move(ask), exchange)) exchange->Send(ResponseOf(*problem));
  }

  std::optional<Problem> Check(const Ask& ask) const {
    if (auto problem = CheckChatAsk(ask)) return problem;
    if (model_.chat_template.ok() || !ask.grammar || ask.grammar->kind != GrammarSpec::Kind::kCalls) {
      return std::nullopt;
    }
    return Problem{.message = "'tool_choice' needs the chat template that spells calls, and the model has none",
                   .param = "tool_choice",
                   .code = "unsupported_value"};
  }

  // Once for each name.
  void Warn(const Ask& ask) {
    for (const std::string& value : UnusedSampling(ask.sampling, options_.temperature)) {
      const std::string name = value.substr(0, value.find('='));
      {
        const MutexLock lock(mu_);
        if (!warned_.insert(name).second) continue;
      }
      options_.log(absl::StrCat("note: an agent asks for ", value, "; its replies are sampled as the run says, and ",
                                name, " of requests is not used"));
    }
  }

  std::optional<Problem> Add(const std::string& key, Ask ask, const Exchange& exchange) {
    const MutexLock lock(mu_);
    const auto found = by_key_.find(key);
    if (found == by_key_.end()) return Ended();
    Episode& episode = episodes_.at(found->second);
    if (episode.open.size() == kMaxOpenRequests) {
      return Problem{.status = 429,
                     .message = absl::StrCat("the episode has ", kMaxOpenRequests, " requests without a reply"),
                     .type = "rate_limit_error",
                     .code = "rate_limit_exceeded"};
    }
    const int64_t number = ++requests_;
    ChatRequest request{.request = number, .turns = ask.turns, .tools = ask.context.tools};
    request.template_variables = ask.template_variables;
    request.max_tokens = ask.sampling.max_tokens.value_or(0);
    request.stop = ask.sampling.stop.value_or(std::vector<std::string>());
    request.reads_calls = ask.reads_reply && !ask.context.tools.empty();
    request.reads_reasoning = ask.reads_reply;
    request.gone = [exchange] { return exchange->gone(); };
    if (ask.grammar) request.constrain = ConstraintOf(ask);
    ask.turns.clear();
    episode.open[number] = {.ask = std::move(ask), .exchange = exchange};
    come_.push_back({.episode = found->second, .what = std::move(request)});
    Wake();
    return std::nullopt;
  }

  std::function<absl::StatusOr<ChatRequest::MakeConstraint>(const std::vector<int32_t>&)> ConstraintOf(const Ask& ask) {
    return [this, asked = std::make_shared<const Ask>(ask)](
               const std::vector<int32_t>& prompt) -> absl::StatusOr<ChatRequest::MakeConstraint> {
      auto made = constraints_.For(*asked, prompt);
      if (const auto* problem = std::get_if<Problem>(&made)) return absl::InvalidArgumentError(problem->message);
      return std::get<Constraints::Make>(std::move(made));
    };
  }

  void Reply(const OpenRequest& request, int64_t number, const Generated& generated) const {
    Replies replies(request.ask, absl::StrCat("chatcmpl-", number), absl::ToUnixSeconds(absl::Now()), model_);
    Piece piece{.deltas = generated.said};
    for (size_t i = 0; i < generated.token_ids.size(); ++i) {
      piece.tokens.push_back(
          {.token = generated.token_ids[i], .log_prob = generated.log_probs[i], .version = generated.versions[i]});
    }
    piece.finish = FinishOf(generated.stop_reason);
    piece.prompt = &generated.prompt_ids;
    piece.calls_tools = std::any_of(piece.deltas.begin(), piece.deltas.end(), [](const text::ReplyDelta& delta) {
      return delta.kind == text::ReplyDelta::Kind::kCall;
    });
    const Usage usage{.prompt_tokens = std::ssize(generated.prompt_ids),
                      .completion_tokens = std::ssize(generated.token_ids)};
    http::Exchange& exchange = *request.exchange;
    if (!request.ask.stream) return exchange.Send({.body = replies.Whole(std::span(&piece, 1), usage)});
    exchange.Begin({.content_type = "text/event-stream; charset=utf-8", .headers = {{"Cache-Control", "no-cache"}}});
    exchange.End(replies.Opening(0) + replies.Event(piece) + replies.Closing(usage));
  }

  const EndpointOptions options_;
  const ServedModel model_;
  const int descriptor_;
  Constraints constraints_{model_};

  mutable Mutex mu_;
  absl::flat_hash_map<EpisodeId, Episode> episodes_ TDOCK_GUARDED_BY(mu_);
  absl::flat_hash_map<std::string, EpisodeId> by_key_ TDOCK_GUARDED_BY(mu_);
  std::set<std::string> over_ TDOCK_GUARDED_BY(mu_);            // keys of episodes that are over
  std::deque<std::string> over_order_ TDOCK_GUARDED_BY(mu_);    // the same, the oldest first
  std::vector<environment::Event> come_ TDOCK_GUARDED_BY(mu_);  // that Take() has not returned yet
  std::set<std::string> warned_ TDOCK_GUARDED_BY(mu_);
  int64_t requests_ TDOCK_GUARDED_BY(mu_) = 0;
  std::unique_ptr<http::Server> server_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<environment::EpisodeEndpoints>> StartEndpoints(const EndpointOptions& options) {
  const int descriptor = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  if (descriptor < 0) return absl::ErrnoToStatus(errno, "cannot make an eventfd for the endpoints of agents");
  auto server = std::make_unique<EndpointServer>(options, descriptor);
  TDOCK_RETURN_IF_ERROR(server->Listen());
  return server;
}

}  // namespace tdock::inference
