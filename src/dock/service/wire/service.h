// Sessions, calls, and their execution by the dock, whatever brings the calls.
#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "core/base/clock.h"
#include "core/base/mutex.h"
#include "dock/local/served_dock.h"
#include "dock/service/wire/session.h"

namespace tdock::service {

struct ServiceOptions {
  // The dock's clock; converts deadlines to and from remaining time.
  Clock* dock_clock = nullptr;
  // The clock for how long sessions outlive their connections.
  Clock* clock = nullptr;
  absl::Duration session_grace = absl::Seconds(1);
  uint64_t max_frame_bytes = uint64_t{16} << 30;
  // Leases up to this number were given out before the server was restarted.
  LeaseId last_lease = kNoLease;
  // Runs long calls, so that the threads that bring calls do not wait for them; must outlive the service. Null: they
  // run on those threads.
  WorkQueue* work = nullptr;
};

// Thread-safe. A waiting call holds no thread.
class Service {
 public:
  // The limit on a Request, and on a Reply without the places of its cells.
  static constexpr size_t kMaxControlBytes = size_t{64} << 20;
  // Maximum length of the name that a client gives itself; the rest is cut off.
  static constexpr size_t kMaxClientName = 255;

  // The dock must outlive the service.
  Service(dock::ServedDock& dock, const ServiceOptions& options);
  // Ends all sessions, and returns when no call is in progress. No new calls may arrive.
  ~Service();
  Service(const Service&) = delete;
  Service& operator=(const Service&) = delete;

  // A connection that has said hello. Its session ends when it has had no connection for a while.
  class Connection {
   public:
    Connection(Service& service, std::shared_ptr<Session> session) : service_(service), session_(std::move(session)) {}
    ~Connection() { service_.Disconnect(session_); }
    Connection(const Connection&) = delete;
    Connection& operator=(const Connection&) = delete;
    const std::shared_ptr<Session>& session() const { return session_; }

   private:
    Service& service_;
    const std::shared_ptr<Session> session_;
  };
  struct Welcomed {
    std::unique_ptr<Connection> connection;
    message::Welcome welcome;
  };
  // Unavailable while shutting down. A session that no longer exists is replaced by a new one, and the welcome says so.
  absl::StatusOr<Welcomed> Connect(const message::Hello& hello) TDOCK_EXCLUDES(mu_);

  // The memory where the bytes of a put into the partition should be placed, so that the dock can keep them there.
  // Errors are the put's.
  absl::StatusOr<std::shared_ptr<Memory>> MemoryFor(absl::string_view partition) { return dock_.MemoryOf(partition); }

  // Carries out the request; `batch` is what came as its frame. `reply` is called once, possibly before this returns.
  // Calls of one session run in any order: long ones go to the work queue.
  void Call(const std::shared_ptr<Session>& session, message::Request request, Batch batch, ReplyTo reply);

  // For a connection that cannot send a response: since no client will ever get it, the lease of a take ends, and the
  // call is answered with the error from then on. Returns what to send instead.
  std::shared_ptr<const Answer> Refuse(Session& session, uint64_t call, const Answer& answer, const absl::Status& why);

  // Ends waiting calls, and refuses new ones: Unavailable, saying that the server shuts down.
  void Drain() TDOCK_EXCLUDES(mu_);

  uint64_t instance() const { return instance_; }
  uint64_t max_frame_bytes() const { return options_.max_frame_bytes; }

  struct Counts {
    int64_t sessions = 0;
    int64_t calls_under_way = 0;
    int64_t calls = 0;  // since the server started
    int64_t pins = 0;
    int64_t leases = 0;
  };
  Counts counts() TDOCK_EXCLUDES(mu_);
  // Returns when no call is in progress, or at `deadline` of absl::Now().
  void AwaitNoCalls(absl::Time deadline) TDOCK_EXCLUDES(mu_);
  // Null if there is none.
  WorkQueue* work() const { return options_.work; }

 private:
  using Finish = Callback<void(std::shared_ptr<const Answer>)>;

  void Disconnect(const std::shared_ptr<Session>& session) TDOCK_EXCLUDES(mu_);
  // Ends sessions that have had no connection for too long.
  void Reap() TDOCK_EXCLUDES(mu_);
  void EndIfAlone(const std::shared_ptr<Session>& session, uint64_t connections_ever) TDOCK_EXCLUDES(mu_);
  // Where a call comes from, and where its answer goes.
  struct Caller {
    std::shared_ptr<Session> session;
    std::stop_token cancel;
    Finish finish;
    uint64_t discard;  // the last that the client asked for before
    bool is_long = false;

    Caller Long() const {
      Caller caller = *this;
      caller.is_long = true;
      return caller;
    }
  };
  // Carries out a request, here or, if that takes long, in the work queue. `batch` is what came as its frame.
  template <class V>
  void Do(const Caller& caller, std::string body, Batch batch);
  // It may also have to wait for other long calls.
  template <class V>
  bool IsLong(const typename V::Request& request);
  template <class Work>
  void DoLong(const Caller& caller, absl::string_view partition, Work work);
  void Wait(const Caller& caller, PutRequest request, absl::string_view body);
  void Wait(const Caller& caller, TakeRequest request, absl::string_view body);
  void Wait(const Caller& caller, FetchRequest request, absl::string_view body);
  // The client will never know of it: its rows are ready again, as if it had not been.
  void GiveBack(const HeldLease& lease);
  // The client may have had it, and is gone.
  void Expire(const HeldLease& lease);
  std::shared_ptr<Memory> MemoryOf(const std::string& partition);
  absl::Status CheckLease(LeaseId lease) const;
  void CheckLeases(const std::shared_ptr<Session>& session);
  absl::Time Now() const { return dock_clock_.Now(); }

  dock::ServedDock& dock_;
  const ServiceOptions options_;
  Clock& dock_clock_;
  Clock& clock_;
  const uint64_t instance_;
  std::atomic<int64_t> calls_{0};
  std::atomic<bool> draining_{false};

  Mutex mu_;
  bool stopping_ TDOCK_GUARDED_BY(mu_) = false;
  int64_t under_way_ TDOCK_GUARDED_BY(mu_) = 0;
  absl::flat_hash_map<std::string, std::shared_ptr<Session>> sessions_ TDOCK_GUARDED_BY(mu_);
  // Sessions that lost their last connection, in the order in which they end unless they had another one since.
  struct Ending {
    absl::Time at;
    std::shared_ptr<Session> session;
    uint64_t connections_ever;
  };
  std::deque<Ending> endings_ TDOCK_GUARDED_BY(mu_);
  CondVar changed_;  // what the reaper checks
  CondVar all_answered_;
  std::thread reaper_;
};

}  // namespace tdock::service
