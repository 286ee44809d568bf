// Replies of models, read by the grammar of their form: reasoning, text and calls of tools.
//
//   reply = [reasoning] (text | calls)*      hermes:  <think>Hm.</think>Let me see.<tool_call>{…}</tool_call>
//
// It is no search: what stands within the texts of arguments is theirs, and only its own end ends reasoning.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "text/chat_template.h"
#include "text/replies/reply_forms.h"

namespace tdock::text {

struct ToolCall {
  std::string id = {}, name = {};
  std::string arguments = {};  // JSON text of an object, as the model wrote it where it wrote JSON

  friend bool operator==(const ToolCall&, const ToolCall&) = default;
};

struct ParsedReply {
  // Without white space at their ends; without reasoning and calls, the content is the reply as it is.
  std::string reasoning = {}, content = {};
  std::vector<ToolCall> calls = {};
  // The text of each call that cannot be read, shortened, with why. That text is in the content, too.
  std::vector<std::string> broken = {};

  friend bool operator==(const ParsedReply&, const ParsedReply&) = default;
};

struct ReplyOptions {
  bool reads_calls = true;      // else they are text
  bool reads_reasoning = true;  // else it is text
  bool reasoning_open = false;  // the prompt has begun it: OpensReasoning()
  // A JSON list of functions, as Context::tools: types of arguments for forms that write them without.
  std::string tools = {};
  // Ids of calls follow from it; empty: they are "call_0", "call_1", …. Of kMistral they have nine letters and digits.
  std::string id_seed = {};
  int max_depth = 64;           // of objects and lists in a call
  size_t max_calls = 128;       // those that follow are broken
  size_t max_bytes = 16 << 20;  // of a reply; what follows is content
};

// An addition to a reply.
struct ReplyDelta {
  enum class Kind : uint8_t {
    kReasoning,
    kContent,
    kCall,      // a call begins
    kArguments  // a piece of its arguments
  };
  Kind kind = Kind::kContent;
  size_t call = 0;        // its number; of kCall and kArguments
  std::string id = {};    // of kCall
  std::string text = {};  // of kCall the name

  friend bool operator==(const ReplyDelta&, const ReplyDelta&) = default;
};

// Reads a reply that arrives in pieces. The result does not depend on the pieces, and the time grows with the length of
// the text alone. Not thread-safe.
//
// Deltas are sent as early as they are certain, but for one thing: a call has begun, and its arguments are on their
// way, before it is known to be whole. One that then turns out to be broken gets no more of them, and its text follows
// as content.
class ReplyParser {
 public:
  explicit ReplyParser(ReplyForm form, ReplyOptions options = {});
  ~ReplyParser();

  // The next piece, with special tokens as text, but without the end token.
  void Push(absl::string_view text);
  // The reply has ended. Nothing must be pushed any more.
  void Finish();

  // Those since the last call.
  std::vector<ReplyDelta> TakeDeltas();
  // As far as it is read; the whole after Finish().
  const ParsedReply& reply() const;

 private:
  class Machine;
  const std::unique_ptr<Machine> machine_;
};

// The same for a whole reply.
ParsedReply ParseReply(ReplyForm form, absl::string_view text, ReplyOptions options = {});

// The parts of the reply, a delta for each.
std::vector<ReplyDelta> DeltasOf(const ParsedReply& reply);

// ---- Replies as turns of conversations.

// The reply as a turn, with "reasoning_content" and "tool_calls" among its fields, as ReadTurn() reads them.
Turn TurnOf(const ParsedReply& reply);

// How replies of a model are read where a conversation goes on with them.
//
//   the template has         the turn has
//   a place for reasoning    {"content": "Two.", "reasoning_content": "1+1?"}
//   none                     {"content": "<think>\n1+1?\n</think>\n\nTwo."}: it finds, or removes, reasoning there
struct TurnReading {
  ReplyForm form = ReplyForm::kHermes;
  ReplyOptions options = {};
  bool keeps_reasoning = false;  // in the content
};

// The reading for replies in `form`; nullopt: in that of the template, or kHermes where it has none. `chat_template`
// may be null. `tools`: a JSON list of functions, or empty.
TurnReading ReadingOf(std::optional<ReplyForm> form, const ChatTemplate* chat_template, const std::string& tools);

// Reads what a model said as a turn of the assistant. Its calls are the list "tool_calls" of its fields, with the ids
// "call_0", "call_1", …, and its reasoning is "reasoning_content"; its content is then the text beside them, without
// white space at its ends. Without calls and reasoning it is all that was said.
//
// `reasoning_open`: the prompt has begun reasoning, see OpensReasoning(). InvalidArgument for calls that cannot be
// understood, in words that are meant for the model.
absl::StatusOr<Turn> ReadModelTurn(const TurnReading& reading, absl::string_view said, bool reasoning_open = false);

}  // namespace tdock::text
