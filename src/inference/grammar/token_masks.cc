#include "inference/grammar/token_masks.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "absl/strings/str_cat.h"
#include "core/base/status.h"

namespace tdock::inference {
namespace {

// Nanoseconds, about, that may be used to find new states for a token.
constexpr int64_t kMaxWorkOfToken = 100'000'000;
// More room than tokens can use up.
constexpr int kPlentyOfRoom = 1 << 20;
// In keys of masks, for every room that suffices.
constexpr uint64_t kEnoughRoom = 0xFF;

void AllowToken(TokenMask& mask, int32_t token) {
  mask[static_cast<size_t>(token) / 64] |= uint64_t{1} << (static_cast<size_t>(token) % 64);
}

// Different for specifications that differ.
std::string KeyOfSpec(const GrammarSpec& spec) {
  std::string key = absl::StrCat(static_cast<int>(spec.kind), spec.one_call ? "one" : "", spec.tags ? "tags" : "");
  const auto add = [&](const std::string& text) { absl::StrAppend(&key, ",", text.size(), ":", text); };
  add(spec.text);
  for (const std::string& choice : spec.choices) add(choice);
  for (const CallRule& rule : spec.calls) {
    for (const std::string* const text : {&rule.name, &rule.parameters, &rule.before, &rule.after}) add(*text);
  }
  for (const std::string* const text :
       {&spec.before_call, &spec.after_call, &spec.before_calls, &spec.between_calls, &spec.after_calls}) {
    add(*text);
  }
  if (!spec.tags) return key;
  for (const std::string* const text : {&spec.tags->before_name, &spec.tags->before_value, &spec.tags->after_value}) {
    add(*text);
  }
  return key;
}

}  // namespace

// Goes over all tokens from one place, those that begin alike at once.
class TokenMasks::Walker {
 public:
  Walker(Automaton& automaton, const Vocabulary& vocabulary, TokenMask& mask)
      : automaton_(automaton), vocabulary_(vocabulary), mask_(mask) {}

  // The nodes from `begin` to `end`, of which the first is at `depth`, for tokens that have come to `position` with the
  // bytes before. What closes the only frame becomes a segment.
  void Walk(Position& position, uint32_t begin, uint32_t end, size_t depth, std::vector<Segment>& segments) {
    path_.clear();
    const auto nodes = vocabulary_.nodes();
    for (uint32_t i = begin; i < end;) {
      const Vocabulary::Node& node = nodes[i];
      for (; path_.size() > node.depth - depth; path_.pop_back()) Automaton::Undo(position, path_.back());
      const Automaton::Step step = automaton_.Take(position, node.byte);
      if (step.did == Automaton::Did::kNothing) {
        i = node.next;
        continue;
      }
      for (const int32_t token : vocabulary_.TokensAt(node)) AllowToken(mask_, token);
      if (step.did == Automaton::Did::kLeft) {
        if (i + 1 < node.next) segments.push_back({.node = i, .ending = step.ending});
        i = node.next;
        continue;
      }
      least_room_ = std::min(least_room_, position.room);
      path_.push_back(step);
      ++i;
    }
    for (; !path_.empty(); path_.pop_back()) Automaton::Undo(position, path_.back());
  }

  int least_room() const { return least_room_; }

 private:
  Automaton& automaton_;
  const Vocabulary& vocabulary_;
  TokenMask& mask_;
  std::vector<Automaton::Step> path_;
  int least_room_ = kPlentyOfRoom;
};

TokenMasks::TokenMasks(std::shared_ptr<const Grammar> grammar, std::shared_ptr<const Vocabulary> vocabulary,
                       size_t max_bytes)
    : grammar_(std::move(grammar)),
      vocabulary_(std::move(vocabulary)),
      max_bytes_(max_bytes),
      none_(std::make_shared<TokenMask>((vocabulary_->size() + 63) / 64)),
      tables_(std::make_shared<Tables>(grammar_)) {
  bytes_ = tables_->bytes() + grammar_->bytes();
}

TokenMasks::Place TokenMasks::Start() {
  const MutexLock lock(mu_);
  Place place;
  place.tables_ = tables_;
  place.position_ = tables_->automaton.Start();
  Update(place);
  return place;
}

std::shared_ptr<const TokenMask> TokenMasks::Allowed(Place& place) {
  const MutexLock lock(mu_);
  if (place.failed_) return none_;
  Renew(place);
  Automaton& automaton = place.tables_->automaton;
  automaton.Allow(kMaxWorkOfToken);
  std::shared_ptr<const TokenMask> mask = MaskAt(*place.tables_, place.position_);
  bytes_ = tables_->bytes() + grammar_->bytes();
  place.failed_ = automaton.exhausted();
  return place.failed_ ? none_ : mask;
}

void TokenMasks::Accept(Place& place, int32_t token) {
  const std::string& special = vocabulary_->SpecialTextOf(token);
  const std::string& bytes = special.empty() ? vocabulary_->BytesOf(token) : special;
  const MutexLock lock(mu_);
  if (place.failed_ || bytes.empty()) return;
  Renew(place);
  Automaton& automaton = place.tables_->automaton;
  automaton.Allow(kMaxWorkOfToken);
  for (const char byte : bytes) {
    const auto did = automaton.Take(place.position_, static_cast<uint8_t>(byte), !special.empty()).did;
    place.failed_ = place.failed_ || did == Automaton::Did::kNothing || did == Automaton::Did::kLeft;
    if (place.failed_) break;
  }
  Update(place);
}

// Lets a place go on in new tables if the old ones have become too large.
void TokenMasks::Renew(Place& place) {
  if (tables_->bytes() > max_bytes_) tables_ = std::make_shared<Tables>(grammar_);
  if (place.tables_ == tables_) return;
  place.position_ = tables_->automaton.Adopt(place.tables_->automaton, place.position_);
  place.tables_ = tables_;
}

void TokenMasks::Update(Place& place) {
  const Automaton& automaton = place.tables_->automaton;
  place.may_end_ = !place.failed_ && automaton.may_end(place.position_);
  place.complete_ = !place.failed_ && automaton.complete(place.position_);
}

// As far as a token can tell: 0 if it does not matter, and one more than a token has bytes for all that is more.
uint32_t TokenMasks::CountsLeft(const Automaton& automaton, Frame frame) const {
  const auto left = automaton.CountsLeft(frame);
  return left ? std::min(*left, static_cast<uint32_t>(vocabulary_->max_token_bytes() + 1)) : 0;
}

std::shared_ptr<const TokenMask> TokenMasks::MaskAt(Tables& tables, Position& position) const {
  Automaton& automaton = tables.automaton;
  const std::shared_ptr<const FrameMask> within = FrameMaskAt(tables, position);
  if (within->segments.empty() || position.frames.size() == 1) return within->mask;
  std::string key;
  for (const Frame frame : position.frames) {
    for (const uint32_t part : {frame.state, CountsLeft(automaton, frame)}) {
      key.append(reinterpret_cast<const char*>(&part), sizeof(part));
    }
  }
  const auto found = tables.masks.find(key);
  if (found != tables.masks.end()) return found->second;
  const auto mask = std::make_shared<TokenMask>(*within->mask);
  Walker walker(automaton, *vocabulary_, *mask);
  std::vector<Segment> none;  // the outermost frame does not close
  Position outside;
  for (size_t i = 0; i < within->segments.size(); ++i) {
    const Segment segment = within->segments[i];
    if (i == 0 || segment.ending != within->segments[i - 1].ending) {
      outside = position;
      automaton.Leave(outside, segment.ending);
    }
    const Vocabulary::Node& node = vocabulary_->nodes()[segment.node];
    walker.Walk(outside, segment.node + 1, node.next, size_t{node.depth} + 1, none);
  }
  if (automaton.exhausted()) return none_;
  tables.mask_bytes += mask->size() * sizeof(uint64_t) + 2 * key.size() + 100;
  tables.masks[std::move(key)] = mask;
  return mask;
}

std::shared_ptr<const TokenMasks::FrameMask> TokenMasks::FrameMaskAt(Tables& tables, const Position& position) const {
  Automaton& automaton = tables.automaton;
  const Frame frame = position.frames.back();
  const auto of_room = [&](uint64_t key_room, int room) {
    const uint64_t key = uint64_t{frame.state} << 32 | uint64_t{CountsLeft(automaton, frame)} << 8 | key_room;
    const auto found = tables.frame_masks.find(key);
    if (found != tables.frame_masks.end()) return found->second;
    const std::shared_ptr<const FrameMask> made = MakeFrameMask(automaton, frame, room);
    if (automaton.exhausted()) return made;
    tables.mask_bytes += made->mask->size() * sizeof(uint64_t) + made->segments.size() * sizeof(Segment) + 200;
    tables.frame_masks[key] = made;
    return made;
  };
  // A state whose room is less has just that.
  if (automaton.room(frame) < automaton.enough_room()) {
    return of_room(static_cast<uint64_t>(automaton.room(frame)), automaton.room(frame));
  }
  const std::shared_ptr<const FrameMask> usual = of_room(kEnoughRoom, kPlentyOfRoom);
  if (position.room >= usual->min_room) return usual;
  return of_room(static_cast<uint64_t>(position.room), position.room);
}

std::shared_ptr<const TokenMasks::FrameMask> TokenMasks::MakeFrameMask(Automaton& automaton, Frame frame,
                                                                       int room) const {
  auto made = std::make_shared<FrameMask>();
  const auto mask = std::make_shared<TokenMask>((vocabulary_->size() + 63) / 64);
  Position position{.frames = {frame}, .room = room};
  if (automaton.may_end(position)) {
    for (const int32_t token : vocabulary_->end_tokens()) AllowToken(*mask, token);
  }
  if (automaton.has_special(position)) {
    for (const auto& [text, token] : vocabulary_->special_tokens()) {
      Position after = position;
      const bool fits = std::all_of(text.begin(), text.end(), [&](char byte) {
        return automaton.Take(after, static_cast<uint8_t>(byte), /*special=*/true).did == Automaton::Did::kMoved;
      });
      if (fits) AllowToken(*mask, token);
    }
  }
  Walker walker(automaton, *vocabulary_, *mask);
  walker.Walk(position, 0, static_cast<uint32_t>(vocabulary_->nodes().size()), 0, made->segments);
  made->min_room = automaton.enough_room() + (kPlentyOfRoom - walker.least_room());
  // Segments with one ending are gone through together.
  std::stable_sort(made->segments.begin(), made->segments.end(),
                   [](const Segment& a, const Segment& b) { return a.ending < b.ending; });
  made->mask = mask;
  return made;
}

absl::StatusOr<std::shared_ptr<TokenMasks>> Grammars::For(GrammarSpec spec) {
  std::string key = KeyOfSpec(spec);
  {
    const MutexLock lock(mu_);
    const auto found = places_.find(key);
    if (found != places_.end()) {
      kept_.splice(kept_.begin(), kept_, found->second);
      return found->second->second;
    }
  }
  if (spec.kind == GrammarSpec::Kind::kCalls) {
    for (const auto& [text, token] : vocabulary_->special_tokens()) spec.special_tokens.push_back(text);
  }
  TDOCK_ASSIGN_OR_RETURN(std::shared_ptr<const Grammar> grammar, CompileGrammar(spec));
  auto masks = std::make_shared<TokenMasks>(std::move(grammar), vocabulary_);
  Kept dropped;  // freed without the lock
  const MutexLock lock(mu_);
  const auto [found, is_new] = places_.try_emplace(key);
  if (!is_new) return found->second->second;
  kept_.emplace_front(std::move(key), masks);
  found->second = kept_.begin();
  size_t bytes = 0, count = 0;
  for (auto kept = kept_.begin(); kept != kept_.end();) {
    const auto next = std::next(kept);
    bytes += kept->second->bytes() + 2 * kept->first.size();
    if (++count > 1 && (bytes > max_bytes_ || count > kMaxGrammars)) {
      places_.erase(kept->first);
      dropped.splice(dropped.end(), kept_, kept);
    }
    kept = next;
  }
  return masks;
}

}  // namespace tdock::inference
