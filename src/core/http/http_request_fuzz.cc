// Bytes of a client: a request that is accepted has one end, wherever its bytes are divided, and a reader of the RFC's
// letter, who knows nothing but one length or one row of chunks, finds the same end.
//
// An input is what a client sends, behind one byte: the size of its pieces.
#include <algorithm>
#include <boost/asio/buffer.hpp>
#include <boost/beast/core/flat_buffer.hpp>
#include <cstdint>
#include <cstdlib>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/string_view.h"
#include "core/http/framing.h"
#include "core/http/request_parser.h"

namespace tdock::http {
namespace {

constexpr size_t kMaxInput = 16 << 10;  // what is larger may exceed limits, which depend on the pieces
constexpr uint64_t kMaxBody = 1 << 16;

struct Read {
  size_t bytes = 0;  // of the input, up to the end of the request
  RequestHead head = {};
  std::string body = {};
};

// The request at the start of `input` as the server reads it; nothing if it is refused or not complete.
std::optional<Read> ReadByServer(absl::string_view input, size_t piece) {
  RequestParser parser(kMaxInput, kMaxBody);
  boost::beast::flat_buffer buffer;
  boost::beast::error_code error;
  size_t given = 0, used = 0;
  bool checked = false;
  while (!parser.is_done()) {
    size_t taken = 0;
    if (buffer.size() > 0) {
      taken = parser.put(buffer.cdata(), error);
      buffer.consume(taken);
      used += taken;
    }
    if (error && error != boost::beast::http::error::need_more) return std::nullopt;
    if (!checked && parser.is_header_done()) {
      if (CheckFraming(parser.head())) return std::nullopt;
      checked = true;
      parser.eager(true);
      continue;
    }
    if (parser.is_done()) break;
    if (taken > 0 && !error && buffer.size() > 0) continue;
    if (given == input.size()) return std::nullopt;
    const absl::string_view more = input.substr(given, piece);
    boost::asio::buffer_copy(buffer.prepare(more.size()), boost::asio::buffer(more.data(), more.size()));
    buffer.commit(more.size());
    given += more.size();
  }
  return Read{.bytes = used, .head = parser.head(), .body = parser.get().body()};
}

// The end of the chunks at the start of `bytes`, of clean lines; nothing if there is none.
std::optional<size_t> EndOfChunks(absl::string_view bytes) {
  size_t at = 0;
  for (;;) {
    const size_t end = bytes.find("\r\n", at);
    if (end == absl::string_view::npos) return std::nullopt;
    const absl::string_view line = bytes.substr(at, end - at);
    uint64_t size = 0;
    if (!absl::SimpleHexAtoi(line.substr(0, line.find_first_not_of("0123456789abcdefABCDEF")), &size))
      return std::nullopt;
    at = end + 2;
    if (size > 0) {
      if (size > kMaxBody || bytes.substr(at + size, 2) != "\r\n") return std::nullopt;
      at += size + 2;
      continue;
    }
    // Trailers, and the empty line behind them.
    while (!absl::StartsWith(bytes.substr(at), "\r\n")) {
      const size_t trailer = bytes.find("\r\n", at);
      if (trailer == absl::string_view::npos) return std::nullopt;
      at = trailer + 2;
    }
    return at + 2;
  }
}

std::optional<size_t> EndOf(absl::string_view input, const RequestHead& head) {
  const size_t body = input.find("\r\n\r\n") + 4;
  uint64_t length = 0;
  for (const auto& [name, value] : head.headers) {
    if (name == "transfer-encoding") {
      const std::optional<size_t> chunks = EndOfChunks(input.substr(body));
      return chunks ? std::optional<size_t>(body + *chunks) : std::nullopt;
    }
    if (name == "content-length" && !absl::SimpleAtoi(value, &length)) return std::nullopt;
  }
  return body + length;
}

void Try(absl::string_view input, size_t piece) {
  const std::optional<Read> whole = ReadByServer(input, input.size());
  const std::optional<Read> pieces = ReadByServer(input, piece);
  if (whole.has_value() != pieces.has_value()) std::abort();
  if (!whole) return;
  if (whole->bytes != pieces->bytes || whole->body != pieces->body) std::abort();
  if (whole->head.headers != pieces->head.headers || whole->head.target != pieces->head.target) std::abort();
  if (EndOf(input, whole->head) != whole->bytes) std::abort();
  const Request request = RequestOf(whole->head, "peer");
  if (request.path.empty()) std::abort();
}

}  // namespace
}  // namespace tdock::http

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size < 2 || size > tdock::http::kMaxInput) return 0;
  const std::string input(reinterpret_cast<const char*>(data) + 1, size - 1);
  tdock::http::Try(input, std::max<size_t>(1, data[0]));
  return 0;
}
