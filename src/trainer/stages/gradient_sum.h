// The gradients of several passes, added up.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <functional>
#include <map>
#include <utility>
#include <vector>

#include "core/base/mutex.h"

namespace tdock::trainer {

// Adds up the gradients of each unit of a decoder (model/decoder/pass_watch.h) in the order of the passes, whichever
// comes first: sums are the same, bit for bit, on any number of threads. What comes early is kept. Sums are in float32
// at least, because in half precision a large one would lose what is added to it. Thread-safe.
class GradientSum {
 public:
  // `done` is called once for each unit, by the thread that has its last part, with the sums.
  using Done = std::function<void(size_t unit, std::vector<at::Tensor> sums)>;
  GradientSum(std::vector<size_t> units, size_t passes, Done done);

  // Those of one pass; each unit and pass comes once. Does not wait, because the passes of a GPU share a thread.
  void Add(size_t unit, size_t pass, std::vector<at::Tensor> gradients) TDOCK_EXCLUDES(mu_);

  // Waits until all units of the first `passes` passes are added up, so that not too many come early. False if one of
  // them will not come.
  bool Await(size_t passes) TDOCK_EXCLUDES(mu_);
  void Fail() TDOCK_EXCLUDES(mu_);

 private:
  struct Unit {
    std::map<size_t, std::vector<at::Tensor>> early = {};  // by pass, until it is their turn
    size_t next = 0;                                       // the pass whose turn it is
    bool busy = false;                                     // a thread adds to the sums, without the lock
    std::vector<at::Tensor> sums = {};
  };
  void AddTo(std::vector<at::Tensor>& sums, std::vector<at::Tensor> more) const;

  const size_t passes_;
  const Done done_;
  Mutex mu_;
  CondVar changed_;
  bool failed_ TDOCK_GUARDED_BY(mu_) = false;
  std::map<size_t, Unit> units_ TDOCK_GUARDED_BY(mu_);
};

}  // namespace tdock::trainer
