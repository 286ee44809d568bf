// What is done with files again and again. Every byte that the project reads from or writes to a disk goes through an
// Env.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "tdock/env.h"

namespace tdock {

// The contents of a regular file; InvalidArgument, with nothing read, if it has more than `max_bytes`.
absl::StatusOr<std::string> ReadFileUpTo(Env& env, const std::string& path, uint64_t max_bytes);

// Writes the pieces in order to `path` so that a reader sees either the whole new file or the old one: to a temporary
// file, synced and renamed. If several threads or processes write the same file, the last rename wins. On an error the
// temporary file is removed and `path` is unchanged, unless Rename() replaced it and could not sync its folder.
absl::Status WriteFileAtomically(Env& env, const std::string& path, std::span<const absl::string_view> pieces);
// The same for what `write` appends.
absl::Status WriteFileAtomically(Env& env, const std::string& path,
                                 const std::function<absl::Status(WritableFile&)>& write);
absl::Status WriteFileAtomically(Env& env, const std::string& path, absl::string_view contents);

// Whether that is the name of such a temporary file, which is left if the process is killed.
bool IsHalfWritten(absl::string_view name);

// `folder`/`name`.
std::string JoinPath(absl::string_view folder, absl::string_view name);

}  // namespace tdock
