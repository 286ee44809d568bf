// Requests and responses of HTTP.
#pragma once

#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/string_view.h"

namespace tdock::http {

using Headers = std::vector<std::pair<std::string, std::string>>;

struct Request {
  std::string method = {};  // "GET"
  std::string path = {};    // as it was sent, without the query
  std::string query = {};   // what follows the first '?'
  Headers headers = {};     // names in lower case
  std::string body = {};
  std::string peer = {};  // the client's address and port

  // The value of the first header of this name, which is in lower case; empty if there is none.
  absl::string_view Header(absl::string_view name) const;
};

// The members of Request::query, percent-decoded; '+' is a space. The first of those with the same name.
std::map<std::string, std::string> QueryOf(absl::string_view query);

struct Response {
  int status = 200;
  std::string body = {};
  std::string content_type = "application/json";
  Headers headers = {};  // beside those of the content and the connection; values without line ends
};

// "Not Found"; "Status" for a code without a name of its own here.
absl::string_view ReasonOf(int status);

// How the end of a body is known.
enum class Framing { kLength, kChunks, kClose };

// The status line and the headers of a response, with the empty line. `length` counts for kLength only.
std::string HeadOf(const Response& response, Framing framing, size_t length, bool keep_alive);

// A piece of a body in chunks. Empty for an empty piece, which would end the body.
std::string ChunkOf(absl::string_view piece);
inline constexpr absl::string_view kLastChunk = "0\r\n\r\n";

}  // namespace tdock::http
