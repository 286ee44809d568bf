// One HTTP request that has arrived, and its response.
#pragma once

#include <sys/types.h>

#include <algorithm>
#include <cstring>
#include <string>
#include <utility>

#include "httplib.h"

namespace tdock::console {

// What httplib reads from and writes to instead of a socket. Not thread-safe.
class HttpExchange final : public httplib::Stream {
 public:
  explicit HttpExchange(std::string request) : request_(std::move(request)) {}

  std::string TakeAnswer() { return std::move(answer_); }

  bool is_readable() const override { return at_ < request_.size(); }
  bool is_writable() const override { return true; }
  ssize_t read(char* data, size_t size) override {
    const size_t taken = std::min(size, request_.size() - at_);
    std::memcpy(data, request_.data() + at_, taken);
    at_ += taken;
    return static_cast<ssize_t>(taken);
  }
  ssize_t write(const char* data, size_t size) override {
    answer_.append(data, size);
    return static_cast<ssize_t>(size);
  }
  // Unused: there is no log of requests.
  void get_remote_ip_and_port(std::string& ip, int& port) const override { ip.clear(), port = 0; }
  void get_local_ip_and_port(std::string& ip, int& port) const override { ip.clear(), port = 0; }
  socket_t socket() const override { return INVALID_SOCKET; }

 private:
  const std::string request_;
  size_t at_ = 0;
  std::string answer_;
};

}  // namespace tdock::console
