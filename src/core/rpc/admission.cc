#include "core/rpc/admission.h"

#include <nghttp2/nghttp2.h>

#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "core/rpc/token_check.h"

namespace tdock::rpc {
namespace {

constexpr absl::string_view kPreface = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
constexpr size_t kFrameHeaderBytes = 9;
// The receiver's limit before any SETTINGS.
constexpr size_t kMostPayloadBytes = 16 << 10;
// The limit on the decoded fields of a request: each counts 32 bytes besides its text, as in RFC 7541.
constexpr size_t kMostFieldBytes = 32 << 10;
constexpr absl::string_view kHealthCheck = "/grpc.health.v1.Health/Check";

uint32_t ReadBigEndian(absl::string_view bytes) {
  uint32_t value = 0;
  for (const char byte : bytes) value = value << 8 | static_cast<unsigned char>(byte);
  return value;
}

void AppendBigEndian(uint32_t value, int bytes, std::string& to) {
  for (int i = bytes - 1; i >= 0; --i) to.push_back(static_cast<char>(value >> (8 * i)));
}

void AppendFrame(uint8_t type, uint8_t flags, uint32_t stream, absl::string_view payload, std::string& to) {
  AppendBigEndian(static_cast<uint32_t>(payload.size()), 3, to);
  AppendBigEndian(type, 1, to);
  AppendBigEndian(flags, 1, to);
  AppendBigEndian(stream, 4, to);
  absl::StrAppend(&to, payload);
}

// The payload without its padding and pad length; nothing if the padding is longer than the frame.
std::optional<absl::string_view> WithoutPadding(uint8_t flags, absl::string_view payload) {
  if ((flags & NGHTTP2_FLAG_PADDED) == 0) return payload;
  if (payload.empty()) return std::nullopt;
  const size_t padding = static_cast<unsigned char>(payload[0]);
  payload.remove_prefix(1);
  if (padding > payload.size()) return std::nullopt;
  payload.remove_suffix(padding);
  return payload;
}

// The fields of a request that matter here.
struct Request {
  std::string path;
  std::optional<std::string> authorization;
};

absl::string_view TextOf(const uint8_t* bytes, size_t size) { return {reinterpret_cast<const char*>(bytes), size}; }

std::optional<Request> DecodeRequest(absl::string_view block) {
  nghttp2_hd_inflater* made = nullptr;
  if (nghttp2_hd_inflate_new(&made) != 0) return std::nullopt;
  const std::unique_ptr<nghttp2_hd_inflater, decltype(&nghttp2_hd_inflate_del)> inflater(made, &nghttp2_hd_inflate_del);
  Request request;
  size_t field_bytes = 0;
  for (;;) {
    nghttp2_nv field = {};
    int flags = 0;
    const ssize_t used = nghttp2_hd_inflate_hd2(
        inflater.get(), &field, &flags, reinterpret_cast<const uint8_t*>(block.data()), block.size(), /*in_final=*/1);
    if (used < 0) return std::nullopt;
    block.remove_prefix(static_cast<size_t>(used));
    if ((flags & NGHTTP2_HD_INFLATE_EMIT) != 0) {
      field_bytes += field.namelen + field.valuelen + 32;
      if (field_bytes > kMostFieldBytes) return std::nullopt;
      const absl::string_view name = TextOf(field.name, field.namelen);
      const absl::string_view value = TextOf(field.value, field.valuelen);
      if (name == ":path") request.path = std::string(value);
      if (name == "authorization" && !request.authorization.has_value()) request.authorization = std::string(value);
    }
    if ((flags & NGHTTP2_HD_INFLATE_FINAL) != 0) return request;
    if ((flags & NGHTTP2_HD_INFLATE_EMIT) == 0 && block.empty()) return std::nullopt;
  }
}

// As gRPC does: everything but printable ASCII, and the percent sign itself, as %XX.
std::string PercentEncoded(absl::string_view text) {
  constexpr char kDigits[] = "0123456789ABCDEF";
  std::string encoded;
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if (byte >= 0x20 && byte <= 0x7e && c != '%') {
      encoded.push_back(c);
    } else {
      encoded += {'%', kDigits[byte >> 4], kDigits[byte & 15]};
    }
  }
  return encoded;
}

using Fields = std::vector<std::pair<std::string, std::string>>;

// Encodes the responses on a connection.
class Answer {
 public:
  explicit Answer(uint32_t stream) : stream_(stream), deflater_(nullptr, &nghttp2_hd_deflate_del) {
    nghttp2_hd_deflater* made = nullptr;
    if (nghttp2_hd_deflate_new(&made, NGHTTP2_DEFAULT_HEADER_TABLE_SIZE) == 0) deflater_.reset(made);
    AppendFrame(NGHTTP2_SETTINGS, NGHTTP2_FLAG_ACK, 0, "", frames_);
  }

  void Headers(Fields fields, bool last) {
    std::vector<nghttp2_nv> pairs;
    for (auto& [name, value] : fields) {
      pairs.push_back({.name = reinterpret_cast<uint8_t*>(name.data()),
                       .value = reinterpret_cast<uint8_t*>(value.data()),
                       .namelen = name.size(),
                       .valuelen = value.size(),
                       .flags = NGHTTP2_NV_FLAG_NONE});
    }
    if (deflater_ == nullptr) return Fail();
    std::string block(nghttp2_hd_deflate_bound(deflater_.get(), pairs.data(), pairs.size()), '\0');
    const ssize_t size = nghttp2_hd_deflate_hd(deflater_.get(), reinterpret_cast<uint8_t*>(block.data()), block.size(),
                                               pairs.data(), pairs.size());
    if (size < 0) return Fail();
    block.resize(static_cast<size_t>(size));
    const int flags = NGHTTP2_FLAG_END_HEADERS | (last ? NGHTTP2_FLAG_END_STREAM : NGHTTP2_FLAG_NONE);
    AppendFrame(NGHTTP2_HEADERS, static_cast<uint8_t>(flags), stream_, block, frames_);
  }

  void Data(absl::string_view message) {
    std::string prefixed(1, '\0');  // not compressed
    AppendBigEndian(static_cast<uint32_t>(message.size()), 4, prefixed);
    absl::StrAppend(&prefixed, message);
    AppendFrame(NGHTTP2_DATA, NGHTTP2_FLAG_NONE, stream_, prefixed, frames_);
  }

  // Ends the connection.
  std::string Take() {
    std::string last;
    AppendBigEndian(stream_, 4, last);
    AppendBigEndian(NGHTTP2_NO_ERROR, 4, last);
    if (!failed_) AppendFrame(NGHTTP2_GOAWAY, NGHTTP2_FLAG_NONE, 0, last, frames_);
    return std::move(frames_);
  }

 private:
  // Out of memory: the client gets nothing.
  void Fail() {
    failed_ = true;
    frames_.clear();
  }

  const uint32_t stream_;
  std::unique_ptr<nghttp2_hd_deflater, decltype(&nghttp2_hd_deflate_del)> deflater_;
  std::string frames_;
  bool failed_ = false;
};

// The message in the body of a unary call.
absl::StatusOr<absl::string_view> OnlyMessage(absl::string_view body) {
  constexpr size_t kPrefixBytes = 5;
  if (body.empty()) return absl::InvalidArgumentError("a health check without a HealthCheckRequest");
  if (body.size() < kPrefixBytes || body[0] != 0 || ReadBigEndian(body.substr(1, 4)) != body.size() - kPrefixBytes) {
    return absl::InvalidArgumentError("a health check is one uncompressed HealthCheckRequest");
  }
  return body.substr(kPrefixBytes);
}

Fields FirstFields() { return {{":status", "200"}, {"content-type", "application/grpc"}}; }

}  // namespace

absl::string_view Admission::Greeting() {
  static constexpr char kEmptySettings[] = {0, 0, 0, NGHTTP2_SETTINGS, 0, 0, 0, 0, 0};
  return {kEmptySettings, sizeof kEmptySettings};
}

Admission::Verdict Admission::Look(absl::string_view seen) {
  seen = seen.substr(0, kMostBytes);
  if (verdict_ == Verdict::kOpen && at_ == 0) verdict_ = OnPreface(seen);
  while (verdict_ == Verdict::kOpen && at_ > 0) {
    const absl::string_view rest = seen.substr(at_);
    if (rest.size() < kFrameHeaderBytes) break;
    const FrameHeader frame{.length = ReadBigEndian(rest.substr(0, 3)),
                            .type = static_cast<uint8_t>(rest[3]),
                            .flags = static_cast<uint8_t>(rest[4]),
                            .stream = ReadBigEndian(rest.substr(5, 4)) & 0x7fffffff};
    if (frame.length > kMostPayloadBytes) return verdict_ = Verdict::kRefused;
    if (rest.size() - kFrameHeaderBytes < frame.length) break;
    at_ += kFrameHeaderBytes + frame.length;
    verdict_ = OnFrame(frame, rest.substr(kFrameHeaderBytes, frame.length));
  }
  if (verdict_ == Verdict::kOpen && seen.size() == kMostBytes) verdict_ = Verdict::kRefused;
  return verdict_;
}

Admission::Verdict Admission::OnPreface(absl::string_view seen) {
  const absl::string_view come = seen.substr(0, kPreface.size());
  if (!absl::StartsWith(kPreface, come)) return Verdict::kRefused;
  if (come.size() == kPreface.size()) at_ = kPreface.size();
  return Verdict::kOpen;
}

Admission::Verdict Admission::OnFrame(const FrameHeader& frame, absl::string_view payload) {
  const auto open_if = [](bool right) { return right ? Verdict::kOpen : Verdict::kRefused; };
  if (in_block_) {
    if (frame.type != NGHTTP2_CONTINUATION || frame.stream != stream_) return Verdict::kRefused;
    return OnHeaderBlock(frame, payload);
  }
  const bool is_ack = (frame.flags & NGHTTP2_FLAG_ACK) != 0;
  if (!std::exchange(has_settings_, true) && (frame.type != NGHTTP2_SETTINGS || is_ack)) return Verdict::kRefused;
  switch (frame.type) {
    case NGHTTP2_SETTINGS:
      return open_if(frame.stream == 0 && (is_ack ? frame.length == 0 : frame.length % 6 == 0));
    case NGHTTP2_PING:
      return open_if(frame.stream == 0 && frame.length == 8);
    case NGHTTP2_WINDOW_UPDATE:
      return open_if((frame.stream == 0 || frame.stream == stream_) && frame.length == 4);
    case NGHTTP2_PRIORITY:
      return open_if(frame.stream != 0 && frame.length == 5);
    case NGHTTP2_HEADERS:
      return OnHeaders(frame, payload);
    case NGHTTP2_DATA:
      return OnData(frame, payload);
    case NGHTTP2_RST_STREAM:
    case NGHTTP2_PUSH_PROMISE:
    case NGHTTP2_GOAWAY:
    case NGHTTP2_CONTINUATION:
      return Verdict::kRefused;
    default:
      return Verdict::kOpen;
  }
}

Admission::Verdict Admission::OnHeaders(const FrameHeader& frame, absl::string_view payload) {
  // A second request does not arrive before the first is answered: one health check per connection is enough.
  if (stream_ != 0 || frame.stream % 2 == 0) return Verdict::kRefused;
  stream_ = frame.stream;
  end_stream_ = (frame.flags & NGHTTP2_FLAG_END_STREAM) != 0;
  std::optional<absl::string_view> fragment = WithoutPadding(frame.flags, payload);
  if (!fragment.has_value()) return Verdict::kRefused;
  if ((frame.flags & NGHTTP2_FLAG_PRIORITY) != 0) {
    constexpr size_t kPriorityBytes = 5;
    if (fragment->size() < kPriorityBytes) return Verdict::kRefused;
    fragment->remove_prefix(kPriorityBytes);
  }
  return OnHeaderBlock(frame, *fragment);
}

Admission::Verdict Admission::OnHeaderBlock(const FrameHeader& frame, absl::string_view fragment) {
  absl::StrAppend(&block_, fragment);
  in_block_ = (frame.flags & NGHTTP2_FLAG_END_HEADERS) == 0;
  return in_block_ ? Verdict::kOpen : OnRequest();
}

Admission::Verdict Admission::OnRequest() {
  const std::optional<Request> request = DecodeRequest(std::exchange(block_, std::string()));
  if (!request.has_value()) return Verdict::kRefused;
  const absl::Status shown = CheckToken(rules_.token, request->authorization);
  if (shown.ok()) return Verdict::kAdmit;
  if (request->path != kHealthCheck) return Refuse(shown);
  return end_stream_ ? AnswerHealth() : Verdict::kOpen;
}

Admission::Verdict Admission::OnData(const FrameHeader& frame, absl::string_view payload) {
  if (stream_ == 0 || frame.stream != stream_) return Verdict::kRefused;
  const std::optional<absl::string_view> data = WithoutPadding(frame.flags, payload);
  if (!data.has_value()) return Verdict::kRefused;
  absl::StrAppend(&question_, *data);
  return (frame.flags & NGHTTP2_FLAG_END_STREAM) != 0 ? AnswerHealth() : Verdict::kOpen;
}

Admission::Verdict Admission::AnswerHealth() {
  const absl::StatusOr<absl::string_view> question = OnlyMessage(question_);
  if (!question.ok()) return Refuse(question.status());
  const absl::StatusOr<std::string> health = rules_.check_health(*question);
  if (!health.ok()) return Refuse(health.status());
  Answer answer(stream_);
  answer.Headers(FirstFields(), /*last=*/false);
  answer.Data(*health);
  answer.Headers({{"grpc-status", "0"}}, /*last=*/true);
  answer_ = answer.Take();
  return Verdict::kAnswered;
}

Admission::Verdict Admission::Refuse(const absl::Status& status) {
  Answer answer(stream_);
  Fields fields = FirstFields();
  fields.emplace_back("grpc-status", absl::StrCat(static_cast<int>(status.code())));
  fields.emplace_back("grpc-message", PercentEncoded(status.message()));
  answer.Headers(std::move(fields), /*last=*/true);
  answer_ = answer.Take();
  return Verdict::kAnswered;
}

}  // namespace tdock::rpc
