#include "runtime/collective/thread_collective.h"

#include <algorithm>
#include <limits>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "core/base/clock.h"
#include "core/base/mutex.h"
#include "core/base/status.h"
#include "runtime/collective/operation.h"

namespace tdock::runtime {
namespace {

// Where the ranks meet. Thread-safe.
class MeetingPlace {
 public:
  struct Result {
    int64_t max = std::numeric_limits<int64_t>::min();
    Buffer bytes = {};
  };

  MeetingPlace(int size, std::string name, Clock& clock)
      : size_(size), name_(std::move(name)), clock_(clock), has_come_(static_cast<size_t>(size)) {}

  int size() const { return size_; }

  absl::StatusOr<Result> Meet(int rank, const Operation& operation, Result mine, absl::Time deadline)
      TDOCK_EXCLUDES(mu_) {
    MutexLock lock(mu_);
    if (!ended_.ok()) return ended_;
    TDOCK_CHECK(!has_come_[static_cast<size_t>(rank)], "a rank makes one call at a time");
    if (come_ > 0 && operation != operation_) {
      return End(absl::InternalError(absl::StrCat("group '", name_, "': rank ", rank, " does ", ToString(operation),
                                                  " while another does ", ToString(operation_))));
    }
    operation_ = operation;
    has_come_[static_cast<size_t>(rank)] = true;
    pending_.max = std::max(pending_.max, mine.max);
    if (rank == operation.root) pending_.bytes = std::move(mine.bytes);
    const int64_t meeting = meetings_;
    if (++come_ == size()) {
      Conclude();
    } else {
      while (meetings_ == meeting && ended_.ok()) {
        if (clock_.Now() >= deadline) return End(Missing());
        clock_.Wait(changed_, mu_, deadline);
      }
      if (meetings_ == meeting) return ended_;
    }
    // Nobody can conclude the next meeting before this rank has come to it.
    return --readers_ == 0 ? std::exchange(result_, {}) : result_;
  }

  void Leave(int rank) TDOCK_EXCLUDES(mu_) {
    MutexLock lock(mu_);
    if (ended_.ok()) {
      End(absl::UnavailableError(absl::StrCat("group '", name_, "': rank ", rank, " of ", size(), " has left")))
          .IgnoreError();
    }
  }

 private:
  void Conclude() TDOCK_REQUIRES(mu_) {
    result_ = std::exchange(pending_, {});
    readers_ = size();
    come_ = 0;
    std::fill(has_come_.begin(), has_come_.end(), false);
    ++meetings_;
    changed_.NotifyAll();
  }

  absl::Status End(absl::Status why) TDOCK_REQUIRES(mu_) {
    ended_ = std::move(why);
    changed_.NotifyAll();
    return ended_;
  }

  absl::Status Missing() const TDOCK_REQUIRES(mu_) {
    std::vector<int> missing;
    for (size_t rank = 0; rank < has_come_.size(); ++rank) {
      if (!has_come_[rank]) missing.push_back(static_cast<int>(rank));
    }
    return absl::DeadlineExceededError(absl::StrCat("group '", name_, "': ", RanksText(missing, size()),
                                                    " did not come in time to ", ToString(operation_)));
  }

  const int size_;
  const std::string name_;
  Clock& clock_;

  Mutex mu_;
  CondVar changed_;
  absl::Status ended_ TDOCK_GUARDED_BY(mu_);
  int64_t meetings_ TDOCK_GUARDED_BY(mu_) = 0;  // that were concluded
  // Of the next one.
  std::vector<bool> has_come_ TDOCK_GUARDED_BY(mu_);
  int come_ TDOCK_GUARDED_BY(mu_) = 0;
  Operation operation_ TDOCK_GUARDED_BY(mu_);
  Result pending_ TDOCK_GUARDED_BY(mu_);
  // Of the last one.
  Result result_ TDOCK_GUARDED_BY(mu_);
  int readers_ TDOCK_GUARDED_BY(mu_) = 0;  // ranks that do not have it yet
};

class ThreadCollective final : public Collective {
 public:
  ThreadCollective(std::shared_ptr<MeetingPlace> place, int rank) : place_(std::move(place)), rank_(rank) {}
  ~ThreadCollective() override { place_->Leave(rank_); }

  int rank() const override { return rank_; }
  int size() const override { return place_->size(); }

  absl::StatusOr<Buffer> Broadcast(Buffer bytes, int root, absl::Time deadline) override {
    TDOCK_CHECK(root >= 0 && root < size(), "a group has its root");
    TDOCK_ASSIGN_OR_RETURN(MeetingPlace::Result result, place_->Meet(rank_, {Operation::Kind::kBroadcast, root},
                                                                     {.bytes = std::move(bytes)}, deadline));
    return std::move(result.bytes);
  }
  absl::StatusOr<int64_t> AllReduceMax(int64_t value, absl::Time deadline) override {
    TDOCK_ASSIGN_OR_RETURN(const MeetingPlace::Result result,
                           place_->Meet(rank_, {Operation::Kind::kAllReduceMax}, {.max = value}, deadline));
    return result.max;
  }
  absl::Status Barrier(absl::Time deadline) override {
    return place_->Meet(rank_, {Operation::Kind::kBarrier}, {}, deadline).status();
  }

 private:
  const std::shared_ptr<MeetingPlace> place_;
  const int rank_;
};

}  // namespace

std::vector<std::unique_ptr<Collective>> MakeThreadCollectives(int size, const std::string& name, Clock& clock) {
  TDOCK_CHECK(size >= 1, "a group has a rank");
  const auto place = std::make_shared<MeetingPlace>(size, name, clock);
  std::vector<std::unique_ptr<Collective>> ranks;
  for (int rank = 0; rank < size; ++rank) ranks.push_back(std::make_unique<ThreadCollective>(place, rank));
  return ranks;
}

}  // namespace tdock::runtime
