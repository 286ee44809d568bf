// Shared objects that a program loads when it first needs them, because of what they are linked with.
#pragma once

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace tdock {

// The function of this name in a shared object that lies beside the program. Its symbols stay its own. NotFound, saying
// `what` cannot be loaded and why. Thread-safe.
absl::StatusOr<void*> LoadBesideProgram(absl::string_view file, const char* function, absl::string_view what);

}  // namespace tdock
