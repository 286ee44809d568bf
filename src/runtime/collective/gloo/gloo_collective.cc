// Gloo's headers are Debian's, of another version than the Gloo in libtorch. ProcessGroupGloo.hpp needs them for its
// declarations; no type of Gloo's is made or looked into here.
#define USE_C10D_GLOO

#include "runtime/collective/gloo/gloo_collective.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <exception>
#include <future>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "core/base/clock.h"
#include "core/base/status.h"
#include "runtime/collective/operation.h"
#include "torch/csrc/distributed/c10d/PrefixStore.hpp"
#include "torch/csrc/distributed/c10d/ProcessGroupGloo.hpp"

namespace tdock::runtime {
namespace {

constexpr std::chrono::seconds kPatienceWithStore(5);

std::chrono::milliseconds TimeUntil(absl::Time deadline) {
  const absl::Duration left = std::min(deadline - Clock::Real().Now(), absl::Hours(24 * 30));
  // Rounded up, so that what takes that long ends after the deadline.
  return std::chrono::milliseconds(std::max<int64_t>(absl::ToInt64Milliseconds(left) + 1, 1));
}

std::string FirstLineOf(const std::exception& error) {
  const absl::string_view text = error.what();
  return std::string(text.substr(0, text.find('\n')));
}

class GlooCollective final : public Collective {
 public:
  GlooCollective(const GlooOptions& options, c10::intrusive_ptr<c10d::Store> store)
      : name_(options.name), rank_(options.rank), size_(options.size), store_(std::move(store)) {}

  absl::Status Connect(const std::string& host, absl::Time deadline) {
    return Do("the group's connections", deadline, [&] {
      const auto options = c10d::ProcessGroupGloo::Options::create(TimeUntil(deadline));
      options->threads = 1;  // one operation at a time
      options->devices.push_back(host.empty() ? c10d::ProcessGroupGloo::createDefaultDevice()
                                              : c10d::ProcessGroupGloo::createDeviceForHostname(host));
      gloo_ = c10::make_intrusive<c10d::ProcessGroupGloo>(store_, rank_, size_, options);
    });
  }

  int rank() const override { return rank_; }
  int size() const override { return size_; }

  absl::StatusOr<Buffer> Broadcast(Buffer bytes, int root, absl::Time deadline) override {
    TDOCK_CHECK(root >= 0 && root < size_, "a group has its root");
    TDOCK_RETURN_IF_ERROR(Do(ToString({Operation::Kind::kBroadcast, root}), deadline, [&] {
      at::Tensor length = at::full({1}, static_cast<int64_t>(bytes.size()), at::kLong);
      Send(length, root, deadline);
      if (rank_ != root) bytes = Buffer::Allocate(static_cast<size_t>(length.item<int64_t>()));
      if (bytes.size() == 0) return;
      // The root's bytes are only read.
      at::Tensor payload =
          at::from_blob(const_cast<std::byte*>(bytes.data()), {static_cast<int64_t>(bytes.size())}, at::kByte);
      Send(payload, root, deadline);
    }));
    return bytes;
  }

  absl::StatusOr<int64_t> AllReduceMax(int64_t value, absl::Time deadline) override {
    at::Tensor tensor = at::full({1}, value, at::kLong);
    TDOCK_RETURN_IF_ERROR(Do(ToString({Operation::Kind::kAllReduceMax}), deadline, [&] {
      std::vector<at::Tensor> tensors = {tensor};
      c10d::AllreduceOptions options;
      options.reduceOp = c10d::ReduceOp::MAX;
      options.timeout = TimeUntil(deadline);
      gloo_->allreduce(tensors, options)->wait();
    }));
    return tensor.item<int64_t>();
  }

  absl::Status Barrier(absl::Time deadline) override {
    return Do(ToString({Operation::Kind::kBarrier}), deadline, [&] {
      c10d::BarrierOptions options;
      options.timeout = TimeUntil(deadline);
      gloo_->barrier(options)->wait();
    });
  }

 private:
  void Send(at::Tensor& tensor, int root, absl::Time deadline) {
    std::vector<at::Tensor> tensors = {tensor};
    c10d::BroadcastOptions options;
    options.rootRank = root;
    options.timeout = TimeUntil(deadline);
    gloo_->broadcast(tensors, options)->wait();
  }

  // Tells the others that this rank has come to its next operation, and does it.
  template <class Body>
  absl::Status Do(const std::string& what, absl::Time deadline, const Body& body) {
    if (!ended_.ok()) return ended_;
    ++operations_;
    try {
      if (size_ > 1) {
        const std::string count = absl::StrCat(operations_);
        store_->set(KeyOf(rank_), std::vector<uint8_t>(count.begin(), count.end()));
      }
      body();
    } catch (const std::exception& error) {
      ended_ = Explain(what, FirstLineOf(error), Clock::Real().Now() >= deadline);
    }
    return ended_;
  }

  absl::Status Explain(const std::string& what, const std::string& cause, bool late) {
    const absl::StatusOr<std::vector<int>> missing = Missing();
    std::string text = absl::StrCat("group '", name_, "': ");
    if (!missing.ok()) {
      absl::StrAppend(&text, what, ": ", cause, "; who is missing is not known: ", missing.status().message());
    } else if (missing->empty()) {
      absl::StrAppend(&text, "all ranks came to ", what, ", which failed: ", cause);
    } else {
      absl::StrAppend(&text, RanksText(*missing, size_), late ? " did not come in time to " : " left before ", what,
                      ": ", cause);
    }
    return late ? absl::DeadlineExceededError(text) : absl::UnavailableError(text);
  }

  // The ranks that have not come to this operation. The store's answers have no deadline of their own, so a thread
  // waits for them, which is left alone if the process that serves the store has stopped.
  absl::StatusOr<std::vector<int>> Missing() const {
    std::packaged_task<absl::StatusOr<std::vector<int>>()> asking(
        [store = store_, own = rank_, size = size_, operations = operations_]() -> absl::StatusOr<std::vector<int>> {
          std::vector<int> missing;
          try {
            for (int rank = 0; rank < size; ++rank) {
              if (rank != own && OperationsOf(*store, rank) < operations) missing.push_back(rank);
            }
          } catch (const std::exception& error) {
            return absl::UnavailableError(FirstLineOf(error));
          }
          return missing;
        });
    std::future<absl::StatusOr<std::vector<int>>> missing = asking.get_future();
    std::thread(std::move(asking)).detach();
    if (missing.wait_for(kPatienceWithStore) == std::future_status::ready) return missing.get();
    return absl::DeadlineExceededError("the process that serves the rendezvous does not answer");
  }

  // How many operations a rank has come to.
  static int64_t OperationsOf(c10d::Store& store, int rank) {
    const std::string key = KeyOf(rank);
    if (!store.check({key})) return 0;
    int64_t count = 0;
    for (const uint8_t digit : store.get(key)) count = 10 * count + (digit - '0');
    return count;
  }
  static std::string KeyOf(int rank) { return absl::StrCat("operations of rank ", rank); }

  const std::string name_;
  const int rank_, size_;
  const c10::intrusive_ptr<c10d::Store> store_;
  c10::intrusive_ptr<c10d::ProcessGroupGloo> gloo_;
  int64_t operations_ = 0;
  absl::Status ended_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<Collective>> OpenGlooCollective(const GlooOptions& options, absl::Time deadline) {
  TDOCK_CHECK(options.rank >= 0 && options.rank < options.size, "a group has its rank");
  TDOCK_ASSIGN_OR_RETURN(c10::intrusive_ptr<c10d::Store> store, options.rendezvous.NewStore());
  store = c10::make_intrusive<c10d::PrefixStore>(absl::StrCat("group/", options.name, "/"), std::move(store));
  auto group = std::make_unique<GlooCollective>(options, std::move(store));
  TDOCK_RETURN_IF_ERROR(group->Connect(options.host, deadline));
  return group;
}

}  // namespace tdock::runtime
