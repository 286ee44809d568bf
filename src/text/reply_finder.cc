#include "text/reply_finder.h"

#include <algorithm>
#include <optional>
#include <string>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "absl/hash/hash.h"
#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "core/base/status.h"

namespace tdock::text {
namespace {

using Rendered = ChatTemplate::Rendered;
using Rewritten = EncodedConversation::Rewritten;

constexpr size_t kExactAtEnds = 4, kExactInTheMiddle = 2;
// The template's text before and behind what a turn says.
constexpr size_t kMaxBytesAround = 256;

// How two renderings depart from the whole one, told so that it is the same for turns that stand alike.
struct Departure {
  // The conversation up to and with the turn: the whole text up to the end of the turn's own part, or else up to an
  // anchor within that, and then `tail`.
  enum class Then { kNotAsked, kRefused, kLater, kNowhere, kAtAnchor, kAtOwnEnd } then = Then::kNotAsked;
  std::string tail;
  bool ends_otherwise = false;  // see Shared; then `tail` ends before that token
  // The prompt: the whole text up to where the turn's own part begins, and then `asks`; or `missing` bytes less.
  enum class Prompt { kNotAsked, kRefused, kBefore, kShort, kAsks } prompt = Prompt::kNotAsked;
  std::string asks;
  size_t missing = 0;

  friend bool operator==(const Departure&, const Departure&) = default;
};

// How much of the renderings the whole text begins with.
struct Shared {
  bool later = false;               // what the turn says reads otherwise
  bool ends_otherwise = false;      // only the special token that ended the turn is another
  std::optional<size_t> then = {};  // nullopt: refused, or not asked
  std::optional<size_t> prompt = {};
  bool is_whole_prompt = false;
};

struct AskedFor {
  bool then, prompt;  // which renderings are asked for
};

// With a zero in place of each number, as in the arguments of a call.
std::string WithoutNumbers(absl::string_view text) {
  std::string without;
  bool in_number = false;
  for (const char c : text) {
    const bool is_digit = absl::ascii_isdigit(static_cast<unsigned char>(c));
    if (!is_digit || !in_number) without.push_back(is_digit ? '0' : c);
    in_number = is_digit;
  }
  return without;
}

// The first special token that a text spells.
std::optional<TextRange> FirstSpecial(const Tokenizer& tokenizer, absl::string_view text) {
  constexpr size_t kMaxBytes = 4096;
  const auto encoded = tokenizer.EncodeWithRanges(text.substr(0, kMaxBytes), {.spelled = SpelledSpecial::kParse});
  if (!encoded.ok()) return std::nullopt;
  for (size_t i = 0; i < encoded->ids.size(); ++i) {
    if (tokenizer.IsSpecial(encoded->ids[i])) return encoded->ranges[i];
  }
  return std::nullopt;
}

class ReplyFinder {
 public:
  ReplyFinder(const RenderedToEncode& rendered, std::span<const Turn> turns, AskedFor wanted, Renderings& renderings)
      : tokenizer_(*rendered.tokenizer),
        conversation_(rendered.conversation),
        renderings_(renderings),
        whole_(rendered.whole),
        said_(rendered.said),
        turns_(turns),
        wanted_(wanted),
        shared_(turns.size()),
        is_exact_(turns.size()) {
    FindOwnParts();
    for (size_t i = 0; i < turns_.size(); ++i) {
      if (turns_[i].role == Role::kAssistant) replies_.push_back(i);
    }
  }

  absl::Status Run(size_t max_exact) {
    if (replies_.size() <= max_exact) return RunAll(replies_);
    MakeClasses();
    for (const std::vector<size_t>& members : classes_) TDOCK_RETURN_IF_ERROR(RunClass(members));
    return absl::OkStatus();
  }

  // The turns of replies.
  const std::vector<size_t>& replies() const { return replies_; }
  const Shared& shared(size_t turn) const { return shared_[turn]; }
  bool is_exact(size_t turn) const { return is_exact_[turn]; }

  // Renders for the reply of one turn.
  absl::Status RunExactly(size_t turn) { return RunTurn(turn).status(); }

  void AddRewritten(size_t turn, std::vector<Rewritten>& rewritten) const {
    const Shared& shared = shared_[turn];
    if (!shared.later && !shared.ends_otherwise) return;
    rewritten.push_back({static_cast<int32_t>(turn), shared.later ? Rewritten::How::kLater : Rewritten::How::kEnd});
  }

  // Nothing where the reply reads otherwise later, or is none.
  std::optional<Reply> ReplyOf(size_t turn, std::vector<Rewritten>& rewritten) const {
    const Shared& shared = shared_[turn];
    const auto number = static_cast<int32_t>(turn);
    AddRewritten(turn, rewritten);
    if (shared.later) return std::nullopt;
    const std::optional<TextRange>& said = said_[turn];
    const size_t end = EndOf(turn);
    size_t begin = said ? said->begin : end;
    if (shared.prompt && shared.is_whole_prompt) begin = *shared.prompt;
    if (shared.prompt && !shared.is_whole_prompt) {
      rewritten.push_back({number, Rewritten::How::kPrompt});
      begin = std::min(begin, std::max(WholeCharacters(*shared.prompt), OwnBegin(turn)));
    }
    if (begin > end) return std::nullopt;
    return Reply{.range = {begin, end}, .turn = number, .said = std::max(begin, said ? said->end : begin)};
  }

 private:
  // ---- Places in the whole text.

  // Where the parts of each turn begin and end, and where those of all turns before it end.
  void FindOwnParts() {
    own_.resize(turns_.size());
    size_t begin = 0;
    for (const jinja::Run& run : whole_.turns) {
      if (run.value >= 0 && static_cast<size_t>(run.value) < own_.size()) {
        std::optional<TextRange>& own = own_[static_cast<size_t>(run.value)];
        own = TextRange{own ? own->begin : begin, run.end};
      }
      begin = run.end;
    }
    size_t end = 0, silent = 0;
    for (size_t i = 0; i < own_.size(); ++i) {
      before_.push_back(end);
      silent_before_.push_back(silent);
      if (own_[i]) end = std::max(end, own_[i]->end);
      silent = said_[i] ? 0 : silent + 1;
    }
  }

  // Where the rendering up to a reply is looked at: behind what it says, or where its own part begins.
  size_t AnchorOf(size_t turn) const {
    if (said_[turn]) return said_[turn]->end;
    return own_[turn] ? own_[turn]->begin : before_[turn];
  }

  // Where the reply ends, once it is known how much of the rendering up to it is shared.
  size_t EndOf(size_t turn) const {
    if (shared_[turn].then) return *shared_[turn].then;
    return said_[turn] ? said_[turn]->end : 0;
  }

  // Where the part of the turn that reaches to what it says, or to its end, begins, as far as the template tells.
  size_t OwnBegin(size_t turn) const {
    const size_t before = said_[turn] ? said_[turn]->begin : EndOf(turn);
    const auto value = static_cast<int32_t>(turn);
    const auto& runs = whole_.turns;
    const auto run =
        std::upper_bound(runs.begin(), runs.end(), before, [](size_t at, const jinja::Run& r) { return at < r.end; });
    const auto begin_of = [&](auto of) { return of == runs.begin() ? 0 : std::prev(of)->end; };
    if (run != runs.end() && run->value == value) return begin_of(run);
    if (run != runs.begin() && std::prev(run)->value == value) return begin_of(std::prev(run));
    return before;
  }

  // Where the prompt that asks for the reply is looked at.
  size_t PromptAnchorOf(size_t turn) const { return said_[turn] ? OwnBegin(turn) : AnchorOf(turn); }

  // `end`, or the beginning of the character that it is within.
  size_t WholeCharacters(size_t end) const {
    while (end > 0 && end < whole_.text.size() && (static_cast<unsigned char>(whole_.text[end]) & 0xC0) == 0x80) --end;
    return end;
  }

  // ---- Replies that are rendered.

  absl::StatusOr<Departure> RunTurn(size_t turn) {
    is_exact_[turn] = true;
    Shared& shared = shared_[turn] = {};
    Departure departure;
    if (wanted_.then) TDOCK_RETURN_IF_ERROR(CompareThen(turn, shared, departure));
    if (wanted_.prompt && !shared.later) TDOCK_RETURN_IF_ERROR(ComparePrompt(turn, shared, departure));
    return departure;
  }

  absl::Status CompareThen(size_t turn, Shared& shared, Departure& departure) {
    TDOCK_ASSIGN_OR_RETURN(const Rendered* const then, renderings_.First(turn + 1, false));
    departure.then = Departure::Then::kRefused;
    if (then == nullptr) return absl::OkStatus();
    const std::optional<TextRange>& said = said_[turn];
    const size_t same = CommonPrefix(whole_.text, then->text);
    shared.later = SaidByEach(*then, turn + 1)[turn] != said || (said && same < said->end);
    departure.then = Departure::Then::kLater;
    if (shared.later) return absl::OkStatus();
    shared.then = same;
    const bool to_own_end = own_[turn] && same >= own_[turn]->end;
    const size_t anchor = to_own_end ? own_[turn]->end : AnchorOf(turn);
    departure.then = to_own_end       ? Departure::Then::kAtOwnEnd
                     : same >= anchor ? Departure::Then::kAtAnchor
                                      : Departure::Then::kNowhere;
    if (same >= anchor) departure.tail = then->text.substr(anchor);
    if (said) CompareEnd(then->text, said->end, anchor, shared, departure);
    return absl::OkStatus();
  }

  // Looks for the special token that ends the turn in `then`, the conversation up to it, from `said_end` on.
  void CompareEnd(absl::string_view then, size_t said_end, size_t anchor, Shared& shared, Departure& departure) {
    const size_t same = *shared.then;
    if (same == then.size()) return;
    const std::optional<TextRange> special = FirstSpecial(tokenizer_, then.substr(said_end));
    if (!special || said_end + special->end <= same) return;
    const size_t begin = said_end + special->begin;
    shared.ends_otherwise = departure.ends_otherwise = true;
    shared.then = std::min(same, begin);
    departure.tail.resize(std::min(departure.tail.size(), std::max(begin, anchor) - anchor));
  }

  absl::Status ComparePrompt(size_t turn, Shared& shared, Departure& departure) {
    departure.prompt = Departure::Prompt::kRefused;
    if (turn == 0) return absl::OkStatus();  // nobody can be asked
    TDOCK_ASSIGN_OR_RETURN(const Rendered* const prompt, renderings_.First(turn, true));
    if (prompt == nullptr) return absl::OkStatus();
    const size_t same = CommonPrefix(whole_.text, prompt->text), anchor = PromptAnchorOf(turn);
    shared.prompt = same;
    shared.is_whole_prompt = same == prompt->text.size();
    if (same >= anchor) {
      departure.prompt = Departure::Prompt::kAsks;
      departure.asks = prompt->text.substr(anchor);
    } else if (shared.is_whole_prompt) {
      departure.prompt = Departure::Prompt::kShort;
      departure.missing = anchor - same;
    } else {
      departure.prompt = Departure::Prompt::kBefore;
    }
    return absl::OkStatus();
  }

  absl::Status RunAll(std::span<const size_t> members) {
    for (const size_t turn : members) {
      if (!is_exact_[turn]) TDOCK_RETURN_IF_ERROR(RunTurn(turn).status());
    }
    return absl::OkStatus();
  }

  // ---- Classes.

  // How much of what the turn says is rendered, in two characters: of its thinking, and of its content.
  std::string Completeness(size_t turn) const {
    const TextRange said = said_[turn].value_or(TextRange{});
    const std::string& content = turns_[turn].content;
    const absl::string_view all = absl::string_view(whole_.text).substr(said.begin, said.end - said.begin);
    const absl::string_view shown = absl::StripAsciiWhitespace(all), own = absl::StripAsciiWhitespace(content);
    const absl::string_view thought = conversation_.thinking(turn);
    const char thinking = thought.empty() ? '.' : absl::StartsWith(shown, thought) ? '+' : '-';
    if (!said_[turn]) return {thinking, content.empty() ? '.' : own.empty() ? ' ' : '0'};
    char how = said_bytes_[turn] < own.size() ? '<' : '>';
    if (all == content) {
      how = '=';
    } else if (own.empty()) {
      how = '.';
    } else if (shown == own) {
      how = 't';
    } else if (absl::EndsWith(shown, own) || absl::StartsWith(shown, own)) {
      how = absl::EndsWith(shown, own) ? 'e' : 'b';
    } else if (absl::EndsWith(own, shown) || absl::StartsWith(own, shown)) {
      how = absl::EndsWith(own, shown) ? 's' : 'p';
    }
    return {thinking, how};
  }

  // The template's text before and behind what the turn says; where it says nothing, all of its own part, or, where
  // there is none, what lies around it and how many turns before it say nothing, too.
  std::string TextAround(size_t turn) const {
    const absl::string_view text = whole_.text;
    const std::optional<TextRange>& own = own_[turn];
    const auto part = [&](size_t begin, size_t end) {
      return WithoutNumbers(text.substr(begin, std::max(begin, end) - begin));
    };
    // The first part that somebody says and that ends at `place` or behind it.
    const auto around = [&](size_t place) {
      return std::lower_bound(whole_.content.begin(), whole_.content.end(), place,
                              [](const TextRange& range, size_t at) { return range.end < at; });
    };
    if (!said_[turn]) {
      // Without a part of its own, it is somewhere between what is said before and behind it.
      const size_t begin = AnchorOf(turn);
      const auto next = around(begin + 1);
      const size_t end = own ? own->end : next == whole_.content.end() ? text.size() : next->begin;
      return absl::StrCat(own ? 0 : silent_before_[turn], " ", part(begin, std::min(end, begin + kMaxBytesAround)));
    }
    const TextRange said = *said_[turn];
    const auto first = around(said.begin + 1), last = around(said.end);
    size_t begin = first->begin < said.begin ? said.begin : first == whole_.content.begin() ? 0 : std::prev(first)->end;
    size_t end = last->end > said.end                      ? said.end
                 : std::next(last) == whole_.content.end() ? text.size()
                                                           : std::next(last)->begin;
    if (own && own->begin < said.begin) begin = std::max(begin, own->begin);
    if (own && own->end > said.end) end = std::min(end, own->end);
    begin = std::max(begin, said.begin - std::min(said.begin, kMaxBytesAround));
    end = std::min(end, said.end + kMaxBytesAround);
    return absl::StrCat(part(begin, said.begin), absl::string_view("\0", 1), part(said.end, end));
  }

  void MakeClasses() {
    said_bytes_.assign(turns_.size(), 0);
    size_t begin = 0;
    for (const jinja::Run& run : whole_.content_turns) {
      if (run.value >= 0) said_bytes_[static_cast<size_t>(run.value)] += run.end - begin;
      begin = run.end;
    }
    size_t last_user = turns_.size();
    while (last_user > 0 && turns_[last_user - 1].role != Role::kUser) --last_user;
    absl::flat_hash_map<std::string, size_t> known;
    absl::flat_hash_set<std::string> since_user;  // the kinds of turns
    size_t since_user_hash = 0;
    for (size_t i = 0; i < turns_.size(); ++i) {
      const std::string kind = absl::StrCat(RoleName(turns_[i].role), turns_[i].has_content ? " " : "-",
                                            Completeness(i), conversation_.field_names(i));
      if (turns_[i].role == Role::kAssistant) {
        const auto role = [&](size_t at) { return at < turns_.size() ? RoleName(turns_[at].role) : ""; };
        std::string key = absl::StrCat(role(i - 1), "|", kind, "|", role(i + 1), "|", since_user_hash, "|",
                                       i >= last_user ? "tail|" : "|", TextAround(i));
        const auto [found, is_new] = known.try_emplace(std::move(key), classes_.size());
        if (is_new) classes_.emplace_back();
        classes_[found->second].push_back(i);
      }
      if (turns_[i].role == Role::kUser) {
        since_user.clear();
        since_user_hash = 0;
      }
      // A sum, in which the order of the kinds does not count.
      if (since_user.insert(kind).second) since_user_hash += absl::HashOf(kind);
    }
  }

  absl::Status RunClass(std::span<const size_t> members) {
    const size_t count = members.size(), middle = count / 2;
    std::optional<Departure> common;
    bool agree = true;
    for (size_t i = 0; i < count && agree; ++i) {
      const bool in_the_middle = i >= middle && i < middle + kExactInTheMiddle;
      if (i >= kExactAtEnds && i + kExactAtEnds < count && !in_the_middle) continue;
      TDOCK_ASSIGN_OR_RETURN(Departure departure, RunTurn(members[i]));
      agree = departure.then != Departure::Then::kNowhere && (!common || departure == *common);
      if (!common) common = std::move(departure);
    }
    if (!agree) return RunAll(members);
    for (const size_t turn : members) {
      if (!is_exact_[turn]) Transfer(turn, *common);
    }
    return absl::OkStatus();
  }

  // The beginning that a turn shares if it departs from the whole in this way.
  void Transfer(size_t turn, const Departure& departure) {
    Shared& shared = shared_[turn] = {};
    const absl::string_view text = whole_.text;
    shared.later = departure.then == Departure::Then::kLater;
    shared.ends_otherwise = departure.ends_otherwise;
    if (departure.then == Departure::Then::kAtAnchor || departure.then == Departure::Then::kAtOwnEnd) {
      const bool to_own_end = departure.then == Departure::Then::kAtOwnEnd && own_[turn];
      const size_t anchor = to_own_end ? own_[turn]->end : AnchorOf(turn);
      shared.then = anchor + CommonPrefix(text.substr(anchor), departure.tail);
    }
    if (departure.prompt == Departure::Prompt::kNotAsked || departure.prompt == Departure::Prompt::kRefused) return;
    if (departure.prompt == Departure::Prompt::kBefore) {
      shared.prompt = 0;  // as any place before the anchor
      return;
    }
    const size_t anchor = PromptAnchorOf(turn);
    shared.is_whole_prompt = true;
    shared.prompt = anchor - std::min(anchor, departure.missing);
    if (departure.prompt != Departure::Prompt::kAsks) return;
    const size_t same = CommonPrefix(text.substr(anchor), departure.asks);
    shared.prompt = anchor + same;
    shared.is_whole_prompt = same == departure.asks.size();
  }

  const Tokenizer& tokenizer_;
  const ChatTemplate::Prepared& conversation_;
  Renderings& renderings_;
  const Rendered& whole_;
  const std::vector<std::optional<TextRange>>& said_;
  const std::span<const Turn> turns_;
  const AskedFor wanted_;
  std::vector<std::optional<TextRange>> own_;                // by turn
  std::vector<size_t> before_, silent_before_, said_bytes_;  // by turn
  std::vector<size_t> replies_;
  std::vector<Shared> shared_;  // by turn, of replies
  std::vector<bool> is_exact_;
  std::vector<std::vector<size_t>> classes_;
};

RepliesOfConversation Accepted(const ReplyFinder& finder) {
  RepliesOfConversation found;
  for (const size_t turn : finder.replies()) {
    const std::optional<Reply> reply = finder.ReplyOf(turn, found.rewritten);
    if (!reply || (!found.replies.empty() && reply->range.begin < found.replies.back().range.end)) continue;
    found.replies.push_back(*reply);
  }
  return found;
}

}  // namespace

absl::StatusOr<RepliesOfConversation> FindReplies(const RenderedToEncode& rendered, std::span<const Turn> turns,
                                                  Renderings& renderings, size_t max_exact) {
  ReplyFinder finder(rendered, turns, {.then = true, .prompt = true}, renderings);
  TDOCK_RETURN_IF_ERROR(finder.Run(max_exact));
  // Where the last one begins is where the prompt ends, which must be exact.
  for (;;) {
    RepliesOfConversation found = Accepted(finder);
    if (found.replies.empty()) return found;
    const auto last = static_cast<size_t>(found.replies.back().turn);
    if (finder.is_exact(last)) return found;
    TDOCK_RETURN_IF_ERROR(finder.RunExactly(last));
  }
}

absl::StatusOr<std::vector<Rewritten>> FindRewritten(const RenderedToEncode& rendered, std::span<const Turn> turns,
                                                     Renderings& renderings) {
  ReplyFinder finder(rendered, turns, {.then = true, .prompt = false}, renderings);
  TDOCK_RETURN_IF_ERROR(finder.Run(kMaxExactReplies));
  std::vector<Rewritten> rewritten;
  for (const size_t turn : finder.replies()) finder.AddRewritten(turn, rewritten);
  return rewritten;
}

absl::StatusOr<PromptsOfConversation> FindPrompts(const RenderedToEncode& rendered, std::span<const Turn> turns,
                                                  size_t max_exact) {
  Renderings renderings(rendered.conversation, 0);
  ReplyFinder finder(rendered, turns, {.then = false, .prompt = true}, renderings);
  TDOCK_RETURN_IF_ERROR(finder.Run(max_exact));
  PromptsOfConversation found;
  for (const size_t turn : finder.replies()) {
    const Shared& shared = finder.shared(turn);
    if (!shared.prompt || !shared.is_whole_prompt) break;
    found.ends.push_back(*shared.prompt);
  }
  found.renders = renderings.renders();
  return found;
}

}  // namespace tdock::text
