#include "core/rpc/listener.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <utility>

#include "core/base/status.h"

namespace tdock::rpc {
namespace {

// The names of the poll set's members: the stop event, the listening sockets from kFirstSocket on, and then pending
// connections.
constexpr uint64_t kStop = 0;
constexpr uint64_t kFirstSocket = 1;
constexpr uint64_t kFirstPending = 1000;

// How long a client may take to read a response and hang up.
constexpr std::chrono::seconds kFarewell{2};
// How long to wait when the system has no descriptor or memory for a connection.
constexpr std::chrono::milliseconds kPause{100};
// How many are accepted in a row before others have their turn.
constexpr int kMostAtOnce = 32;

bool WatchFor(const Socket& poll_set, int fd, uint32_t events, uint64_t name) {
  epoll_event event{.events = events, .data = {.u64 = name}};
  return epoll_ctl(poll_set.get(), EPOLL_CTL_ADD, fd, &event) == 0;
}

}  // namespace

absl::StatusOr<std::unique_ptr<Listener>> Listener::Make(const Endpoint& endpoint, ListenerOptions options) {
  TDOCK_ASSIGN_OR_RETURN(ListeningSockets listening, ListenOn(endpoint));
  Socket poll_set(epoll_create1(EPOLL_CLOEXEC));
  Socket stop(eventfd(0, EFD_CLOEXEC));
  if (!poll_set.valid() || !stop.valid()) return absl::ErrnoToStatus(errno, "cannot wait for connections");
  std::unique_ptr<Listener> listener(
      new Listener(std::move(options), std::move(listening), std::move(poll_set), std::move(stop)));
  if (!WatchFor(listener->poll_set_, listener->stop_.get(), EPOLLIN, kStop) || !listener->Watch(true)) {
    return absl::ErrnoToStatus(errno, "cannot wait for connections");
  }
  return listener;
}

Listener::Listener(ListenerOptions options, ListeningSockets listening, Socket poll_set, Socket stop)
    : options_(std::move(options)),
      port_(listening.port),
      poll_set_(std::move(poll_set)),
      stop_(std::move(stop)),
      sockets_(std::move(listening.sockets)),
      last_(kFirstPending),
      scratch_(Admission::kMostBytes) {}

void Listener::Start(std::function<void(Admitted)> admit) {
  admit_ = std::move(admit);
  thread_ = StartWithoutSignals([this] { Run(); });
}

void Listener::Stop() {
  if (thread_.joinable()) {
    const uint64_t one = 1;
    TDOCK_CHECK(write(stop_.get(), &one, sizeof one) == sizeof one, "an eventfd takes a first count");
    thread_.join();
  }
  pending_.clear();
  sockets_.clear();
}

void Listener::Run() {
  std::array<epoll_event, 64> events{};
  for (;;) {
    const int ready = epoll_wait(poll_set_.get(), events.data(), static_cast<int>(events.size()), TimeoutMs());
    for (int i = 0; i < ready; ++i) {
      const epoll_event& event = events[static_cast<size_t>(i)];
      const uint64_t name = event.data.u64;
      if (name == kStop) return;
      if (name < kFirstPending) {
        Accept(sockets_[name - kFirstSocket]);
      } else {
        Advance(name, (event.events & (EPOLLRDHUP | EPOLLHUP | EPOLLERR)) != 0);
      }
    }
    CloseOverdue();
  }
}

bool Listener::Watch(bool accepting) {
  for (size_t i = 0; i < sockets_.size(); ++i) {
    if (!accepting) {
      epoll_ctl(poll_set_.get(), EPOLL_CTL_DEL, sockets_[i].get(), nullptr);
    } else if (!WatchFor(poll_set_, sockets_[i].get(), EPOLLIN, kFirstSocket + i) && errno != EEXIST) {
      return false;
    }
  }
  return true;
}

void Listener::Accept(const Socket& socket) {
  for (int i = 0; i < kMostAtOnce && !pause_ends_.has_value(); ++i) {
    Socket accepted(accept4(socket.get(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
    if (accepted.valid()) {
      Welcome(std::move(accepted));
    } else if (AcceptFailures::IsShortage(errno)) {
      if (options_.failures != nullptr) options_.failures->Add(errno);
      // The connection stays in the backlog, and would be reported again at once.
      Watch(false);
      pause_ends_ = std::chrono::steady_clock::now() + kPause;
    } else if (errno == EAGAIN) {
      if (options_.failures != nullptr) options_.failures->End();
      return;
    }
    // Any other error is that of a connection that is gone already.
  }
}

void Listener::Welcome(Socket socket) {
  MakeRoom();
  const int fd = socket.get();
  const int on = 1;
  setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
  const uint64_t id = ++last_;
  pending_.emplace(id, Entry{.pending = PendingConnection(options_.rules, options_.identity.get(), std::move(socket)),
                             .deadline = std::chrono::steady_clock::now() + options_.patience});
  // Over plain TCP, peeked bytes stay in the socket, so only new ones may be reported.
  if (!WatchFor(poll_set_, fd, EPOLLIN | EPOLLOUT | EPOLLRDHUP | EPOLLET, id)) pending_.erase(id);
}

void Listener::MakeRoom() {
  while (pending_.size() >= options_.max_pending) {
    const auto answered = std::find_if(pending_.begin(), pending_.end(),
                                       [](const auto& entry) { return entry.second.pending.leaving(); });
    pending_.erase(answered == pending_.end() ? pending_.begin() : answered);
  }
}

void Listener::Advance(uint64_t id, bool ended) {
  const auto found = pending_.find(id);
  if (found == pending_.end()) return;  // closed since the event was told
  Entry& entry = found->second;
  switch (entry.pending.Advance(ended, scratch_)) {
    case PendingConnection::Next::kStay:
      return;
    case PendingConnection::Next::kLeave:
      entry.deadline = std::chrono::steady_clock::now() + kFarewell;
      return;
    case PendingConnection::Next::kAdmit: {
      Admitted admitted = entry.pending.Take();
      pending_.erase(found);
      const int fd = admitted.tls == nullptr ? admitted.socket.get() : admitted.tls->socket().get();
      epoll_ctl(poll_set_.get(), EPOLL_CTL_DEL, fd, nullptr);
      return admit_(std::move(admitted));
    }
    case PendingConnection::Next::kClose:
      pending_.erase(found);
      return;
  }
}

void Listener::CloseOverdue() {
  const Time now = std::chrono::steady_clock::now();
  std::erase_if(pending_, [now](const auto& entry) { return entry.second.deadline <= now; });
  if (pause_ends_.has_value() && *pause_ends_ <= now) {
    pause_ends_.reset();
    if (!Watch(true)) pause_ends_ = now + kPause;
  }
}

int Listener::TimeoutMs() const {
  std::optional<Time> first = pause_ends_;
  for (const auto& [id, entry] : pending_) first = std::min(first.value_or(entry.deadline), entry.deadline);
  if (!first.has_value()) return -1;
  const auto left = std::chrono::ceil<std::chrono::milliseconds>(*first - std::chrono::steady_clock::now());
  return static_cast<int>(std::clamp<int64_t>(left.count(), 0, 60'000));
}

}  // namespace tdock::rpc
