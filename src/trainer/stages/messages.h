// Turns of a conversation as the column prompt_messages has them.
#pragma once

#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "text/chat_template.h"

namespace tdock::trainer {

// The turns of a JSON list of {"role", "content", …}, of which whatever else it has are fields. InvalidArgument for
// anything else.
absl::StatusOr<std::vector<text::Turn>> TurnsOfMessages(absl::string_view json);

}  // namespace tdock::trainer
