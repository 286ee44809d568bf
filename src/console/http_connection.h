// One HTTP connection, within bounds of time and size.
#pragma once

#include <chrono>
#include <string>

#include "httplib.h"

namespace tdock::console {

// A stream over a socket that fails for good at a deadline, after so many bytes were read, or when `stop` becomes
// readable: a peer that sends a byte a second holds a thread no longer than one that is quick. Owns neither descriptor.
// Not thread-safe.
class HttpConnection final : public httplib::Stream {
 public:
  HttpConnection(int socket, int stop, std::chrono::steady_clock::time_point deadline, size_t max_read_bytes)
      : socket_(socket), stop_(stop), deadline_(deadline), left_(max_read_bytes) {}

  bool is_readable() const override { return begin_ < end_ || Await(kReadable); }
  bool is_writable() const override { return Await(kWritable); }
  ssize_t read(char* data, size_t size) override;
  ssize_t write(const char* data, size_t size) override;
  void get_remote_ip_and_port(std::string& ip, int& port) const override;
  void get_local_ip_and_port(std::string& ip, int& port) const override;
  socket_t socket() const override { return socket_; }

 private:
  enum Direction : short { kReadable, kWritable };

  bool Await(Direction direction) const;

  const int socket_;
  const int stop_;
  const std::chrono::steady_clock::time_point deadline_;
  size_t left_;
  // httplib reads byte by byte.
  char buffer_[4096];
  size_t begin_ = 0;
  size_t end_ = 0;
};

}  // namespace tdock::console
