// A cache for large buffers that are allocated and freed frequently.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <thread>

#include "absl/time/time.h"
#include "core/base/clock.h"
#include "core/base/mutex.h"
#include "dock/store/cell_memory.h"
#include "tdock/buffer.h"

namespace tdock::dock {

struct WarmMemoryOptions {
  // Freed memory beyond this is returned to the system at once.
  size_t limit_bytes = size_t{2} << 30;
  // Memory that has not been reused for this long is returned to the system.
  absl::Duration keep = absl::Seconds(4);
  Clock& clock = Clock::Real();
};

// Caches what is freed for a while and reuses it: touching a fresh page for the first time costs several times as much
// as copying into it. Small buffers come from the heap. If it is destroyed with buffers in use, these are freed as they
// go. Thread-safe. Throws std::bad_alloc if the system has no more memory, as operator new does.
class WarmMemory final : public CellMemory {
 public:
  explicit WarmMemory(const WarmMemoryOptions& options = {});
  ~WarmMemory() override;
  WarmMemory(const WarmMemory&) = delete;
  WarmMemory& operator=(const WarmMemory&) = delete;

  Buffer Allocate(size_t size_bytes) override;

  // Cached and unused.
  size_t warm_bytes() const { return list_->WarmBytes(); }

 private:
  struct Chunk {
    std::byte* data = nullptr;
    size_t size = 0;
  };

  // The freed chunks. Shared by the buffers, because they may outlive the memory that they came from.
  class List {
   public:
    explicit List(const WarmMemoryOptions& options) : options_(options) {}

    // A chunk of at least this size and not much more, or none.
    Chunk Find(size_t size) TDOCK_EXCLUDES(mu_);
    // Caches the chunk or returns it to the system.
    void Free(Chunk chunk) noexcept TDOCK_EXCLUDES(mu_);
    // Returns all chunks, and from now on every freed one at once.
    void Close() TDOCK_EXCLUDES(mu_);
    void Empty() TDOCK_EXCLUDES(mu_);
    size_t WarmBytes() TDOCK_EXCLUDES(mu_);

   private:
    struct Warm {
      std::byte* data;
      absl::Time until;
    };
    using Chunks = std::multimap<size_t, Warm>;  // by size

    // False if that would exceed the limit. May throw; then the chunk is not cached.
    bool Keep(Chunk chunk) TDOCK_EXCLUDES(mu_);
    // Returns chunks to the system when their time is over.
    void Trim() TDOCK_EXCLUDES(mu_);
    absl::Time NextTrim() const TDOCK_REQUIRES(mu_);
    static void Unmap(const Chunks& chunks);

    const WarmMemoryOptions options_;
    Mutex mu_;
    CondVar changed_;
    bool closed_ TDOCK_GUARDED_BY(mu_) = false;
    size_t bytes_ TDOCK_GUARDED_BY(mu_) = 0;
    Chunks chunks_ TDOCK_GUARDED_BY(mu_);
    std::thread trimmer_ TDOCK_GUARDED_BY(mu_);  // runs from the first chunk on
  };

  static Chunk Map(size_t size);

  const std::shared_ptr<List> list_;
};

}  // namespace tdock::dock
