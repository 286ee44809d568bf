#include "trainer/rollout_servers/server_client.h"

#include <algorithm>
#include <cstdlib>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "core/base/status.h"
#include "core/base/utf8.h"
#include "trainer/reward/external/http_url.h"

namespace tdock::trainer {
namespace {

Trouble TroubleOf(const absl::Status& status) {
  switch (status.code()) {
    case absl::StatusCode::kOk:
      return Trouble::kNone;
    case absl::StatusCode::kUnavailable:
      return Trouble::kConnection;
    case absl::StatusCode::kFailedPrecondition:  // a certificate
      return Trouble::kRefused;
    case absl::StatusCode::kCancelled:
      return Trouble::kStopped;
    default:
      return Trouble::kFailed;
  }
}

Trouble TroubleOf(int code) {
  // 408: the request came too slowly, of which the server or the network had too much to do.
  if (reward::IsOverload(code) || code == 408) return Trouble::kOverload;
  return code >= 300 && code < 500 ? Trouble::kRefused : Trouble::kFailed;
}

}  // namespace

absl::StatusOr<ServerAccess> MakeServerAccess(const std::string& key_env, const std::string& ca_file) {
  ServerAccess access;
  if (!key_env.empty()) {
    const char* const key = std::getenv(key_env.c_str());
    access.token = key == nullptr ? "" : key;
    if (access.token.empty() || !std::all_of(access.token.begin(), access.token.end(), absl::ascii_isgraph)) {
      return absl::InvalidArgumentError(
          absl::StrCat("rollout.server_key_env names the environment variable ", Quoted(key_env), ", which ",
                       access.token.empty() ? "is not set" : "has more than printable ASCII characters"));
    }
  }
  const absl::StatusOr<reward::TlsContext> tls = reward::MakeTlsContext(ca_file, /*verify=*/true);
  if (!tls.ok() && !ca_file.empty()) return Annotate(tls.status(), "rollout.server_ca_file");
  if (tls.ok()) access.tls = *tls;
  return access;
}

absl::StatusOr<ServerClient> ServerClient::Create(const std::string& url, const ServerAccess& access) {
  reward::HttpServer server;
  TDOCK_ASSIGN_OR_RETURN(server.url, reward::ParseHttpUrl(url, "rollout.server_key_env"));
  std::string& base = server.url.target;
  if (absl::StrContains(base, '?')) {
    return absl::InvalidArgumentError(absl::StrCat(server.url.shown, " has a query; give the address without it"));
  }
  while (absl::EndsWith(base, "/")) base.pop_back();
  if (absl::EndsWith(base, "/v1")) base.resize(base.size() - 3);
  while (absl::EndsWith(base, "/")) base.pop_back();
  server.url.shown = absl::StrCat(server.url.tls ? "https://" : "http://", server.url.host_field, base);
  server.token = access.token;
  server.tls = access.tls;
  if (server.url.tls && server.tls == nullptr) {
    return absl::InvalidArgumentError(
        absl::StrCat(server.url.shown,
                     ": the system has no certificates to check servers with; name some (rollout.server_ca_file)"));
  }
  return ServerClient(std::move(server));
}

Sent ServerClient::Send(const reward::HttpAsk& ask, const reward::Patience& patience) const {
  reward::HttpAsk below = ask;
  below.target = absl::StrCat(server_.url.target, ask.target);
  absl::StatusOr<reward::HttpReply> reply = reward::AskHttp(server_, below, patience);
  Sent sent;
  if (!reply.ok()) {
    sent.trouble = TroubleOf(reply.status());
    sent.status = reward::OfServer(server_, reply.status());
    return sent;
  }
  sent.code = reply->code;
  sent.wait = reply->wait;
  sent.body = std::move(reply->body);
  if (sent.code == 200) return sent;
  reply->body = sent.body;
  sent.trouble = TroubleOf(sent.code);
  const absl::Status said = reward::CodeError(*reply, "the server's address");
  sent.status = reward::OfServer(server_, absl::Status(said.code(), absl::StrCat(ask.target, ": ", said.message())));
  return sent;
}

Sent ServerClient::Call(const WireCall& call, const reward::Patience& patience) const {
  return Send({.method = call.method, .target = call.target, .body = call.body}, patience);
}

ServerClient::Described ServerClient::Card(const WantedCard& wanted, const ServerCard* known,
                                           const reward::Patience& patience) const {
  Described described{.sent = Send({.method = "GET", .target = "/v1/models"}, patience), .card = {}};
  if (!described.sent.status.ok()) return described;
  auto card = ReadCard(described.sent.body, wanted.model);
  if (card.ok()) {
    if (absl::Status status = CheckNumbers(*card, wanted); !status.ok()) card = std::move(status);
  }
  auto read = Read(described.sent, std::move(card));
  if (read.ok()) described.card = *std::move(read);
  const ServerKind kind = described.card.kind;
  if (kind == ServerKind::kVllm || kind == ServerKind::kSglang) Learn(described, known, patience);
  return described;
}

void ServerClient::Learn(Described& described, const ServerCard* known, const reward::Patience& patience) const {
  ServerCard& card = described.card;
  Sent said = Call(LabelCall(card.kind), patience);
  if (said.status.ok()) {
    auto label = Read(said, ReadLabel(said.body));
    if (label.ok()) card.weight_version = *label;
    card.says_weights = label.ok();
  }
  if (!said.status.ok() && !IsMissing(said.code)) {
    described.sent = std::move(said);
    return;
  }
  if (known != nullptr && known->kind == card.kind) {
    card.form = known->form;
  } else if (card.kind == ServerKind::kSglang) {
    card.form = AnswerForm::kGenerate;
  } else {
    // An empty request is refused for what it lacks where the interface is there.
    const std::string path(PathOf(AnswerForm::kTokens));
    Sent asked = Call({.target = path, .body = "{}"}, patience);
    const bool is_there = asked.code == 400 || asked.code == 422;
    if (!is_there && !IsMissing(asked.code)) {
      described.sent = std::move(asked);
      return;
    }
    if (is_there) card.form = AnswerForm::kTokens;
  }
  card.answers_say_weights = card.says_weights && card.form != AnswerForm::kCompletions;
}

ServerClient::Completed ServerClient::Complete(const WireRequest& request, const ServerCard& card, int64_t vocab_size,
                                               const reward::Patience& patience) const {
  Completed completed{.sent = Send({.target = std::string(PathOf(card.form)),
                                    .body = BodyOf(request, card),
                                    .most_answer_bytes = MostReplyBytes(request)},
                                   patience),
                      .reply = {}};
  if (!completed.sent.status.ok()) return completed;
  auto read = Read(completed.sent, ReadReply(completed.sent.body, request, vocab_size, card.form));
  completed.sent.body.clear();
  if (read.ok()) completed.reply = *std::move(read);
  return completed;
}

}  // namespace tdock::trainer
