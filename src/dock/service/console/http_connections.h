// Connections that each carry one HTTP request and one response.
#pragma once

#include <poll.h>

#include <chrono>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "core/base/mutex.h"

namespace tdock::console {

struct HttpLimits {
  int threads = 0;                       // responses that are made at the same time
  std::chrono::milliseconds timeout{0};  // for a request to arrive, and again for its response to be read
  size_t max_request_bytes = 0;
  size_t max_connections = 256;
  size_t max_unread_bytes = 64 << 20;  // of responses that clients have not read
};

// One thread waits for all connections, and only a complete request occupies one of the threads that answer, so that a
// silent or slow client blocks no other. With too many connections, or too many unread bytes, the oldest connection
// that waits for its client is closed. Thread-safe.
class HttpConnections {
 public:
  // Turns the bytes of a request, which ends with an empty line or at the maximum length, into those of its response.
  using Answerer = std::function<std::string(std::string request)>;

  // ResourceExhausted if no descriptor is left. The answerer is called on several threads at once.
  static absl::StatusOr<std::unique_ptr<HttpConnections>> Start(const HttpLimits& limits, Answerer answerer);
  // Ends the connections; returns once the responses in progress are done.
  ~HttpConnections();

  // Takes ownership of the socket.
  void Add(int socket) TDOCK_EXCLUDES(mu_);

 private:
  HttpConnections(int wake, const HttpLimits& limits, Answerer answerer);

  using Time = std::chrono::steady_clock::time_point;
  enum class Phase { kRequest, kAnswering, kAnswer, kClosing };

  struct Connection {
    int socket = -1;
    Phase phase = Phase::kRequest;
    Time deadline = {};
    std::string bytes = {};  // of the request, then of the response
    size_t sent = 0;

    bool AwaitsClient() const { return phase != Phase::kAnswering; }
  };
  using Connections = std::map<uint64_t, Connection>;

  void Run() TDOCK_EXCLUDES(mu_);
  void Work() TDOCK_EXCLUDES(mu_);
  void Wake();

  // Whether the connection is to stay.
  bool Advance(uint64_t id, Connection& connection) TDOCK_EXCLUDES(mu_);
  bool ReadRequest(uint64_t id, Connection& connection) TDOCK_EXCLUDES(mu_);
  bool WriteAnswer(Connection& connection);
  // Handles what other threads have queued; true if it must end.
  bool TakeNews() TDOCK_EXCLUDES(mu_);
  void MakeRoom();
  void Close(Connections::iterator connection);
  std::vector<pollfd> Watched(int& timeout_ms) const;

  const int wake_;
  const HttpLimits limits_;
  const Answerer answerer_;

  // Owned by the thread that waits; in order of arrival.
  Connections connections_;
  uint64_t last_ = 0;
  size_t unread_bytes_ = 0;

  Mutex mu_;
  CondVar work_;
  std::vector<int> arrived_ TDOCK_GUARDED_BY(mu_);
  std::deque<std::pair<uint64_t, std::string>> requests_ TDOCK_GUARDED_BY(mu_);
  std::vector<std::pair<uint64_t, std::string>> answers_ TDOCK_GUARDED_BY(mu_);
  bool ended_ TDOCK_GUARDED_BY(mu_) = false;
  std::vector<std::thread> threads_;
};

}  // namespace tdock::console
