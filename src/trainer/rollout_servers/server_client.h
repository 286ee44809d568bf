// One server over HTTP.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "trainer/reward/external/http_post.h"
#include "trainer/reward/external/patience.h"
#include "trainer/rollout_servers/wire/weight_calls.h"
#include "trainer/rollout_servers/wire/wire.h"

namespace tdock::trainer {

// What kept a server from doing what it was asked.
enum class Trouble {
  kNone,
  kConnection,  // it cannot be reached, or the connection ended early
  kOverload,    // 429, 502, 503, 504
  kFailed,      // it took too long, failed (other codes from 500) or answered with something that makes no sense
  kRefused,     // other codes from 300 to 499, a certificate, or an answer that lacks what is needed
  kStopped,     // nothing: the stop check said so
};

struct Sent {
  absl::Status status = {};                 // names the server
  Trouble trouble = Trouble::kNone;         // kNone where the status is OK
  int code = 0;                             // of HTTP; 0: there is no answer
  std::optional<absl::Duration> wait = {};  // what the server asks for
  std::string body = {};
};

// What all servers have in common.
struct ServerAccess {
  std::string token = {};       // appears in no message
  reward::TlsContext tls = {};  // for https
};
// InvalidArgument for a variable that is not set, or a file without certificates.
absl::StatusOr<ServerAccess> MakeServerAccess(const std::string& key_env, const std::string& ca_file);

// Each call makes a connection. Thread-safe.
class ServerClient {
 public:
  // InvalidArgument for a URL that is not valid. A path /v1 at its end is understood.
  static absl::StatusOr<ServerClient> Create(const std::string& url, const ServerAccess& access);

  // The address, for messages; the same for URLs that mean the same server.
  const std::string& shown() const { return server_.url.shown; }

  // `ask.target` begins with '/', below the server's address.
  Sent Send(const reward::HttpAsk& ask, const reward::Patience& patience) const;

  // An error of `read`, of what the server said, is one of its own.
  template <class T>
  absl::StatusOr<T> Read(Sent& sent, absl::StatusOr<T> read) const {
    if (!sent.status.ok() || read.ok()) return read;
    sent.status = reward::OfServer(server_, read.status());
    sent.trouble = absl::IsFailedPrecondition(read.status()) || absl::IsNotFound(read.status()) ? Trouble::kRefused
                                                                                                : Trouble::kFailed;
    return sent.status;
  }

  // An answer with a code other than 200 is an error, as in Send().
  Sent Call(const WireCall& call, const reward::Patience& patience) const;

  struct Described {
    Sent sent;
    ServerCard card;
  };
  // Asks what the server is, which weights it has and through which interface it answers; the last is as in `known`, a
  // card that it had before, unless that is null. No tokens are made. A card that is not as `wanted` is refused.
  Described Card(const WantedCard& wanted, const ServerCard* known, const reward::Patience& patience) const;

  struct Completed {
    Sent sent;
    WireReply reply;
  };
  Completed Complete(const WireRequest& request, const ServerCard& card, int64_t vocab_size,
                     const reward::Patience& patience) const;

 private:
  explicit ServerClient(reward::HttpServer server) : server_(std::move(server)) {}

  // Adds to the card of a vLLM or an SGLang what they say of themselves beside their models.
  void Learn(Described& described, const ServerCard* known, const reward::Patience& patience) const;

  reward::HttpServer server_;
};

}  // namespace tdock::trainer
