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

// The contents of a regular file; InvalidArgument, with nothing read, where it has more than `max_bytes`.
absl::StatusOr<std::string> ReadFileUpTo(Env& env, const std::string& path, uint64_t max_bytes);

// Writes the pieces one after another to `path` so that a reader sees the whole new file or the old one: aside, synced,
// renamed. Of several threads or processes that write the same file, the last to rename wins. On an error the file
// aside is removed and `path` is as it was, unless Rename() replaced it and could not sync its folder.
absl::Status WriteFileAtomically(Env& env, const std::string& path, std::span<const absl::string_view> pieces);
// The same of what `write` appends.
absl::Status WriteFileAtomically(Env& env, const std::string& path,
                                 const std::function<absl::Status(WritableFile&)>& write);
absl::Status WriteFileAtomically(Env& env, const std::string& path, absl::string_view contents);

// `folder`/`name`.
std::string JoinPath(absl::string_view folder, absl::string_view name);

}  // namespace tdock
