// Whatever a model says, in any form and in any pieces: the result is that of the whole text, no more calls begin than
// are allowed, each call has a name and an object of arguments, and where none is broken, the deltas add up to the
// reply.
#include <cstdint>
#include <cstdlib>
#include <string>
#include <vector>

#include "core/base/json_text.h"
#include "text/replies/reply_parser.h"
#include "text/replies/testing/added_deltas.h"

namespace tdock::text {
namespace {

constexpr char kTools[] = R"([{"type": "function", "function": {"name": "f", "parameters": {"properties": {
    "a": {"type": "string"}, "b": {"type": "integer"}, "c": {"anyOf": [{"type": "object"}, {"type": "null"}]}}}}}])";

void Demand(bool holds) {
  if (!holds) std::abort();
}

void CheckReply(const ParsedReply& reply, const ReplyOptions& options) {
  Demand(reply.calls.size() <= options.max_calls && reply.broken.size() <= options.max_calls + 1);
  for (const ToolCall& call : reply.calls) {
    Demand(!call.id.empty() && !call.name.empty());
    Demand(ParseJsonObject(call.arguments, options.max_depth).ok());
  }
  const Turn turn = TurnOf(reply);
  Demand(turn.fields.empty() || ReadJson(turn.fields).is_object());
}

}  // namespace
}  // namespace tdock::text

// The first bytes say the form, the options and the pieces.
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace tdock::text;
  if (size < 3) return 0;
  const auto form = static_cast<ReplyForm>(data[0] % ReplyFormNames().size());
  ReplyOptions options{.reads_calls = (data[1] & 1) == 0,
                       .reads_reasoning = (data[1] & 2) == 0,
                       .reasoning_open = (data[1] & 4) != 0,
                       .tools = kTools,
                       .max_depth = 8,
                       .max_calls = 4};
  if ((data[1] & 8) != 0) options.max_bytes = 64;
  const size_t stride = 1 + data[2] % 7;
  const std::string text(reinterpret_cast<const char*>(data + 3), size - 3);
  const ParsedReply whole = ParseReply(form, text, options);
  CheckReply(whole, options);
  ReplyParser parser(form, options);
  ParsedReply added;
  const auto take = [&] {
    for (const ReplyDelta& delta : parser.TakeDeltas()) Demand(AddDelta(delta, added));
  };
  for (size_t at = 0; at < text.size(); at += stride) {
    parser.Push(absl::string_view(text).substr(at, stride));
    take();
  }
  parser.Finish();
  take();
  Demand(parser.reply() == whole);
  Demand(added.content == whole.content && added.reasoning == whole.reasoning);
  Demand(!whole.broken.empty() || added.calls == whole.calls);
  return 0;
}
