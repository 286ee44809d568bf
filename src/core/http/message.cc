#include "core/http/message.h"

#include <cstddef>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"

namespace tdock::http {
namespace {

std::string Decoded(absl::string_view text) {
  std::string decoded;
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] == '%' && i + 2 < text.size() && absl::ascii_isxdigit(text[i + 1]) &&
        absl::ascii_isxdigit(text[i + 2])) {
      int code = 0;
      if (absl::SimpleHexAtoi(text.substr(i + 1, 2), &code)) decoded += static_cast<char>(code);
      i += 2;
    } else {
      decoded += text[i] == '+' ? ' ' : text[i];
    }
  }
  return decoded;
}

}  // namespace

absl::string_view Request::Header(absl::string_view name) const {
  for (const auto& [given, value] : headers) {
    if (given == name) return value;
  }
  return "";
}

std::map<std::string, std::string> QueryOf(absl::string_view query) {
  std::map<std::string, std::string> members;
  for (const absl::string_view part : absl::StrSplit(query, '&', absl::SkipEmpty())) {
    const std::pair<absl::string_view, absl::string_view> member = absl::StrSplit(part, absl::MaxSplits('=', 1));
    members.emplace(Decoded(member.first), Decoded(member.second));
  }
  return members;
}

absl::string_view ReasonOf(int status) {
  switch (status) {
    case 200:
      return "OK";
    case 204:
      return "No Content";
    case 400:
      return "Bad Request";
    case 401:
      return "Unauthorized";
    case 403:
      return "Forbidden";
    case 404:
      return "Not Found";
    case 405:
      return "Method Not Allowed";
    case 408:
      return "Request Timeout";
    case 409:
      return "Conflict";
    case 413:
      return "Content Too Large";
    case 415:
      return "Unsupported Media Type";
    case 417:
      return "Expectation Failed";
    case 429:
      return "Too Many Requests";
    case 431:
      return "Request Header Fields Too Large";
    case 500:
      return "Internal Server Error";
    case 501:
      return "Not Implemented";
    case 503:
      return "Service Unavailable";
    case 505:
      return "HTTP Version Not Supported";
    default:
      return "Status";
  }
}

std::string HeadOf(const Response& response, Framing framing, size_t length, bool keep_alive) {
  std::string head = absl::StrCat("HTTP/1.1 ", response.status, " ", ReasonOf(response.status), "\r\n");
  if (!response.content_type.empty()) absl::StrAppend(&head, "Content-Type: ", response.content_type, "\r\n");
  if (framing == Framing::kLength) absl::StrAppend(&head, "Content-Length: ", length, "\r\n");
  if (framing == Framing::kChunks) absl::StrAppend(&head, "Transfer-Encoding: chunked\r\n");
  for (const auto& [name, value] : response.headers) absl::StrAppend(&head, name, ": ", value, "\r\n");
  absl::StrAppend(&head, keep_alive ? "Connection: keep-alive\r\n\r\n" : "Connection: close\r\n\r\n");
  return head;
}

std::string ChunkOf(absl::string_view piece) {
  if (piece.empty()) return "";
  return absl::StrCat(absl::Hex(piece.size()), "\r\n", piece, "\r\n");
}

}  // namespace tdock::http
