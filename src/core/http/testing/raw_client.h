// A client that sends bytes as they stand, for tests of servers.
#pragma once

#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <chrono>
#include <cstdint>
#include <string>
#include <utility>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "core/base/testing/patience.h"

namespace tdock::http {

// One connection to 127.0.0.1. Every wait ends after kPatience, with what has come until then.
class RawClient {
 public:
  // Has its descriptor, and no connection yet.
  RawClient() : socket_(::socket(AF_INET, SOCK_STREAM, 0)) {}
  // A small receive buffer makes a reader that does not read felt soon.
  explicit RawClient(int port, int receive_bytes = 0) : RawClient() {
    if (receive_bytes > 0) ::setsockopt(socket_, SOL_SOCKET, SO_RCVBUF, &receive_bytes, sizeof receive_bytes);
    Connect(port);
  }
  ~RawClient() { Close(); }
  RawClient(const RawClient&) = delete;
  RawClient& operator=(const RawClient&) = delete;

  void Connect(int port) {
    sockaddr_in address = {};
    address.sin_family = AF_INET;
    address.sin_port = htons(static_cast<uint16_t>(port));
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    connected_ = ::connect(socket_, reinterpret_cast<sockaddr*>(&address), sizeof address) == 0;
  }

  bool connected() const { return connected_; }
  // Once a read has found the end of the connection.
  bool ended() const { return ended_; }
  int socket() const { return socket_; }
  void Close() {
    if (socket_ >= 0) ::close(socket_);
    socket_ = -1;
  }

  bool Send(absl::string_view bytes) {
    while (!bytes.empty()) {
      const ssize_t sent = ::send(socket_, bytes.data(), bytes.size(), MSG_NOSIGNAL);
      if (sent <= 0) return false;
      bytes.remove_prefix(static_cast<size_t>(sent));
    }
    return true;
  }

  // Up to and with `end`, or what came before the connection ended.
  std::string ReadUntil(absl::string_view end) {
    const auto deadline = Deadline();
    for (;;) {
      const size_t found = read_.find(end.data(), 0, end.size());
      if (found != std::string::npos) {
        std::string taken = read_.substr(0, found + end.size());
        read_.erase(0, taken.size());
        return taken;
      }
      if (!ReadSome(deadline)) return std::exchange(read_, {});
    }
  }

  // All until the server closes.
  std::string ReadAll() {
    const auto deadline = Deadline();
    while (ReadSome(deadline)) {
    }
    return std::exchange(read_, {});
  }

  // A response with Content-Length, its head and its body.
  std::string ReadResponse() {
    std::string head = ReadUntil("\r\n\r\n");
    const size_t at = head.find("Content-Length: ");
    if (at == std::string::npos) return head;
    const size_t length = std::stoul(head.substr(at + 16));
    const auto deadline = Deadline();
    while (read_.size() < length && ReadSome(deadline)) {
    }
    head += read_.substr(0, length);
    read_.erase(0, length);
    return head;
  }

 private:
  static std::chrono::steady_clock::time_point Deadline() {
    return std::chrono::steady_clock::now() + absl::ToChronoNanoseconds(kPatience);
  }

  bool ReadSome(std::chrono::steady_clock::time_point deadline) {
    const auto left =
        std::chrono::duration_cast<std::chrono::milliseconds>(deadline - std::chrono::steady_clock::now());
    pollfd readable = {socket_, POLLIN, 0};
    if (left.count() <= 0 || ::poll(&readable, 1, static_cast<int>(left.count())) <= 0) return false;
    char bytes[16384];
    const ssize_t size = ::recv(socket_, bytes, sizeof bytes, 0);
    ended_ = size <= 0;
    if (ended_) return false;
    read_.append(bytes, static_cast<size_t>(size));
    return true;
  }

  int socket_;
  bool connected_ = false, ended_ = false;
  std::string read_;
};

}  // namespace tdock::http
