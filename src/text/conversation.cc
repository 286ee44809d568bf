#include "text/conversation.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "core/base/status.h"
#include "text/render_to_encode.h"
#include "text/reply_border.h"
#include "text/reply_finder.h"

namespace tdock::text {
namespace {

using Rendered = ChatTemplate::Rendered;

int32_t ValueAt(std::span<const jinja::Run> runs, size_t place) {
  const auto found =
      std::upper_bound(runs.begin(), runs.end(), place, [](size_t at, const jinja::Run& run) { return at < run.end; });
  return found == runs.end() ? -1 : found->value;
}

// The replies that {% generation %} marks: of the turn that says something in them, or whose loop put them out.
std::vector<Reply> MarkedReplies(const Rendered& rendered) {
  std::vector<Reply> replies;
  for (const TextRange& range : rendered.generations) {
    int32_t turn = -1;
    for (size_t at = range.begin; at < range.end && turn < 0;) {
      turn = ValueAt(rendered.turns, at);
      const auto run = std::upper_bound(rendered.turns.begin(), rendered.turns.end(), at,
                                        [](size_t place, const jinja::Run& r) { return place < r.end; });
      at = run->end;
    }
    replies.push_back({.range = range, .turn = turn, .said = range.end});
  }
  return replies;
}

// Where the prompt that asks for the reply of `turn` ends, as far as the whole begins with it; 0 otherwise.
absl::StatusOr<size_t> PromptEnd(const RenderedToEncode& rendered, size_t turn) {
  const auto prompt = rendered.conversation.Render(turn, /*generation_prompt=*/true);
  if (prompt.ok()) return absl::StartsWith(rendered.whole.text, prompt->text) ? prompt->text.size() : 0;
  return IsRefusal(prompt.status()) ? absl::StatusOr<size_t>(0) : prompt.status();
}

// Where the tokens must part: before a reply, or, with no turn, at the end of the prompt that asks for the last one.
struct Border {
  size_t place;
  std::optional<int32_t> turn;
};

// The tokens of a whole conversation, parted at the borders before its replies.
class Encoder {
 public:
  Encoder(const Tokenizer& tokenizer, const Rendered& rendered, const EncodeLimits& limits)
      : tokenizer_(tokenizer), marked_{rendered.text, rendered.content}, limits_(limits) {}

  absl::Status Encode() {
    TDOCK_ASSIGN_OR_RETURN(whole_, EncodePart(tokenizer_, "", marked_, 0, marked_.text.size(), limits_));
    return absl::OkStatus();
  }

  // Encodes the text before each border as if the text ended there, and what comes behind it accordingly. Borders are
  // in their order.
  //
  // Special tokens cut the text in segments that are encoded each by itself, so only those with borders are concerned.
  absl::Status PartAt(std::span<const Border> borders) {
    size_t done = 0;  // tokens of whole_
    for (size_t first = 0; first < borders.size();) {
      const Segment segment = SegmentAt(borders[first].place);
      size_t last = first;
      while (last < borders.size() && borders[last].place <= segment.end) ++last;
      const auto inside = borders.subspan(first, last - first);
      first = last;
      if (inside.back().place <= segment.begin) continue;
      Add(whole_, done, segment.begin_token);
      TDOCK_RETURN_IF_ERROR(PartSegment(segment, inside));
      done = segment.end_token;
    }
    Add(whole_, done, whole_.ids.size());
    if (parted_.ids.size() <= limits_.max_tokens) return absl::OkStatus();
    return absl::OutOfRangeError(absl::StrCat("the conversation has more than ", limits_.max_tokens,
                                              " tokens, the limit, once they part before each reply"));
  }

  // Where a reply ends whose turn the template ends somewhere in [said, end): behind the last special token there; at
  // `end` if there is none.
  size_t EndOf(size_t said, size_t end) const {
    for (size_t i = FirstTokenFrom(parted_, end); i-- > 0 && parted_.ranges[i].begin >= said;) {
      if (parted_.ranges[i].end <= end && tokenizer_.IsSpecial(parted_.ids[i])) return parted_.ranges[i].end;
    }
    return end;
  }

  // The first token that begins at `place` or behind it.
  size_t FirstTokenFrom(size_t place) const { return FirstTokenFrom(parted_, place); }

  Encoding& encoding() { return parted_; }
  bool has_parted() const { return has_parted_; }

 private:
  // The borders of a segment up to which the context reaches back to its beginning; it then only reaches back over
  // kBordersOfContext of them, so that time does not grow with the square of their number.
  static constexpr size_t kBordersFromBegin = 16, kBordersOfContext = 2;

  // Text between special tokens, and its tokens in whole_.
  struct Segment {
    size_t begin, end;
    size_t begin_token, end_token;
    std::string special;  // before it; "": nothing is
  };

  static size_t FirstTokenFrom(const Encoding& encoding, size_t place) {
    const auto found = std::lower_bound(encoding.ranges.begin(), encoding.ranges.end(), place,
                                        [](const TextRange& range, size_t at) { return range.begin < at; });
    return static_cast<size_t>(found - encoding.ranges.begin());
  }

  // The one that reaches to `place`, or ends behind it.
  Segment SegmentAt(size_t place) const {
    const auto is_special = [&](size_t token) { return tokenizer_.IsSpecial(whole_.ids[token]); };
    size_t begin_token = FirstTokenFrom(whole_, place), end_token = begin_token;
    while (begin_token > 0 && !is_special(begin_token - 1)) --begin_token;
    while (end_token < whole_.ids.size() && !is_special(end_token)) ++end_token;
    Segment segment{
        .begin = 0, .end = marked_.text.size(), .begin_token = begin_token, .end_token = end_token, .special = {}};
    if (end_token < whole_.ids.size()) segment.end = whole_.ranges[end_token].begin;
    if (begin_token > 0) {
      segment.begin = whole_.ranges[begin_token - 1].end;
      segment.special = tokenizer_.IdToToken(whole_.ids[begin_token - 1]).value_or("");
    }
    return segment;
  }

  absl::Status PartSegment(const Segment& segment, std::span<const Border> borders) {
    // Where each border is in the text, and its first token in parted_; first of all, the beginning.
    std::vector<std::pair<size_t, size_t>> places = {{segment.begin, parted_.ids.size()}};
    size_t next = segment.begin_token;  // of whole_, as long as the tokens are the same
    bool same = true;
    for (const Border& border : borders) {
      if (border.place <= places.back().first) continue;
      absl::StatusOr<Encoding> before = EncodeFromLast(segment, places, border.place);
      if (!before.ok()) return AtBorder(before.status(), border);
      const size_t end = FirstTokenFrom(whole_, border.place);
      same = same && end - next == before->ids.size() &&
             std::equal(before->ids.begin(), before->ids.end(), whole_.ids.begin() + static_cast<std::ptrdiff_t>(next));
      Add(same ? whole_ : *before, same ? next : 0, same ? end : before->ids.size());
      next = end;
      places.emplace_back(border.place, parted_.ids.size());
    }
    if (same && places.size() - 1 <= kBordersFromBegin) {
      Add(whole_, next, segment.end_token);
      return absl::OkStatus();
    }
    absl::StatusOr<Encoding> behind = EncodeFromLast(segment, places, segment.end);
    if (!behind.ok()) return AtBorder(behind.status(), borders.back());
    same = same &&
           std::equal(behind->ids.begin(), behind->ids.end(), whole_.ids.begin() + static_cast<std::ptrdiff_t>(next),
                      whole_.ids.begin() + static_cast<std::ptrdiff_t>(segment.end_token));
    has_parted_ = has_parted_ || !same;
    Add(*behind, 0, behind->ids.size());
    return absl::OkStatus();
  }

  // The tokens from the last of `places` up to `end`, as they follow those before it.
  absl::StatusOr<Encoding> EncodeFromLast(const Segment& segment, std::span<const std::pair<size_t, size_t>> places,
                                          size_t end) const {
    const size_t borders = places.size() - 1;
    if (borders == 0) return EncodePart(tokenizer_, segment.special, marked_, segment.begin, end, limits_);
    const bool from_begin = borders <= kBordersFromBegin;
    const auto [begin, begin_token] = places[from_begin ? 0 : borders - kBordersOfContext];
    const auto before = std::span(parted_.ids).subspan(begin_token);
    return EncodeBehind(tokenizer_, from_begin ? segment.special : "", marked_, begin, before, places.back().first, end,
                        limits_);
  }

  static absl::Status AtBorder(const absl::Status& status, const Border& border) {
    if (!absl::IsInvalidArgument(status)) return status;
    return Annotate(status, border.turn ? absl::StrCat("turn ", *border.turn + 1, " of the conversation")
                                        : "the last reply of the conversation");
  }

  // Appends tokens [begin, end) of `from`.
  void Add(const Encoding& from, size_t begin, size_t end) {
    const auto first = static_cast<std::ptrdiff_t>(begin), last = static_cast<std::ptrdiff_t>(end);
    parted_.ids.insert(parted_.ids.end(), from.ids.begin() + first, from.ids.begin() + last);
    parted_.ranges.insert(parted_.ranges.end(), from.ranges.begin() + first, from.ranges.begin() + last);
  }

  const Tokenizer& tokenizer_;
  const MarkedText marked_;
  const EncodeLimits& limits_;
  Encoding whole_, parted_;
  bool has_parted_ = false;
};

// Whether the loss counts each turn.
std::vector<bool> CountedTurns(std::span<const Turn> turns, TrainOn train_on) {
  std::vector<bool> counted(turns.size());
  bool last = true;
  for (size_t i = turns.size(); i-- > 0;) {
    const bool reply = turns[i].role == Role::kAssistant;
    const bool by_rule =
        train_on == TrainOn::kEverything || (reply && (train_on == TrainOn::kReplies || std::exchange(last, false)));
    counted[i] = turns[i].train.value_or(by_rule);
  }
  return counted;
}

// Fills turns and loss mask, token by token.
void Mark(const Rendered& rendered, std::span<const TextRange> ranges, std::span<const Reply> replies,
          std::span<const Turn> turns, TrainOn train_on, EncodedConversation& encoded) {
  const std::vector<bool> counted = CountedTurns(turns, train_on);
  size_t next = 0;  // the first reply that does not end before the token
  for (const TextRange& range : ranges) {
    while (next < replies.size() && replies[next].range.end <= range.begin) ++next;
    const bool in_reply = next < replies.size() && replies[next].range.begin <= range.begin;
    const int32_t turn = in_reply ? replies[next].turn : ValueAt(rendered.turns, range.begin);
    bool counts = train_on == TrainOn::kEverything;
    if (turn >= 0) {
      const auto of = static_cast<size_t>(turn);
      counts = counted[of] && (in_reply || train_on == TrainOn::kEverything || turns[of].role != Role::kAssistant);
    }
    encoded.loss_mask.push_back(counts ? 1 : 0);
    encoded.turns.push_back(turn);
  }
}

}  // namespace

absl::StatusOr<EncodedConversation> EncodeConversation(const ChatTemplate& chat_template, const Tokenizer& tokenizer,
                                                       std::span<const Turn> turns, const EncodeTurns& options) {
  TDOCK_ASSIGN_OR_RETURN(RenderedToEncode rendered, RenderToEncode(chat_template, tokenizer, turns, options.context,
                                                                   options.generation_prompt, options.stop));
  const EncodeLimits limits{options.max_tokens, options.stop};
  Encoder encoder(tokenizer, rendered.whole, limits);
  if (const absl::Status status = encoder.Encode(); !status.ok()) {
    return AtItsTurn(status, tokenizer, turns, options.stop);
  }
  EncodedConversation encoded;
  const bool marked = chat_template.marks_replies(options.context);
  std::vector<Reply> replies;
  if (marked) {
    replies = MarkedReplies(rendered.whole);
  } else {
    TDOCK_ASSIGN_OR_RETURN(RepliesOfConversation found, FindReplies(rendered, turns));
    replies = std::move(found.replies);
    encoded.rewritten = std::move(found.rewritten);
    encoded.renders = found.renders;
  }
  std::vector<Border> borders;
  for (const Reply& reply : replies) borders.push_back({reply.range.begin, reply.turn});
  size_t last_begin = 0;
  if (!replies.empty()) {
    last_begin = replies.back().range.begin;
    // A template may mark more than what the model writes, as with the line end before it.
    if (marked && replies.back().turn > 0) {
      TDOCK_ASSIGN_OR_RETURN(const size_t asked, PromptEnd(rendered, static_cast<size_t>(replies.back().turn)));
      if (asked <= replies.back().range.end) last_begin = std::max(last_begin, asked);
      ++encoded.renders;
    }
    borders.push_back({last_begin, std::nullopt});
  }
  TDOCK_RETURN_IF_ERROR(encoder.PartAt(borders));
  for (Reply& reply : replies) reply.range.end = encoder.EndOf(reply.said, reply.range.end);
  if (last_begin > 0) encoded.before_last_reply = encoder.FirstTokenFrom(last_begin);
  Mark(rendered.whole, encoder.encoding().ranges, replies, turns, options.train_on, encoded);
  ++encoded.renders;  // of the whole
  encoded.parted = encoder.has_parted();
  encoded.ids = std::move(encoder.encoding().ids);
  encoded.text = std::move(rendered.whole.text);
  return encoded;
}

absl::StatusOr<std::vector<int32_t>> EncodeReply(const Tokenizer& tokenizer, absl::string_view prompt,
                                                 std::span<const int32_t> prompt_ids, absl::string_view reply) {
  const std::string text = absl::StrCat(prompt, reply);
  const std::vector<TextRange> all = {{0, text.size()}};
  TDOCK_ASSIGN_OR_RETURN(Encoding behind, EncodeBehind(tokenizer, "", {.text = text, .as_text = all}, 0, prompt_ids,
                                                       prompt.size(), text.size(), /*limits=*/{}));
  return std::move(behind.ids);
}

}  // namespace tdock::text
