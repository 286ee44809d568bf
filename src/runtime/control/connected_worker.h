// A worker as its controller sees it. For this module only.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "core/base/mutex.h"
#include "core/net/connection.h"
#include "runtime/control/parcel.h"
#include "runtime/control/peer_watch.h"
#include "runtime/control/processes.h"

namespace tdock::runtime {

// Thread-safe.
class ConnectedWorker final : public WorkerLink {
 public:
  // The contents of its hello.
  struct Identity {
    int rank = 0;
    std::string name, host;
    int64_t pid = 0;
    Setup setup = {};
    int64_t world_size = 0;
  };
  using OnCall = std::function<void(int rank, const std::string& line)>;
  // For `on_call`, see ControllerOptions.
  ConnectedWorker(Identity identity, std::shared_ptr<net::Connection> connection, OnCall on_call)
      : identity_(std::move(identity)), connection_(std::move(connection)), on_call_(std::move(on_call)) {}

  const Identity& identity() const { return identity_; }
  std::string Describe() const override;
  void Invoke(std::string method, std::vector<Value> arguments, absl::Time deadline,
              std::function<void(absl::StatusOr<Value>)> done) override TDOCK_EXCLUDES(mu_);

  // Sends a message; nothing if the worker is gone.
  void Send(const Parcel& parcel) const;
  // A result or a notice of it. InvalidArgument for what is neither, which ends the connection.
  absl::Status OnParcel(const Parcel& parcel, const std::function<void(const Notice&)>& on_notice) TDOCK_EXCLUDES(mu_);
  PeerWatch& watch() { return watch_; }

  // OK while it is there, or the error that its calls fail with.
  absl::Status status() const TDOCK_EXCLUDES(mu_);
  // Nothing yet; OK: it serves; or why it cannot.
  enum class Serving { kNotYet, kYes, kNo };
  Serving serving() const TDOCK_EXCLUDES(mu_);
  absl::Status why_not() const TDOCK_EXCLUDES(mu_);

  // It is gone, for this reason: its calls fail, also later ones. Only the first call has an effect.
  void Lose(const absl::Status& why) TDOCK_EXCLUDES(mu_);
  // Ends its session with this status. What it still runs is cancelled. The worker then closes the connection.
  void End(const absl::Status& why) TDOCK_EXCLUDES(mu_);
  // Fails the calls whose deadlines are over, and returns the earliest of the others.
  absl::Time Expire(absl::Time now) TDOCK_EXCLUDES(mu_);

 private:
  struct PendingCall {
    std::string method;
    absl::Time deadline;
    std::function<void(absl::StatusOr<Value>)> done;
  };
  std::string LastLines() const TDOCK_REQUIRES(mu_);
  // Tells on_call_ that the method begins, and with `done`, that it has ended.
  std::function<void(absl::StatusOr<Value>)> Told(const std::string& method,
                                                  std::function<void(absl::StatusOr<Value>)> done) const;

  const Identity identity_;
  const std::shared_ptr<net::Connection> connection_;
  const OnCall on_call_;
  PeerWatch watch_;
  mutable Mutex mu_;
  int64_t next_call_ TDOCK_GUARDED_BY(mu_) = 1;
  std::map<int64_t, PendingCall> calls_ TDOCK_GUARDED_BY(mu_);
  std::deque<std::string> lines_ TDOCK_GUARDED_BY(mu_);  // its last ones
  absl::Status gone_ TDOCK_GUARDED_BY(mu_);
  bool over_ TDOCK_GUARDED_BY(mu_) = false;
  Serving serving_ TDOCK_GUARDED_BY(mu_) = Serving::kNotYet;
  absl::Status why_not_ TDOCK_GUARDED_BY(mu_);
};

}  // namespace tdock::runtime
