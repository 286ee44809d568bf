#include "inference/client/chat_client.h"

#include <algorithm>
#include <cstdlib>
#include <optional>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "core/base/clock.h"
#include "core/base/json_text.h"
#include "core/base/status.h"
#include "core/base/utf8.h"
#include "inference/client/event_stream.h"

namespace tdock::inference {
namespace {

using Json = nlohmann::json;

constexpr int kDeepest = 64;
constexpr size_t kMostShown = 300;

absl::StatusOr<std::string> KeyOf(const std::string& variable) {
  if (variable.empty()) return std::string();
  const char* const set = std::getenv(variable.c_str());
  const std::string key = set == nullptr ? "" : set;
  if (!key.empty() && std::all_of(key.begin(), key.end(), absl::ascii_isgraph)) return key;
  return absl::InvalidArgumentError(
      absl::StrCat("--api-key-env names the environment variable ", Quoted(variable), ", which ",
                   key.empty() ? "is not set" : "has more than printable ASCII characters"));
}

// object[name] where that is a text; "" elsewhere.
std::string TextAt(const Json& object, const char* name) {
  if (!object.is_object()) return "";
  const auto found = object.find(name);
  return found != object.end() && found->is_string() ? found->get<std::string>() : "";
}

// What servers say of an error: {"error": {"message", "code"}}, {"error": "…"}, {"message": "…"} or {"detail": "…"}.
struct Complaint {
  std::string message, code;
};

Complaint ComplaintOf(const Json& body) {
  const Json error = body.is_object() && body.contains("error") ? body["error"] : Json();
  for (const std::string& text :
       {TextAt(error, "message"), TextAt(body, "error"), TextAt(body, "message"), TextAt(body, "detail")}) {
    if (!text.empty()) return {EscapeForMessage(text, kMostShown), TextAt(error, "code")};
  }
  return {"", TextAt(error, "code")};
}

Complaint ComplaintOf(const std::string& body) {
  const absl::StatusOr<Json> json = ParseJsonObject(body, kDeepest);
  Complaint complaint = json.ok() ? ComplaintOf(*json) : Complaint();
  if (complaint.message.empty()) {
    complaint.message = body.empty() ? "it says no more" : EscapeForMessage(body, kMostShown);
  }
  return complaint;
}

// OpenAI has a code for it; others only say so.
bool IsTooLong(const Complaint& complaint) {
  return complaint.code == "context_length_exceeded" ||
         absl::StrContains(complaint.message, "maximum context length") ||
         absl::StrContains(complaint.message, "exceeds the available context size");
}

absl::StatusCode CodeOf(int code, const Complaint& complaint) {
  switch (code) {
    case 401:
      return absl::StatusCode::kUnauthenticated;
    case 403:
      return absl::StatusCode::kPermissionDenied;
    case 404:
      return absl::StatusCode::kNotFound;
    case 429:
      return absl::StatusCode::kResourceExhausted;
    default:
      if (code >= 500) return absl::StatusCode::kUnavailable;
      return IsTooLong(complaint) ? absl::StatusCode::kOutOfRange : absl::StatusCode::kInvalidArgument;
  }
}

// The events of an answer.
class Answer {
 public:
  Answer(ChatReply& reply, const std::function<void(absl::string_view text)>& on_text)
      : reply_(reply), on_text_(on_text) {}

  bool done() const { return done_; }

  // Whether there may be more.
  bool Take(absl::string_view data) {
    if (data == "[DONE]") {
      done_ = true;
      return false;
    }
    const absl::StatusOr<Json> event = ParseJsonObject(data, kDeepest);
    if (!event.ok()) {
      return Fail(absl::StatusCode::kInvalidArgument,
                  absl::StrCat("an event of its answer is no JSON object: ", event.status().message()));
    }
    if (event->contains("error")) {
      const Complaint complaint = ComplaintOf(*event);
      return Fail(IsTooLong(complaint) ? absl::StatusCode::kOutOfRange : absl::StatusCode::kUnavailable,
                  absl::StrCat("it failed: ", complaint.message.empty() ? "it says no more" : complaint.message));
    }
    const auto choices = event->find("choices");
    if (choices == event->end() || !choices->is_array() || choices->empty()) return true;  // such as the usage
    const Json& choice = choices->front();
    if (const std::string reason = TextAt(choice, "finish_reason"); !reason.empty()) reply_.finish_reason = reason;
    if (!choice.is_object() || !choice.contains("delta")) return true;
    const Json& delta = choice["delta"];
    // Shown, but no part of the conversation that goes on.
    const std::string reasoning =
        TextAt(delta, delta.contains("reasoning_content") ? "reasoning_content" : "reasoning");
    if (!reasoning.empty()) on_text_(reasoning);
    const std::string text = TextAt(delta, "content");
    reasons_ |= !reasoning.empty();
    if (text.empty()) return true;
    if (std::exchange(reasons_, false)) on_text_("\n\n");
    reply_.text += text;
    on_text_(text);
    return true;
  }

 private:
  bool Fail(absl::StatusCode code, const std::string& message) {
    reply_.status = absl::Status(code, message);
    return false;
  }

  ChatReply& reply_;
  const std::function<void(absl::string_view text)>& on_text_;
  bool reasons_ = false;  // what was shown last is reasoning
  bool done_ = false;
};

}  // namespace

absl::StatusOr<ChatClient> ChatClient::Create(const ChatClientOptions& options) {
  reward::HttpServer server;
  TDOCK_ASSIGN_OR_RETURN(server.url, reward::ParseHttpUrl(options.url, "--api-key-env"));
  if (absl::StrContains(server.url.target, '?')) {
    return absl::InvalidArgumentError(absl::StrCat(server.url.shown, " has a query; give the address without it"));
  }
  std::string& base = server.url.target;
  while (absl::EndsWith(base, "/")) base.pop_back();
  if (base.empty()) base = "/v1";
  server.url.shown = absl::StrCat(server.url.tls ? "https://" : "http://", server.url.host_field, server.url.target);
  TDOCK_ASSIGN_OR_RETURN(server.token, KeyOf(options.api_key_env));
  if (server.url.tls) {
    TDOCK_ASSIGN_OR_RETURN(server.tls, reward::MakeTlsContext(options.ca_file, /*verify=*/true));
  }
  server.connect_within = options.connect_within;
  return ChatClient(std::move(server), options);
}

absl::StatusOr<reward::HttpReply> ChatClient::Send(const reward::HttpAsk& ask,
                                                   const std::function<absl::Status()>& check_stop,
                                                   std::function<bool(absl::string_view piece)> on_piece) const {
  Clock& clock = Clock::Real();
  reward::Patience patience{.clock = clock,
                            .deadline = clock.Now() + std::max(options_.silence, options_.connect_within),
                            .check_stop = check_stop};
  reward::HttpAsk sent = ask;
  sent.target = absl::StrCat(server_.url.target, ask.target);
  if (on_piece) {
    sent.on_piece = [&](absl::string_view piece) {
      patience.deadline = clock.Now() + options_.silence;
      return on_piece(piece);
    };
  }
  return reward::AskHttp(server_, sent, patience);
}

absl::Status ChatClient::Refusal(const reward::HttpReply& reply) const {
  if (reply.code >= 300 && reply.code < 400) {
    return absl::InvalidArgumentError(absl::StrCat("it sends elsewhere (", reply.code, "), to ", Quoted(reply.location),
                                                   "; no redirect is followed: give that address itself"));
  }
  const Complaint complaint = ComplaintOf(reply.body);
  std::string message = absl::StrCat("it answers ", reply.code, ": ", complaint.message);
  if (reply.code == 401 || reply.code == 403) {
    absl::StrAppend(&message, server_.token.empty() ? "; --api-key-env names the environment variable with a key"
                                                    : "; is the key that --api-key-env names the right one?");
  }
  if (reply.wait) absl::StrAppend(&message, "; it asks to wait for ", absl::FormatDuration(*reply.wait));
  return {CodeOf(reply.code, complaint), message};
}

absl::StatusOr<std::vector<std::string>> ChatClient::Models(const std::function<absl::Status()>& check_stop) const {
  absl::StatusOr<reward::HttpReply> reply = Send({.method = "GET", .target = "/models"}, check_stop);
  if (!reply.ok()) return reward::OfServer(server_, reply.status());
  if (reply->code != 200) return reward::OfServer(server_, Refusal(*reply));
  const absl::StatusOr<Json> body = ParseJsonObject(reply->body, kDeepest);
  std::vector<std::string> names;
  if (body.ok() && body->contains("data") && (*body)["data"].is_array()) {
    for (const Json& one : (*body)["data"]) {
      if (std::string name = TextAt(one, "id"); !name.empty()) names.push_back(std::move(name));
    }
  }
  if (!names.empty()) return names;
  return absl::InvalidArgumentError(absl::StrCat(server_.url.shown, "/models: it lists no models"));
}

ChatReply ChatClient::Ask(nlohmann::ordered_json request, const std::function<void(absl::string_view text)>& on_text,
                          const std::function<absl::Status()>& check_stop) const {
  request["stream"] = true;
  ChatReply reply;
  Answer answer(reply, on_text);
  EventStream events([&](absl::string_view data) { return answer.Take(data); });
  const absl::StatusOr<reward::HttpReply> sent =
      Send({.target = "/chat/completions", .body = JsonText(request), .accept = "text/event-stream"}, check_stop,
           [&](absl::string_view piece) { return events.Push(piece); });
  if (!reply.status.ok()) {  // of an event
  } else if (!sent.ok() && reply.finish_reason.empty()) {
    reply.status = sent.status();
  } else if (sent.ok() && sent->code != 200) {
    reply.status = Refusal(*sent);
    if (reward::IsOverload(sent->code)) reply.wait = sent->wait;
  } else if (sent.ok() && !absl::StartsWith(sent->content_type, "text/event-stream")) {
    reply.status = absl::InvalidArgumentError(absl::StrCat("it answers with ", Quoted(sent->content_type),
                                                           ", and not with a stream of events (text/event-stream)"));
  } else if (!answer.done() && reply.finish_reason.empty()) {
    reply.status = absl::UnavailableError("the server ended its answer in the middle");
  }
  if (absl::IsNotFound(reply.status)) {
    const auto models = Models(check_stop);
    const std::string hint =
        models.ok() ? absl::StrCat("its models are: ", EscapeForMessage(absl::StrJoin(*models, ", "), kMostShown))
                    : "is the address that of its interface, as http://HOST:PORT/v1?";
    reply.status = absl::NotFoundError(absl::StrCat(reply.status.message(), "; ", hint));
  }
  if (!reply.status.ok()) reply.status = reward::OfServer(server_, reply.status);
  return reply;
}

}  // namespace tdock::inference
