// Judges a connection by the first bytes that come over it, before gRPC sees any of them. For this module only.
//
// gRPC keeps for a while whatever a client makes it keep, whoever that client is. So a connection is given to it only
// when its first request shows the token; until then there is no more than this object and the bytes themselves. These
// are the frames of HTTP/2 (RFC 9113) up to the first request, and nothing else:
//
//   preface | SETTINGS | (SETTINGS PING WINDOW_UPDATE PRIORITY and unknown ones)* | HEADERS CONTINUATION*
//
// A health check without the token is answered, since whoever looks after servers need not know it: then DATA frames
// with the question follow.
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
  std::string token = {};  // empty: whoever makes a request is let in
  // From the HealthCheckRequest to the HealthCheckResponse, as the standard health service has them.
  std::function<absl::StatusOr<std::string>(absl::string_view request)> check_health = {};
};

// Not thread-safe.
class Admission {
 public:
  enum class Verdict {
    kOpen,      // there is no complete request yet
    kAdmit,     // the first request shows the token
    kAnswered,  // it does not: answer() is for the client, and then the connection is to be closed
    kRefused,   // this is no HTTP/2, or more than what may come before a request: the connection is to be closed
  };

  // Of what comes before the verdict.
  static constexpr size_t kMostBytes = 32 << 10;

  // What a client awaits before its first request: empty SETTINGS. gRPC sends its own ones when it has the connection,
  // and takes the acknowledgement of these for one of its own, which changes nothing.
  static absl::string_view Greeting();

  // The rules outlive it.
  explicit Admission(const AdmissionRules& rules) : rules_(rules) {}

  // `seen` is all that has come so far, from the first byte on. After a verdict other than kOpen, always the same.
  Verdict Look(absl::string_view seen);
  // The frames to answer with; no more than a few hundred bytes.
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
  size_t at_ = 0;  // up to which frames have been looked at
  bool has_settings_ = false;
  uint32_t stream_ = 0;  // of the first request; 0: none yet
  bool in_block_ = false;
  bool end_stream_ = false;
  std::string block_;     // the encoded fields of the first request
  std::string question_;  // the body of a health check
  std::string answer_;
};

}  // namespace tdock::rpc
