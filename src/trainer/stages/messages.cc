#include "trainer/stages/messages.h"

#include <string>

#include "absl/strings/str_cat.h"
#include "core/base/json_text.h"
#include "core/base/utf8.h"

namespace tdock::trainer {

absl::StatusOr<std::vector<text::Turn>> TurnsOfMessages(absl::string_view json) {
  auto parsed = ReadJson(json);
  if (!parsed.is_array()) return absl::InvalidArgumentError("the turns of its prompt are no JSON list");
  std::vector<text::Turn> turns;
  for (nlohmann::json& message : parsed) {
    if (!message.is_object() || !message.contains("role") || !message["role"].is_string() ||
        (message.contains("content") && !message["content"].is_string())) {
      return absl::InvalidArgumentError("a turn of its prompt is no object with a role and a content");
    }
    text::Turn& turn = turns.emplace_back();
    const auto role = message["role"].get<std::string>();
    bool known = false;
    for (const text::Role each : {text::Role::kSystem, text::Role::kUser, text::Role::kAssistant,
                                  text::Role::kDeveloper, text::Role::kTool, text::Role::kFunction}) {
      if (role != text::RoleName(each)) continue;
      turn.role = each;
      known = true;
    }
    if (!known)
      return absl::InvalidArgumentError(
          absl::StrCat("a turn of its prompt has the role \"", EscapeForMessage(role), "\""));
    turn.has_content = message.contains("content");
    if (turn.has_content) turn.content = message["content"].get<std::string>();
    message.erase("role");
    message.erase("content");
    if (!message.empty()) turn.fields = JsonText(message);
  }
  return turns;
}

}  // namespace tdock::trainer
