#include "dock/store/warm_memory.h"

#include <sys/mman.h>

#include <algorithm>
#include <bit>
#include <exception>
#include <iterator>
#include <new>
#include <utility>

#include "dock/store/page_sizes.h"

namespace tdock::dock {
namespace {

// Smaller sizes come from the heap, which caches them itself.
constexpr size_t kSmallBytes = size_t{64} << 10;

// Sizes are rounded up by at most a sixteenth, so that a buffer can reuse one of nearly its size.
size_t ChunkSize(size_t size) {
  const size_t step = std::bit_floor(size) / 16;
  return (size + step - 1) / step * step;
}

}  // namespace

WarmMemory::WarmMemory(const WarmMemoryOptions& options) : list_(std::make_shared<List>(options)) {}

WarmMemory::~WarmMemory() { list_->Close(); }

Buffer WarmMemory::Allocate(size_t size_bytes) {
  if (size_bytes < kSmallBytes) return Buffer::Allocate(size_bytes);
  const size_t size = ChunkSize(size_bytes);
  Chunk chunk = list_->Find(size);
  if (chunk.data == nullptr) chunk = Map(size);
  if (chunk.data == nullptr) {
    list_->Empty();
    chunk = Map(size);
  }
  if (chunk.data == nullptr) throw std::bad_alloc();
  std::shared_ptr<void> owner(chunk.data, [list = list_, chunk](void*) { list->Free(chunk); });
  return Buffer::WrapWritable(chunk.data, size_bytes, std::move(owner));
}

WarmMemory::Chunk WarmMemory::Map(size_t size) {
  // Huge pages start at multiples of their size; what lies before and after is returned.
  const size_t slack = size < kHugePageBytes ? 0 : kHugePageBytes;
  void* const mapped =
      ::mmap(nullptr, size + slack, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, /*fd=*/-1, /*offset=*/0);
  if (mapped == MAP_FAILED) return {};
  std::byte* const first = static_cast<std::byte*>(mapped);
  if (slack == 0) return {first, size};
  const size_t before = (kHugePageBytes - reinterpret_cast<uintptr_t>(first) % kHugePageBytes) % kHugePageBytes;
  if (before > 0) ::munmap(first, before);
  if (slack > before) ::munmap(first + before + size, slack - before);
  ::madvise(first + before, size, MADV_HUGEPAGE);  // only advice
  return {first + before, size};
}

WarmMemory::Chunk WarmMemory::List::Find(size_t size) {
  MutexLock lock(mu_);
  const auto fitting = chunks_.lower_bound(size);
  if (fitting == chunks_.end() || fitting->first > size + size / 8) return {};
  // The one that was freed last, so that surplus chunks grow old.
  const auto it = std::prev(chunks_.upper_bound(fitting->first));
  const Chunk chunk = {it->second.data, it->first};
  bytes_ -= chunk.size;
  chunks_.erase(it);
  return chunk;
}

void WarmMemory::List::Free(Chunk chunk) noexcept {
  // Buffers are freed by destructors, which must not throw.
  try {
    if (Keep(chunk)) return;
  } catch (const std::exception&) {
    // There is no memory for the list, or no thread to trim it.
  }
  ::munmap(chunk.data, chunk.size);
}

bool WarmMemory::List::Keep(Chunk chunk) {
  MutexLock lock(mu_);
  if (closed_ || chunk.size > options_.limit_bytes - bytes_) return false;
  if (!trimmer_.joinable()) trimmer_ = std::thread([this] { Trim(); });
  chunks_.emplace(chunk.size, Warm{chunk.data, options_.clock.Now() + options_.keep});
  bytes_ += chunk.size;
  if (chunks_.size() == 1) changed_.NotifyOne();
  return true;
}

void WarmMemory::List::Empty() {
  Chunks chunks;
  {
    MutexLock lock(mu_);
    bytes_ = 0;
    chunks.swap(chunks_);
  }
  Unmap(chunks);
}

void WarmMemory::List::Close() {
  std::thread trimmer;
  {
    MutexLock lock(mu_);
    closed_ = true;
    trimmer.swap(trimmer_);
    changed_.NotifyOne();
  }
  if (trimmer.joinable()) trimmer.join();
  Empty();
}

size_t WarmMemory::List::WarmBytes() {
  MutexLock lock(mu_);
  return bytes_;
}

absl::Time WarmMemory::List::NextTrim() const {
  absl::Time next = absl::InfiniteFuture();
  for (const auto& [size, warm] : chunks_) next = std::min(next, warm.until);
  return next;
}

void WarmMemory::List::Trim() {
  for (;;) {
    Chunks old;
    {
      MutexLock lock(mu_);
      for (;;) {
        if (closed_) return;
        const absl::Time next = NextTrim();
        if (next <= options_.clock.Now()) break;
        options_.clock.Wait(changed_, mu_, next);
      }
      const absl::Time now = options_.clock.Now();
      for (auto it = chunks_.begin(); it != chunks_.end();) {
        const auto warm = it++;
        if (warm->second.until > now) continue;
        bytes_ -= warm->first;
        old.insert(chunks_.extract(warm));
      }
    }
    Unmap(old);
  }
}

void WarmMemory::List::Unmap(const Chunks& chunks) {
  for (const auto& [size, warm] : chunks) ::munmap(warm.data, size);
}

}  // namespace tdock::dock
