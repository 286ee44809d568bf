// Memory exhaustion as an error: std::bad_alloc as a status that says what the memory was for.
#pragma once

#include <memory>
#include <new>
#include <string>
#include <type_traits>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace tdock {

// Thrown by an allocator whose limit is reached. what() says which limit, and what sets it.
class MemoryLimitReached final : public std::bad_alloc {
 public:
  explicit MemoryLimitReached(std::string limit) : limit_(std::make_shared<const std::string>(std::move(limit))) {}
  const char* what() const noexcept override { return limit_->c_str(); }

 private:
  std::shared_ptr<const std::string> limit_;
};

// ResourceExhausted: there is no memory for `what`, and which limit is reached, if there is one.
absl::Status NoMemory(absl::string_view what, const std::bad_alloc& error);

// Returns what `f` returns, a Status or a StatusOr; or NoMemory() if it throws std::bad_alloc. For code whose
// allocations depend on a peer, and which leaves nothing half done when it throws.
template <class F>
std::invoke_result_t<F> OrNoMemory(absl::string_view what, F&& f) {
  try {
    return std::forward<F>(f)();
  } catch (const std::bad_alloc& error) {
    return NoMemory(what, error);
  }
}

}  // namespace tdock
