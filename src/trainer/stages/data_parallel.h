// Training of one decoder by several ranks, which have its weights and divide the passes of a mini-batch.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "core/base/workers.h"
#include "model/decoder/decoder.h"
#include "trainer/stages/optimizer.h"
#include "trainer/stages/policy.h"
#include "trainer/stages/sharded_unit.h"
#include "trainer/stages/step_metrics.h"
#include "trainer/stages/training_ranks.h"

namespace tdock::trainer {

// Which passes each rank has: those of most cost first, each to the rank that has least. Ascending.
std::vector<std::vector<size_t>> DealPasses(std::span<const int64_t> costs, int ranks);

// One rank's end. Every rank makes the same calls in the same order. After an error, or an exception in a pass, the
// rank has left the group, so that nobody waits for it.
//
// Gradients are summed bucket by bucket, while those of other layers are still computed: once for all passes
// (Zero::kNone, kOptimizer), or, where a rank keeps only its part of them, once for each pass, of which all ranks then
// make as many, one at a time.
class DataParallel {
 public:
  // The decoder's parameters are equal at all ranks. It and the group outlive this.
  DataParallel(const model::Decoder& decoder, const TrainingRanks& ranks);
  ~DataParallel();

  // What this rank steps of the parameters: all, or its parts. Gradients() gives them their gradients.
  std::vector<ParameterPart> Parts(const std::vector<ParameterGroup>& groups) const;
  // Whether other ranks have other parts.
  bool has_shards() const { return ranks_.zero != Zero::kNone; }
  bool splits_weights() const { return ranks_.zero == Zero::kWeights; }

  // The gradients of Σ loss(i) over all passes, whose costs are given, of which this rank computes its own. Throws what
  // they throw.
  absl::Status Gradients(Workers& workers, std::span<const int64_t> costs, const PassLoss& loss);
  // The sum of what the ranks have, if they have parts: squares of gradients.
  absl::StatusOr<double> SumOfParts(double own);
  // After a step of the optimizer: gives every rank the weights that others have stepped.
  absl::Status ShareWeights();
  // Calls `change`, which changes this rank's parts of the weights, at all ranks. All then have all weights.
  absl::Status ChangeParts(const std::function<void()>& change);

  // Adds up what each rank has gathered, in their order.
  absl::Status AddUp(StepMetrics& metrics);
  // The status of rank 0, at every rank.
  absl::Status AsRank0(const absl::Status& status);

  // With Zero::kWeights: from now on a layer's weights are there while it computes only; and all are there again.
  void ReleaseWeights();
  absl::Status GatherWeights();
  // The decoder's weights, which are all there, are others now.
  void TakeWeights();

  // Others that wait for this rank get an error.
  void Leave() { ranks_.group->Leave(); }

 private:
  class Reduction;
  class Lockstep;

  void MakeBuckets();
  absl::Status GatherAll(const std::vector<std::unique_ptr<ShardedUnit>>& units);
  absl::Status CheckSamePasses(std::span<const int64_t> costs);
  absl::Status ReduceOnce(Workers& workers, const std::vector<size_t>& own, const PassLoss& loss);
  absl::Status ReduceEachPass(Workers& workers, const std::vector<std::vector<size_t>>& dealt, const PassLoss& loss);
  // The part of a parameter that this rank has.
  ParameterPart PartOf(ParameterPart whole) const;
  absl::Time Deadline() const;

  const model::Decoder& decoder_;
  const TrainingRanks ranks_;
  std::vector<std::vector<at::Tensor>> trained_;       // by unit
  std::vector<std::vector<size_t>> buckets_;           // units that are summed together, in the order of the sums
  std::vector<std::unique_ptr<ShardedUnit>> weights_;  // by unit, with Zero::kWeights: all its parameters
  std::vector<std::unique_ptr<ShardedUnit>> stepped_;  // by unit, with shards: the trained ones
  std::vector<std::vector<at::Tensor>> parts_;         // by unit: what this rank steps of those
  std::vector<at::Tensor> sums_;  // by unit, while passes are summed one by one: slots of gradients
};

}  // namespace tdock::trainer
