// What a dock asks of the memory that its cells lie in.
#pragma once

#include <cstddef>

#include "tdock/buffer.h"

namespace tdock::dock {

// Thread-safe.
class CellMemory : public Memory {
 public:
  // As Allocate, for a smaller copy of what is freed right afterwards: may exceed a limit until then.
  virtual Buffer AllocateToReplace(size_t size_bytes) { return Allocate(size_bytes); }

  // Whether so much is used that bytes are worth copying others for.
  virtual bool IsScarce() const { return false; }

  // Whether these bytes, which a buffer keeps, lie in memory that this object gave out; where it does not know: false.
  virtual bool Holds([[maybe_unused]] const std::byte* data) const { return false; }
};

}  // namespace tdock::dock
