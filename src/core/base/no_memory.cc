#include "core/base/no_memory.h"

#include "absl/strings/str_cat.h"

namespace tdock {

absl::Status NoMemory(absl::string_view what, const std::bad_alloc& error) {
  const bool limited = dynamic_cast<const MemoryLimitReached*>(&error) != nullptr;
  return absl::ResourceExhaustedError(
      absl::StrCat("there is no memory for ", what, limited ? ": " : "", limited ? error.what() : ""));
}

}  // namespace tdock
