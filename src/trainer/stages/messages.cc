#include "trainer/stages/messages.h"

#include "core/base/json_text.h"
#include "core/base/status.h"
#include "text/turn_json.h"

namespace tdock::trainer {

absl::StatusOr<std::vector<text::Turn>> TurnsOfMessages(absl::string_view json) {
  absl::StatusOr<std::vector<text::Turn>> turns = text::ReadTurns(ReadOrderedJson(json));
  if (!turns.ok()) return Annotate(turns.status(), "the turns of its prompt");
  return turns;
}

}  // namespace tdock::trainer
