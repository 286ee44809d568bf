#include "core/tensor/checksum.h"

#include <new>

// The library chooses the widest vectors that the processor has, which are several times as fast as what a compiler
// makes for any processor.
#ifdef __x86_64__
#include <xxh_x86dispatch.h>
#else
#include <xxhash.h>
#endif

namespace tdock {

uint64_t Checksum(std::span<const std::byte> bytes) { return XXH3_64bits(bytes.data(), bytes.size()); }

RunningChecksum::RunningChecksum() : state_(XXH3_createState()) {
  if (state_ == nullptr) throw std::bad_alloc();
  Reset();
}

RunningChecksum::~RunningChecksum() { XXH3_freeState(state_); }

void RunningChecksum::Reset() { XXH3_64bits_reset(state_); }
void RunningChecksum::Add(std::span<const std::byte> bytes) { XXH3_64bits_update(state_, bytes.data(), bytes.size()); }
uint64_t RunningChecksum::Value() const { return XXH3_64bits_digest(state_); }

}  // namespace tdock
