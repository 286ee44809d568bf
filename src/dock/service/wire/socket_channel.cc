#include "dock/service/wire/socket_channel.h"

#include <poll.h>
#include <sched.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "core/base/status.h"
#include "core/base/utf8.h"
#include "dock/service/wire/messages.h"
#include "dock/service/wire/socket_address.h"

namespace tdock::service {
namespace {

// The first read of a message: most are short, and the buffer is cleared before each read.
constexpr size_t kReadBytes = 8 << 10;

constexpr size_t kMostReadBytes = 1 << 20;

// Most responses arrive sooner than an idle processor wakes up. Other threads that want to run may do so.
constexpr absl::Duration kLookForAnswer = absl::Microseconds(50);

// Any user may listen at a path in /tmp before the server does, even where root looks for its own.
absl::Status CheckWhoListens(int fd, const std::string& path) {
  ucred server{};
  socklen_t size = sizeof(server);
  if (getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &server, &size) != 0) {
    return absl::UnavailableError(
        absl::StrCat("cannot find out which user listens on '", EscapeUnprintable(path), "': ", std::strerror(errno)));
  }
  const uid_t own = geteuid();
  if (server.uid == own || server.uid == 0) return absl::OkStatus();
  return absl::PermissionDeniedError(absl::StrCat("user ", server.uid, " listens on '", path,
                                                  "', but this process runs as user ", own,
                                                  ": only processes of one user can share a dock"));
}

absl::Status Lost(int error) {
  return absl::UnavailableError(absl::StrCat("the connection is lost: ", std::strerror(error)));
}

}  // namespace

absl::StatusOr<std::unique_ptr<SocketChannel>> SocketChannel::Connect(const std::string& path, absl::Time deadline) {
  TDOCK_ASSIGN_OR_RETURN(const sockaddr_un address, SocketAddress(path));
  const int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (fd < 0) return absl::ResourceExhaustedError(absl::StrCat("cannot make a socket: ", std::strerror(errno)));
  std::unique_ptr<SocketChannel> channel(new SocketChannel(fd));
  // A server with a full backlog delays connect() at most this long.
  const absl::Duration left = std::clamp(deadline - absl::Now(), absl::Milliseconds(1), absl::Hours(1));
  const timeval timeout = absl::ToTimeval(left);
  setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &timeout, sizeof(timeout));
  if (connect(fd, reinterpret_cast<const sockaddr*>(&address), sizeof(address)) != 0) {
    return absl::UnavailableError(
        absl::StrCat("cannot connect to '", EscapeUnprintable(path), "': ", std::strerror(errno)));
  }
  TDOCK_RETURN_IF_ERROR(CheckWhoListens(fd, path));
  return channel;
}

SocketChannel::~SocketChannel() { close(fd_); }

absl::Status SocketChannel::AwaitEvent(short event, absl::Time deadline) {
  for (;;) {
    const absl::Duration left = deadline - absl::Now();
    if (left <= absl::ZeroDuration()) {
      return absl::DeadlineExceededError(event == POLLOUT ? "the server did not read in time what was sent"
                                                          : "nothing arrived in time");
    }
    pollfd watched{.fd = fd_, .events = event, .revents = 0};
    // Rounded up to the next millisecond.
    const int64_t timeout_ms = absl::ToInt64Milliseconds(std::min(left, absl::Hours(1))) + 1;
    const int count = poll(&watched, 1, static_cast<int>(timeout_ms));
    if (count > 0) return absl::OkStatus();
    if (count < 0 && errno != EINTR) return Lost(errno);
  }
}

absl::Status SocketChannel::Send(std::vector<absl::string_view> pieces, absl::Time deadline) {
  std::erase_if(pieces, [](absl::string_view piece) { return piece.empty(); });
  size_t next = 0;
  while (next < pieces.size()) {
    std::array<iovec, 64> vectors;
    const size_t count = std::min(vectors.size(), pieces.size() - next);
    for (size_t i = 0; i < count; ++i) {
      const absl::string_view piece = pieces[next + i];
      vectors[i] = {const_cast<char*>(piece.data()), piece.size()};
    }
    msghdr message{};
    message.msg_iov = vectors.data();
    message.msg_iovlen = count;
    const ssize_t sent = sendmsg(fd_, &message, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (sent < 0) {
      if (errno == EINTR) continue;
      if (errno != EAGAIN) return Lost(errno);
      TDOCK_RETURN_IF_ERROR(AwaitEvent(POLLOUT, deadline));
      continue;
    }
    for (size_t left = static_cast<size_t>(sent); left > 0;) {
      const size_t step = std::min(left, pieces[next].size());
      pieces[next].remove_prefix(step);
      left -= step;
      if (pieces[next].empty()) ++next;
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<bool> SocketChannel::Read() {
  // Drops consumed bytes once they exceed the rest.
  if (begin_ >= in_.size() - begin_) {
    in_.erase(0, begin_);
    begin_ = 0;
  }
  // For a message that is longer than what has arrived, reads as much as possible at once.
  size_t want = kReadBytes;
  const size_t before = in_.size(), there = before - begin_;
  if (there >= sizeof(SocketHeader)) {
    SocketHeader header;
    std::memcpy(&header, in_.data() + begin_, sizeof(header));
    const size_t all = std::min<size_t>(header.length, kMaxSocketControlBytes) + sizeof(header);
    want = std::clamp(all - std::min(all, there), want, kMostReadBytes);
    in_.reserve(begin_ + all + kReadBytes);
  }
  in_.resize(before + want);
  iovec piece{in_.data() + before, want};
  constexpr size_t kMostFiles = 16;
  alignas(cmsghdr) std::array<char, CMSG_SPACE(kMostFiles * sizeof(int))> control;
  msghdr message{};
  message.msg_iov = &piece;
  message.msg_iovlen = 1;
  message.msg_control = control.data();
  message.msg_controllen = control.size();
  const ssize_t got = recvmsg(fd_, &message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
  const int error = errno;
  in_.resize(before + static_cast<size_t>(std::max<ssize_t>(got, 0)));
  if (got < 0) {
    if (error == EAGAIN || error == EINTR) return false;
    return Lost(error);
  }
  if (got == 0) return absl::UnavailableError("the server has closed the connection");
  for (cmsghdr* header = CMSG_FIRSTHDR(&message); header != nullptr; header = CMSG_NXTHDR(&message, header)) {
    if (header->cmsg_level != SOL_SOCKET || header->cmsg_type != SCM_RIGHTS) continue;
    const size_t count = (header->cmsg_len - CMSG_LEN(0)) / sizeof(int);
    for (size_t i = 0; i < count; ++i) {
      int fd = -1;
      std::memcpy(&fd, CMSG_DATA(header) + i * sizeof(int), sizeof(fd));
      files_.push_back(std::make_shared<const dock::FileDescriptor>(fd));
    }
  }
  return true;
}

absl::StatusOr<std::optional<SocketChannel::Message>> SocketChannel::TakeMessage() {
  if (in_.size() - begin_ < sizeof(SocketHeader)) return std::nullopt;
  Message message;
  std::memcpy(&message.header, in_.data() + begin_, sizeof(SocketHeader));
  const SocketHeader& header = message.header;
  if (header.length > MaxSocketMessageBytes(header.type)) {
    return absl::UnavailableError(absl::StrCat(
        "the server sent a message of type ", static_cast<int>(header.type), " with ", header.length,
        " bytes; the limit is ", MaxSocketMessageBytes(header.type), ": it is no dock server, or of another release"));
  }
  if (in_.size() - begin_ - sizeof(header) < header.length) return std::nullopt;
  message.body = in_.substr(begin_ + sizeof(header), header.length);
  begin_ += sizeof(header) + header.length;
  if (header.type == SocketMessage::kWelcome || header.type == SocketMessage::kSegment) {
    if (files_.empty())
      return absl::UnavailableError("the server sent a message without the descriptor that belongs to it");
    message.file = std::move(files_.front());
    files_.pop_front();
  }
  if (header.type == SocketMessage::kGoodbye) {
    const absl::StatusOr<message::Reply> reply = Parse<message::Reply>(message.body);
    if (!reply.ok() || reply->code == 0) return absl::UnavailableError("the server has ended the connection");
    return StatusOf(*reply);
  }
  return message;
}

absl::StatusOr<std::optional<SocketChannel::Message>> SocketChannel::TryReceive() {
  TDOCK_ASSIGN_OR_RETURN(std::optional<Message> message, TakeMessage());
  if (message.has_value()) return message;
  TDOCK_ASSIGN_OR_RETURN(const bool any, Read());
  if (!any) return std::nullopt;
  return TakeMessage();
}

absl::StatusOr<SocketChannel::Message> SocketChannel::Receive(absl::Time deadline) {
  const absl::Time look_until = std::min(absl::Now() + kLookForAnswer, deadline);
  for (;;) {
    TDOCK_ASSIGN_OR_RETURN(std::optional<Message> message, TryReceive());
    if (message.has_value()) return *std::move(message);
    if (absl::Now() < look_until) {
      sched_yield();
    } else {
      TDOCK_RETURN_IF_ERROR(AwaitEvent(POLLIN, deadline));
    }
  }
}

bool SocketChannel::IsBroken() const {
  char byte = 0;
  const ssize_t got = recv(fd_, &byte, 1, MSG_PEEK | MSG_DONTWAIT);
  return got == 0 || (got < 0 && errno != EAGAIN && errno != EINTR);
}

}  // namespace tdock::service
