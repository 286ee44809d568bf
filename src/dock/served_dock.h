// What a server needs of the dock inside its process, beyond what its users see.
#pragma once

#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "tdock/local_dock.h"

namespace tdock {

// Thread-safe.
class ServedDock : public Dock {
 public:
  template <class T>
  using Done = std::function<void(absl::StatusOr<T>)>;

  // As Take, Put and Fetch, but they hold no thread while they wait: `done` is called exactly once, by whichever thread
  // ends the wait, maybe before the call returns, and without a lock of the dock's: it may call the dock, but for its
  // destructor. That is the thread of another call, of the clock's alarms, of the dock's own, or the one that requests
  // the stop, within that request: a brief `done` keeps nobody waiting. The copying of a put is done there too.
  virtual void StartTake(TakeRequest request, Done<Taken> done) = 0;
  virtual void StartPut(PutRequest request, Done<PutResult> done) = 0;
  virtual void StartFetch(FetchRequest request, Done<Rows> done) = 0;
};

struct ServedDockOptions {
  LocalDockOptions local = {};
};

// Views outlive it. Its destructor ends the waits with NotFound, and returns when each `done` has; no other call may be
// running then.
std::unique_ptr<ServedDock> MakeServedDock(const ServedDockOptions& options = {});

}  // namespace tdock
