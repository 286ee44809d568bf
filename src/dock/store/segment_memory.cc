#include "dock/store/segment_memory.h"

#include <algorithm>
#include <bit>
#include <exception>
#include <iterator>
#include <limits>
#include <new>
#include <thread>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "absl/strings/str_cat.h"
#include "core/base/mutex.h"
#include "core/base/no_memory.h"
#include "core/base/status.h"
#include "dock/store/page_sizes.h"

namespace tdock::dock {
namespace {

// Descriptors that segments leave for connections and files.
constexpr unsigned kDescriptorsForOthers = 64;
// A larger buffer lies in a segment even if the heap has room, so that clients can view it in place.
constexpr size_t kLargeOnHeap = size_t{64} << 10;
constexpr std::align_val_t kHeapAlignment{Buffer::kAlignment};

size_t RoundUp(size_t bytes, size_t step) {
  if (bytes > std::numeric_limits<size_t>::max() / 2) throw std::bad_alloc();
  return (bytes + step - 1) / step * step;
}

}  // namespace

// State shared by the pool, its partitions and their buffers. Its lock and those of partitions are never held together.
class SegmentPool::State {
 public:
  explicit State(const SegmentPoolOptions& options) : options_(options) {}

  struct Segment;
  class Charge;

  // A segment of `wish` bytes, or of fewer if there is no more room, but at least `least`. ResourceExhausted if there
  // is not that much.
  absl::StatusOr<std::unique_ptr<Segment>> Make(const std::shared_ptr<State>& self, size_t least, size_t wish);
  // Reserves the bytes that a segment or a heap buffer will take; 0 if not even the least is available.
  size_t Reserve(size_t least, size_t wish);
  // Returns every unused segment to the system.
  void DropEmpty() TDOCK_EXCLUDES(mu_);
  void Enter(const std::shared_ptr<SegmentMemory::Partition>& partition) TDOCK_EXCLUDES(mu_);
  // Makes sure that an empty segment is freed in time; false if the pool is closed. Throws if no thread can be started.
  bool TrimBy(absl::Time time) TDOCK_EXCLUDES(mu_);
  void Close() TDOCK_EXCLUDES(mu_);

  void Forget(uint64_t segment, size_t bytes) noexcept TDOCK_EXCLUDES(mu_);
  bool Exists(uint64_t segment) TDOCK_EXCLUDES(mu_);

  bool IsScarce() const { return held_bytes_ > options_.limit_bytes / 8 * 7; }
  // Without exceeding the limit on what is taken.
  bool HasRoomFor(size_t bytes) const {
    const size_t limit = options_.limit_bytes;
    return bytes <= limit - std::min<size_t>(taken_bytes_, limit);
  }

  const SegmentPoolOptions options_;
  // In buffers.
  std::atomic<size_t> held_bytes_ = 0;
  // In segments, and in buffers on the heap.
  std::atomic<size_t> taken_bytes_ = 0;
  // In unused segments.
  std::atomic<size_t> empty_bytes_ = 0;
  std::atomic<uint64_t> closed_segments_ = 0;
  std::atomic<bool> closed_ = false;

 private:
  // The limit on segments and the heap: cells of different sizes come and go, and the free space between them is not
  // always usable.
  size_t MostTaken() const { return options_.limit_bytes > SIZE_MAX / 2 ? SIZE_MAX : 2 * options_.limit_bytes; }
  absl::Status Fragmented(size_t bytes) const;
  void Trim() TDOCK_EXCLUDES(mu_);
  std::vector<std::shared_ptr<SegmentMemory::Partition>> Partitions() TDOCK_EXCLUDES(mu_);

  std::atomic<uint64_t> next_segment_ = 0;
  Mutex mu_;
  CondVar changed_;
  absl::flat_hash_set<uint64_t> live_ TDOCK_GUARDED_BY(mu_);
  std::vector<std::weak_ptr<SegmentMemory::Partition>> partitions_ TDOCK_GUARDED_BY(mu_);
  // The number of entries at which expired ones are removed.
  size_t look_through_at_ TDOCK_GUARDED_BY(mu_) = 16;
  absl::Time next_trim_ TDOCK_GUARDED_BY(mu_) = absl::InfiniteFuture();
  std::thread trimmer_ TDOCK_GUARDED_BY(mu_);  // runs from the first empty segment on
};

// The bytes of a buffer that is being made: counted as held, and released unless it succeeds.
class SegmentPool::State::Charge {
 public:
  // Throws MemoryLimitReached.
  Charge(State& pool, size_t bytes, bool may_exceed);
  ~Charge() { pool_.held_bytes_ -= bytes_; }
  Charge(const Charge&) = delete;
  Charge& operator=(const Charge&) = delete;

  // The buffer has been made, and takes over the count.
  void Keep() { bytes_ = 0; }

 private:
  State& pool_;
  size_t bytes_;
};

SegmentPool::State::Charge::Charge(State& pool, size_t bytes, bool may_exceed) : pool_(pool), bytes_(bytes) {
  const size_t limit = pool.options_.limit_bytes;
  size_t held = pool.held_bytes_;
  do {
    if (may_exceed || bytes <= limit - std::min(held, limit)) continue;
    throw MemoryLimitReached(absl::StrCat(held, " of ", limit, " bytes are taken, the limit that ",
                                          pool.options_.limit_name, " sets: clear rows, release views, or raise it"));
  } while (!pool.held_bytes_.compare_exchange_weak(held, held + bytes));
}

// Unmaps and closes in its destructor, which must not run with a lock held.
struct SegmentPool::State::Segment {
  Segment(std::shared_ptr<State> its_pool, uint64_t its_number) : pool(std::move(its_pool)), number(its_number) {}
  ~Segment() {
    mapping.reset();
    file.reset();
    pool->Forget(number, bytes);
  }

  const std::shared_ptr<State> pool;
  const uint64_t number;
  size_t bytes = 0;  // of what is taken
  std::shared_ptr<const FileDescriptor> file;
  std::shared_ptr<const Mapping> mapping;
  // When it will be freed, if it is unused.
  std::optional<absl::Time> empty_until;
};

class SegmentMemory::Partition : public std::enable_shared_from_this<SegmentMemory::Partition> {
 public:
  using Segment = SegmentPool::State::Segment;

  explicit Partition(std::shared_ptr<SegmentPool::State> pool) : pool_(std::move(pool)) {}

  Buffer Allocate(size_t size_bytes, bool may_exceed);
  // Frees the empty segments that are due at `now`.
  void DropEmpty(absl::Time now) noexcept TDOCK_EXCLUDES(mu_);
  // When the time of the next one comes.
  absl::Time NextTrim() TDOCK_EXCLUDES(mu_);
  // The memory is gone: from now on only buffers keep segments alive.
  void Drop() noexcept TDOCK_EXCLUDES(mu_);

  std::optional<SegmentPlace> Locate(const std::byte* data) TDOCK_EXCLUDES(mu_);
  // Whether a buffer on the heap begins there.
  bool IsOnHeap(const std::byte* data) TDOCK_EXCLUDES(mu_);
  absl::StatusOr<SegmentFile> Open(uint64_t segment) TDOCK_EXCLUDES(mu_);

  bool IsScarce() const { return pool_->IsScarce(); }

 private:
  struct Found {
    SegmentPlace place;
    std::byte* data = nullptr;  // null: of the heap
  };
  // The address ranges of segments, for Locate().
  struct Extent {
    const std::byte* begin;
    size_t bytes;
    uint64_t segment;
  };

  std::optional<Found> Find(size_t bytes) TDOCK_EXCLUDES(mu_);
  // Adds segments until one has this much room. Throws MemoryLimitReached.
  Found Grow(size_t bytes) TDOCK_EXCLUDES(mu_);
  std::optional<Found> FindWith(std::unique_ptr<Segment> segment, size_t bytes) TDOCK_EXCLUDES(mu_);
  // On the heap, where Find() has counted it.
  Buffer MakeOnHeap(size_t size_bytes, size_t bytes) TDOCK_EXCLUDES(mu_);
  void FreeOnHeap(std::byte* data, size_t bytes) noexcept TDOCK_EXCLUDES(mu_);
  // The size of a segment for a buffer of this many bytes, and others.
  size_t NextSegmentBytes(size_t bytes) TDOCK_EXCLUDES(mu_);
  void Free(SegmentPlace place) noexcept TDOCK_EXCLUDES(mu_);
  std::unique_ptr<Segment> TakeEmpty(absl::Time now) noexcept TDOCK_EXCLUDES(mu_);
  std::optional<Found> Take(size_t bytes) TDOCK_REQUIRES(mu_);
  void Add(std::unique_ptr<Segment>&& segment) TDOCK_REQUIRES(mu_);
  std::unique_ptr<Segment> Remove(uint64_t segment) noexcept TDOCK_REQUIRES(mu_);

  const std::shared_ptr<SegmentPool::State> pool_;
  Mutex mu_;
  bool dropped_ TDOCK_GUARDED_BY(mu_) = false;
  size_t heap_bytes_ TDOCK_GUARDED_BY(mu_) = 0;
  absl::flat_hash_set<const std::byte*> on_heap_ TDOCK_GUARDED_BY(mu_);
  size_t used_bytes_ TDOCK_GUARDED_BY(mu_) = 0;  // of segments
  FreeRanges ranges_ TDOCK_GUARDED_BY(mu_);
  absl::flat_hash_map<uint64_t, std::unique_ptr<Segment>> segments_ TDOCK_GUARDED_BY(mu_);
  std::vector<Extent> extents_ TDOCK_GUARDED_BY(mu_);  // by address
};

absl::StatusOr<std::unique_ptr<SegmentPool::State::Segment>> SegmentPool::State::Make(
    const std::shared_ptr<State>& self, size_t least, size_t wish) {
  auto segment = std::make_unique<Segment>(self, next_segment_++);
  segment->bytes = Reserve(least, wish);
  if (segment->bytes == 0) return Fragmented(least);
  TDOCK_ASSIGN_OR_RETURN(segment->file, MakeMemoryFile("tdock-segment", segment->bytes, kDescriptorsForOthers));
  TDOCK_ASSIGN_OR_RETURN(segment->mapping,
                         Mapping::Make(segment->file->fd(), segment->bytes, Mapping::Access::kReadWrite));
  // Memory that other processes could write must not be used.
  TDOCK_RETURN_IF_ERROR(Seal(segment->file->fd(), SealedAgainst::kResizingAndFutureWriting));
  MutexLock lock(mu_);
  live_.insert(segment->number);
  return segment;
}

size_t SegmentPool::State::Reserve(size_t least, size_t wish) {
  const size_t most = MostTaken();
  size_t taken = taken_bytes_;
  for (;;) {
    const size_t left = most - std::min(taken, most);
    const size_t bytes = std::min(wish, left / kPageBytes * kPageBytes);
    if (bytes < least) return 0;
    if (taken_bytes_.compare_exchange_weak(taken, taken + bytes)) return bytes;
  }
}

absl::Status SegmentPool::State::Fragmented(size_t bytes) const {
  return absl::ResourceExhaustedError(absl::StrCat("cells occupy ", held_bytes_.load(), " of ", options_.limit_bytes,
                                                   " bytes, the limit that ", options_.limit_name,
                                                   " sets, but the memory that holds them takes ", taken_bytes_.load(),
                                                   ", and may take twice the limit: no free space between them has ",
                                                   bytes, " bytes; clear rows, release views, or raise the limit"));
}

void SegmentPool::State::Forget(uint64_t segment, size_t bytes) noexcept {
  taken_bytes_ -= bytes;
  MutexLock lock(mu_);
  if (live_.erase(segment) > 0) ++closed_segments_;
}

bool SegmentPool::State::Exists(uint64_t segment) {
  MutexLock lock(mu_);
  return live_.contains(segment);
}

void SegmentPool::State::Enter(const std::shared_ptr<SegmentMemory::Partition>& partition) {
  MutexLock lock(mu_);
  if (partitions_.size() >= look_through_at_) {
    std::erase_if(partitions_, [](const auto& entered) { return entered.expired(); });
    look_through_at_ = std::max<size_t>(16, 2 * partitions_.size());
  }
  partitions_.push_back(partition);
}

std::vector<std::shared_ptr<SegmentMemory::Partition>> SegmentPool::State::Partitions() {
  std::vector<std::shared_ptr<SegmentMemory::Partition>> partitions;
  MutexLock lock(mu_);
  partitions.reserve(partitions_.size());
  for (const auto& entered : partitions_) {
    if (auto partition = entered.lock(); partition != nullptr) partitions.push_back(std::move(partition));
  }
  return partitions;
}

void SegmentPool::State::DropEmpty() {
  if (empty_bytes_ == 0) return;
  for (const auto& partition : Partitions()) partition->DropEmpty(absl::InfiniteFuture());
}

bool SegmentPool::State::TrimBy(absl::Time time) {
  MutexLock lock(mu_);
  if (closed_) return false;
  if (!trimmer_.joinable()) trimmer_ = std::thread([this] { Trim(); });
  if (time < next_trim_) {
    next_trim_ = time;
    changed_.NotifyOne();
  }
  return true;
}

void SegmentPool::State::Trim() {
  for (;;) {
    {
      MutexLock lock(mu_);
      while (!closed_ && options_.clock.Now() < next_trim_) options_.clock.Wait(changed_, mu_, next_trim_);
      if (closed_) return;
      next_trim_ = absl::InfiniteFuture();
    }
    const absl::Time now = options_.clock.Now();
    absl::Time next = absl::InfiniteFuture();
    for (const auto& partition : Partitions()) {
      partition->DropEmpty(now);
      next = std::min(next, partition->NextTrim());
    }
    MutexLock lock(mu_);
    next_trim_ = std::min(next_trim_, next);
  }
}

void SegmentPool::State::Close() {
  std::thread trimmer;
  {
    MutexLock lock(mu_);
    closed_ = true;
    trimmer.swap(trimmer_);
    changed_.NotifyOne();
  }
  if (trimmer.joinable()) trimmer.join();
  DropEmpty();
}

Buffer SegmentMemory::Partition::Allocate(size_t size_bytes, bool may_exceed) {
  if (size_bytes == 0) return Buffer();
  const size_t bytes = RoundUp(size_bytes, Buffer::kAlignment);
  SegmentPool::State::Charge charge(*pool_, bytes, may_exceed);
  std::optional<Found> found = Find(bytes);
  if (!found) found = Grow(bytes);
  charge.Keep();
  if (found->data == nullptr) return MakeOnHeap(size_bytes, bytes);
  // If there is no memory for the owner, this frees the bytes and throws.
  std::shared_ptr<void> owner(found->data,
                              [self = shared_from_this(), place = found->place](void*) { self->Free(place); });
  return Buffer::WrapWritable(found->data, size_bytes, std::move(owner));
}

std::optional<SegmentMemory::Partition::Found> SegmentMemory::Partition::Find(size_t bytes) {
  MutexLock lock(mu_);
  if (segments_.empty() && bytes < kLargeOnHeap && heap_bytes_ + bytes <= pool_->options_.heap_bytes &&
      pool_->Reserve(bytes, bytes) > 0) {
    heap_bytes_ += bytes;
    return Found{};
  }
  return Take(bytes);
}

SegmentMemory::Partition::Found SegmentMemory::Partition::Grow(size_t bytes) {
  const size_t least = RoundUp(bytes, kPageBytes);
  for (;;) {
    const size_t wish = NextSegmentBytes(bytes);
    absl::StatusOr<std::unique_ptr<Segment>> segment = pool_->Make(pool_, least, wish);
    if (!segment.ok()) {
      pool_->DropEmpty();
      segment = pool_->Make(pool_, least, wish);
    }
    const std::optional<Found> found = segment.ok() ? FindWith(*std::move(segment), bytes) : Find(bytes);
    if (found) return *found;
    // Another call may have used the room of the new segment.
    if (!segment.ok()) throw MemoryLimitReached(std::string(segment.status().message()));
  }
}

std::optional<SegmentMemory::Partition::Found> SegmentMemory::Partition::FindWith(std::unique_ptr<Segment> segment,
                                                                                  size_t bytes) {
  MutexLock lock(mu_);
  Add(std::move(segment));
  return Take(bytes);
}

Buffer SegmentMemory::Partition::MakeOnHeap(size_t size_bytes, size_t bytes) {
  auto* const data = static_cast<std::byte*>(::operator new(bytes, kHeapAlignment, std::nothrow));
  // Frees the bytes if the rest fails. Null counts as freed, too: it was counted.
  std::shared_ptr<void> owner(data, [self = shared_from_this(), data, bytes](void*) { self->FreeOnHeap(data, bytes); });
  if (data == nullptr) throw std::bad_alloc();
  {
    MutexLock lock(mu_);
    on_heap_.insert(data);
  }
  return Buffer::WrapWritable(data, size_bytes, std::move(owner));
}

void SegmentMemory::Partition::FreeOnHeap(std::byte* data, size_t bytes) noexcept {
  pool_->held_bytes_ -= bytes;
  pool_->taken_bytes_ -= bytes;
  {
    MutexLock lock(mu_);
    heap_bytes_ -= bytes;
    on_heap_.erase(data);
  }
  ::operator delete(data, kHeapAlignment);
}

bool SegmentMemory::Partition::IsOnHeap(const std::byte* data) {
  MutexLock lock(mu_);
  return on_heap_.contains(data);
}

size_t SegmentMemory::Partition::NextSegmentBytes(size_t bytes) {
  const SegmentPoolOptions& options = pool_->options_;
  size_t held;
  {
    MutexLock lock(mu_);
    held = heap_bytes_ + used_bytes_;
  }
  const size_t grown =
      std::min(options.most_segment_bytes, std::max(options.least_segment_bytes, std::bit_ceil(held / 8)));
  // It is filled by buffers of this size.
  const size_t count = std::max<size_t>(1, grown / bytes);
  // With room for some more, later buffers of other sizes also find warm memory. Untouched memory costs nothing.
  const size_t generous = std::min(std::max<size_t>(4, count), options.most_segment_bytes / bytes);
  if (generous > count && pool_->HasRoomFor(generous * bytes)) return RoundUp(generous * bytes, kPageBytes);
  // Cached memory must not make the server exceed its limit.
  if (!pool_->HasRoomFor(count * bytes)) pool_->DropEmpty();
  return RoundUp(count * bytes, kPageBytes);
}

void SegmentMemory::Partition::Add(std::unique_ptr<Segment>&& segment) {
  const uint64_t number = segment->number;
  const Extent extent = {segment->mapping->data(), segment->bytes, number};
  extents_.reserve(extents_.size() + 1);
  segments_.reserve(segments_.size() + 1);
  ranges_.Add(number, segment->bytes);
  // Nothing throws from here on. Until it is used, the next trim frees it.
  segment->empty_until = absl::InfinitePast();
  pool_->empty_bytes_ += segment->bytes;
  segments_.emplace(number, std::move(segment));
  extents_.insert(std::upper_bound(extents_.begin(), extents_.end(), extent,
                                   [](const Extent& a, const Extent& b) { return a.begin < b.begin; }),
                  extent);
}

std::unique_ptr<SegmentMemory::Partition::Segment> SegmentMemory::Partition::Remove(uint64_t segment) noexcept {
  ranges_.Remove(segment);
  std::erase_if(extents_, [segment](const Extent& extent) { return extent.segment == segment; });
  const auto found = segments_.find(segment);
  std::unique_ptr<Segment> removed = std::move(found->second);
  if (removed->empty_until) pool_->empty_bytes_ -= removed->bytes;
  segments_.erase(found);
  return removed;
}

std::optional<SegmentMemory::Partition::Found> SegmentMemory::Partition::Take(size_t bytes) {
  const std::optional<SegmentPlace> place = ranges_.Take(bytes);
  if (!place) return std::nullopt;
  Segment& segment = *segments_.find(place->segment)->second;
  used_bytes_ += bytes;
  if (segment.empty_until) {
    segment.empty_until.reset();
    pool_->empty_bytes_ -= segment.bytes;
  }
  return Found{*place, segment.mapping->writable() + place->offset};
}

void SegmentMemory::Partition::Free(SegmentPlace place) noexcept {
  std::unique_ptr<Segment> gone;
  absl::Time until;
  {
    MutexLock lock(mu_);
    const size_t bytes = ranges_.Return(place);
    used_bytes_ -= bytes;
    pool_->held_bytes_ -= bytes;
    if (!ranges_.IsFree(place.segment)) return;
    if (dropped_ || pool_->closed_) {
      gone = Remove(place.segment);
    } else {
      until = pool_->options_.clock.Now() + pool_->options_.keep;
      Segment& segment = *segments_.find(place.segment)->second;
      segment.empty_until = until;
      pool_->empty_bytes_ += segment.bytes;
    }
  }
  if (gone != nullptr) return;
  // Buffers are freed by destructors, which must not throw. Without a thread to trim them, segments are freed at once.
  bool trimmed = false;
  try {
    trimmed = pool_->TrimBy(until);
  } catch (const std::exception&) {
  }
  if (!trimmed) DropEmpty(absl::InfiniteFuture());
}

std::unique_ptr<SegmentMemory::Partition::Segment> SegmentMemory::Partition::TakeEmpty(absl::Time now) noexcept {
  MutexLock lock(mu_);
  for (const auto& [number, segment] : segments_) {
    if (segment->empty_until && *segment->empty_until <= now) return Remove(number);
  }
  return nullptr;
}

void SegmentMemory::Partition::DropEmpty(absl::Time now) noexcept {
  // One by one, so that none is unmapped with the lock held, and no list of them is needed.
  while (TakeEmpty(now) != nullptr) {
  }
}

absl::Time SegmentMemory::Partition::NextTrim() {
  absl::Time next = absl::InfiniteFuture();
  MutexLock lock(mu_);
  for (const auto& [number, segment] : segments_) next = std::min(next, segment->empty_until.value_or(next));
  return next;
}

void SegmentMemory::Partition::Drop() noexcept {
  {
    MutexLock lock(mu_);
    dropped_ = true;
  }
  DropEmpty(absl::InfiniteFuture());
}

std::optional<SegmentPlace> SegmentMemory::Partition::Locate(const std::byte* data) {
  MutexLock lock(mu_);
  const auto behind = std::upper_bound(extents_.begin(), extents_.end(), data,
                                       [](const std::byte* at, const Extent& extent) { return at < extent.begin; });
  if (behind == extents_.begin()) return std::nullopt;
  const Extent& extent = *std::prev(behind);
  const auto offset = static_cast<size_t>(data - extent.begin);
  if (offset >= extent.bytes) return std::nullopt;
  return SegmentPlace{extent.segment, offset};
}

absl::StatusOr<SegmentFile> SegmentMemory::Partition::Open(uint64_t segment) {
  MutexLock lock(mu_);
  const auto found = segments_.find(segment);
  if (found == segments_.end()) return absl::NotFoundError(absl::StrCat("this partition has no segment ", segment));
  return SegmentFile{found->second->file, found->second->bytes};
}

SegmentPool::SegmentPool(const SegmentPoolOptions& options) : state_(std::make_shared<State>(options)) {}
SegmentPool::~SegmentPool() { state_->Close(); }

size_t SegmentPool::held_bytes() const { return state_->held_bytes_; }

size_t SegmentPool::warm_bytes() const {
  // Both change meanwhile.
  const size_t held = state_->held_bytes_, taken = state_->taken_bytes_;
  return taken - std::min(held, taken);
}

bool SegmentPool::Exists(uint64_t segment) const { return state_->Exists(segment); }
uint64_t SegmentPool::closed_segments() const { return state_->closed_segments_; }

SegmentMemory::SegmentMemory(SegmentPool& pool) : partition_(std::make_shared<Partition>(pool.state_)) {
  pool.state_->Enter(partition_);
}

SegmentMemory::~SegmentMemory() { partition_->Drop(); }

Buffer SegmentMemory::Allocate(size_t size_bytes) { return partition_->Allocate(size_bytes, /*may_exceed=*/false); }
Buffer SegmentMemory::AllocateToReplace(size_t size_bytes) {
  return partition_->Allocate(size_bytes, /*may_exceed=*/true);
}
bool SegmentMemory::Holds(const std::byte* data) const {
  return partition_->Locate(data).has_value() || partition_->IsOnHeap(data);
}
bool SegmentMemory::IsScarce() const { return partition_->IsScarce(); }
std::optional<SegmentPlace> SegmentMemory::Locate(const std::byte* data) const { return partition_->Locate(data); }
absl::StatusOr<SegmentFile> SegmentMemory::Open(uint64_t segment) const { return partition_->Open(segment); }

}  // namespace tdock::dock
