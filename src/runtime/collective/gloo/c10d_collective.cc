#include "runtime/collective/gloo/c10d_collective.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <chrono>
#include <exception>
#include <future>
#include <map>
#include <stdexcept>
#include <thread>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "core/base/clock.h"
#include "core/base/rng.h"
#include "core/base/status.h"

namespace tdock::runtime {
namespace {

constexpr std::chrono::seconds kPatienceWithStore(5);
constexpr std::chrono::seconds kPatienceWithRanks(1);  // for others to say that they have failed, too
constexpr std::chrono::milliseconds kBetweenLooks(10);
constexpr std::chrono::microseconds kBetweenLooksAtGpu(50);
constexpr absl::Duration kBetweenLooksForOthers = absl::Seconds(1);
constexpr size_t kSumsAhead = 4;

std::string FirstLineOf(const std::exception& error) {
  const absl::string_view text = error.what();
  return std::string(text.substr(0, text.find('\n')));
}

// The ranks do different things. Each of them comes to know it by itself.
struct Disagreement : std::runtime_error {
  using std::runtime_error::runtime_error;
};

// What is at the end key.
const std::vector<uint8_t> kLate = {'l', 'a', 't', 'e'}, kLost = {'l', 'o', 's', 't'};

std::string KeyOf(int rank) { return absl::StrCat("operation of rank ", rank); }
std::string EndKeyOf(int rank) { return absl::StrCat("end of rank ", rank); }
std::string LeftKeyOf(int rank) { return absl::StrCat("rank ", rank, " has left"); }

// How far a rank has come, as it is in the store.
struct Progress {
  int64_t operations = 0;
  std::string what = {};  // the last of them
  bool failed = false;    // it says that it has seen the group end,
  bool late = false;      // by a deadline
};

Progress ReadProgress(c10d::Store& store, int rank) {
  const std::string key = KeyOf(rank);
  Progress progress{.failed = store.check({EndKeyOf(rank)})};
  if (progress.failed) progress.late = store.get(EndKeyOf(rank)) == kLate;
  if (!store.check({key})) return progress;
  const std::vector<uint8_t> bytes = store.get(key);
  const std::string text(bytes.begin(), bytes.end());
  const size_t space = text.find(' ');
  if (space == std::string::npos || !absl::SimpleAtoi(text.substr(0, space), &progress.operations)) return progress;
  progress.what = text.substr(space + 1);
  return progress;
}

// The ranks, beside `own`, that may have ended the group while it was in that operation.
std::vector<int> Suspects(const std::vector<Progress>& ranks, int own, int64_t operations) {
  std::vector<int> suspects;
  for (int rank = 0; rank < static_cast<int>(ranks.size()); ++rank) {
    const Progress& progress = ranks[static_cast<size_t>(rank)];
    if (rank != own && progress.operations <= operations && !progress.failed) suspects.push_back(rank);
  }
  return suspects;
}

// Says that this rank has seen the group end, and waits until all but `others` of the others have.
std::vector<Progress> AwaitProgress(c10d::Store& store, int own, int size, int64_t operations, bool late,
                                    size_t others) {
  store.set(EndKeyOf(own), late ? kLate : kLost);
  const auto begun = std::chrono::steady_clock::now();
  for (;;) {
    std::vector<Progress> ranks;
    for (int rank = 0; rank < size; ++rank) ranks.push_back(ReadProgress(store, rank));
    if (late || Suspects(ranks, own, operations).size() <= others ||
        std::chrono::steady_clock::now() - begun > kPatienceWithRanks) {
      return ranks;
    }
    std::this_thread::sleep_for(kBetweenLooks);
  }
}

// The store's answers have no deadline of their own, so a thread waits for them, which is left alone if the process
// that serves the store has stopped.
absl::StatusOr<std::vector<Progress>> ProgressOfAll(const C10dGroup& group, int64_t operations, bool late,
                                                    size_t others) {
  std::packaged_task<absl::StatusOr<std::vector<Progress>>()> asking(
      [store = group.store, own = group.rank, size = group.size, operations, late,
       others]() -> absl::StatusOr<std::vector<Progress>> {
        try {
          return AwaitProgress(*store, own, size, operations, late, others);
        } catch (const std::exception& error) {
          return absl::UnavailableError(FirstLineOf(error));
        }
      });
  std::future<absl::StatusOr<std::vector<Progress>>> answer = asking.get_future();
  std::thread(std::move(asking)).detach();
  if (answer.wait_for(kPatienceWithStore) == std::future_status::ready) return answer.get();
  return absl::DeadlineExceededError("the process that serves the rendezvous does not answer");
}

// Tensors of fewer bytes travel together: each operation takes the time of some messages.
constexpr size_t kSmallBytes = size_t{256} << 10;

bool IsSmall(const at::Tensor& tensor) { return tensor.nbytes() < kSmallBytes; }

// The small ones, those of each dtype together.
std::vector<std::vector<at::Tensor>> SmallOf(std::span<const at::Tensor> tensors) {
  std::map<at::ScalarType, std::vector<at::Tensor>> small;
  for (const at::Tensor& tensor : tensors) {
    if (IsSmall(tensor) && tensor.numel() > 0) small[tensor.scalar_type()].push_back(tensor);
  }
  std::vector<std::vector<at::Tensor>> together;
  for (auto& [dtype, of] : small) together.push_back(std::move(of));
  return together;
}

at::Tensor Joined(const std::vector<at::Tensor>& tensors) {
  std::vector<at::Tensor> flat;
  for (const at::Tensor& tensor : tensors) flat.push_back(tensor.view({-1}));
  return at::cat(flat);
}

// Copies the numbers of `joined` into the tensors, unless they are the same.
void Take(const at::Tensor& joined, const std::vector<at::Tensor>& tensors) {
  int64_t begin = 0;
  for (const at::Tensor& tensor : tensors) {
    if (!joined.is_same(tensor)) tensor.copy_(joined.view({-1}).narrow(0, begin, tensor.numel()).view(tensor.sizes()));
    begin += tensor.numel();
  }
}

at::Tensor AsBytes(const at::Tensor& tensor) { return tensor.view({-1}).view(at::kByte); }

at::Tensor BytesOf(const Buffer& bytes) {  // only to be read
  return at::from_blob(const_cast<std::byte*>(bytes.data()), {static_cast<int64_t>(bytes.size())}, at::kByte);
}

}  // namespace

std::chrono::milliseconds TimeUntil(absl::Time deadline) {
  const absl::Duration left = std::min(deadline - Clock::Real().Now(), absl::Hours(24 * 30));
  // Rounded up, so that what takes that long ends after the deadline.
  return std::chrono::milliseconds(std::max<int64_t>(absl::ToInt64Milliseconds(left) + 1, 1));
}

absl::Status C10dCollective::Connect(absl::FunctionRef<Connection()> make, absl::Time deadline) {
  return Do("the group's connections", deadline, [&] { connection_ = make(); });
}

absl::StatusOr<Buffer> C10dCollective::Broadcast(Buffer bytes, int root, absl::Time deadline) {
  TDOCK_CHECK(root >= 0 && root < size(), "a group has its root");
  TDOCK_RETURN_IF_ERROR(Do(ToString({Operation::Kind::kBroadcast, root}), deadline, [&] {
    at::Tensor length = Here(at::full({1}, static_cast<int64_t>(bytes.size()), at::kLong));
    Send(length, root, deadline);
    if (rank() != root) bytes = Buffer::Allocate(static_cast<size_t>(length.item<int64_t>()));
    if (bytes.size() == 0) return;
    const at::Tensor payload = BytesOf(bytes), here = Here(payload);
    Send(here, root, deadline);
    if (rank() != root && !here.is_same(payload)) payload.copy_(here);
  }));
  return bytes;
}

absl::StatusOr<int64_t> C10dCollective::AllReduceMax(int64_t value, absl::Time deadline) {
  const at::Tensor tensor = Here(at::full({1}, value, at::kLong));
  TDOCK_RETURN_IF_ERROR(Do(ToString({Operation::Kind::kAllReduceMax}), deadline, [&] {
    Reduce({&tensor, 1}, c10d::ReduceOp::MAX, deadline);
  }));
  return tensor.item<int64_t>();
}

absl::Status C10dCollective::Barrier(absl::Time deadline) {
  return Do(ToString({Operation::Kind::kBarrier}), deadline, [&] {
    c10d::BarrierOptions options;
    options.timeout = TimeUntil(deadline);
    Wait(*connection_.backend->barrier(options), deadline);
  });
}

absl::Status C10dCollective::AllReduceSum(std::span<const at::Tensor> tensors, absl::Time deadline) {
  return DoAlike(Operation::Kind::kAllReduceSum, tensors, deadline, [&] {
    std::vector<at::Tensor> here;
    for (const std::vector<at::Tensor>& small : SmallOf(tensors)) {
      here.push_back(Here(small.size() == 1 ? small.front() : Joined(small)));
    }
    for (const at::Tensor& tensor : tensors) {
      if (!IsSmall(tensor)) here.push_back(Here(tensor));
    }
    Reduce(here, c10d::ReduceOp::SUM, deadline);
    auto sum = here.begin();
    for (const std::vector<at::Tensor>& small : SmallOf(tensors)) Take(*sum++, small);
    for (const at::Tensor& tensor : tensors) {
      if (!IsSmall(tensor)) Take(*sum++, {tensor});
    }
  });
}

// c10d's own reduce-scatter over Gloo is an all-reduce of a copy. This sends each part only to where it is needed, and
// the sum is in the order of the ranks.
absl::Status C10dCollective::ReduceScatterSum(const at::Tensor& parts, const at::Tensor& own, absl::Time deadline) {
  TDOCK_CHECK(own.is_contiguous() && parts.numel() == size() * own.numel() && parts.dtype() == own.dtype(),
              "a rank's part is one of size() equal parts");
  return DoAlike(Operation::Kind::kReduceScatterSum, {&parts, 1}, deadline, [&] {
    at::Tensor sent = Here(parts).view({size(), -1});
    at::Tensor received = at::empty_like(sent);
    std::vector<int64_t> equal_parts;
    c10d::AllToAllOptions options;
    options.timeout = TimeUntil(deadline);
    Wait(*connection_.backend->alltoall_base(received, sent, equal_parts, equal_parts, options), deadline);
    for (int rank = 1; rank < size(); ++rank) received[0].add_(received[rank]);
    own.copy_(received[0].view(own.sizes()));
  });
}

absl::Status C10dCollective::AllGather(const at::Tensor& own, const at::Tensor& parts, absl::Time deadline) {
  TDOCK_CHECK(parts.is_contiguous() && parts.numel() == size() * own.numel() && parts.dtype() == own.dtype(),
              "a rank's part is one of size() equal parts");
  return DoAlike(Operation::Kind::kAllGather, {&own, 1}, deadline, [&] {
    const at::Tensor here = Here(parts);
    Gather(AsBytes(Here(own)), AsBytes(here), deadline);
    if (!here.is_same(parts)) parts.copy_(here);
  });
}

absl::StatusOr<std::vector<Buffer>> C10dCollective::AllGatherBytes(Buffer bytes, absl::Time deadline) {
  std::vector<Buffer> gathered;
  TDOCK_RETURN_IF_ERROR(Do(ToString({Operation::Kind::kAllGatherBytes}), deadline, [&] {
    const auto own_length = static_cast<int64_t>(bytes.size());
    at::Tensor lengths = Here(at::empty({size()}, at::kLong));
    Gather(Here(at::full({1}, own_length, at::kLong)), lengths, deadline);
    lengths = lengths.cpu();
    const auto longest = lengths.max().item<int64_t>();
    at::Tensor all = at::empty({size(), longest}, at::kByte);
    if (longest > 0) {
      at::Tensor padded = at::zeros({longest}, at::kByte);
      padded.narrow(0, 0, own_length).copy_(BytesOf(bytes));
      const at::Tensor here = Here(all);
      Gather(Here(padded), here.view({-1}), deadline);
      all = here.cpu();
    }
    for (int rank = 0; rank < size(); ++rank) {
      const auto* begin = reinterpret_cast<const std::byte*>(all.const_data_ptr<uint8_t>()) + rank * longest;
      gathered.push_back(Buffer::CopyOf({begin, static_cast<size_t>(lengths[rank].item<int64_t>())}));
    }
  }));
  return gathered;
}

C10dCollective::~C10dCollective() {
  // NCCL's connections are not closed by themselves without a complaint.
  if (!group_.device.is_cpu() && connection_.disconnect) connection_.disconnect();
}

void C10dCollective::Leave() {
  if (left_.exchange(true) || !connection_.disconnect) return;
  if (group_.device.is_cpu()) {
    connection_.disconnect();
    return;
  }
  // GPUs that wait for this one see no connection end, and to end what this one does may take a while.
  std::thread([store = group_.store, rank = rank(), disconnect = connection_.disconnect] {
    try {
      store->set(LeftKeyOf(rank), kLost);
    } catch (const std::exception&) {  // then whoever waits for the store knows
    }
    disconnect();
  }).detach();
}

void C10dCollective::Wait(c10d::Work& work, absl::Time deadline) const {
  if (group_.device.is_cpu()) {
    work.wait();
    return;
  }
  // A GPU that waits for another does not notice that its process has left.
  absl::Time look = Clock::Real().Now() + kBetweenLooksForOthers;
  while (!work.isCompleted()) {
    if (left_) throw std::runtime_error("this rank has left the group");
    const absl::Time now = Clock::Real().Now();
    if (now >= deadline) throw std::runtime_error("the time is over");
    if (now >= look) {
      if (HasOtherLeft()) throw std::runtime_error("another rank has left the group");
      look = now + kBetweenLooksForOthers;
    }
    std::this_thread::sleep_for(kBetweenLooksAtGpu);
  }
  work.wait(TimeUntil(deadline));  // throws what has gone wrong
}

bool C10dCollective::HasOtherLeft() const {
  for (int other = 0; other < size(); ++other) {
    if (other != rank() && (group_.store->check({LeftKeyOf(other)}) || group_.store->check({EndKeyOf(other)})))
      return true;
  }
  return false;
}

void C10dCollective::Send(const at::Tensor& tensor, int root, absl::Time deadline) {
  std::vector<at::Tensor> tensors = {tensor};
  c10d::BroadcastOptions options;
  options.rootRank = root;
  options.timeout = TimeUntil(deadline);
  Wait(*connection_.backend->broadcast(tensors, options), deadline);
}

void C10dCollective::Reduce(std::span<const at::Tensor> tensors, const c10d::ReduceOp& operation, absl::Time deadline) {
  c10d::AllreduceOptions options;
  options.reduceOp = operation;
  std::vector<c10::intrusive_ptr<c10d::Work>> begun;
  for (const at::Tensor& tensor : tensors) {
    if (begun.size() >= kSumsAhead) Wait(*begun[begun.size() - kSumsAhead], deadline);
    options.timeout = TimeUntil(deadline);  // counts from when Gloo comes to it
    std::vector<at::Tensor> one = {tensor};
    begun.push_back(connection_.backend->allreduce(one, options));
  }
  for (size_t i = begun.size() - std::min(begun.size(), kSumsAhead); i < begun.size(); ++i) Wait(*begun[i], deadline);
}

void C10dCollective::Gather(const at::Tensor& own, const at::Tensor& parts, absl::Time deadline) {
  at::Tensor from = own, to = parts;
  c10d::AllgatherOptions options;
  options.timeout = TimeUntil(deadline);
  Wait(*connection_.backend->_allgather_base(to, from, options), deadline);
}

absl::Status C10dCollective::DoAlike(Operation::Kind kind, std::span<const at::Tensor> tensors, absl::Time deadline,
                                     absl::FunctionRef<void()> body) {
  // Gloo ends the process where a message is longer than what was to be received.
  auto sign = static_cast<uint64_t>(kind);
  int64_t numbers = 0;
  for (const at::Tensor& tensor : tensors) {
    TDOCK_CHECK(tensor.is_contiguous(), "tensors of a group are contiguous");
    TDOCK_CHECK(kind == Operation::Kind::kAllGather || tensor.dtype() == at::kFloat || tensor.dtype() == at::kDouble,
                "sums are in float32 or float64");
    numbers += tensor.numel();
    sign = DeriveSeed(sign, static_cast<uint64_t>(tensor.numel()) << 8 | static_cast<uint64_t>(tensor.scalar_type()));
  }
  const std::string dtype = tensors.empty() ? std::string() : c10::toString(tensors.front().scalar_type());
  const std::string what = absl::StrCat(ToString({kind}), " (",
                                        tensors.size() > 1 ? absl::StrCat(tensors.size(), " tensors, ") : std::string(),
                                        numbers, " of ", dtype, ")");
  return Do(what, deadline, [&] {
    const auto half = static_cast<int64_t>(sign >> 1);  // whose negative is a number, too
    const at::Tensor signs = Here(at::tensor({half, -half}, at::kLong));
    Reduce({&signs, 1}, c10d::ReduceOp::MAX, deadline);
    const at::Tensor limits = signs.cpu();
    if (limits[0].item<int64_t>() != -limits[1].item<int64_t>()) throw Disagreement("the ranks' tensors differ");
    if (numbers > 0) body();
  });
}

// Tells the others that this rank has come to its next operation, and does it.
absl::Status C10dCollective::Do(const std::string& what, absl::Time deadline, absl::FunctionRef<void()> body) {
  if (!ended_.ok()) return ended_;
  const at::NoGradGuard no_grad;
  ++operations_;
  try {
    if (left_) throw std::runtime_error("this rank has left the group");
    if (size() > 1) {
      const std::string progress = absl::StrCat(operations_, " ", what);
      group_.store->set(KeyOf(rank()), std::vector<uint8_t>(progress.begin(), progress.end()));
    }
    body();
    if (left_) throw std::runtime_error("this rank has left the group");  // what was done may be cut off
  } catch (const std::exception& error) {
    const bool late = Clock::Real().Now() >= deadline;
    // Those that wait for this rank may have no connection with the one that ended the group. But where all come to it
    // by themselves, one may still be sending: Gloo would let it wait until its deadline if it was cut off now.
    const bool by_themselves = dynamic_cast<const Disagreement*>(&error) != nullptr;
    if (!by_themselves && connection_.disconnect) connection_.disconnect();
    ended_ = Explain(what, FirstLineOf(error), late, by_themselves ? 0 : 1);
    if (by_themselves && connection_.disconnect) connection_.disconnect();
  }
  return ended_;
}

absl::Status C10dCollective::Explain(const std::string& what, const std::string& cause, bool late,
                                     size_t others) const {
  const std::string group = absl::StrCat("group '", group_.name, "': ");
  if (left_)
    return absl::UnavailableError(absl::StrCat(group, "this rank, ", rank(), ", left before ", what, " was over"));
  const absl::StatusOr<std::vector<Progress>> ranks = ProgressOfAll(group_, operations_, late, others);
  // The first to whom a deadline comes ends the connections of the others, who may be a moment before theirs.
  late = late || (ranks.ok() && std::any_of(ranks->begin(), ranks->end(), [&](const Progress& progress) {
                    return progress.late && progress.operations == operations_;
                  }));
  const auto code = late ? absl::StatusCode::kDeadlineExceeded : absl::StatusCode::kUnavailable;
  if (!ranks.ok()) {
    return {code, absl::StrCat(group, what, ": ", cause, "; who is missing is not known: ", ranks.status().message())};
  }
  std::vector<int> missing;
  for (int other = 0; other < size(); ++other) {
    const Progress& progress = (*ranks)[static_cast<size_t>(other)];
    if (progress.operations < operations_) missing.push_back(other);
    if (progress.operations == operations_ && progress.what != what) {
      return absl::InternalError(absl::StrCat(group, "rank ", rank(), " does ", what, ", and ",
                                              RanksText({other}, size()), " ", progress.what, ", as operation ",
                                              operations_, "; all must do the same"));
    }
  }
  if (late && !missing.empty()) {
    return {code, absl::StrCat(group, RanksText(missing, size()), " did not come in time to ", what, ": ", cause)};
  }
  const std::vector<int> suspects = Suspects(*ranks, rank(), operations_);
  if (late || suspects.empty())
    return {code, absl::StrCat(group, "all ranks came to ", what, ", which failed: ", cause)};
  const char* when = missing.empty()       ? " left during "
                     : missing == suspects ? " left before "
                                           : " left before or during ";
  return {code, absl::StrCat(group, suspects.size() > 1 ? "one or more of " : "", RanksText(suspects, size()), when,
                             what, ": ", cause)};
}

}  // namespace tdock::runtime
