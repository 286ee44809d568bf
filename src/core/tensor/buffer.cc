#include "tdock/buffer.h"

#include <cstdint>
#include <cstring>
#include <utility>

#include "core/base/status.h"

namespace tdock {

Buffer Buffer::Allocate(size_t size_bytes) {
  Buffer buffer;
  // One allocation holds the count of owners and the bytes. Asking the allocator for aligned memory costs three times
  // as much as the few bytes that are given away here.
  auto bytes = std::make_shared_for_overwrite<std::byte[]>(size_bytes + kAlignment - 1);
  const uintptr_t first = reinterpret_cast<uintptr_t>(bytes.get());
  buffer.writable_ = bytes.get() + (kAlignment - first % kAlignment) % kAlignment;
  buffer.data_ = buffer.writable_;
  buffer.size_ = size_bytes;
  buffer.owner_ = std::move(bytes);
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

Buffer Buffer::WrapWritable(void* data, size_t size_bytes, std::shared_ptr<void> keep_alive) {
  Buffer buffer = Wrap(data, size_bytes, std::move(keep_alive));
  buffer.writable_ = static_cast<std::byte*>(data);
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
