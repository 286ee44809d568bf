// Calls that wait for a thread of Python. C++ threads must not take the GIL (README.md), so whoever gets a call puts it
// here, and Python comes for it.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "runtime/dispatch/future.h"
#include "runtime/dispatch/value.h"
#include "runtime/dispatch/worker_group.h"

namespace tdock::python {

// Thread-safe.
class Inbox {
 public:
  struct Call {
    int64_t id = 0;
    std::string method = {};
    std::vector<runtime::Value> arguments = {};
    absl::Time deadline = absl::InfiniteFuture();
  };

  // The answer to come. After Close(): its error at once.
  runtime::FutureValue Push(std::string method, std::vector<runtime::Value> arguments, absl::Time deadline);
  // The next call, in the order of Push(), waited for until `until`: DeadlineExceeded. Nothing once it is closed. A
  // call whose deadline is over is answered with that, and passed over.
  absl::StatusOr<std::optional<Call>> Next(absl::Time until);
  // Ignored for a call that is answered.
  void Answer(int64_t id, absl::StatusOr<runtime::Value> answer);
  // Whether it was closed by `until`.
  bool AwaitClosed(absl::Time until);
  // Answers all calls that have no answer with this error. Only the first has an effect.
  void Close(const absl::Status& why);

 private:
  std::mutex mu_;
  std::condition_variable changed_;
  std::deque<Call> waiting_;
  std::map<int64_t, runtime::FutureValue> open_;
  int64_t next_id_ = 1;
  std::optional<absl::Status> closed_;
};

// A worker whose calls are in an inbox of this process. Thread-safe.
class InboxLink final : public runtime::WorkerLink {
 public:
  InboxLink(std::string name, std::shared_ptr<Inbox> inbox) : name_(std::move(name)), inbox_(std::move(inbox)) {}

  std::string Describe() const override { return name_; }
  void Invoke(std::string method, std::vector<runtime::Value> arguments, absl::Time deadline,
              std::function<void(absl::StatusOr<runtime::Value>)> done) override;

 private:
  const std::string name_;
  const std::shared_ptr<Inbox> inbox_;
};

}  // namespace tdock::python
