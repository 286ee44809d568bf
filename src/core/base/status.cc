#include "core/base/status.h"

#include <cstdio>
#include <cstdlib>

#include "absl/strings/str_cat.h"
#include "core/base/utf8.h"

namespace tdock {

absl::Status Annotate(const absl::Status& status, absl::string_view context) {
  if (status.ok()) return status;
  return absl::Status(status.code(), absl::StrCat(EscapeUnprintable(context), ": ", status.message()));
}

void CheckFailed(const char* file, int line, const char* condition, absl::string_view message) {
  std::fprintf(stderr, "%s:%d: broken invariant %s: %s\n", file, line, condition, EscapeForTerminal(message).c_str());
  std::abort();
}

int ExitCode(const absl::Status& status) {
  switch (status.code()) {
    case absl::StatusCode::kOk:
      return 0;
    case absl::StatusCode::kInvalidArgument:
    case absl::StatusCode::kNotFound:
    case absl::StatusCode::kAlreadyExists:
    case absl::StatusCode::kUnimplemented:
      return 2;
    case absl::StatusCode::kCancelled:
      return 130;
    default:
      return 1;
  }
}

}  // namespace tdock
