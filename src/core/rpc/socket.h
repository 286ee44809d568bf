// Sockets, and the threads that wait for them. For this module only.
#pragma once

#include <unistd.h>

#include <csignal>
#include <functional>
#include <thread>
#include <utility>

namespace tdock::rpc {

// Owns a descriptor.
class Socket {
 public:
  Socket() = default;
  explicit Socket(int fd) : fd_(fd) {}
  Socket(Socket&& other) noexcept : fd_(other.Release()) {}
  Socket& operator=(Socket&& other) noexcept {
    Close();
    fd_ = other.Release();
    return *this;
  }
  ~Socket() { Close(); }

  int get() const { return fd_; }
  bool valid() const { return fd_ >= 0; }
  int Release() { return std::exchange(fd_, -1); }
  void Close() {
    if (fd_ >= 0) close(std::exchange(fd_, -1));
  }

 private:
  int fd_ = -1;
};

// Starts a thread that gets no signals: OpenSSL writes to sockets whose peers may be gone, which would raise SIGPIPE,
// and other signals are for threads that handle them.
inline std::thread StartWithoutSignals(std::function<void()> run) {
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  std::thread thread(std::move(run));
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  return thread;
}

}  // namespace tdock::rpc
