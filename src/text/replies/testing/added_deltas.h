// For tests: what the deltas of a reply add up to.
#pragma once

#include "text/replies/reply_parser.h"

namespace tdock::text {

// Adds a delta to the reply. False if it is of another call than the next one, or of one that has not begun.
inline bool AddDelta(const ReplyDelta& delta, ParsedReply& reply) {
  switch (delta.kind) {
    case ReplyDelta::Kind::kReasoning:
      reply.reasoning += delta.text;
      return true;
    case ReplyDelta::Kind::kContent:
      reply.content += delta.text;
      return true;
    case ReplyDelta::Kind::kCall:
      reply.calls.push_back({.id = delta.id, .name = delta.text});
      return delta.call + 1 == reply.calls.size();
    case ReplyDelta::Kind::kArguments:
      if (delta.call >= reply.calls.size()) return false;
      reply.calls[delta.call].arguments += delta.text;
      return true;
  }
  return false;
}

}  // namespace tdock::text
