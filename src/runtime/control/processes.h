// The processes of a run: one controller, of rank 0, and workers that serve methods for it.
//
//   worker 1 ──┐ joins, and then serves             worker = a link that a WorkerGroup calls
//   worker 2 ──┼──────────────────────► controller
//   worker 3 ──┘ calls, results, notices, signs of life, over one connection each
//
// A worker that is killed, or whose machine is gone, is noticed by its connection; one that is stopped or hangs, by
// missing signs of life. So is the controller by its workers. Whoever notices ends what waits for the other, with an
// error that names it: nothing waits for ever.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "runtime/dispatch/method_table.h"
#include "runtime/dispatch/value.h"
#include "runtime/dispatch/worker_group.h"

namespace tdock::runtime {

// What a worker says by itself.
struct Notice {
  int rank = 0;
  std::string kind;  // "log": a line for people; others are between the two
  std::string text;
};

// What all ranks must agree on, such as the keys of a configuration and their values.
using Setup = std::map<std::string, std::string>;

struct ControllerOptions {
  // Where workers connect: "host:port"; port 0 is any free one.
  std::string listen = "127.0.0.1:0";
  // That workers must present; empty: none, which is refused beyond the loopback interface.
  std::string token = {};
  int world_size = 1;  // with the controller, if it is a rank
  // Whether the controller is rank 0 itself. Otherwise all ranks, from 0 on, are workers.
  bool is_rank_zero = true;
  Setup setup = {};
  // How long a worker may give no sign of life.
  absl::Duration silence = absl::Seconds(30);
  // Called by any thread; must not block. Each worker's last lines are kept, too, for errors about it.
  std::function<void(const Notice&)> on_notice = [](const Notice&) {};
  // If it is set, called as a method begins at a worker and when it has ended, with a line for people, such as
  // "update_actor begins" or "update_actor has ended after 0.512 s". By any thread; must not block.
  std::function<void(int rank, const std::string& line)> on_call = {};
};

// Thread-safe.
class Controller {
 public:
  // Ends the sessions of all workers: with OK, or the status of End().
  virtual ~Controller() = default;

  virtual std::string address() const = 0;

  // Waits until all have joined. DeadlineExceeded names the ranks that have not. FailedPrecondition if one disagrees
  // about the setup, naming what differs with both values, or about the size of the world; AlreadyExists if two say to
  // be the same rank. After an error every worker's session ends with the same one.
  virtual absl::Status AwaitWorkers(absl::Time deadline) = 0;
  // Tells all of them how to begin: WorkerSession::welcome(). Call it once.
  virtual absl::Status Welcome(const Value& welcome) = 0;
  // Waits until each of them serves its methods. An error of a worker that cannot is returned; DeadlineExceeded.
  virtual absl::Status AwaitServing(absl::Time deadline) = 0;

  // 1 ≤ rank < world_size, or 0 ≤ rank if the controller is no rank; after AwaitWorkers(). Calls fail with Unavailable
  // once the worker is gone: the error says how that was noticed, and its last log lines.
  virtual std::shared_ptr<WorkerLink> worker(int rank) = 0;
  // What the worker with this rank calls itself, such as "ref".
  virtual std::string name(int rank) const = 0;
  // OK, or the error of the first worker that is gone.
  virtual absl::Status status() const = 0;

  // Ends all sessions with this status. Only the first call has an effect.
  virtual void End(const absl::Status& why) = 0;
};

struct WorkerOptions {
  std::string controller = {};  // its address
  std::string token = {};
  int rank = 1;
  int world_size = 2;
  std::string name = {};                           // for people: its roles
  std::string controller_name = "the controller";  // for people
  Setup setup = {};
  absl::Duration connect_timeout = absl::Seconds(60);
  absl::Duration silence = absl::Seconds(30);  // of the controller
  // Whether all calls are carried out one after another, in the order in which the controller began them.
  bool in_order = false;
};

// Thread-safe.
class WorkerSession {
 public:
  virtual ~WorkerSession() = default;  // leaves, and waits until Serve() has returned

  // Waits for Controller::Welcome(). The error that the controller has refused all with; Unavailable if it is gone.
  virtual absl::StatusOr<Value> AwaitWelcome(absl::Time deadline) = 0;
  // Serves until the controller ends the session, or is gone: OK, the status that it ended it with, or Unavailable.
  // Calls of one method are carried out one after another, of different ones at the same time, unless
  // WorkerOptions::in_order.
  virtual absl::Status Serve(const MethodTable& methods) = 0;
  // Instead: this worker cannot. Then waits for the end of the session: its status, or DeadlineExceeded.
  virtual absl::Status Fail(const absl::Status& why, absl::Time deadline) = 0;
  virtual void Notify(absl::string_view kind, absl::string_view text) = 0;
  // OK while the session lasts.
  virtual absl::Status status() const = 0;
};

// Errors are those of net::Server::ListenOnTcp.
absl::StatusOr<std::unique_ptr<Controller>> OpenController(const ControllerOptions& options);
// Waits up to WorkerOptions::connect_timeout for a controller that does not answer, or whose host has no address yet:
// Unavailable or NotFound. Unauthenticated for a wrong token, FailedPrecondition if something else than a controller of
// this release answers; other errors are those of net::Channel::Connect.
absl::StatusOr<std::unique_ptr<WorkerSession>> JoinController(const WorkerOptions& options);

}  // namespace tdock::runtime
