#include "dock/service/wire/socket_server.h"

#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <future>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "core/base/status.h"
#include "core/base/utf8.h"
#include "dock/service/wire/socket_address.h"

namespace tdock::service {
namespace {

constexpr int kBacklog = 4096;
constexpr int kAcceptedAtOnce = 64;
constexpr int kLoops = 2;

// Removes the socket of a server that is gone.
absl::Status RemoveStale(const std::string& path, const sockaddr_un& address) {
  struct stat there;
  if (lstat(path.c_str(), &there) != 0) return absl::OkStatus();
  if (!S_ISSOCK(there.st_mode)) {
    return absl::AlreadyExistsError(
        absl::StrCat("'", EscapeUnprintable(path), "' exists and is not a socket: give another path"));
  }
  const int probe = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
  const bool answered = connect(probe, reinterpret_cast<const sockaddr*>(&address), sizeof(address)) == 0;
  close(probe);
  if (answered) return absl::AlreadyExistsError(absl::StrCat("another server listens on '", path, "'"));
  unlink(path.c_str());
  return absl::OkStatus();
}

absl::StatusOr<int> Listen(const std::string& path) {
  TDOCK_ASSIGN_OR_RETURN(const sockaddr_un address, SocketAddress(path));
  TDOCK_RETURN_IF_ERROR(RemoveStale(path, address));
  const int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  if (fd < 0) return absl::ErrnoToStatus(errno, "cannot make a socket");
  // The mode applies from the first moment on; but the check of the peer's user is what counts.
  if (bind(fd, reinterpret_cast<const sockaddr*>(&address), sizeof(address)) != 0 ||
      chmod(path.c_str(), S_IRUSR | S_IWUSR) != 0 || listen(fd, kBacklog) != 0) {
    const absl::Status status =
        absl::ErrnoToStatus(errno, absl::StrCat("cannot listen on '", EscapeUnprintable(path), "'"));
    close(fd);
    return status;
  }
  return fd;
}

// Users that may read the server's memory anyway.
bool MayConnect(int fd) {
  ucred peer{};
  socklen_t size = sizeof(peer);
  if (getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &size) != 0) return false;
  return peer.uid == geteuid() || peer.uid == 0;
}

}  // namespace

absl::StatusOr<std::unique_ptr<SocketServer>> SocketServer::Start(Service& service, dock::SegmentPool& segments,
                                                                  const SocketServerOptions& options) {
  TDOCK_ASSIGN_OR_RETURN(const int listener, Listen(options.path));
  std::unique_ptr<SocketServer> server(new SocketServer({service, segments, options.limits}, options, listener));
  TDOCK_RETURN_IF_ERROR(server->StartLoops());
  return server;
}

absl::Status SocketServer::StartLoops() {
  for (int i = 0; i < kLoops; ++i) {
    auto loop = std::make_unique<Loop>();
    TDOCK_ASSIGN_OR_RETURN(loop->events, EventLoop::Make());
    if (options_.heartbeats != nullptr) {
      loop->events->SetHeartbeat(options_.heartbeats->Add(absl::StrCat("event loop ", i)));
    }
    loop->events->SetTick(absl::Seconds(1), [this, loop = loop.get()] {
      if (loop == loops_.front().get() && std::exchange(pausing_, false)) loop->events->Change(listener_, EPOLLIN);
      std::vector<std::shared_ptr<SocketConnection>> connections;
      for (const auto& [fd, connection] : loop->connections) connections.push_back(connection);
      for (const auto& connection : connections) connection->Tick();
    });
    loops_.push_back(std::move(loop));
  }
  TDOCK_RETURN_IF_ERROR(loops_.front()->events->Add(listener_, EPOLLIN, [this](uint32_t) { Accept(); }));
  for (const auto& loop : loops_) loop->events->Start();
  return absl::OkStatus();
}

SocketServer::~SocketServer() {
  // From then on, the connections belong to this thread.
  for (const auto& loop : loops_) loop->events->Stop();
  if (WorkQueue* const work = shared_.service.work(); work != nullptr) work->AwaitIdle();
  for (const auto& loop : loops_) loop->connections.clear();
  close(listener_);
  if (file_.has_value() && IdOf(options_.path) == file_) unlink(options_.path.c_str());
}

std::optional<SocketServer::FileId> SocketServer::IdOf(const std::string& path) {
  struct stat there;
  if (lstat(path.c_str(), &there) != 0) return std::nullopt;
  return FileId{there.st_dev, there.st_ino};
}

void SocketServer::Touch() {
  for (const auto& loop : loops_) {
    auto touched = std::make_shared<std::promise<void>>();
    std::future<void> done = touched->get_future();
    loop->events->Post([touched = std::move(touched)] { touched->set_value(); });
    done.wait();
  }
}

void SocketServer::Shutdown(absl::Time deadline) {
  loops_.front()->events->Post([this] { loops_.front()->events->Remove(listener_); });
  shared_.service.AwaitNoCalls(deadline);
  for (const auto& loop : loops_) {
    auto closed = std::make_shared<std::promise<void>>();
    std::future<void> done = closed->get_future();
    loop->events->Post([loop = loop.get(), closed] {
      std::vector<std::shared_ptr<SocketConnection>> connections;
      for (const auto& [fd, connection] : loop->connections) connections.push_back(connection);
      for (const auto& connection : connections)
        connection->Close(absl::UnavailableError("the server is shutting down"));
      closed->set_value();
    });
    // A stopped loop drops posted tasks, and the promise with them.
    done.wait();
  }
}

void SocketServer::Accept() {
  // Other descriptors have their turn in between.
  for (int i = 0; i < kAcceptedAtOnce; ++i) {
    const int fd = accept4(listener_, nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK);
    if (fd < 0) {
      if (errno == EINTR || errno == ECONNABORTED) continue;
      if (errno != EAGAIN) return PauseAccepting(errno);
      if (options_.failures != nullptr) options_.failures->End();
      return;
    }
    if (!MayConnect(fd)) {
      close(fd);
      continue;
    }
    Loop& loop = *loops_[next_loop_++ % loops_.size()];
    if (loop.events->OnLoopThread()) {
      Adopt(loop, fd);
    } else {
      loop.events->Post([this, &loop, fd] { Adopt(loop, fd); });
    }
  }
}

// The socket would be reported again at once.
void SocketServer::PauseAccepting(int error) {
  loops_.front()->events->Change(listener_, 0);
  pausing_ = true;
  if (options_.failures != nullptr && AcceptFailures::IsShortage(error)) options_.failures->Add(error);
}

void SocketServer::Adopt(Loop& loop, int fd) {
  const auto connection = std::make_shared<SocketConnection>(fd, loop.events, shared_,
                                                             [&loop](int closed) { loop.connections.erase(closed); });
  if (connection->Start().ok()) loop.connections.emplace(fd, connection);
}

}  // namespace tdock::service
