// Workers that are threads of this process: for roles beside the controller, and for tests.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "runtime/dispatch/method_table.h"
#include "runtime/dispatch/worker_group.h"
#include "tdock/clock.h"

namespace tdock::runtime {

// Worker i serves `tables[i]` on a thread of its own, one call after another, in the order of Invoke(). A call whose
// deadline passes before its turn is not run: DeadlineExceeded. Thread-safe.
class InProcessWorkers {
 public:
  // `role` is for errors. The clock must outlive this.
  InProcessWorkers(absl::string_view role, std::vector<MethodTable> tables, Clock& clock = Clock::Real());
  // Waits for the calls that run; those that have not begun, and later ones, are answered with Cancelled. Must not be
  // called by a worker.
  ~InProcessWorkers();
  InProcessWorkers(const InProcessWorkers&) = delete;
  InProcessWorkers& operator=(const InProcessWorkers&) = delete;

  // By rank; they may outlive this.
  std::vector<std::shared_ptr<WorkerLink>> links() const;

 private:
  class Worker;

  std::vector<std::shared_ptr<Worker>> workers_;
  std::vector<std::thread> threads_;
};

}  // namespace tdock::runtime
