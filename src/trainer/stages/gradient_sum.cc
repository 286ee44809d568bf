#include "trainer/stages/gradient_sum.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <utility>

namespace tdock::trainer {

GradientSum::GradientSum(std::vector<size_t> units, size_t passes, Done done)
    : passes_(passes), done_(std::move(done)) {
  for (const size_t unit : units) units_.try_emplace(unit);
}

void GradientSum::Add(size_t unit, size_t pass, std::vector<at::Tensor> gradients) {
  at::NoGradGuard no_grad;
  std::vector<at::Tensor> sums;
  {
    MutexLock lock(mu_);
    Unit& of = units_.at(unit);
    of.early.emplace(pass, std::move(gradients));
    if (of.busy) return;  // that thread goes on with it
    of.busy = true;
    sums = std::move(of.sums);
  }
  for (;;) {
    std::vector<at::Tensor> more;
    {
      MutexLock lock(mu_);
      Unit& of = units_.at(unit);
      const auto found = of.early.find(of.next);
      if (found == of.early.end()) {
        of.busy = false;
        if (of.next < passes_) {
          of.sums = std::move(sums);
          return;
        }
        break;
      }
      more = std::move(found->second);
      of.early.erase(found);
    }
    AddTo(sums, std::move(more));
    MutexLock lock(mu_);
    ++units_.at(unit).next;
    changed_.NotifyAll();
  }
  done_(unit, std::move(sums));
}

void GradientSum::AddTo(std::vector<at::Tensor>& sums, std::vector<at::Tensor> more) const {
  if (!sums.empty()) {
    at::_foreach_add_(sums, more);
    return;
  }
  for (at::Tensor& tensor : more) {
    sums.push_back(tensor.to(at::promoteTypes(tensor.scalar_type(), at::kFloat)));
    tensor.reset();
  }
}

bool GradientSum::Await(size_t passes) {
  MutexLock lock(mu_);
  const auto are_added = [&]() TDOCK_REQUIRES(mu_) {
    return std::all_of(units_.begin(), units_.end(), [&](const auto& unit) { return unit.second.next >= passes; });
  };
  while (!failed_ && !are_added()) changed_.Wait(mu_);
  return !failed_;
}

void GradientSum::Fail() {
  MutexLock lock(mu_);
  failed_ = true;
  changed_.NotifyAll();
}

}  // namespace tdock::trainer
