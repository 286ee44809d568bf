#include "cli/commands.h"

namespace tdock::cli {
namespace {

absl::Status As(absl::StatusCode code, const absl::Status& status) {
  return status.ok() || absl::IsCancelled(status) ? status : absl::Status(code, status.message());
}

}  // namespace

absl::Status Refused(const absl::Status& status) { return As(absl::StatusCode::kInvalidArgument, status); }

absl::Status Failed(const absl::Status& status) { return As(absl::StatusCode::kInternal, status); }

}  // namespace tdock::cli
