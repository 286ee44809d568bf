#include "console/http_connection.h"

#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

namespace tdock::console {

bool HttpConnection::Await(Direction direction) const {
  const short event = direction == kReadable ? POLLIN : POLLOUT;
  pollfd watched[] = {{.fd = socket_, .events = event, .revents = 0}, {.fd = stop_, .events = POLLIN, .revents = 0}};
  for (;;) {
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline_ - std::chrono::steady_clock::now());
    if (left.count() <= 0) return false;
    const int ready = ::poll(watched, 2, static_cast<int>(std::min<int64_t>(left.count(), 3'600'000)));
    if (ready < 0 && errno == EINTR) continue;
    if (ready < 0 || watched[1].revents != 0) return false;
    if (watched[0].revents != 0) return true;
  }
}

ssize_t HttpConnection::read(char* data, size_t size) {
  if (begin_ == end_) {
    if (left_ == 0 || !Await(kReadable)) return -1;
    const ssize_t got = ::recv(socket_, buffer_, std::min(sizeof buffer_, left_), MSG_DONTWAIT);
    if (got <= 0) return got;
    left_ -= static_cast<size_t>(got);
    begin_ = 0;
    end_ = static_cast<size_t>(got);
  }
  const size_t taken = std::min(size, end_ - begin_);
  std::memcpy(data, buffer_ + begin_, taken);
  begin_ += taken;
  return static_cast<ssize_t>(taken);
}

ssize_t HttpConnection::write(const char* data, size_t size) {
  if (!Await(kWritable)) return -1;
  return ::send(socket_, data, size, MSG_DONTWAIT | MSG_NOSIGNAL);
}

// Nobody asks for them: there is no log of requests.
void HttpConnection::get_remote_ip_and_port(std::string& ip, int& port) const { ip.clear(), port = 0; }
void HttpConnection::get_local_ip_and_port(std::string& ip, int& port) const { ip.clear(), port = 0; }

}  // namespace tdock::console
