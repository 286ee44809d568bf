// A replica: the ranks that hold the parts of one model, of which each does its part of every row.
//
//   dock ── Take ──► leader ══ broadcast ══► every rank computes ══ agree ══► one rank ── Put ──► dock
//                  (tp 0, cp 0, pp 0)                                      (tp 0, cp 0, last pp)
//
// Every replica takes rows of a share of its own, so that data-parallel replicas need not know of each other.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "runtime/collective/collective.h"
#include "tdock/clock.h"
#include "tdock/dock.h"
#include "tdock/mesh_rules.h"

namespace tdock::runtime {

// The options of a consumer that the replicas of a mesh take rows for, each its own share: the rows are dealt out to
// the replicas in turn.
ConsumerOptions WithShares(ConsumerOptions consumer, const MeshSizes& sizes);

// The tokens of a sequence that a rank works on.
struct ContextPart {
  // What the sequence is padded to, so that it can be divided.
  int64_t padded_length = 0;
  // Of the padded sequence: one range, or two for a ring.
  std::vector<TokenRange> ranges = {};
};

// One rank of a replica. All ranks make the same calls with the same arguments, in the same order; each call returns
// the same at all of them. Not thread-safe.
//
// An error at any rank is the error of the call at every rank; it names the rank. After that the replica can go on,
// unless the group ended: a rank that is gone, or hangs, held a part of the model, so the replica must then be made
// anew, of all its ranks.
class Replica {
 public:
  struct Options {
    MeshSizes sizes = {};
    MeshCoordinates at = {};
    // The ranks of this replica, numbered with tp varying fastest, then cp, then pp. It, the dock and the clock outlive
    // the replica.
    Collective& group;
    // Of the ranks that ask it or put; others do not use it.
    Dock& dock;
    // How far the ranks may be apart: for how long each waits for the others, from when it is done itself.
    absl::Duration patience = absl::Minutes(30);
    Clock& clock = Clock::Real();
  };
  // InvalidArgument unless the group has tp·cp·pp ranks, and this one has its place in it; errors of the coordinates
  // are those of CoordinatesOf() and AsksDock().
  static absl::StatusOr<Replica> Make(const Options& options);

  const MeshSizes& sizes() const { return options_.sizes; }
  const MeshCoordinates& at() const { return options_.at; }
  bool asks() const { return options_.group.rank() == kLeader; }
  bool puts() const { return options_.group.rank() == putter_; }

  enum class Outcome {
    kDone,          // rows were taken, computed and put
    kNothingReady,  // not enough rows were ready by the deadline
    kNoMoreRows,    // and none can come: the partition is sealed, and this replica has done all of its share
  };
  struct Round {
    Outcome outcome = Outcome::kDone;
    // What the rank that put has said.
    std::string said = {};
  };
  struct Work {
    // At every rank, on the same rows. It may write nothing to the dock that must not be there more than once.
    std::function<absl::Status(const Taken&)> compute;
    // Only where puts(), and only after all ranks have computed: puts the results under the lease, and completes the
    // rows. What it returns is told to all ranks.
    std::function<absl::StatusOr<std::string>(const Taken&)> put;
  };
  // Takes rows once and works on them. If the request does not name rows, they are of this replica's share, of a
  // consumer with WithShares(). Ranks that do not ask get copies of what was taken, which have no time of expiry.
  //
  // After an error the rows that are not put are given back. That is the error of the rank with the lowest number of
  // those that have one, a thrown exception being Internal; or DeadlineExceeded, or Unavailable, of the group. If the
  // rank that asks is gone, too, the one that puts gives them back; if both are one, their lease must expire.
  absl::StatusOr<Round> Run(TakeRequest request, const Work& work);

  // Whether the consumer is done with all rows that the partition has: of all replicas, quarantined ones included.
  // Asked once for the replica. A row that another replica has taken is not done: it may be given back.
  absl::StatusOr<bool> AllConsumed(absl::string_view partition, absl::string_view consumer);

  // Does something where asks() only; its error is that of all ranks.
  absl::Status OnLeader(const std::function<absl::Status()>& body);

  // The part of a sequence of `length` tokens that this rank works on with the others of its cp dimension.
  // InvalidArgument for a negative length, or one beyond 2^61.
  absl::StatusOr<ContextPart> PartOf(int64_t length, ContextSlicing slicing) const;

 private:
  static constexpr int kLeader = 0;
  struct Given;

  Replica(const Options& options, int putter) : options_(options), putter_(putter) {}

  absl::StatusOr<Given> TakeTogether(const TakeRequest& request);
  absl::StatusOr<std::string> ComputeAndPut(const Given& given, const Work& work);
  // Every rank's error becomes that of all.
  absl::Status Agree(const absl::Status& mine);
  absl::Status Name(const absl::Status& status) const;
  absl::Time Deadline() const { return options_.clock.Now() + options_.patience; }
  void GiveBack(const TakeRequest& request, LeaseId lease);

  Options options_;
  int putter_;
};

}  // namespace tdock::runtime
