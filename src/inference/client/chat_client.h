// Conversations with a server that speaks OpenAI's /v1/chat/completions.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "core/base/json_text.h"
#include "trainer/reward/external/http_post.h"

namespace tdock::inference {

struct ChatClientOptions {
  std::string url = {};          // http://HOST[:PORT][/PATH]; without a path it is that of OpenAI, /v1
  std::string api_key_env = {};  // the environment variable with the key; empty: none is sent
  std::string ca_file = {};      // certificates (PEM) that are trusted for https; empty: the system's
  absl::Duration connect_within = absl::Seconds(10);
  absl::Duration silence = absl::Seconds(300);  // without a byte from the server
};

// What came of a request.
struct ChatReply {
  absl::Status status;                      // why there is no answer, or not all of it
  std::string text = {};                    // what came
  std::string finish_reason = {};           // "": none was given
  std::optional<absl::Duration> wait = {};  // before another try, as the server asks that is busy (429, 502, 503, 504)
};

// Each call makes one connection. The errors name the server and never the key:
//   Unavailable         it cannot be reached, ends the connection early, or failed itself (5xx)
//   DeadlineExceeded    it says nothing for too long
//   Unauthenticated     it wants a key, or another one (401)
//   PermissionDenied    403
//   NotFound            it has no such model, or nothing at that address (404)
//   ResourceExhausted   it is busy, and says for how long where it does (429)
//   OutOfRange          the conversation is longer than the model's context
//   FailedPrecondition  its certificate is not accepted
//   InvalidArgument     it refuses the request for another reason, or answers with something else than this interface
//   or the error of `check_stop`, which is asked ten times a second and may be empty.
// Thread-safe.
class ChatClient {
 public:
  // InvalidArgument for a URL that is not valid, a variable that is not set, or a file without certificates.
  static absl::StatusOr<ChatClient> Create(const ChatClientOptions& options);

  // The address, for messages.
  const std::string& shown() const { return server_.url.shown; }

  // The names of its models, as it lists them.
  absl::StatusOr<std::vector<std::string>> Models(const std::function<absl::Status()>& check_stop = {}) const;

  // `request` has everything but "stream", in UTF-8. `on_text` gets the pieces of the answer, in whole characters.
  ChatReply Ask(nlohmann::ordered_json request, const std::function<void(absl::string_view text)>& on_text,
                const std::function<absl::Status()>& check_stop) const;

 private:
  ChatClient(reward::HttpServer server, const ChatClientOptions& options)
      : server_(std::move(server)), options_(options) {}

  absl::StatusOr<reward::HttpReply> Send(const reward::HttpAsk& ask, const std::function<absl::Status()>& check_stop,
                                         std::function<bool(absl::string_view piece)> on_piece = {}) const;
  // Of an answer whose code is not 200.
  absl::Status Refusal(const reward::HttpReply& reply) const;

  reward::HttpServer server_;
  ChatClientOptions options_;
};

}  // namespace tdock::inference
