// Shorthands for absl::Status, and the check of our own invariants.
#pragma once

#include <functional>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace tdock {

// Polled by long operations: OK to go on; otherwise the error that they end with. Thread-safe and quick. Empty: never.
using StopCheck = std::function<absl::Status()>;

// The same error with "`context`: " before its message.
absl::Status Annotate(const absl::Status& status, absl::string_view context);

// The exit code of a program that ends with this status: 0, 2 if the call must be fixed, 130 if it was interrupted,
// otherwise 1.
int ExitCode(const absl::Status& status);

// Prints the message and aborts. For our own invariants only: nothing that a user or a peer sends may trigger it.
[[noreturn]] void CheckFailed(const char* file, int line, const char* condition, absl::string_view message);

}  // namespace tdock

#define TDOCK_CHECK(condition, message)                                \
  do {                                                                 \
    if (!(condition)) [[unlikely]]                                     \
      ::tdock::CheckFailed(__FILE__, __LINE__, #condition, (message)); \
  } while (false)

#define TDOCK_RETURN_IF_ERROR(expression)                                          \
  do {                                                                             \
    if (absl::Status tdock_status = (expression); !tdock_status.ok()) [[unlikely]] \
      return tdock_status;                                                         \
  } while (false)

#define TDOCK_CONCAT_INNER(a, b) a##b
#define TDOCK_CONCAT(a, b) TDOCK_CONCAT_INNER(a, b)

#define TDOCK_ASSIGN_OR_RETURN(left, expression) \
  TDOCK_ASSIGN_OR_RETURN_INNER(TDOCK_CONCAT(tdock_result_, __LINE__), left, expression)

// `result` and `left` are names and declarations, which cannot be parenthesised.
// NOLINTBEGIN(bugprone-macro-parentheses)
#define TDOCK_ASSIGN_OR_RETURN_INNER(result, left, expression) \
  auto result = (expression);                                  \
  if (!result.ok()) [[unlikely]]                               \
    return std::move(result).status();                         \
  left = *std::move(result)
// NOLINTEND(bugprone-macro-parentheses)
