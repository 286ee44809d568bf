#include "trainer/stages/data_parallel.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <torch/csrc/autograd/autograd.h>

#include <algorithm>
#include <numeric>
#include <set>
#include <string>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/time/clock.h"
#include "core/base/mutex.h"
#include "core/base/status.h"
#include "tdock/buffer.h"

namespace tdock::trainer {
namespace {

// Units are summed together until they have as many bytes: operations of less do not reach the network's speed.
constexpr uint64_t kBucketBytes = uint64_t{25} << 20;

// Texts of a state, each behind its name; neither has a zero byte.
Buffer Encoded(const StepMetrics& metrics) {
  State state;
  metrics.Save(state);
  std::string bytes;
  for (const auto& [name, text] : state.texts()) {
    absl::StrAppend(&bytes, name, absl::string_view("\0", 1), text, absl::string_view("\0", 1));
  }
  return Buffer::CopyOf(std::as_bytes(std::span(bytes)));
}

State Decoded(const Buffer& buffer) {
  const absl::string_view bytes(reinterpret_cast<const char*>(buffer.data()), buffer.size());
  const std::vector<std::string> texts = absl::StrSplit(bytes, '\0');
  State state;
  for (size_t i = 0; i + 1 < texts.size(); i += 2) state.SetText(texts[i], texts[i + 1]);
  return state;
}

at::ScalarType SumType(const at::Tensor& parameter) { return at::promoteTypes(parameter.scalar_type(), at::kFloat); }

}  // namespace

std::vector<std::vector<size_t>> DealPasses(std::span<const int64_t> costs, int ranks) {
  std::vector<size_t> order(costs.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) { return costs[a] > costs[b]; });
  std::vector<std::vector<size_t>> dealt(static_cast<size_t>(ranks));
  std::vector<int64_t> sums(dealt.size());
  for (const size_t pass : order) {
    const auto least = static_cast<size_t>(std::min_element(sums.begin(), sums.end()) - sums.begin());
    dealt[least].push_back(pass);
    sums[least] += costs[pass];
  }
  for (std::vector<size_t>& own : dealt) std::sort(own.begin(), own.end());
  return dealt;
}

// ---- Sums of all passes at once.

// Adds up the gradients of buckets, in place, on a thread of its own, each as soon as it is complete here, in the order
// that all ranks have.
class DataParallel::Reduction {
 public:
  explicit Reduction(DataParallel& of) : of_(of), sums_(of.trained_.size()), come_(of.trained_.size()) {
    thread_ = std::thread([this] { Work(); });
  }
  ~Reduction() {
    if (!thread_.joinable()) return;
    of_.Leave();  // the sums will not be complete
    Finish(/*complete=*/false).IgnoreError();
  }

  // What this rank's passes have for a unit.
  void Add(size_t unit, std::vector<at::Tensor> gradients) {
    for (at::Tensor& gradient : gradients) gradient = gradient.contiguous();
    const MutexLock lock(mu_);
    sums_[unit] = std::move(gradients);
    come_[unit] = true;
    changed_.NotifyAll();
  }
  // It has none.
  void AddNothing() {
    for (size_t unit = 0; unit < of_.trained_.size(); ++unit) {
      std::vector<at::Tensor> zeros;
      for (const at::Tensor& parameter : of_.trained_[unit]) {
        zeros.push_back(
            at::zeros(parameter.sizes(), parameter.options().dtype(SumType(parameter)).requires_grad(false)));
      }
      Add(unit, std::move(zeros));
    }
  }

  // Waits for the sums, unless not all of them were added.
  absl::Status Finish(bool complete) {
    if (!thread_.joinable()) return status_;
    {
      const MutexLock lock(mu_);
      if (!complete) ended_ = true;
      changed_.NotifyAll();
    }
    thread_.join();
    return status_;
  }
  // Once they are complete.
  std::vector<at::Tensor> TakeSums(size_t unit) {
    const MutexLock lock(mu_);
    return std::move(sums_[unit]);
  }

 private:
  void Work() {
    at::NoGradGuard no_grad;
    for (const std::vector<size_t>& bucket : of_.buckets_) {
      const std::vector<at::Tensor> gradients = Await(bucket);
      if (gradients.empty()) return;
      status_ = of_.ranks_.group->AllReduceSum(gradients, of_.Deadline());
      if (!status_.ok()) return;
    }
  }

  // Of all its units; none if they will not come.
  std::vector<at::Tensor> Await(const std::vector<size_t>& bucket) {
    MutexLock lock(mu_);
    std::vector<at::Tensor> gradients;
    for (const size_t unit : bucket) {
      while (!come_[unit] && !ended_) changed_.Wait(mu_);
      if (ended_) return {};
      gradients.insert(gradients.end(), sums_[unit].begin(), sums_[unit].end());
    }
    return gradients;
  }

  DataParallel& of_;
  absl::Status status_;  // of the thread, until it has ended
  Mutex mu_;
  CondVar changed_;
  std::vector<std::vector<at::Tensor>> sums_ TDOCK_GUARDED_BY(mu_);  // by unit
  std::vector<bool> come_ TDOCK_GUARDED_BY(mu_);
  bool ended_ TDOCK_GUARDED_BY(mu_) = false;
  std::thread thread_;  // last: it uses what is above
};

absl::Status DataParallel::ReduceOnce(Workers& workers, const std::vector<size_t>& own, const PassLoss& loss) {
  Reduction reduction(*this);
  if (own.empty()) {
    reduction.AddNothing();
  } else {
    Backward(
        decoder_, workers, own.size(), [&](const model::Decoder& pass, size_t i) { return loss(pass, own[i]); },
        [&](size_t unit, std::vector<at::Tensor> sums) { reduction.Add(unit, std::move(sums)); });
  }
  TDOCK_RETURN_IF_ERROR(reduction.Finish(/*complete=*/true));
  for (size_t unit = 0; unit < trained_.size(); ++unit) {
    const std::vector<at::Tensor> sums = reduction.TakeSums(unit);
    for (size_t j = 0; j < trained_[unit].size(); ++j) {
      if (has_shards()) {
        const Shard& shard = stepped_[unit]->shard(j);
        parts_[unit][j].mutable_grad() = sums[j].view({-1}).narrow(0, shard.begin, shard.size);
      } else {
        at::Tensor(trained_[unit][j]).mutable_grad() = sums[j];
      }
    }
  }
  return absl::OkStatus();
}

// ---- Sums after each pass, of which a rank keeps its part.

// What all ranks do together in one pass, in an order that is the same for all of them:
//
//   weights of layers 0 … L-1, then, backwards, those of layer l-1 before the sums of layer l; the others' sums last
//
// without the weights where each rank has them all. A thread of its own does it: weights of a layer come while the
// layer before it computes.
class DataParallel::Lockstep final : public model::PassWatch {
 public:
  explicit Lockstep(DataParallel& of)
      : of_(of), layers_(of.trained_.size() - 1), gathers_(of.ranks_.zero == Zero::kWeights), taken_(layers_ + 1) {
    thread_ = std::thread([this] { Work(); });
  }
  ~Lockstep() override {
    if (!thread_.joinable()) return;
    of_.Leave();  // the pass has failed
    Finish(absl::CancelledError("a pass has failed")).IgnoreError();
  }

  void BeforeUse(size_t layer) override { Need(layer, {.forward = layer + 1}); }
  void AfterUse(size_t layer) override {
    // The last one is needed again at once.
    if (gathers_ && layer + 1 < layers_) of_.weights_[layer]->Release();
  }
  void BeforeGradients(size_t layer) override {
    if (gathers_ && layer + 1 < layers_) ReleaseAfterGradients(layer + 1);
    Need(layer, {.forward = layers_, .backward = layers_ - layer});
  }
  void TakeGradients(size_t unit, std::vector<at::Tensor> gradients) override {
    const MutexLock lock(mu_);
    taken_[unit] = std::move(gradients);
    is_taken_.insert(unit);
    changed_.NotifyAll();
  }

  // All gradients of the pass have come.
  void CheckAllTaken() {
    const MutexLock lock(mu_);
    for (size_t unit = 0; unit <= layers_; ++unit) {
      TORCH_CHECK(of_.trained_[unit].empty() || is_taken_.contains(unit), "the loss has no gradients for ",
                  unit < layers_ ? absl::StrCat("layer ", unit) : "the weights outside of layers");
    }
  }

  // What has ended the work of the ranks, if it has ended.
  absl::Status Failure() {
    const MutexLock lock(mu_);
    return ended_ ? status_ : absl::OkStatus();
  }

  // The pass is through here, or there was none. Waits for what is left.
  absl::Status Finish(const absl::Status& failed) {
    if (!thread_.joinable()) return status_;
    {
      const MutexLock lock(mu_);
      through_ = true;
      failed_ = failed;
      changed_.NotifyAll();
    }
    thread_.join();
    if (status_.ok() && gathers_) {
      for (size_t layer = 0; layer < layers_; ++layer) {
        if (of_.weights_[layer]->is_whole()) of_.weights_[layer]->Release();
      }
    }
    return status_;
  }

 private:
  // How far the pass has got: layers that it has come to.
  struct Reached {
    size_t forward = 0, backward = 0;
  };

  void Need(size_t layer, Reached reached) {
    if (!gathers_) return;
    MutexLock lock(mu_);
    reached_ = reached;
    changed_.NotifyAll();
    const auto is_there = [&]() TDOCK_REQUIRES(mu_) {
      return reached.backward == 0 ? gathered_.forward > layer : gathered_.backward >= reached.backward;
    };
    while (!is_there() && !ended_) changed_.Wait(mu_);
    TORCH_CHECK(is_there(), "the weights of layer ", layer, " did not come");
  }

  void ReleaseAfterGradients(size_t layer) {
    {
      const MutexLock lock(mu_);
      TORCH_CHECK(of_.trained_[layer].empty() || is_taken_.contains(layer), "layer ", layer, " has gradients to come");
    }
    of_.weights_[layer]->Release();
  }

  void Work() {
    at::NoGradGuard no_grad;
    status_ = Run();
    const MutexLock lock(mu_);
    ended_ = true;
    changed_.NotifyAll();
  }

  absl::Status Run() TDOCK_EXCLUDES(mu_) {
    for (size_t layer = 0; gathers_ && layer < layers_; ++layer) TDOCK_RETURN_IF_ERROR(GatherForward(layer));
    {
      const MutexLock lock(mu_);
      if (layers_ > 0) gathered_.backward = 1;  // the last one is still there
      changed_.NotifyAll();
    }
    for (size_t i = layers_; i-- > 0;) {
      if (gathers_ && i > 0) TDOCK_RETURN_IF_ERROR(GatherBackward(i - 1));
      TDOCK_RETURN_IF_ERROR(Scatter(i));
      const MutexLock lock(mu_);
      if (gathers_ && through_ && of_.weights_[i]->is_whole()) of_.weights_[i]->Release();
    }
    return Scatter(layers_);
  }

  // A layer ahead of the one that computes, so that no more than three are there.
  absl::Status GatherForward(size_t layer) TDOCK_EXCLUDES(mu_) {
    TDOCK_RETURN_IF_ERROR(
        Await([&]() TDOCK_REQUIRES(mu_) { return reached_.forward >= layer || reached_.backward > 0; }));
    TDOCK_RETURN_IF_ERROR(of_.weights_[layer]->Gather(of_.Deadline()));
    const MutexLock lock(mu_);
    if (through_ && layer + 1 < layers_) of_.weights_[layer]->Release();  // nobody uses it here
    gathered_.forward = layer + 1;
    changed_.NotifyAll();
    return absl::OkStatus();
  }
  absl::Status GatherBackward(size_t layer) TDOCK_EXCLUDES(mu_) {
    const size_t number = layers_ - layer;  // of those of the backward pass
    TDOCK_RETURN_IF_ERROR(Await([&]() TDOCK_REQUIRES(mu_) { return reached_.backward + 1 >= number; }));
    TDOCK_RETURN_IF_ERROR(of_.weights_[layer]->Gather(of_.Deadline()));
    const MutexLock lock(mu_);
    gathered_.backward = number;
    changed_.NotifyAll();
    return absl::OkStatus();
  }
  absl::Status Scatter(size_t unit) TDOCK_EXCLUDES(mu_) {
    if (of_.trained_[unit].empty()) return absl::OkStatus();
    TDOCK_RETURN_IF_ERROR(Await([&]() TDOCK_REQUIRES(mu_) { return is_taken_.contains(unit); }));
    std::vector<at::Tensor> gradients;
    {
      const MutexLock lock(mu_);
      gradients = std::move(taken_[unit]);
    }
    return of_.stepped_[unit]->AddScattered(std::move(gradients), of_.sums_[unit], of_.Deadline());
  }
  // Until that is so, or the pass is through.
  template <class Condition>
  absl::Status Await(const Condition& condition) TDOCK_EXCLUDES(mu_) {
    MutexLock lock(mu_);
    while (!condition() && !through_) changed_.Wait(mu_);
    return failed_;
  }

  DataParallel& of_;
  const size_t layers_;
  const bool gathers_;
  absl::Status status_;  // of the thread, until it has ended
  Mutex mu_;
  CondVar changed_;
  Reached reached_ TDOCK_GUARDED_BY(mu_), gathered_ TDOCK_GUARDED_BY(mu_);
  std::vector<std::vector<at::Tensor>> taken_ TDOCK_GUARDED_BY(mu_);  // by unit
  std::set<size_t> is_taken_ TDOCK_GUARDED_BY(mu_);
  bool through_ TDOCK_GUARDED_BY(mu_) = false;
  bool ended_ TDOCK_GUARDED_BY(mu_) = false;  // the thread
  absl::Status failed_ TDOCK_GUARDED_BY(mu_);
  std::thread thread_;  // last: it uses what is above
};

absl::Status DataParallel::ReduceEachPass(Workers& workers, const std::vector<std::vector<size_t>>& dealt,
                                          const PassLoss& loss) {
  sums_.clear();
  for (size_t unit = 0; unit < trained_.size(); ++unit) {
    const std::vector<at::Tensor>& trained = trained_[unit];
    sums_.push_back(trained.empty() ? at::Tensor()
                                    : at::zeros({stepped_[unit]->slot_size()},
                                                at::TensorOptions(decoder_.device()).dtype(SumType(trained.front()))));
  }
  const std::vector<size_t>& own = dealt[static_cast<size_t>(ranks_.group->rank())];
  size_t passes = 0;
  for (const std::vector<size_t>& of_rank : dealt) passes = std::max(passes, of_rank.size());
  absl::Status status;
  workers.Run(1, [&](int) {
    if (ranks_.zero == Zero::kWeights) status = weights_.back()->Gather(Deadline());
    for (size_t i = 0; i < passes && status.ok(); ++i) {
      Lockstep lockstep(*this);
      if (i < own.size()) {
        try {
          at::AutoGradMode with_gradients(true);
          const model::Decoder watched = decoder_.Watched(lockstep);
          torch::autograd::backward({loss(watched, own[i])});
          lockstep.CheckAllTaken();
        } catch (...) {
          status = lockstep.Failure();  // which may be why the pass could not go on
          if (status.ok()) throw;
          break;
        }
      }
      status = lockstep.Finish(absl::OkStatus());
    }
  });
  TDOCK_RETURN_IF_ERROR(status);
  if (ranks_.zero == Zero::kWeights) weights_.back()->Release();
  for (size_t unit = 0; unit < trained_.size(); ++unit) {
    for (size_t j = 0; j < trained_[unit].size(); ++j) {
      parts_[unit][j].mutable_grad() = stepped_[unit]->PartOf(sums_[unit], j);
    }
  }
  sums_.clear();
  return absl::OkStatus();
}

// ---- All of it.

DataParallel::DataParallel(const model::Decoder& decoder, const TrainingRanks& ranks)
    : decoder_(decoder), ranks_(ranks) {
  for (size_t unit = 0; unit < decoder.units(); ++unit) trained_.push_back(decoder.TrainedOf(unit));
  MakeBuckets();
  if (!has_shards()) return;
  for (size_t unit = 0; unit < decoder.units(); ++unit) {
    if (splits_weights()) {
      weights_.push_back(std::make_unique<ShardedUnit>(decoder.ParametersOf(unit), *ranks_.group));
      weights_.back()->KeepParts();
    }
    stepped_.push_back(std::make_unique<ShardedUnit>(trained_[unit], *ranks_.group));
    std::vector<at::Tensor>& parts = parts_.emplace_back();
    for (size_t j = 0; j < trained_[unit].size(); ++j) {
      const at::Tensor& parameter = trained_[unit][j];
      const Shard& shard = stepped_[unit]->shard(j);
      parts.push_back(splits_weights() ? weights_[unit]->Kept(parameter)
                                       : parameter.detach().view({-1}).narrow(0, shard.begin, shard.size));
    }
  }
}

DataParallel::~DataParallel() = default;

// From the last layer to the first, as gradients come; the weights outside of layers are the last.
void DataParallel::MakeBuckets() {
  std::vector<size_t> order;
  for (size_t unit = trained_.size() - 1; unit-- > 0;) order.push_back(unit);
  order.push_back(trained_.size() - 1);
  uint64_t bytes = 0;  // in the last bucket
  for (const size_t unit : order) {
    if (trained_[unit].empty()) continue;
    if (buckets_.empty() || bytes >= kBucketBytes) {
      buckets_.emplace_back();
      bytes = 0;
    }
    buckets_.back().push_back(unit);
    for (const at::Tensor& parameter : trained_[unit]) {
      bytes += static_cast<uint64_t>(parameter.numel()) * c10::elementSize(SumType(parameter));
    }
  }
}

std::vector<ParameterPart> DataParallel::Parts(const std::vector<ParameterGroup>& groups) const {
  std::vector<ParameterPart> parts = WholeParts(groups);
  if (!has_shards()) return parts;
  for (ParameterPart& part : parts) part = PartOf(std::move(part));
  return parts;
}

ParameterPart DataParallel::PartOf(ParameterPart whole) const {
  for (size_t unit = 0; unit < trained_.size(); ++unit) {
    for (size_t j = 0; j < trained_[unit].size(); ++j) {
      if (!trained_[unit][j].is_same(whole.weights)) continue;
      whole.weights = parts_[unit][j];
      whole.begin = stepped_[unit]->shard(j).begin;
      return whole;
    }
  }
  TORCH_CHECK(false, "a parameter that is not of the decoder");
}

absl::Status DataParallel::Gradients(Workers& workers, std::span<const int64_t> costs, const PassLoss& loss) {
  const std::vector<std::vector<size_t>> dealt = DealPasses(costs, ranks_.group->size());
  TDOCK_RETURN_IF_ERROR(CheckSamePasses(costs));
  try {
    return ranks_.zero < Zero::kGradients ? ReduceOnce(workers, dealt[static_cast<size_t>(ranks_.group->rank())], loss)
                                          : ReduceEachPass(workers, dealt, loss);
  } catch (...) {
    Leave();
    throw;
  }
}

// Otherwise some would be computed twice, and others by nobody.
absl::Status DataParallel::CheckSamePasses(std::span<const int64_t> costs) {
  TDOCK_ASSIGN_OR_RETURN(const std::vector<Buffer> all,
                         ranks_.group->AllGatherBytes(Buffer::CopyOf(std::as_bytes(costs)), Deadline()));
  std::vector<size_t> others;
  for (size_t rank = 0; rank < all.size(); ++rank) {
    if (!std::ranges::equal(all[rank].bytes(), all[0].bytes())) others.push_back(rank);
  }
  if (others.empty()) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrCat("the ranks cut a mini-batch into other micro-batches: rank ",
                                                    absl::StrJoin(others, ", "),
                                                    " not as rank 0; all need the same device"));
}

absl::StatusOr<double> DataParallel::SumOfParts(double own) {
  if (!has_shards()) return own;
  const at::Tensor sum = at::full({1}, own, at::TensorOptions(decoder_.device()).dtype(at::kDouble));
  TDOCK_RETURN_IF_ERROR(ranks_.group->AllReduceSum(sum, Deadline()));
  return sum.item<double>();
}

absl::Status DataParallel::ShareWeights() {
  if (!has_shards() || splits_weights()) return absl::OkStatus();
  return GatherAll(stepped_);
}

absl::Status DataParallel::GatherAll(const std::vector<std::unique_ptr<ShardedUnit>>& units) {
  for (const std::unique_ptr<ShardedUnit>& unit : units) TDOCK_RETURN_IF_ERROR(unit->Gather(Deadline()));
  return absl::OkStatus();
}

absl::Status DataParallel::ChangeParts(const std::function<void()>& change) {
  change();
  if (!has_shards()) return absl::OkStatus();
  return GatherAll(splits_weights() ? weights_ : stepped_);
}

absl::Status DataParallel::AddUp(StepMetrics& metrics) {
  TDOCK_ASSIGN_OR_RETURN(const std::vector<Buffer> all, ranks_.group->AllGatherBytes(Encoded(metrics), Deadline()));
  StepMetrics sum;
  for (const Buffer& of_rank : all) TDOCK_RETURN_IF_ERROR(sum.Load(Decoded(of_rank)));
  StepMetrics own;
  metrics.MoveTo(own);
  sum.MoveTo(metrics);
  return absl::OkStatus();
}

absl::Status DataParallel::AsRank0(const absl::Status& status) {
  const std::byte failed[] = {std::byte{status.ok() ? uint8_t{0} : uint8_t{1}}};
  TDOCK_ASSIGN_OR_RETURN(const Buffer of_rank_0, ranks_.group->Broadcast(Buffer::CopyOf(failed), 0, Deadline()));
  if (of_rank_0.size() == 1 && of_rank_0.data()[0] == std::byte{0}) return absl::OkStatus();
  return status.ok() ? absl::CancelledError("rank 0 has been interrupted") : status;
}

void DataParallel::ReleaseWeights() {
  for (const std::unique_ptr<ShardedUnit>& unit : weights_) {
    if (unit->is_whole()) unit->Release();
  }
}

void DataParallel::TakeWeights() {
  for (const std::unique_ptr<ShardedUnit>& unit : weights_) unit->KeepParts();
}

absl::Status DataParallel::GatherWeights() {
  for (const std::unique_ptr<ShardedUnit>& unit : weights_) {
    if (!unit->is_whole()) TDOCK_RETURN_IF_ERROR(unit->Gather(Deadline()));
  }
  return absl::OkStatus();
}

absl::Time DataParallel::Deadline() const { return absl::Now() + ranks_.timeout; }

}  // namespace tdock::trainer
