#include "inference/model_server.h"

#include <algorithm>
#include <atomic>
#include <exception>
#include <map>
#include <optional>
#include <random>
#include <utility>
#include <variant>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/strip.h"
#include "core/base/clock.h"
#include "core/base/json_text.h"
#include "core/base/mutex.h"
#include "core/base/rng.h"
#include "core/base/status.h"
#include "core/base/utf8.h"
#include "core/base/work_queue.h"
#include "inference/call.h"
#include "inference/chat_page.h"
#include "inference/constraints.h"
#include "inference/failure.h"
#include "inference/metrics.h"
#include "inference/replica.h"
#include "inference/replies.h"
#include "inference/requests.h"
#include "inference/weight_updates.h"

namespace tdock::inference {
namespace {

using Json = nlohmann::ordered_json;

constexpr char kModels[] = "/v1/models";
// Of an upload of weights, where a body may have as many.
constexpr uint64_t kMostPieceBytes = 8 << 20;
// Maximum body of a request that is answered at once: a larger one would take a while to read.
constexpr size_t kMaxQuickBodyBytes = 64 << 10;
constexpr size_t kShownBytes = 200;         // of what a client has sent
constexpr int kHandlers = 4, kWriters = 2;  // threads

// Takes as long for every key that is as long.
bool IsEqual(absl::string_view a, absl::string_view b) {
  if (a.size() != b.size()) return false;
  unsigned different = 0;
  for (size_t i = 0; i < a.size(); ++i) different |= static_cast<unsigned char>(a[i] ^ b[i]);
  return different == 0;
}

uint64_t RandomSeed() {
  std::random_device device;
  return (uint64_t{device()} << 32) | device();
}

// Whether a page of another site may have sent it: a browser says where a request comes from, other clients nothing.
bool IsOfAnotherSite(const http::Request& request) {
  const absl::string_view site = request.Header("sec-fetch-site");
  if (!site.empty() && site != "same-origin" && site != "none") return true;
  absl::string_view origin = request.Header("origin");
  if (origin.empty()) return false;
  if (!absl::ConsumePrefix(&origin, "http://")) absl::ConsumePrefix(&origin, "https://");
  return origin != request.Header("host");
}

// Whether the name that the client has for this machine stands for this machine only. A name of somebody else's can be
// made to, so that a page of his seems to be of the same site.
bool IsOwnName(absl::string_view host) {
  const size_t colon = host.rfind(':');
  if (colon != absl::string_view::npos && !absl::EndsWith(host, "]")) host = host.substr(0, colon);
  if (host.empty() || host == "localhost" || host == "[::1]") return true;
  return absl::StartsWith(host, "127.") && host.find_first_not_of("0123456789.") == absl::string_view::npos;
}

// The log line of a request, in ASCII: a client chooses the path, and a terminal may show the log.
std::string LogLine(const http::Ended& ended, absl::Time now) {
  Json line = {{"time", absl::FormatTime("%Y-%m-%dT%H:%M:%E3SZ", now, absl::UTCTimeZone())},
               {"peer", ended.peer},
               {"method", ended.method},
               {"path", ended.path.substr(0, 200)},
               {"status", ended.status},
               {"seconds", absl::ToDoubleSeconds(ended.duration)},
               {"request_bytes", ended.request_bytes},
               {"sent_bytes", ended.sent_bytes}};
  if (ended.gone) line["client_gone"] = true;
  if (!ended.note.empty()) {
    const Json note = ReadOrderedJson(ended.note);
    if (note.is_object()) line.update(note);
  }
  return line.dump(-1, ' ', /*ensure_ascii=*/true, Json::error_handler_t::replace);
}

const char* KindOfId(Form form) {
  switch (form) {
    case Form::kChat:
      return "chatcmpl-";
    case Form::kCompletion:
      return "cmpl-";
    case Form::kResponses:
      return "resp_";
    case Form::kGenerate:
      break;
  }
  return "gen-";
}

class ServerOfModel final : public ModelServer {
 public:
  ServerOfModel(ServedModel model, ModelServerOptions options)
      : model_(std::move(model)), options_(std::move(options)), seed_(RandomSeed()), started_(absl::Now()) {
    for (engine::Engine* const engine : model_.engines) replicas_.push_back(std::make_unique<Replica>(*engine));
    updates_ =
        std::make_unique<WeightUpdates>(model_, replicas_, metrics_, options_.asks,
                                        std::min(kMostPieceBytes, options_.limits.max_body_bytes), Clock::Real());
  }

  absl::Status Listen() {
    http::ServerOptions options{
        .host = options_.host, .port = options_.port, .limits = options_.limits, .threads = kHandlers};
    options.admit = [this](const http::Request& request) { return Admit(request); };
    options.is_quick = [this](const http::Request& request) {
      const Route* const route = Find(request.path);
      return route != nullptr && route->is_quick;
    };
    options.describe = [](int status, absl::string_view message) {
      Problem problem{.status = status, .message = std::string(message)};
      if (status >= 500) problem.type = "server_error";
      if (status == 429) {
        problem.type = "rate_limit_error";
        problem.code = "rate_limit_exceeded";
      }
      return ResponseOf(problem);
    };
    options.on_end = [this](const http::Ended& ended) { OnEnd(ended); };
    options.on_trouble = options_.on_trouble;
    auto server = http::Server::Start(
        std::move(options), [this](std::shared_ptr<http::Exchange> exchange) { Handle(std::move(exchange)); });
    if (!server.ok()) return server.status();
    server_ = *std::move(server);
    return absl::OkStatus();
  }

  int port() const override { return server_->port(); }
  bool Drain(absl::Duration limit) override { return server_->Drain(limit); }

 private:
  using Exchange = std::shared_ptr<http::Exchange>;
  struct Route {
    std::vector<absl::string_view> methods = {};
    void (ServerOfModel::*handle)(const Exchange& exchange) = nullptr;
    // Its handler neither computes nor waits: for a step, for other handlers, or for a lock that these hold for long.
    bool is_quick = false;
  };

  const Route* Find(absl::string_view path) const;
  std::optional<http::Response> Admit(const http::Request& request) const;
  // Where anybody may ask, web pages may not: they run on machines that can reach the server.
  std::optional<http::Response> RefusePages(const http::Request& request) const;
  void OnEnd(const http::Ended& ended);
  void Handle(Exchange exchange);

  template <Form form>
  void Answer(const Exchange& exchange) {
    Answer(exchange, form);
  }
  void Answer(const Exchange& exchange, Form form);
  // A problem if it is another model than the one that is served.
  std::optional<Problem> CheckModel(const std::string& name) const;
  void Start(const Exchange& exchange, const Ask& ask) TDOCK_EXCLUDES(mu_);
  // Ends the reading of prompts whose client is gone, also because the server ends, or whose time is up.
  StopCheck StopOf(const Exchange& exchange) const;
  std::variant<std::vector<engine::Request>, Problem> Prepare(const Exchange& exchange, const Ask& ask,
                                                              uint64_t number);
  Replica& QuietestReplica() const;
  // Whether so many answers more may be open; then they are.
  bool Reserve(int64_t answers);
  http::Response Busy() const;
  void AddCall(const std::vector<std::string>& names, const std::shared_ptr<Call>& call) TDOCK_EXCLUDES(mu_);
  void RemoveCall(const std::vector<std::string>& names, const Call* call) TDOCK_EXCLUDES(mu_);

  void Page(const Exchange& exchange) { exchange->Send(ChatPage()); }
  void Tokenize(const Exchange& exchange);
  void Detokenize(const Exchange& exchange);
  void RefuseEmbeddings(const Exchange& exchange);
  void Health(const Exchange& exchange);
  // Why no answer can be given.
  absl::Status CanAnswer() const;
  void Models(const Exchange& exchange);
  void MetricsPage(const Exchange& exchange);
  void Abort(const Exchange& exchange) TDOCK_EXCLUDES(mu_);
  void FlushCache(const Exchange& exchange) { exchange->Send(updates_->FlushCache()); }
  void UpdateWeights(const Exchange& exchange) { exchange->Send(updates_->Update(exchange->request())); }

  const ServedModel model_;
  const ModelServerOptions options_;
  const uint64_t seed_;
  const absl::Time started_;
  Metrics metrics_;
  std::atomic<uint64_t> requests_ = 0;
  std::atomic<int64_t> open_ = 0;
  std::atomic<double> seconds_ = 1;  // that answers take, of the last ones

  Constraints constraints_{model_};

  Mutex mu_;
  std::multimap<std::string, std::weak_ptr<Call>> calls_ TDOCK_GUARDED_BY(mu_);

  // Destroyed in the opposite order: the replicas' threads end after the handlers that use them, and then no reply is
  // left to be written.
  WorkQueue writers_{kWriters};
  std::vector<std::unique_ptr<Replica>> replicas_;
  std::unique_ptr<WeightUpdates> updates_;
  std::unique_ptr<http::Server> server_;
};

const ServerOfModel::Route* ServerOfModel::Find(absl::string_view path) const {
  static const auto* const kRoutes = new std::map<absl::string_view, Route>{
      {"/", {{"GET"}, &ServerOfModel::Page, /*is_quick=*/true}},
      {"/health", {{"GET"}, &ServerOfModel::Health, /*is_quick=*/true}},
      {"/metrics", {{"GET"}, &ServerOfModel::MetricsPage, /*is_quick=*/true}},
      {kModels, {{"GET"}, &ServerOfModel::Models, /*is_quick=*/true}},
      {"/v1/completions", {{"POST"}, &ServerOfModel::Answer<Form::kCompletion>}},
      {"/v1/chat/completions", {{"POST"}, &ServerOfModel::Answer<Form::kChat>}},
      {"/v1/responses", {{"POST"}, &ServerOfModel::Answer<Form::kResponses>}},
      {"/v1/embeddings", {{"POST"}, &ServerOfModel::RefuseEmbeddings, /*is_quick=*/true}},
      {"/tokenize", {{"POST"}, &ServerOfModel::Tokenize}},
      {"/detokenize", {{"POST"}, &ServerOfModel::Detokenize}},
      {"/generate", {{"POST"}, &ServerOfModel::Answer<Form::kGenerate>}},
      {"/abort_request", {{"POST"}, &ServerOfModel::Abort, /*is_quick=*/true}},
      {"/flush_cache", {{"POST", "GET"}, &ServerOfModel::FlushCache}},
      {"/update_weights", {{"POST"}, &ServerOfModel::UpdateWeights}},
      {"/update_weights_from_disk", {{"POST"}, &ServerOfModel::UpdateWeights}},
  };
  const bool one_model = absl::StartsWith(path, absl::StrCat(kModels, "/"));
  const auto found = kRoutes->find(one_model ? kModels : path);
  return found == kRoutes->end() ? nullptr : &found->second;
}

std::optional<http::Response> ServerOfModel::RefusePages(const http::Request& request) const {
  const bool is_local = IsOwnName(options_.host) || options_.host == "::1";
  const bool only_reads = request.method == "GET" && request.path != "/flush_cache";
  std::string why;
  if (is_local && !IsOwnName(request.Header("host"))) {
    why = absl::StrCat("the server is for this machine, which is not called '",
                       EscapeForMessage(request.Header("host"), kShownBytes),
                       "'; give it --api-key-file to reach it by other names");
  } else if (!only_reads && IsOfAnotherSite(request)) {
    why = "a page of another site may not ask; give the server --api-key-file";
  }
  if (why.empty()) return std::nullopt;
  return ResponseOf({.status = 403, .message = why, .code = "cross_site"});
}

std::optional<http::Response> ServerOfModel::Admit(const http::Request& request) const {
  const Route* const route = Find(request.path);
  if (options_.api_keys.empty()) {
    if (auto refused = RefusePages(request)) return refused;
  } else if (request.path != "/" && request.path != "/health") {
    absl::string_view given = request.Header("authorization");
    const bool is_bearer = absl::ConsumePrefix(&given, "Bearer ");
    const bool known = is_bearer && std::any_of(options_.api_keys.begin(), options_.api_keys.end(),
                                                [&](const std::string& key) { return IsEqual(key, given); });
    if (!known) {
      http::Response refused = ResponseOf({.status = 401,
                                           .message = "give one of the server's keys: Authorization: Bearer KEY",
                                           .type = "authentication_error",
                                           .code = "invalid_api_key"});
      refused.headers.emplace_back("WWW-Authenticate", "Bearer");
      return refused;
    }
  }
  if (route == nullptr) {
    return ResponseOf({.status = 404,
                       .message = absl::StrCat("there is nothing at ", EscapeForMessage(request.path, kShownBytes)),
                       .code = "not_found"});
  }
  if (std::find(route->methods.begin(), route->methods.end(), request.method) != route->methods.end()) {
    return std::nullopt;
  }
  const std::string allowed = absl::StrJoin(route->methods, ", ");
  http::Response refused = ResponseOf({.status = 405,
                                       .message = absl::StrCat(EscapeForMessage(request.path), " is for ", allowed,
                                                               ", and not for ", EscapeForMessage(request.method)),
                                       .code = "method_not_allowed"});
  refused.headers.emplace_back("Allow", allowed);
  return refused;
}

void ServerOfModel::OnEnd(const http::Ended& ended) {
  // Only paths that exist: others are the clients' to choose, and would be metrics without end.
  const bool known = Find(ended.path) != nullptr;
  metrics_.CountRequest(known ? (absl::StartsWith(ended.path, kModels) ? kModels : ended.path) : "other", ended.status,
                        ended.gone, ended.duration);
  if (options_.access_log) options_.access_log(LogLine(ended, absl::Now()));
}

void ServerOfModel::Handle(Exchange exchange) {
  const Route* const route = Find(exchange->request().path);
  if (route == nullptr) return;  // not admitted
  try {
    (this->*route->handle)(exchange);
  } catch (const std::exception& error) {
    exchange->Send(ResponseOf({.status = 500, .message = WhatOf(error), .type = "server_error"}));
  }
}

bool ServerOfModel::Reserve(int64_t answers) {
  if (open_.fetch_add(answers) + answers <= options_.max_open_answers) return true;
  open_ -= answers;
  return false;
}

http::Response ServerOfModel::Busy() const {
  http::Response busy =
      ResponseOf({.status = 429,
                  .message = absl::StrCat("the server has ", open_.load(), " answers to give, of at most ",
                                          options_.max_open_answers, "; try again"),
                  .type = "rate_limit_error",
                  .code = "rate_limit_exceeded"});
  const auto seconds = static_cast<int64_t>(std::clamp(seconds_.load(), 0.0, 59.0)) + 1;
  busy.headers.emplace_back("Retry-After", absl::StrCat(seconds));
  return busy;
}

std::optional<Problem> ServerOfModel::CheckModel(const std::string& name) const {
  const auto& names = model_.names;
  if (name.empty() || std::find(names.begin(), names.end(), name) != names.end()) return std::nullopt;
  return Problem{.status = 404,
                 .message = absl::StrCat("there is no model '", EscapeForMessage(name, kShownBytes),
                                         "' here; this one is '", EscapeForMessage(names.front()), "'"),
                 .param = "model",
                 .code = "model_not_found"};
}

void ServerOfModel::Answer(const Exchange& exchange, Form form) {
  const auto read = ReadAsk(form, exchange->request().body, options_.asks);
  exchange->DropBody();
  if (const auto* problem = std::get_if<Problem>(&read)) return exchange->Send(ResponseOf(*problem));
  const Ask& ask = std::get<Ask>(read);
  if (const auto problem = CheckModel(ask.model)) return exchange->Send(ResponseOf(*problem));
  Start(exchange, ask);
}

// In vLLM's form.
void ServerOfModel::Tokenize(const Exchange& exchange) {
  const auto read = ReadTokenize(exchange->request().body, options_.asks);
  exchange->DropBody();
  if (const auto* problem = std::get_if<Problem>(&read)) return exchange->Send(ResponseOf(*problem));
  const auto& [ask, token_texts] = std::get<TokenizeAsk>(read);
  if (const auto problem = CheckModel(ask.model)) return exchange->Send(ResponseOf(*problem));
  const auto found = PromptsOf(ask, model_, {.stop = StopOf(exchange)});
  if (const auto* problem = std::get_if<Problem>(&found)) return exchange->Send(ResponseOf(*problem));
  const std::vector<int32_t>& tokens = std::get<0>(found).front();
  Json texts;
  if (token_texts) {
    texts = Json::array();
    for (const int32_t token : tokens) texts.push_back(model_.tokenizer->IdToToken(token).value_or(""));
  }
  exchange->Send({.body = JsonText(Json{{"count", tokens.size()},
                                        {"max_model_len", model_.context_length},
                                        {"tokens", tokens},
                                        {"token_strs", std::move(texts)}})});
}

void ServerOfModel::Detokenize(const Exchange& exchange) {
  const auto read = ReadDetokenize(exchange->request().body, options_.asks);
  exchange->DropBody();
  if (const auto* problem = std::get_if<Problem>(&read)) return exchange->Send(ResponseOf(*problem));
  const auto& [model, tokens] = std::get<DetokenizeAsk>(read);
  if (const auto problem = CheckModel(model)) return exchange->Send(ResponseOf(*problem));
  if (const auto problem = CheckTokens(tokens, "tokens", model_)) return exchange->Send(ResponseOf(*problem));
  const auto text = model_.tokenizer->Decode(tokens, text::SpecialTokens::kKeep);
  if (text.ok()) return exchange->Send({.body = JsonText(Json{{"prompt", *text}})});
  Problem problem = ProblemOf(text.status());
  problem.param = "tokens";
  exchange->Send(ResponseOf(problem));
}

void ServerOfModel::RefuseEmbeddings(const Exchange& exchange) {
  exchange->Send(
      ResponseOf({.message = "this server answers with text: it computes no embeddings", .code = "unsupported_value"}));
}

StopCheck ServerOfModel::StopOf(const Exchange& exchange) const {
  const absl::Time limit = Clock::Real().Now() + options_.prepare_timeout;
  return [exchange, limit, patience = options_.prepare_timeout]() -> absl::Status {
    if (exchange->gone()) return absl::CancelledError("the client is gone, or the server ends");
    if (Clock::Real().Now() <= limit) return absl::OkStatus();
    return absl::DeadlineExceededError(
        absl::StrCat("the prompt did not become tokens within ", absl::FormatDuration(patience), "; make it shorter"));
  };
}

std::variant<std::vector<engine::Request>, Problem> ServerOfModel::Prepare(const Exchange& exchange, const Ask& ask,
                                                                           uint64_t number) {
  auto asked = RequestsOf(ask, model_, seed_, number << 16, StopOf(exchange));
  auto* const requests = std::get_if<std::vector<engine::Request>>(&asked);
  if (requests == nullptr) return asked;
  // Before the engine's thread has to.
  if (ask.log_probs || ask.prompt_log_probs || (ask.stream && ask.token_ids)) model_.texts->AllBytes();
  for (engine::Request& request : *requests) {
    if (options_.answer_timeout != absl::InfiniteDuration()) {
      request.deadline = Clock::Real().Now() + options_.answer_timeout;
    }
    if (!ask.grammar) continue;
    auto constrain = constraints_.For(ask, request.prompt.tokens);
    if (auto* const problem = std::get_if<Problem>(&constrain)) return std::move(*problem);
    request.constrain = std::get<Constraints::Make>(std::move(constrain));
  }
  return asked;
}

// Returns the one with the fewest answers among those that can answer.
Replica& ServerOfModel::QuietestReplica() const {
  const auto rank = [](const auto& replica) { return std::make_pair(!replica->health().ok(), replica->open()); };
  return **std::min_element(replicas_.begin(), replicas_.end(),
                            [&](const auto& a, const auto& b) { return rank(a) < rank(b); });
}

// Room for the answers is taken before the prompts are read, which takes longer.
void ServerOfModel::Start(const Exchange& exchange, const Ask& ask) {
  const int64_t prompts = ask.turns.empty() ? static_cast<int64_t>(ask.prompts.size()) : 1;
  const int64_t answers = prompts * ask.n;
  if (!Reserve(answers)) return exchange->Send(Busy());
  absl::Cleanup unreserve = [&] { open_ -= answers; };
  const uint64_t number = ++requests_;
  auto asked = Prepare(exchange, ask, number);
  if (const auto* problem = std::get_if<Problem>(&asked)) return exchange->Send(ResponseOf(*problem));
  std::vector<std::string> names = {
      absl::StrCat(KindOfId(ask.form), absl::Hex(DeriveSeed(seed_, number), absl::kZeroPad16))};
  if (!ask.request_id.empty()) names.push_back(ask.request_id);
  const absl::Time begun = Clock::Real().Now();
  auto call = std::make_shared<std::weak_ptr<Call>>();
  const auto made = std::make_shared<Call>(ask, names.front(), exchange, model_, metrics_, writers_,
                                           [this, names, answers, begun, call] {
                                             open_ -= answers;
                                             const double took = absl::ToDoubleSeconds(Clock::Real().Now() - begun);
                                             seconds_ = 0.9 * seconds_.load() + 0.1 * took;
                                             RemoveCall(names, call->lock().get());
                                           });
  *call = made;
  std::move(unreserve).Cancel();
  absl::Cleanup forget = [&] {
    open_ -= answers;
    RemoveCall(names, made.get());
  };
  AddCall(names, made);
  Replica& replica = QuietestReplica();
  std::move(forget).Cancel();  // the call does it when it ends
  made->Start(std::get<std::vector<engine::Request>>(std::move(asked)), replica);
}

void ServerOfModel::AddCall(const std::vector<std::string>& names, const std::shared_ptr<Call>& call) {
  const MutexLock lock(mu_);
  for (const std::string& name : names) calls_.emplace(name, call);
}

void ServerOfModel::RemoveCall(const std::vector<std::string>& names, const Call* call) {
  const MutexLock lock(mu_);
  for (const std::string& name : names) {
    const auto [begin, end] = calls_.equal_range(name);
    for (auto one = begin; one != end; ++one) {
      if (one->second.lock().get() != call) continue;
      calls_.erase(one);
      break;
    }
  }
}

absl::Status ServerOfModel::CanAnswer() const {
  TDOCK_RETURN_IF_ERROR(updates_->health());
  absl::Status why;
  for (const auto& replica : replicas_) {
    const absl::Status health = replica->health();
    if (health.ok()) return health;
    why.Update(health);
  }
  return why;
}

void ServerOfModel::Health(const Exchange& exchange) {
  const absl::Status can_answer = CanAnswer();
  if (can_answer.ok()) return exchange->Send({.body = "{\"status\":\"ok\"}"});
  exchange->Send(ResponseOf({.status = 503,
                             .message = absl::StrCat("the server cannot answer: ", can_answer.message()),
                             .type = "server_error",
                             .code = "cannot_answer"}));
}

void ServerOfModel::Models(const Exchange& exchange) {
  Json data = Json::array();
  for (const std::string& name : model_.names) {
    data.push_back({{"id", name},
                    {"object", "model"},
                    {"created", absl::ToUnixSeconds(started_)},
                    {"owned_by", "tdock"},
                    {"max_model_len", model_.context_length},
                    {"dtype", model_.dtype},
                    {"kernels", model_.kernels},
                    {"instance", model_.instance},
                    {"weight_version", updates_->version()}});
  }
  const std::string& path = exchange->request().path;
  if (path == kModels) return exchange->Send({.body = JsonText(Json{{"object", "list"}, {"data", std::move(data)}})});
  const std::string wanted = absl::StrReplaceAll(path.substr(sizeof kModels), {{"%2F", "/"}, {"%2f", "/"}});
  for (const Json& one : data) {
    if (one["id"] == wanted) return exchange->Send({.body = JsonText(one)});
  }
  exchange->Send(
      ResponseOf({.status = 404,
                  .message = absl::StrCat("there is no model '", EscapeForMessage(wanted, kShownBytes), "' here"),
                  .param = "model",
                  .code = "model_not_found"}));
}

void ServerOfModel::MetricsPage(const Exchange& exchange) {
  Gauges gauges{.connections = server_->connections(),
                .waiting_requests = server_->waiting_requests(),
                .accept_failures = server_->accept_failures(),
                .open_answers = open_,
                .weights_version = updates_->version()};
  for (const auto& replica : replicas_) gauges.engines.push_back(replica->engine().stats());
  exchange->Send({.body = metrics_.Text(gauges), .content_type = "text/plain; version=0.0.4; charset=utf-8"});
}

void ServerOfModel::Abort(const Exchange& exchange) {
  const size_t bytes = exchange->request().body.size();
  if (bytes > kMaxQuickBodyBytes) {
    return exchange->Send(ResponseOf(
        {.status = 413, .message = absl::StrCat("the body has ", bytes, " bytes, and may have ", kMaxQuickBodyBytes)}));
  }
  const auto read = ReadAbort(exchange->request().body, options_.asks);
  if (const auto* problem = std::get_if<Problem>(&read)) return exchange->Send(ResponseOf(*problem));
  const AbortAsk& ask = std::get<AbortAsk>(read);
  std::vector<std::shared_ptr<Call>> calls;
  {
    const MutexLock lock(mu_);
    const auto [begin, end] =
        ask.all ? std::make_pair(calls_.begin(), calls_.end()) : calls_.equal_range(ask.request_id);
    for (auto one = begin; one != end; ++one) {
      if (auto call = one->second.lock(); call != nullptr) calls.push_back(std::move(call));
    }
  }
  std::sort(calls.begin(), calls.end());
  calls.erase(std::unique(calls.begin(), calls.end()), calls.end());
  for (const std::shared_ptr<Call>& call : calls) call->Abort();
  exchange->Send({.body = JsonText(Json{{"success", true}, {"aborted", calls.size()}})});
}

}  // namespace

absl::StatusOr<std::unique_ptr<ModelServer>> ModelServer::Start(ServedModel model, ModelServerOptions options) {
  model.instance = absl::StrCat(absl::Hex(RandomSeed(), absl::kZeroPad16));
  model.texts = std::make_shared<const TokenTexts>(*model.tokenizer);
  options.asks.max_messages = std::min(options.asks.max_messages, model.context_length);
  auto server = std::make_unique<ServerOfModel>(std::move(model), std::move(options));
  if (absl::Status listening = server->Listen(); !listening.ok()) return listening;
  return server;
}

}  // namespace tdock::inference
