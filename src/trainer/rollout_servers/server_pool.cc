#include "trainer/rollout_servers/server_pool.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "core/base/status.h"
#include "trainer/rollout_servers/weight_check.h"
#include "trainer/rollout_servers/weight_group.h"

namespace tdock::trainer {
namespace {

constexpr BackoffPolicy kBetweenProbes = {
    .initial = absl::Milliseconds(200), .max = absl::Seconds(5), .multiplier = 2, .jitter = 0.5};
constexpr BackoffPolicy kBetweenSends = {
    .initial = absl::Milliseconds(200), .max = absl::Seconds(30), .multiplier = 2, .jitter = 0.5};
constexpr absl::Duration kProbeWithin = absl::Seconds(10);
constexpr absl::Duration kBetweenLooksAtBusy = absl::Seconds(10);
constexpr absl::Duration kAfterMissedLook = absl::Seconds(1);
constexpr int kMissedLooks = 3;  // in a row make a server with requests count as gone
// After requests that fail or are refused, where the connection and the card are right.
constexpr BackoffPolicy kBetweenFailures = {
    .initial = absl::Milliseconds(200), .max = absl::Seconds(30), .multiplier = 2, .jitter = 0.5};
constexpr int kFailuresInARow = 3;  // take a server out for as long as the next pause would be
// How long something between us and the server, such as a gateway while it is started again, may refuse in its place.
constexpr absl::Duration kRefusedFor = absl::Seconds(20);
constexpr absl::Duration kUsualPause = absl::Seconds(1);
constexpr absl::Duration kLongestPause = absl::Seconds(60);
// How long those that have told their cards wait for the others, so that weights are made once for all.
constexpr absl::Duration kGatherWithin = absl::Seconds(2);

Flag NewFlag() { return std::make_shared<std::atomic<bool>>(false); }

absl::Duration PauseOf(const Sent& sent) {
  return std::clamp(sent.wait.value_or(kUsualPause), absl::Milliseconds(50), kLongestPause);
}

// Whether repeating a request later may help, though the server refuses it: it may not be the server that does.
bool MayBeTransient(const Sent& sent) {
  return sent.code >= 300 && sent.code < 500 && sent.code != 400 && sent.code != 413 && sent.code != 422;
}

std::function<absl::Status()> StopOf(std::vector<Flag> flags) {
  return [flags = std::move(flags)] {
    for (const Flag& flag : flags) {
      if (*flag) return absl::CancelledError("it is no longer wanted");
    }
    return absl::OkStatus();
  };
}

}  // namespace

struct ServerPool::Server {
  Server(ServerClient its_client, uint64_t seed)
      : client(std::move(its_client)),
        between_probes(kBetweenProbes, seed),
        between_sends(kBetweenSends, seed),
        between_failures(kBetweenFailures, seed) {}

  const ServerClient client;
  State state = State::kDown;
  Sent trouble = {};        // why it is not ready
  bool has_failed = false;  // at the last attempt to do anything with it
  bool awaited = true;      // Serve() waits for what becomes of it
  bool listed = true;
  bool probing = false, sending = false;
  std::optional<ServerCard> card = {};
  bool card_is_old = true;
  std::map<int64_t, int64_t> versions = {};  // its numbers of weights that we have sent to this instance, to ours
  std::optional<int64_t> weights = {};       // our version of what it has
  int64_t requests = 0, answers = 0;         // in progress
  absl::Time probe_at = absl::InfinitePast();
  absl::Time send_at = absl::InfinitePast();
  absl::Time paused_until = absl::InfinitePast();
  int missed_looks = 0;
  int failures = 0;                                   // of requests, in a row
  absl::Time refused_since = absl::InfiniteFuture();  // in a row, of whatever kind
  Backoff between_probes, between_sends, between_failures;
  Flag cut = NewFlag();
  // State of this start of it.
  std::shared_ptr<WeightCheck> check = std::make_shared<WeightCheck>();
  std::shared_ptr<WeightGroupLink> link = std::make_shared<WeightGroupLink>();

  void ForgetWeights() {
    versions.clear();
    weights.reset();
  }
  void ForgetStart() {
    check = std::make_shared<WeightCheck>();
    link = std::make_shared<WeightGroupLink>();
  }
};

ServerPool::ServerPool(ServerList list, const ServerEngineOptions& options, Env& env, Clock& clock, Tasks& tasks,
                       std::function<void()> on_change)
    : options_(options),
      env_(env),
      clock_(clock),
      tasks_(tasks),
      on_change_(std::move(on_change)),
      stopped_(NewFlag()),
      folders_(env, options.weights_folder, options.tokenizer_from),
      list_(std::move(list)),
      stop_sending_(NewFlag()) {
  for (const ServerClient& client : list_.servers()) {
    servers_.push_back(std::make_shared<Server>(client, servers_.size()));
  }
}

ServerPool::~ServerPool() = default;

void ServerPool::SetTarget(std::shared_ptr<const model::Decoder> decoder, int64_t version, bool keep_cache) {
  MutexLock lock(mu_);
  const absl::Time now = clock_.Now();
  target_at_ = usable_at_ = now;
  if (options_.weights != ServerWeights::kNone || !version_) version_ = version;
  decoder_ = std::move(decoder);
  keep_cache_ = keep_cache;
  stop_sending_ = NewFlag();
  for (const auto& server : servers_) {
    if (server->weights == version_) continue;
    if (options_.weights == ServerWeights::kNone && server->state == State::kReady) continue;
    const bool is_new = !server->card && !server->has_failed;
    server->awaited = server->state != State::kDown || is_new;
    if (server->state == State::kReady) server->state = State::kBehind;
    server->card_is_old = true;
    if (server->awaited) server->probe_at = now;
  }
}

void ServerPool::Refresh(absl::Time now) {
  if (!list_.Refresh(now)) return;
  for (const auto& server : servers_) server->listed = false;
  for (const ServerClient& client : list_.servers()) {
    const auto known = std::find_if(servers_.begin(), servers_.end(), [&](const std::shared_ptr<Server>& server) {
      return server->client.shown() == client.shown();
    });
    if (known != servers_.end()) {
      (*known)->listed = true;
    } else {
      servers_.push_back(std::make_shared<Server>(client, servers_.size()));
    }
  }
}

void ServerPool::Tend(bool sends) {
  MutexLock lock(mu_);
  const absl::Time now = clock_.Now();
  if (*stopped_) return;
  Refresh(now);
  std::erase_if(servers_, [](const std::shared_ptr<Server>& server) {
    return !server->listed && server->requests == 0 && !server->probing && !server->sending;
  });
  bool is_usable = sending_;
  for (const auto& server : servers_) {
    if (!server->listed && server->requests == 0) continue;
    is_usable |= server->listed && server->state == State::kReady;
    const bool is_due = server->state == State::kDown || server->card_is_old || server->requests > 0;
    if (is_due && !server->probing && !server->sending && now >= server->probe_at) Probe(server);
  }
  if (is_usable) usable_at_ = now;
  if (sends && MaySend(now)) StartSending(now);
}

void ServerPool::Probe(const std::shared_ptr<Server>& server) {
  server->probing = true;
  // One that was away may be another one.
  const auto known = server->state == State::kDown ? std::nullopt : server->card;
  tasks_.Run([this, server, known] {
    const reward::Patience patience{
        .clock = clock_, .deadline = clock_.Now() + kProbeWithin, .check_stop = StopOf({stopped_})};
    TakeProbe(*server, server->client.Card(options_.wanted, known ? &*known : nullptr, patience));
    on_change_();
  });
}

void ServerPool::TakeProbe(Server& server, ServerClient::Described described) {
  MutexLock lock(mu_);
  const absl::Time now = clock_.Now();
  server.probing = false;
  if (described.sent.trouble == Trouble::kStopped) return;
  if (described.sent.status.ok()) return TakeCard(server, described.card, now);
  // One that is at work may have no time for this.
  if (server.state == State::kReady && server.requests > 0 && ++server.missed_looks < kMissedLooks) {
    server.probe_at = now + kAfterMissedLook;
    return;
  }
  GoDown(server, described.sent, now + server.between_probes.Next());
  *std::exchange(server.cut, NewFlag()) = true;
}

void ServerPool::TakeCard(Server& server, const ServerCard& card, absl::Time now) {
  const bool is_another = server.card && server.card->instance != card.instance;
  // What does not say which instance it is may be another one when it was away.
  const bool may_be = card.instance.empty() && server.state == State::kDown;
  if (is_another || may_be) server.ForgetWeights();
  // One that was started again has no label of ours.
  if (is_another || (may_be && !card.weight_version)) server.ForgetStart();
  if (card.says_weights && options_.LabelsWeights(card.kind) && server.weights) {
    const auto known = server.versions.find(card.weight_version.value_or(-1));
    if (known == server.versions.end() || known->second != *server.weights) server.ForgetWeights();
  }
  server.card = card;
  server.card_is_old = false;
  server.has_failed = false;
  server.missed_looks = 0;
  server.between_probes.Reset();
  server.probe_at = now + kBetweenLooksAtBusy;
  if (!version_) return;
  if (options_.weights == ServerWeights::kNone) server.weights = version_;
  server.state = server.weights == version_ ? State::kReady : State::kBehind;
  if (server.state == State::kReady) server.awaited = false;
}

void ServerPool::GoDown(Server& server, const Sent& sent, absl::Time probe_at) {
  server.state = State::kDown;
  server.trouble = sent;
  server.has_failed = true;
  server.awaited = false;
  server.card_is_old = true;
  server.missed_looks = 0;
  server.refused_since = sent.trouble != Trouble::kRefused ? absl::InfiniteFuture()
                         : MayBeTransient(sent)            ? std::min(server.refused_since, clock_.Now())
                                                           : absl::InfinitePast();
  server.probe_at = probe_at;
}

bool ServerPool::MaySend(absl::Time now) const {
  if (sending_ || !version_ || decoder_ == nullptr || options_.weights == ServerWeights::kNone) return false;
  return now >= target_at_ + kGatherWithin || std::none_of(servers_.begin(), servers_.end(), [](const auto& server) {
           return server->awaited && server->probing;
         });
}

void ServerPool::StartSending(absl::Time now) {
  std::vector<std::shared_ptr<Server>> servers;
  std::vector<Recipient> recipients;
  for (const auto& server : servers_) {
    if (!server->listed || server->state != State::kBehind || server->card_is_old || server->probing) continue;
    if (now < server->send_at) continue;
    int64_t version = *version_;
    if (server->card->is_tdock()) {  // which numbers them itself
      version = server->card->weight_version.value_or(0) + 1;
      if (!server->versions.empty()) version = std::max(version, server->versions.rbegin()->first + 1);
    }
    server->versions[version] = *version_;  // answers in progress may have tokens of it before the server says so
    server->sending = true;
    servers.push_back(server);
    recipients.push_back({.client = server->client,
                          .version = version,
                          .kind = server->card->kind,
                          .check = server->check,
                          .link = server->link});
  }
  if (servers.empty()) return;
  sending_ = true;
  stop_sending_ = NewFlag();
  tasks_.Run([this, servers = std::move(servers), recipients = std::move(recipients)] {
    SendTo(servers, recipients);
    on_change_();
  });
}

void ServerPool::SendTo(const std::vector<std::shared_ptr<Server>>& servers, const std::vector<Recipient>& recipients) {
  std::shared_ptr<const model::Decoder> decoder;
  int64_t version = 0;
  bool keep_cache = false;
  Flag stop;
  {
    MutexLock lock(mu_);
    decoder = decoder_;
    version = *version_;
    keep_cache = keep_cache_;
    stop = stop_sending_;
  }
  const absl::Time begun = clock_.Now();
  const Deliveries result = Deliver(recipients, *decoder, version, keep_cache, stop);
  decoder.reset();
  MutexLock lock(mu_);
  const absl::Time now = clock_.Now();
  for (size_t i = 0; i < servers.size(); ++i) TakeDelivery(*servers[i], recipients[i], result.deliveries[i], now);
  figures_.sending += now - begun;
  figures_.bytes += result.bytes;
  sending_ = false;
}

Deliveries ServerPool::Deliver(const std::vector<Recipient>& recipients, const model::Decoder& decoder, int64_t version,
                               bool keep_cache, const Flag& stop) {
  const SendOptions options{.keep_cache = keep_cache,
                            .timeout = options_.timeout,
                            .check_stop = StopOf({stopped_, stop}),
                            .clock = &clock_,
                            .tasks = &tasks_};
  if (options_.weights == ServerWeights::kStream) return StreamWeights(decoder, recipients, options);
  if (options_.weights == ServerWeights::kNccl) {
    return BroadcastWeights(decoder, recipients, options_.open_group, options);
  }
  const absl::StatusOr<std::string> folder = folders_.Write(decoder, version);
  if (!folder.ok()) {
    return {.deliveries = std::vector<Delivery>(
                recipients.size(), {.sent = {.status = folder.status(), .trouble = Trouble::kFailed}, .said = {}})};
  }
  Deliveries result = PostFolder(env_, *folder, options_.weights_path, recipients, options);
  folders_.RemoveOthers(version);
  return result;
}

void ServerPool::TakeDelivery(Server& server, const Recipient& recipient, const Delivery& delivery, absl::Time now) {
  server.sending = false;
  server.awaited = false;
  // Unless the server says so, what it calls by that number may be somebody else's.
  server.versions.erase(recipient.version);
  const Sent& sent = delivery.sent;
  if (sent.status.ok()) {
    if (!delivery.said.instance.empty() && delivery.said.instance != server.card->instance) {
      server.ForgetWeights();
      server.card->instance = delivery.said.instance;
    }
    const int64_t number =
        server.card->is_tdock() ? delivery.said.weight_version.value_or(recipient.version) : recipient.version;
    server.versions[number] = *version_;
    server.card->weight_version = number;
    server.weights = version_;
    server.state = State::kReady;
    server.has_failed = false;
    server.refused_since = absl::InfiniteFuture();
    server.between_sends.Reset();
    return;
  }
  // It may have some of the weights, and make tokens with them under the label of those before.
  if (!server.card->is_tdock()) server.ForgetWeights();
  if (sent.trouble == Trouble::kStopped) {
    server.send_at = now + server.between_sends.Next();
    return;
  }
  // Somebody else's upload, or too much to do: it is there, and takes them later.
  if (sent.code == 409 || sent.trouble == Trouble::kOverload) {
    server.trouble = sent;
    server.has_failed = true;
    server.send_at = now + PauseOf(sent);
    server.card_is_old = true;
    server.probe_at = server.send_at;
    return;
  }
  Sent failed = sent;
  if (sent.code == 404 && options_.weights == ServerWeights::kStream) {
    failed.trouble = Trouble::kConnection;  // it has forgotten the upload: it was started again
  }
  GoDown(server, failed, now + server.between_sends.Next());
  server.weights.reset();
}

void ServerPool::StopSending() {
  MutexLock lock(mu_);
  *stop_sending_ = true;
}

bool ServerPool::settled() const {
  MutexLock lock(mu_);
  return !sending_ && std::none_of(servers_.begin(), servers_.end(),
                                   [](const auto& server) { return server->listed && server->awaited; });
}

bool ServerPool::sending() const {
  MutexLock lock(mu_);
  return sending_;
}

int64_t ServerPool::ready() const {
  MutexLock lock(mu_);
  return std::count_if(servers_.begin(), servers_.end(),
                       [](const auto& server) { return server->listed && server->state == State::kReady; });
}

absl::Status ServerPool::Usable() const {
  MutexLock lock(mu_);
  const absl::Time now = clock_.Now();
  const bool none_can_be = !servers_.empty() && list_.trouble().ok() &&
                           std::all_of(servers_.begin(), servers_.end(), [&](const auto& server) {
                             return server->state == State::kDown && server->has_failed &&
                                    server->trouble.trouble == Trouble::kRefused &&
                                    now - server->refused_since >= std::min(kRefusedFor, options_.timeout);
                           });
  if (none_can_be) {
    return absl::FailedPreconditionError(absl::StrCat("no server of rollout.servers can be used:", TroublesLocked()));
  }
  const absl::Duration unused = now - usable_at_;
  if (sending_ || unused < options_.timeout) return absl::OkStatus();
  return absl::UnavailableError(absl::StrCat("for ", absl::FormatDuration(options_.timeout),
                                             " (rollout.server_timeout) no server could be used:", TroublesLocked()));
}

std::string ServerPool::Troubles() const {
  MutexLock lock(mu_);
  return TroublesLocked();
}

std::string ServerPool::TroublesLocked() const {
  std::string troubles;
  for (const auto& server : servers_) {
    if (!server->listed) continue;
    absl::StrAppend(&troubles, "\n  ");
    if (server->has_failed) {
      absl::StrAppend(&troubles, server->trouble.status.message());
    } else if (server->state == State::kReady) {
      absl::StrAppend(&troubles, server->client.shown(), ": is ready, with a context of ", server->card->max_model_len,
                      " tokens");
    } else {
      absl::StrAppend(&troubles, server->client.shown(),
                      server->card ? ": has not the weights yet" : ": has not answered yet");
    }
  }
  if (troubles.empty()) troubles = " none is listed";
  if (!list_.trouble().ok()) absl::StrAppend(&troubles, "\n  ", list_.trouble().message());
  return troubles;
}

std::optional<ServerPool::Lease> ServerPool::Take(const WireRequest& request, const Server* avoided) {
  MutexLock lock(mu_);
  const absl::Time now = clock_.Now();
  const int64_t longest = static_cast<int64_t>(request.prompt.size()) + request.max_tokens;
  std::shared_ptr<Server> best, last;
  bool is_another = false;
  for (const auto& server : servers_) {
    if (!server->listed || server->state != State::kReady) continue;
    if (server->card->max_model_len > 0 && server->card->max_model_len < longest) continue;
    is_another |= server.get() != avoided;
    if (server->requests >= options_.connections || now < server->paused_until) continue;
    if (server.get() == avoided) {
      last = server;
    } else if (best == nullptr || server->answers < best->answers) {
      best = server;
    }
  }
  if (best == nullptr && !is_another) best = last;
  if (best == nullptr) return std::nullopt;
  best->requests += 1;
  best->answers += request.samples;
  return Lease{.server = best,
               .client = best->client,
               .card = *best->card,
               .version = *best->weights,
               .answers = request.samples,
               .cut = best->cut};
}

void ServerPool::Release(const Lease& lease, const Sent& sent) {
  MutexLock lock(mu_);
  Server& server = *lease.server;
  const absl::Time now = clock_.Now();
  server.requests -= 1;
  server.answers -= lease.answers;
  if (sent.trouble == Trouble::kOverload) server.paused_until = now + PauseOf(sent);
  if (sent.trouble == Trouble::kConnection && server.state == State::kReady) GoDown(server, sent, now);
  if (sent.trouble == Trouble::kNone) {
    server.failures = 0;
    server.refused_since = absl::InfiniteFuture();
    server.between_failures.Reset();
  }
  // What is wrong with the request may be so at all servers, and no reason to leave this one out.
  const bool is_of_server = sent.trouble == Trouble::kFailed || (sent.trouble == Trouble::kRefused && sent.code != 400);
  if (!is_of_server || now < server.paused_until) return;  // others that failed together with it count once
  server.paused_until = now + server.between_failures.Next();
  const bool is_out = sent.trouble == Trouble::kRefused || ++server.failures >= kFailuresInARow;
  if (is_out && server.state == State::kReady) GoDown(server, sent, server.paused_until);
}

absl::Status ServerPool::Stamp(const Lease& lease, WireReply& reply) {
  MutexLock lock(mu_);
  Server& server = *lease.server;
  std::string wrong;
  if (ChecksVersions(lease.card) && reply.instance != lease.card.instance) {
    wrong = "it was started again meanwhile";
  }
  for (WireAnswer& answer : reply.answers) {
    if (!ChecksVersions(lease.card)) {
      answer.weights = {{.version = lease.version, .tokens = static_cast<int64_t>(answer.tokens.size())}};
      continue;
    }
    if (answer.weights.empty() && wrong.empty()) wrong = "its answer has no weight_versions";
    for (WireSpan& span : answer.weights) {
      if (!wrong.empty()) break;
      const auto known = server.versions.find(span.version);
      if (known == server.versions.end() || known->second < lease.version) {
        wrong =
            absl::StrCat("its answer is of weights that it calls ",
                         span.version == kUnknownVersion ? "something else" : absl::StrCat("version ", span.version),
                         ", which are not those that it was sent: does something else send it weights?");
      } else {
        span.version = known->second;
      }
    }
  }
  if (wrong.empty()) return absl::OkStatus();
  const absl::Status status = absl::AbortedError(absl::StrCat(server.client.shown(), ": ", wrong));
  if (server.state == State::kReady) {
    server.state = State::kBehind;
    server.trouble = {.status = status, .trouble = Trouble::kFailed};
    server.ForgetWeights();
    server.card_is_old = true;
    server.probe_at = clock_.Now();
  }
  return status;
}

ServerPool::Figures ServerPool::TakeFigures() {
  MutexLock lock(mu_);
  return std::exchange(figures_, {});
}

}  // namespace tdock::trainer
