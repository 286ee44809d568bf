// A matcher of errors.
#pragma once

#include <gmock/gmock.h>

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace tdock {

// `status` has this code, and its message all of these words.
MATCHER_P2(FailsWith, code, words, "") {
  const absl::Status& status = arg;
  *result_listener << status.ToString();
  if (status.code() != code) return false;
  for (const std::string& word : words) {
    if (status.message().find(word) == absl::string_view::npos) {
      *result_listener << ", without '" << word << "'";
      return false;
    }
  }
  return true;
}

inline auto Fails(absl::StatusCode code, std::vector<std::string> words = {}) { return FailsWith(code, words); }

}  // namespace tdock
