// Reference-counted bytes.
#pragma once

#include <cstddef>
#include <memory>
#include <span>

namespace tdock {

// A range of bytes together with a reference to whatever keeps them alive. Copies share the bytes. The bytes are
// written only by the code that allocated them, before it passes the buffer on; from then on the buffer is thread-safe.
class Buffer {
 public:
  // Memory from Allocate() starts at a multiple of this.
  static constexpr size_t kAlignment = 64;

  Buffer() = default;

  // Memory of unspecified contents.
  static Buffer Allocate(size_t size_bytes);
  static Buffer CopyOf(std::span<const std::byte> bytes);
  // Foreign memory, which must stay unchanged until the last copy of `keep_alive` is destroyed. (For a custom deleter,
  // use the shared_ptr's.)
  static Buffer Wrap(const void* data, size_t size_bytes, std::shared_ptr<const void> keep_alive);
  // The same, for memory that may be written before the buffer is passed on.
  static Buffer WrapWritable(void* data, size_t size_bytes, std::shared_ptr<void> keep_alive);

  const std::byte* data() const { return data_; }
  size_t size() const { return size_; }
  std::span<const std::byte> bytes() const { return {data_, size_}; }

  // Null for buffers made by Wrap(), and their slices.
  std::byte* mutable_data() { return writable_; }

  // A part of the same memory. `offset` + `size_bytes` must not exceed size().
  Buffer Slice(size_t offset, size_t size_bytes) const;

  // What keeps the memory alive.
  const std::shared_ptr<const void>& owner() const { return owner_; }

 private:
  const std::byte* data_ = nullptr;
  std::byte* writable_ = nullptr;
  size_t size_ = 0;
  std::shared_ptr<const void> owner_;
};

// An allocator for large buffers, for instance one that caches memory or registers it with a device. Thread-safe.
class Memory {
 public:
  virtual ~Memory() = default;

  // Memory of unspecified contents, at a multiple of Buffer::kAlignment. The buffer may outlive this object.
  virtual Buffer Allocate(size_t size_bytes) = 0;
};

}  // namespace tdock
