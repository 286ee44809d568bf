// What of a saved state is text: the file state.json, and the names of those of other ranks.
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace tdock::trainer {

// An object whose values are all texts. InvalidArgument says what is wrong.
absl::StatusOr<std::map<std::string, std::string>> ParseStateTexts(absl::string_view json);

// "state-rank-1-of-4", without an extension.
std::string RankStateName(int64_t rank, int64_t ranks);

// How many ranks have written a folder with these files, as the name of "state-rank-1-of-4.json" or of its tensors
// says; 1 where none does. InvalidArgument names one that is of no rank, or two of different saves.
absl::StatusOr<int64_t> RanksThatWrote(std::span<const std::string> files);

}  // namespace tdock::trainer
