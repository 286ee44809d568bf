// Judges a connection by its first bytes, before gRPC sees any of them. For this module only.
//
// gRPC keeps for a while whatever any client makes it keep. So a connection is handed to it only when its first request
// shows the token; until then it costs no more than this object and the bytes themselves. These are the frames of
// HTTP/2 (RFC 9113) up to the first request, and nothing else:
//
//   preface | SETTINGS | (SETTINGS PING WINDOW_UPDATE PRIORITY and unknown ones)* | HEADERS CONTINUATION*
//
// A health check without the token is answered, since a process supervisor need not know it: then DATA frames with the
// request follow.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace tdock::rpc {

struct AdmissionRules {
  std::string token = {};  // empty: every client that makes a request is admitted
  // Answers a HealthCheckRequest with a HealthCheckResponse, as the standard health service defines them.
  std::function<absl::StatusOr<std::string>(absl::string_view request)> check_health = {};
};

// Not thread-safe.
class Admission {
 public:
  enum class Verdict {
    kOpen,      // there is no complete request yet
    kAdmit,     // the first request has the token
    kAnswered,  // it does not: answer() is for the client, and then the connection must be closed
    kRefused,   // this is not HTTP/2, or exceeds what may precede a request: the connection must be closed
  };

  // The limit on the bytes before the verdict.
  static constexpr size_t kMostBytes = 32 << 10;

  // What a client waits for before its first request: empty SETTINGS. gRPC sends its own when it gets the connection,
  // and takes the acknowledgement of these for one of its own, which is harmless.
  static absl::string_view Greeting();

  // The rules outlive it.
  explicit Admission(const AdmissionRules& rules) : rules_(rules) {}

  // `seen` is everything received so far, from the first byte on. After a verdict other than kOpen, the result stays
  // the same.
  Verdict Look(absl::string_view seen);
  // The frames of the answer; at most a few hundred bytes.
  const std::string& answer() const { return answer_; }

 private:
  struct FrameHeader {
    size_t length = 0;
    uint8_t type = 0;
    uint8_t flags = 0;
    uint32_t stream = 0;
  };

  Verdict OnPreface(absl::string_view seen);
  Verdict OnFrame(const FrameHeader& frame, absl::string_view payload);
  Verdict OnHeaders(const FrameHeader& frame, absl::string_view payload);
  Verdict OnHeaderBlock(const FrameHeader& frame, absl::string_view fragment);
  Verdict OnRequest();
  Verdict OnData(const FrameHeader& frame, absl::string_view payload);
  Verdict AnswerHealth();
  Verdict Refuse(const absl::Status& status);

  const AdmissionRules& rules_;
  Verdict verdict_ = Verdict::kOpen;
  size_t at_ = 0;  // up to which frames have been parsed
  bool has_settings_ = false;
  uint32_t stream_ = 0;  // of the first request; 0: none yet
  bool in_block_ = false;
  bool end_stream_ = false;
  std::string block_;     // the encoded header fields of the first request
  std::string question_;  // the body of a health check
  std::string answer_;
};

}  // namespace tdock::rpc
