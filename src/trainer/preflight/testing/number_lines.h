// Matchers of the lines in which tests write what a check of numbers found. They name keys and figures, not the
// wording.
#pragma once

#include <gmock/gmock.h>

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "core/base/testing/fails.h"

namespace tdock::trainer {

// "VALUE: how", where `how` contains each of `figures`.
inline testing::Matcher<std::string> Follows(int64_t value, std::vector<std::string> figures) {
  const testing::Matcher<std::string> contains = Mentions(std::move(figures));
  return testing::AllOf(testing::StartsWith(absl::StrCat(value, ": ")), contains);
}

// "KEYS: what", where `what` contains each of `figures`.
inline testing::Matcher<std::string> Of(const std::string& keys, std::vector<std::string> figures) {
  const testing::Matcher<std::string> contains = Mentions(std::move(figures));
  return testing::AllOf(testing::StartsWith(absl::StrCat(keys, ": ")), contains);
}

// "KEYS: what [NEAREST]".
inline testing::Matcher<std::string> Of(const std::string& keys, std::vector<std::string> figures,
                                        const std::string& nearest) {
  const testing::Matcher<std::string> starts = Of(keys, std::move(figures));
  return testing::AllOf(starts, testing::EndsWith(absl::StrCat(" [", nearest, "]")));
}

}  // namespace tdock::trainer
