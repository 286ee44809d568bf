// HTTP/2 frames, and a connection that sends arbitrary bytes, for the tests of this module.
#pragma once

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <string>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "core/base/testing/patience.h"

namespace tdock::rpc {

class RawConnection {
 public:
  explicit RawConnection(int port) : fd_(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    sockaddr_in address = {};
    address.sin_family = AF_INET;
    address.sin_port = htons(static_cast<uint16_t>(port));
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    EXPECT_EQ(connect(fd_, reinterpret_cast<const sockaddr*>(&address), sizeof(address)), 0);
  }
  ~RawConnection() { close(fd_); }
  RawConnection(const RawConnection&) = delete;
  RawConnection& operator=(const RawConnection&) = delete;

  int fd() const { return fd_; }

  // Sends as much as the server takes before it hangs up; returns whether that was everything.
  bool Send(absl::string_view bytes) {
    while (!bytes.empty()) {
      const ssize_t sent = send(fd_, bytes.data(), bytes.size(), MSG_NOSIGNAL);
      if (sent <= 0) return false;
      bytes.remove_prefix(static_cast<size_t>(sent));
    }
    return true;
  }
  void EndSending() { shutdown(fd_, SHUT_WR); }
  // Reads until `end` is there, or the server hangs up.
  std::string ReadUntil(absl::string_view end) { return Read(end).text; }
  // Reads until the server hangs up.
  std::string Drain() { return Read("").text; }
  // Whether the server hangs up.
  bool AwaitEnd() { return Read("").ended; }

 private:
  struct Heard {
    std::string text;
    bool ended = false;
  };

  // An empty `end` never comes.
  Heard Read(absl::string_view end) {
    const timeval patience = absl::ToTimeval(kPatience);
    setsockopt(fd_, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof(patience));
    Heard heard;
    while (end.empty() || !absl::StrContains(heard.text, end)) {
      char buffer[4096];
      const ssize_t got = recv(fd_, buffer, sizeof(buffer), 0);
      if (got > 0) {
        heard.text.append(buffer, static_cast<size_t>(got));
        continue;
      }
      heard.ended = got == 0 || errno != EAGAIN;
      return heard;
    }
    return heard;
  }

  int fd_;
};

inline constexpr absl::string_view kHttp2Preface = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

inline std::string Frame(char type, char flags, uint32_t stream, absl::string_view payload) {
  const size_t size = payload.size();
  std::string frame = {static_cast<char>(size >> 16),
                       static_cast<char>(size >> 8),
                       static_cast<char>(size),
                       type,
                       flags,
                       static_cast<char>(stream >> 24),
                       static_cast<char>(stream >> 16),
                       static_cast<char>(stream >> 8),
                       static_cast<char>(stream)};
  absl::StrAppend(&frame, payload);
  return frame;
}

inline std::string Header(absl::string_view name, absl::string_view value) {
  // A literal field without indexing and without Huffman coding (RFC 7541, 6.2.2).
  std::string field(1, '\0');
  for (const absl::string_view part : {name, value}) {
    field.push_back(static_cast<char>(part.size()));
    absl::StrAppend(&field, part);
  }
  return field;
}

// The header fields of a gRPC call; no authorization if that is empty.
inline std::string CallFields(absl::string_view method, absl::string_view authorization = "") {
  return Header(":method", "POST") + Header(":scheme", "http") + Header(":path", method) + Header(":authority", "x") +
         Header("te", "trailers") + Header("content-type", "application/grpc") +
         (authorization.empty() ? "" : Header("authorization", authorization));
}

inline std::string Opening() { return absl::StrCat(kHttp2Preface, Frame(4, 0, 0, "")); }

// What a gRPC client sends for a call of /count with this in its DATA frame.
inline std::string CallBytes(absl::string_view data, bool end_stream) {
  return Opening() + Frame(1, 4, 1, CallFields("/count")) + Frame(0, end_stream ? 1 : 0, 1, data);
}

}  // namespace tdock::rpc
