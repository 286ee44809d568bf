#include "dock/service/console/http_connections.h"

#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <iterator>
#include <optional>

namespace tdock::console {
namespace {

// How long a client that has its response may take to hang up.
constexpr std::chrono::seconds kFarewell{1};

bool WouldBlock() { return errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR; }

}  // namespace

absl::StatusOr<std::unique_ptr<HttpConnections>> HttpConnections::Start(const HttpLimits& limits, Answerer answerer) {
  const int wake = ::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  if (wake < 0) return absl::ResourceExhaustedError("no file descriptor is left for the status page");
  return std::unique_ptr<HttpConnections>(new HttpConnections(wake, limits, std::move(answerer)));
}

HttpConnections::HttpConnections(int wake, const HttpLimits& limits, Answerer answerer)
    : wake_(wake), limits_(limits), answerer_(std::move(answerer)) {
  // Signals are for threads that handle them.
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  threads_.emplace_back([this] { Run(); });
  for (int i = 0; i < limits_.threads; ++i) threads_.emplace_back([this] { Work(); });
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

HttpConnections::~HttpConnections() {
  {
    MutexLock lock(mu_);
    ended_ = true;
    work_.NotifyAll();
  }
  Wake();
  for (std::thread& thread : threads_) thread.join();
  for (const auto& [id, connection] : connections_) ::close(connection.socket);
  {
    MutexLock lock(mu_);
    for (const int socket : arrived_) ::close(socket);
  }
  ::close(wake_);
}

void HttpConnections::Add(int socket) {
  {
    MutexLock lock(mu_);
    arrived_.push_back(socket);
  }
  Wake();
}

void HttpConnections::Wake() {
  const uint64_t one = 1;
  // It fails only if so many wakes are pending that one more makes no difference.
  [[maybe_unused]] const ssize_t written = ::write(wake_, &one, sizeof one);
}

void HttpConnections::Work() {
  for (;;) {
    std::pair<uint64_t, std::string> job;
    {
      MutexLock lock(mu_);
      while (requests_.empty() && !ended_) work_.Wait(mu_);
      if (ended_) return;
      job = std::move(requests_.front());
      requests_.pop_front();
    }
    std::string answer = answerer_(std::move(job.second));
    {
      MutexLock lock(mu_);
      answers_.emplace_back(job.first, std::move(answer));
    }
    Wake();
  }
}

void HttpConnections::Run() {
  do {
    int timeout_ms = -1;
    std::vector<pollfd> watched = Watched(timeout_ms);
    const int ready = ::poll(watched.data(), watched.size(), timeout_ms);
    if (ready < 0) continue;  // out of memory, which passes
    uint64_t wakes = 0;
    [[maybe_unused]] const ssize_t got = ::read(wake_, &wakes, sizeof wakes);
    const Time now = std::chrono::steady_clock::now();
    size_t at = 1;
    for (auto next = connections_.begin(); next != connections_.end();) {
      const auto current = next++;
      auto& [id, connection] = *current;
      if (!connection.AwaitsClient()) continue;
      bool stays = watched[at++].revents == 0 || Advance(id, connection);
      if (connection.AwaitsClient() && connection.deadline <= now) stays = false;
      if (!stays) Close(current);
    }
  } while (!TakeNews());
}

std::vector<pollfd> HttpConnections::Watched(int& timeout_ms) const {
  std::vector<pollfd> watched = {{.fd = wake_, .events = POLLIN, .revents = 0}};
  std::optional<Time> first;
  for (const auto& [id, connection] : connections_) {
    if (!connection.AwaitsClient()) continue;
    const short events = connection.phase == Phase::kAnswer ? POLLOUT : POLLIN;
    watched.push_back({.fd = connection.socket, .events = events, .revents = 0});
    first = std::min(first.value_or(connection.deadline), connection.deadline);
  }
  if (first.has_value()) {
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(*first - std::chrono::steady_clock::now());
    timeout_ms = static_cast<int>(std::clamp<int64_t>(left.count(), 0, 3'600'000));
  }
  return watched;
}

bool HttpConnections::Advance(uint64_t id, Connection& connection) {
  if (connection.phase == Phase::kRequest) return ReadRequest(id, connection);
  if (connection.phase == Phase::kAnswer) return WriteAnswer(connection);
  // Reads what the client still sends, because otherwise it may lose its response.
  char unwanted[4096];
  const ssize_t got = ::recv(connection.socket, unwanted, sizeof unwanted, MSG_DONTWAIT);
  return got > 0 || (got < 0 && WouldBlock());
}

bool HttpConnections::ReadRequest(uint64_t id, Connection& connection) {
  char chunk[4096];
  const size_t room = limits_.max_request_bytes - connection.bytes.size();
  const ssize_t got = ::recv(connection.socket, chunk, std::min(sizeof chunk, room), MSG_DONTWAIT);
  if (got <= 0) return got < 0 && WouldBlock();
  const size_t before = connection.bytes.size();
  connection.bytes.append(chunk, static_cast<size_t>(got));
  const bool complete = connection.bytes.find("\r\n\r\n", before < 3 ? 0 : before - 3) != std::string::npos;
  if (!complete && connection.bytes.size() < limits_.max_request_bytes) return true;
  connection.phase = Phase::kAnswering;
  MutexLock lock(mu_);
  requests_.emplace_back(id, std::move(connection.bytes));
  work_.NotifyOne();
  return true;
}

bool HttpConnections::WriteAnswer(Connection& connection) {
  const ssize_t sent = ::send(connection.socket, connection.bytes.data() + connection.sent,
                              connection.bytes.size() - connection.sent, MSG_DONTWAIT | MSG_NOSIGNAL);
  if (sent < 0) return WouldBlock();
  connection.sent += static_cast<size_t>(sent);
  if (connection.sent < connection.bytes.size()) return true;
  unread_bytes_ -= connection.bytes.size();
  connection.bytes = std::string();
  connection.phase = Phase::kClosing;
  connection.deadline = std::chrono::steady_clock::now() + kFarewell;
  return ::shutdown(connection.socket, SHUT_WR) == 0;
}

bool HttpConnections::TakeNews() {
  std::vector<int> arrived;
  std::vector<std::pair<uint64_t, std::string>> answers;
  bool ended = false;
  {
    MutexLock lock(mu_);
    arrived.swap(arrived_);
    answers.swap(answers_);
    ended = ended_;
  }
  const Time deadline = std::chrono::steady_clock::now() + limits_.timeout;
  for (const int socket : arrived) connections_.emplace(++last_, Connection{.socket = socket, .deadline = deadline});
  for (auto& [id, answer] : answers) {
    // A connection whose response is being made is never closed.
    Connection& connection = connections_.at(id);
    unread_bytes_ += answer.size();
    connection.phase = Phase::kAnswer;
    connection.bytes = std::move(answer);
    connection.deadline = deadline;
  }
  MakeRoom();
  return ended;
}

void HttpConnections::MakeRoom() {
  const auto waits = [](const auto& entry) { return entry.second.AwaitsClient(); };
  while (connections_.size() > limits_.max_connections) {
    const auto oldest = std::find_if(connections_.begin(), connections_.end(), waits);
    if (oldest == connections_.end()) break;
    Close(oldest);
  }
  const auto unread = [](const auto& entry) { return entry.second.phase == Phase::kAnswer; };
  while (unread_bytes_ > limits_.max_unread_bytes) {
    const auto oldest = std::find_if(connections_.begin(), connections_.end(), unread);
    // A single response may have any length.
    if (std::find_if(std::next(oldest), connections_.end(), unread) == connections_.end()) break;
    Close(oldest);
  }
}

void HttpConnections::Close(Connections::iterator connection) {
  if (connection->second.phase == Phase::kAnswer) unread_bytes_ -= connection->second.bytes.size();
  ::close(connection->second.socket);
  connections_.erase(connection);
}

}  // namespace tdock::console
