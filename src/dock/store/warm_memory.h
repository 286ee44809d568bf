// Memory for large buffers that come and go.
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

namespace tdock {

struct WarmMemoryOptions {
  // Freed memory beyond this goes back to the system at once.
  size_t limit_bytes = size_t{2} << 30;
  // What nobody has used again for so long goes back to the system.
  absl::Duration keep = absl::Seconds(4);
  Clock& clock = Clock::Real();
};

// Keeps what was freed for a while and hands it out again: the first touch of a fresh page costs several times a copy
// into it. Small buffers come from the heap. What is destroyed with buffers still in use frees them as they go.
// Thread-safe. Throws std::bad_alloc where the system has no more, as operator new does.
class WarmMemory final : public CellMemory {
 public:
  explicit WarmMemory(const WarmMemoryOptions& options = {});
  ~WarmMemory() override;
  WarmMemory(const WarmMemory&) = delete;
  WarmMemory& operator=(const WarmMemory&) = delete;

  Buffer Allocate(size_t size_bytes) override;

  // What is kept and in nobody's use.
  size_t warm_bytes() const { return list_->WarmBytes(); }

 private:
  struct Chunk {
    std::byte* data = nullptr;
    size_t size = 0;
  };

  // What was freed. The buffers share it, because they may outlive the memory that they came from.
  class List {
   public:
    explicit List(const WarmMemoryOptions& options) : options_(options) {}

    // A chunk of at least this size and not much more, or none.
    Chunk Find(size_t size) TDOCK_EXCLUDES(mu_);
    // Keeps the chunk or gives it back to the system.
    void Free(Chunk chunk) noexcept TDOCK_EXCLUDES(mu_);
    // Gives everything back, and what is freed from now on.
    void Close() TDOCK_EXCLUDES(mu_);
    void Empty() TDOCK_EXCLUDES(mu_);
    size_t WarmBytes() TDOCK_EXCLUDES(mu_);

   private:
    struct Warm {
      std::byte* data;
      absl::Time until;
    };
    using Chunks = std::multimap<size_t, Warm>;  // by size

    // False if it is too much. May throw; then it is not kept.
    bool Keep(Chunk chunk) TDOCK_EXCLUDES(mu_);
    // Returns chunks to the system when their time has come.
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

}  // namespace tdock
