// Matchers of errors and messages. They name the code and the things that a message must name, not its wording.
#pragma once

#include <gmock/gmock.h>

#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace tdock {

// The text contains each of `names`: Mentions({"row 1", "'x'"}).
MATCHER_P(MentionsAll, names, "") {
  const absl::string_view text = arg;
  for (const std::string& name : names) {
    if (text.find(name) == absl::string_view::npos) {
      *result_listener << "without '" << name << "'";
      return false;
    }
  }
  return true;
}

inline auto Mentions(std::vector<std::string> names) { return MentionsAll(std::move(names)); }

// The status has this code, and its message contains each of `names`.
MATCHER_P2(FailsWith, code, names, "") {
  const absl::Status& status = arg;
  *result_listener << status.ToString() << ", ";
  return status.code() == code && testing::ExplainMatchResult(Mentions(names), status.message(), result_listener);
}

inline auto Fails(absl::StatusCode code, std::vector<std::string> names = {}) {
  return FailsWith(code, std::move(names));
}

}  // namespace tdock
