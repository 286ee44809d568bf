// Memory in huge pages.
#pragma once

#include <sys/mman.h>

#include <cstddef>
#include <cstdint>
#include <new>

namespace tdock {

// For large containers with random access, where looking up pages of 4 KiB takes more time than reading the memory.
// Linux is asked for huge pages and may give small ones. Small allocations are those of std::allocator.
template <class T>
class HugePageAllocator {
 public:
  using value_type = T;

  HugePageAllocator() = default;
  template <class U>
  HugePageAllocator(const HugePageAllocator<U>&) {}

  T* allocate(size_t count) {
    if (count > size_t{PTRDIFF_MAX} / sizeof(T)) throw std::bad_array_new_length();
    const size_t bytes = count * sizeof(T);
    if (bytes < kPage) return static_cast<T*>(::operator new(bytes));
    void* const memory = ::operator new(bytes, std::align_val_t{kPage});
    ::madvise(memory, bytes, MADV_HUGEPAGE);  // only advice
    return static_cast<T*>(memory);
  }
  void deallocate(T* memory, size_t count) {
    if (count * sizeof(T) < kPage) return ::operator delete(memory);
    ::operator delete(memory, std::align_val_t{kPage});
  }

  template <class U>
  bool operator==(const HugePageAllocator<U>&) const {
    return true;
  }

 private:
  static constexpr size_t kPage = size_t{2} << 20;
};

}  // namespace tdock
