// Whatever a program or a model says, it is understood or refused with a reason; no reward is other than finite, and
// lists that belong together have the same length.
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <variant>

#include "core/base/json_text.h"
#include "text/replies/reply_parser.h"
#include "trainer/environment/arithmetic.h"
#include "trainer/environment/protocol.h"

namespace {

using namespace tdock::environment;

void Require(bool holds) {
  if (!holds) std::abort();
}

void CheckRewards(const Rewards& rewards) {
  Require(rewards.size() <= kMostRewards);
  for (const auto& [name, value] : rewards) Require(!name.empty() && std::isfinite(value));
}

void CheckEvent(const absl::StatusOr<Event>& event) {
  if (!event.ok()) return Require(!event.status().message().empty());
  if (!event->what.ok()) return Require(!event->what.status().message().empty());
  if (const auto* observation = std::get_if<Observation>(&*event->what)) {
    CheckRewards(observation->rewards);
    for (const tdock::text::Turn& turn : observation->messages) {
      Require(turn.role != tdock::text::Role::kAssistant);
      Require(turn.fields.empty() || tdock::ReadJson(turn.fields).is_object());
    }
  } else if (const auto* asked = std::get_if<GenerateRequest>(&*event->what)) {
    Require(!asked->prompt_ids.empty() && asked->max_tokens >= 0 && asked->request >= 0);
  } else {  // requests of agents of a URL do not come as lines
    const auto& output = std::get<AgentOutput>(*event->what);
    CheckRewards(output.rewards);
    Require(output.response_mask.size() == output.response_ids.size());
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string text(reinterpret_cast<const char*>(data), size);
  const auto hello = ParseHello(text);
  Require(hello.ok() ? hello->episodes >= 1 && hello->episodes <= kMostEpisodes : !hello.status().message().empty());
  CheckEvent(ParseEvent(text, /*is_agent=*/false));
  CheckEvent(ParseEvent(text, /*is_agent=*/true));
  const auto turn = tdock::text::ReadModelTurn({}, text);
  if (turn.ok() && !turn->fields.empty()) Require(tdock::ReadJson(turn->fields).is_object());
  const auto value = Evaluate(text);
  Require(value.ok() ? !value->empty() : !value.status().message().empty());
  return 0;
}
