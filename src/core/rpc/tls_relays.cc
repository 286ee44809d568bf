#include "core/rpc/tls_relays.h"

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

// The names of the poll set's members: kNews, and for each relay twice its number, plus one for gRPC's side.
constexpr uint64_t kNews = 0;

// How long a client may leave the last bytes of its connection unread.
constexpr std::chrono::seconds kPatience{10};
constexpr std::chrono::milliseconds kPatienceAtTheEnd{500};

}  // namespace

absl::StatusOr<std::unique_ptr<RelayThread>> RelayThread::Start() {
  Socket poll_set(epoll_create1(EPOLL_CLOEXEC));
  Socket wake(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!poll_set.valid() || !wake.valid()) return absl::ErrnoToStatus(errno, "cannot wait for TLS connections");
  std::unique_ptr<RelayThread> relays(new RelayThread(std::move(poll_set), std::move(wake)));
  if (!relays->Watch(kNews, relays->wake_.get())) return absl::ErrnoToStatus(errno, "cannot wait for TLS connections");
  relays->thread_ = StartWithoutSignals([at = relays.get()] { at->Run(); });
  return relays;
}

RelayThread::~RelayThread() {
  EndBy(std::chrono::steady_clock::now() + kPatienceAtTheEnd);
  if (thread_.joinable()) thread_.join();
}

void RelayThread::EndBy(Time time) {
  {
    MutexLock lock(mu_);
    end_by_ = std::min(end_by_.value_or(time), time);
  }
  Wake();
}

void RelayThread::Add(TlsRelay relay) {
  {
    MutexLock lock(mu_);
    added_.push_back(std::move(relay));
  }
  Wake();
}

void RelayThread::Wake() {
  const uint64_t one = 1;
  // It fails only if so many wakes are pending that one more makes no difference.
  [[maybe_unused]] const ssize_t written = write(wake_.get(), &one, sizeof one);
}

bool RelayThread::Watch(uint64_t name, int fd) {
  epoll_event event{.events = EPOLLIN | EPOLLOUT | EPOLLRDHUP | EPOLLET, .data = {.u64 = name}};
  return epoll_ctl(poll_set_.get(), EPOLL_CTL_ADD, fd, &event) == 0;
}

void RelayThread::Run() {
  std::array<epoll_event, 64> events{};
  while (!ends_at_.has_value() || (!relays_.empty() && std::chrono::steady_clock::now() < *ends_at_)) {
    constexpr int kLookAfterMs = 100;
    const int timeout_ms = !busy_.empty() ? 0 : !ending_.empty() || ends_at_.has_value() ? kLookAfterMs : -1;
    const int ready = epoll_wait(poll_set_.get(), events.data(), static_cast<int>(events.size()), timeout_ms);
    for (int i = 0; i < ready; ++i) {
      const epoll_event& event = events[static_cast<size_t>(i)];
      if (event.data.u64 == kNews) {
        TakeNews();
        continue;
      }
      const auto found = relays_.find(event.data.u64 / 2);
      if (found == relays_.end()) continue;  // over since the event was told
      if (event.data.u64 % 2 == 0) {
        found->second.OnClientEvent((event.events & (EPOLLERR | EPOLLHUP)) != 0);
      } else {
        found->second.OnPairEvent((event.events & (EPOLLERR | EPOLLHUP)) != 0);
      }
      busy_.insert(found->first);
    }
    for (const uint64_t id : std::exchange(busy_, {})) Turn(id);
    EndOverdue();
  }
  relays_.clear();
}

void RelayThread::TakeNews() {
  uint64_t wakes = 0;
  [[maybe_unused]] const ssize_t got = read(wake_.get(), &wakes, sizeof wakes);
  std::vector<TlsRelay> added;
  {
    MutexLock lock(mu_);
    added.swap(added_);
    ends_at_ = end_by_;
  }
  for (TlsRelay& relay : added) {
    const uint64_t id = ++last_;
    const TlsRelay& kept = relays_.emplace(id, std::move(relay)).first->second;
    // Events from before it was watched are reported now.
    if (Watch(2 * id, kept.client()) && Watch(2 * id + 1, kept.pair())) {
      busy_.insert(id);
    } else {
      relays_.erase(id);
    }
  }
}

void RelayThread::Turn(uint64_t id) {
  const auto found = relays_.find(id);
  if (found == relays_.end()) return;
  switch (found->second.Turn()) {
    case TlsRelay::Progress::kMore:
      busy_.insert(id);
      break;
    case TlsRelay::Progress::kIdle:
      break;
    case TlsRelay::Progress::kOver:
      relays_.erase(found);
      ending_.erase(id);
      return;
  }
  if (found->second.ending_since().has_value()) ending_.insert(id);
}

void RelayThread::EndOverdue() {
  const Time now = std::chrono::steady_clock::now();
  std::erase_if(ending_, [&](uint64_t id) {
    const auto found = relays_.find(id);
    if (found == relays_.end()) return true;
    if (now - *found->second.ending_since() < kPatience) return false;
    relays_.erase(found);
    return true;
  });
}

absl::StatusOr<std::unique_ptr<TlsRelays>> TlsRelays::Start(int threads) {
  auto relays = std::make_unique<TlsRelays>();
  for (int i = 0; i < threads; ++i) {
    TDOCK_ASSIGN_OR_RETURN(std::unique_ptr<RelayThread> thread, RelayThread::Start());
    relays->threads_.push_back(std::move(thread));
  }
  return relays;
}

TlsRelays::~TlsRelays() {
  const auto end = std::chrono::steady_clock::now() + kPatienceAtTheEnd;
  for (const auto& thread : threads_) thread->EndBy(end);
}

absl::StatusOr<Socket> TlsRelays::Add(Admitted admitted) {
  int pair[2] = {-1, -1};
  if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, pair) != 0) {
    return absl::ErrnoToStatus(errno, "cannot relay a TLS connection");
  }
  Socket ours(pair[0]), theirs(pair[1]);
  threads_[next_++ % threads_.size()]->Add(TlsRelay(std::move(admitted.tls), admitted.received, std::move(ours)));
  return theirs;
}

}  // namespace tdock::rpc
