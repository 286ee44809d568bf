#include "text/content_hash.h"

#include <cstring>
#include <new>

#include "absl/strings/str_cat.h"

// The library chooses the widest vectors that the processor has.
#ifdef __x86_64__
#include <xxh_x86dispatch.h>
#else
#include <xxhash.h>
#endif

namespace tdock::text {
namespace {

ContentHash ToContentHash(const XXH128_hash_t& hash) { return {.high = hash.high64, .low = hash.low64}; }

}  // namespace

std::string Hex(const ContentHash& hash) {
  return absl::StrCat(absl::Hex(hash.high, absl::kZeroPad16), absl::Hex(hash.low, absl::kZeroPad16));
}

ContentHash HashOf(absl::string_view bytes) { return ToContentHash(XXH3_128bits(bytes.data(), bytes.size())); }

ContentHasher::ContentHasher() : state_(XXH3_createState()) {
  if (state_ == nullptr) throw std::bad_alloc();
  XXH3_128bits_reset(state_);
}

ContentHasher::~ContentHasher() { XXH3_freeState(state_); }

void ContentHasher::Add(absl::string_view bytes) { XXH3_128bits_update(state_, bytes.data(), bytes.size()); }

void ContentHasher::AddField(absl::string_view field) {
  const uint64_t size = field.size();
  char length[sizeof size];
  std::memcpy(length, &size, sizeof size);
  Add({length, sizeof length});
  Add(field);
}

ContentHash ContentHasher::Value() const { return ToContentHash(XXH3_128bits_digest(state_)); }

}  // namespace tdock::text
