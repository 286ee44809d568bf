#include "arena/segment_memory.h"

#include <algorithm>
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
#include "base/mutex.h"
#include "base/no_memory.h"
#include "base/status.h"

namespace tdock {
namespace {

// The least that is mapped, and what sizes of segments are multiples of.
constexpr size_t kSegmentStep = size_t{2} << 20;

size_t RoundUp(size_t bytes, size_t step) {
  if (bytes > std::numeric_limits<size_t>::max() / 2) throw std::bad_alloc();
  return (bytes + step - 1) / step * step;
}

}  // namespace

// What the pool, its partitions and their buffers share. Its lock and those of partitions are never held together.
class SegmentPool::State {
 public:
  explicit State(const SegmentPoolOptions& options) : options_(options) {}

  struct Segment;

  // A segment of `wish` bytes, or of fewer if the limit leaves no more, but of at least `least`. Null if there is none.
  std::unique_ptr<Segment> Make(const std::shared_ptr<State>& self, size_t least, size_t wish);
  // Gives back every segment in which nothing is used.
  void DropEmpty() TDOCK_EXCLUDES(mu_);
  void Enter(const std::shared_ptr<SegmentMemory::Partition>& partition) TDOCK_EXCLUDES(mu_);
  // Sees to it that a segment that is empty goes in time; false if the pool is closed. Throws if there is no thread.
  bool TrimBy(absl::Time time) TDOCK_EXCLUDES(mu_);
  void Close() TDOCK_EXCLUDES(mu_);

  // For want of a segment of so many bytes.
  [[noreturn]] void ThrowWithout(size_t bytes) const;

  void Forget(uint64_t segment, size_t bytes) noexcept TDOCK_EXCLUDES(mu_);
  bool Exists(uint64_t segment) TDOCK_EXCLUDES(mu_);

  const SegmentPoolOptions options_;
  std::atomic<size_t> mapped_bytes_ = 0;
  std::atomic<size_t> held_bytes_ = 0;
  std::atomic<uint64_t> closed_segments_ = 0;
  std::atomic<bool> closed_ = false;

 private:
  // 0 if not even the least may be had.
  size_t Reserve(size_t least, size_t wish);
  void Trim() TDOCK_EXCLUDES(mu_);
  std::vector<std::shared_ptr<SegmentMemory::Partition>> Partitions() TDOCK_EXCLUDES(mu_);

  std::atomic<uint64_t> next_segment_ = 0;
  Mutex mu_;
  CondVar changed_;
  absl::flat_hash_set<uint64_t> live_ TDOCK_GUARDED_BY(mu_);
  std::vector<std::weak_ptr<SegmentMemory::Partition>> partitions_ TDOCK_GUARDED_BY(mu_);
  absl::Time next_trim_ TDOCK_GUARDED_BY(mu_) = absl::InfiniteFuture();
  std::thread trimmer_ TDOCK_GUARDED_BY(mu_);  // runs from the first empty segment on
};

// Unmaps and closes when it is destroyed, which nobody does with a lock held.
struct SegmentPool::State::Segment {
  Segment(std::shared_ptr<State> its_pool, uint64_t its_number) : pool(std::move(its_pool)), number(its_number) {}
  ~Segment() {
    mapping.reset();
    file.reset();
    pool->Forget(number, bytes);
  }

  const std::shared_ptr<State> pool;
  const uint64_t number;
  size_t bytes = 0;  // of the pool's limit
  std::shared_ptr<const FileDescriptor> file;
  std::shared_ptr<const Mapping> mapping;
  // If nothing in it is used: when it goes.
  std::optional<absl::Time> empty_until;
};

class SegmentMemory::Partition : public std::enable_shared_from_this<SegmentMemory::Partition> {
 public:
  using Segment = SegmentPool::State::Segment;

  explicit Partition(std::shared_ptr<SegmentPool::State> pool) : pool_(std::move(pool)) {}

  Buffer Allocate(size_t size_bytes);
  // Gives back the empty segments whose time has come by `now`.
  void DropEmpty(absl::Time now) noexcept TDOCK_EXCLUDES(mu_);
  // When the time of the next one comes.
  absl::Time NextTrim() TDOCK_EXCLUDES(mu_);
  // Its memory is gone: from here on only buffers keep segments.
  void Drop() noexcept TDOCK_EXCLUDES(mu_);

  std::optional<SegmentPlace> Locate(const std::byte* data) TDOCK_EXCLUDES(mu_);
  absl::StatusOr<SegmentFile> Open(uint64_t segment) TDOCK_EXCLUDES(mu_);

 private:
  struct Found {
    SegmentPlace place;
    std::byte* data;
  };
  // Where a segment lies, for Locate().
  struct Extent {
    const std::byte* begin;
    size_t bytes;
    uint64_t segment;
  };

  std::optional<Found> Find(size_t bytes) TDOCK_EXCLUDES(mu_);
  // In a segment that is added; or in another that has room meanwhile.
  std::optional<Found> FindWith(std::unique_ptr<Segment> segment, size_t bytes) TDOCK_EXCLUDES(mu_);
  void Free(SegmentPlace place) noexcept TDOCK_EXCLUDES(mu_);
  std::unique_ptr<Segment> TakeEmpty(absl::Time now) noexcept TDOCK_EXCLUDES(mu_);
  std::optional<Found> Take(size_t bytes) TDOCK_REQUIRES(mu_);
  void Add(std::unique_ptr<Segment>&& segment) TDOCK_REQUIRES(mu_);
  std::unique_ptr<Segment> Remove(uint64_t segment) noexcept TDOCK_REQUIRES(mu_);

  const std::shared_ptr<SegmentPool::State> pool_;
  Mutex mu_;
  bool dropped_ TDOCK_GUARDED_BY(mu_) = false;
  FreeRanges ranges_ TDOCK_GUARDED_BY(mu_);
  absl::flat_hash_map<uint64_t, std::unique_ptr<Segment>> segments_ TDOCK_GUARDED_BY(mu_);
  std::vector<Extent> extents_ TDOCK_GUARDED_BY(mu_);  // by address
};

std::unique_ptr<SegmentPool::State::Segment> SegmentPool::State::Make(const std::shared_ptr<State>& self, size_t least,
                                                                      size_t wish) {
  auto segment = std::make_unique<Segment>(self, next_segment_++);
  segment->bytes = Reserve(least, wish);
  if (segment->bytes == 0) return nullptr;
  absl::StatusOr<std::shared_ptr<const FileDescriptor>> file = MakeMemoryFile("tdock-segment", segment->bytes);
  if (!file.ok()) return nullptr;
  segment->file = *std::move(file);
  absl::StatusOr<std::shared_ptr<const Mapping>> mapping =
      Mapping::Make(segment->file->fd(), segment->bytes, Mapping::Access::kReadWrite);
  if (!mapping.ok()) return nullptr;
  segment->mapping = *std::move(mapping);
  // What could be written by others must not be used.
  if (!Seal(segment->file->fd(), SealedAgainst::kResizingAndFutureWriting).ok()) return nullptr;
  MutexLock lock(mu_);
  live_.insert(segment->number);
  return segment;
}

size_t SegmentPool::State::Reserve(size_t least, size_t wish) {
  size_t mapped = mapped_bytes_;
  for (;;) {
    const size_t left = options_.limit_bytes - std::min(mapped, options_.limit_bytes);
    const size_t bytes = std::min(wish, left / kSegmentStep * kSegmentStep);
    if (bytes < least) return 0;
    if (mapped_bytes_.compare_exchange_weak(mapped, mapped + bytes)) return bytes;
  }
}

void SegmentPool::State::ThrowWithout(size_t bytes) const {
  const size_t limit = options_.limit_bytes, mapped = std::min<size_t>(mapped_bytes_, limit);
  if (bytes <= limit - mapped) throw std::bad_alloc();
  throw MemoryLimitReached(absl::StrCat(mapped, " of ", limit, " bytes are taken, the limit that ", options_.limit_name,
                                        " sets: clear rows, let go of views, or raise it"));
}

void SegmentPool::State::Forget(uint64_t segment, size_t bytes) noexcept {
  mapped_bytes_ -= bytes;
  MutexLock lock(mu_);
  if (live_.erase(segment) > 0) ++closed_segments_;
}

bool SegmentPool::State::Exists(uint64_t segment) {
  MutexLock lock(mu_);
  return live_.contains(segment);
}

void SegmentPool::State::Enter(const std::shared_ptr<SegmentMemory::Partition>& partition) {
  MutexLock lock(mu_);
  std::erase_if(partitions_, [](const auto& entered) { return entered.expired(); });
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

Buffer SegmentMemory::Partition::Allocate(size_t size_bytes) {
  if (size_bytes == 0) return Buffer();
  const size_t bytes = RoundUp(size_bytes, Buffer::kAlignment);
  std::optional<Found> found = Find(bytes);
  if (!found) {
    const size_t least = RoundUp(bytes, kSegmentStep), wish = std::max(least, pool_->options_.segment_bytes);
    std::unique_ptr<Segment> segment = pool_->Make(pool_, least, wish);
    if (segment == nullptr) {
      pool_->DropEmpty();
      segment = pool_->Make(pool_, least, wish);
    }
    found = segment == nullptr ? Find(bytes) : FindWith(std::move(segment), bytes);
  }
  if (!found) pool_->ThrowWithout(RoundUp(bytes, kSegmentStep));
  pool_->held_bytes_ += bytes;
  // Where there is no memory for the owner, this frees the bytes and throws.
  std::shared_ptr<void> owner(found->data,
                              [self = shared_from_this(), place = found->place](void*) { self->Free(place); });
  return Buffer::WrapWritable(found->data, size_bytes, std::move(owner));
}

std::optional<SegmentMemory::Partition::Found> SegmentMemory::Partition::Find(size_t bytes) {
  MutexLock lock(mu_);
  return Take(bytes);
}

std::optional<SegmentMemory::Partition::Found> SegmentMemory::Partition::FindWith(std::unique_ptr<Segment> segment,
                                                                                  size_t bytes) {
  MutexLock lock(mu_);
  Add(std::move(segment));
  return Take(bytes);
}

void SegmentMemory::Partition::Add(std::unique_ptr<Segment>&& segment) {
  const uint64_t number = segment->number;
  const Extent extent = {segment->mapping->data(), segment->bytes, number};
  extents_.reserve(extents_.size() + 1);
  segments_.reserve(segments_.size() + 1);
  ranges_.Add(number, segment->bytes);
  // Nothing throws from here on. Until something lies in it, the next trim takes it.
  segment->empty_until = absl::InfinitePast();
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
  segments_.erase(found);
  return removed;
}

std::optional<SegmentMemory::Partition::Found> SegmentMemory::Partition::Take(size_t bytes) {
  const std::optional<SegmentPlace> place = ranges_.Take(bytes);
  if (!place) return std::nullopt;
  Segment& segment = *segments_.find(place->segment)->second;
  segment.empty_until.reset();
  return Found{*place, segment.mapping->writable() + place->offset};
}

void SegmentMemory::Partition::Free(SegmentPlace place) noexcept {
  std::unique_ptr<Segment> gone;
  absl::Time until;
  {
    MutexLock lock(mu_);
    pool_->held_bytes_ -= ranges_.Return(place);
    if (!ranges_.IsFree(place.segment)) return;
    if (dropped_ || pool_->closed_) {
      gone = Remove(place.segment);
    } else {
      until = pool_->options_.clock.Now() + pool_->options_.keep;
      segments_.find(place.segment)->second->empty_until = until;
    }
  }
  if (gone != nullptr) return;
  // Buffers are freed by destructors, where nothing may be thrown. Without a thread to trim them, segments go at once.
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
  const size_t held = state_->held_bytes_, mapped = state_->mapped_bytes_;
  return mapped - std::min(held, mapped);
}

bool SegmentPool::Exists(uint64_t segment) const { return state_->Exists(segment); }
uint64_t SegmentPool::closed_segments() const { return state_->closed_segments_; }

SegmentMemory::SegmentMemory(SegmentPool& pool) : partition_(std::make_shared<Partition>(pool.state_)) {
  pool.state_->Enter(partition_);
}

SegmentMemory::~SegmentMemory() { partition_->Drop(); }

Buffer SegmentMemory::Allocate(size_t size_bytes) { return partition_->Allocate(size_bytes); }
std::optional<SegmentPlace> SegmentMemory::Locate(const std::byte* data) const { return partition_->Locate(data); }
absl::StatusOr<SegmentFile> SegmentMemory::Open(uint64_t segment) const { return partition_->Open(segment); }

}  // namespace tdock
