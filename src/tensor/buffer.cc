#include "tdock/buffer.h"

#include <cstring>
#include <utility>

#include "base/status.h"

namespace tdock {
namespace {

// make_shared of these puts the count and the bytes into one allocation, with the bytes aligned.
struct alignas(Buffer::kAlignment) Line {
  std::byte bytes[Buffer::kAlignment];
};

}  // namespace

Buffer Buffer::Allocate(size_t size_bytes) {
  auto lines = std::make_shared_for_overwrite<Line[]>(size_bytes / sizeof(Line) + (size_bytes % sizeof(Line) != 0));
  Buffer buffer;
  buffer.writable_ = size_bytes > 0 ? lines[0].bytes : nullptr;
  buffer.data_ = buffer.writable_;
  buffer.size_ = size_bytes;
  buffer.owner_ = std::move(lines);
  return buffer;
}

Buffer Buffer::CopyOf(std::span<const std::byte> bytes) {
  Buffer buffer = Allocate(bytes.size());
  if (!bytes.empty()) std::memcpy(buffer.writable_, bytes.data(), bytes.size());
  return buffer;
}

Buffer Buffer::Wrap(const void* data, size_t size_bytes, std::shared_ptr<const void> keep_alive) {
  Buffer buffer;
  buffer.data_ = static_cast<const std::byte*>(data);
  buffer.size_ = size_bytes;
  buffer.owner_ = std::move(keep_alive);
  return buffer;
}

Buffer Buffer::Slice(size_t offset, size_t size_bytes) const {
  TDOCK_CHECK(offset <= size_ && size_bytes <= size_ - offset, "slice beyond the buffer");
  Buffer slice = *this;
  slice.data_ += offset;
  if (slice.writable_ != nullptr) slice.writable_ += offset;
  slice.size_ = size_bytes;
  return slice;
}

}  // namespace tdock
