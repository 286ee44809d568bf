#include "engine/scheduler.h"

#include <algorithm>
#include <optional>
#include <span>
#include <utility>

namespace tdock::engine {
namespace {

// Up to `most` tokens that followed the last few where these stood before; of several places the latest.
std::vector<int32_t> GuessNext(std::span<const int32_t> tokens, int64_t most) {
  constexpr size_t kLongest = 3, kShortest = 2;
  for (size_t length = std::min(kLongest, tokens.size()); length >= kShortest; --length) {
    const auto last = tokens.last(length), before = tokens.first(tokens.size() - 1);
    const auto found = std::find_end(before.begin(), before.end(), last.begin(), last.end());
    if (found == before.end()) continue;
    const auto begin = found + static_cast<std::ptrdiff_t>(length);
    return {begin, begin + std::min<std::ptrdiff_t>(most, tokens.end() - begin)};
  }
  return {};
}

}  // namespace

void Scheduler::Add(Sequence& sequence) {
  sequence.state = Sequence::State::kWaits;
  waiting_.insert(&sequence);
}

void Scheduler::Fork(const Sequence& from, Sequence& sequence) {
  const std::optional<int64_t> copy = Places() > 0 ? cache_.Fork(from.cache, from.cached) : std::nullopt;
  if (!copy) return Add(sequence);
  sequence.cache = *copy;
  sequence.cached = from.cached;
  Run(sequence);
}

void Scheduler::Run(Sequence& sequence) {
  sequence.state = Sequence::State::kRuns;
  running_.insert(&sequence);
  --places_of_batch_;
}

int64_t Scheduler::Places() {
  const int64_t places = limits_.max_rows - running();
  if (!limits_.one_batch_at_a_time) return places;
  if (running_.empty()) places_of_batch_ = limits_.max_rows;
  return std::min(places, places_of_batch_);
}

void Scheduler::Remove(Sequence& sequence) {
  waiting_.erase(&sequence);
  if (running_.erase(&sequence) > 0) cache_.Remove(sequence.cache);
}

void Scheduler::SendBack(Sequence& sequence) {
  Remove(sequence);
  sequence.cache = -1;
  sequence.cached = 0;
  Add(sequence);
}

// Sends back those behind it until there is room; false if there is none then either.
bool Scheduler::MakeRoom(Sequence& sequence, int64_t length) {
  while (!cache_.Reserve(sequence.cache, length)) {
    Sequence& last = **running_.rbegin();
    if (&last == &sequence) return false;
    SendBack(last);
    ++preemptions_;
  }
  return true;
}

// Begins with what the cache has of its tokens, but for the last one, whose logits are needed.
bool Scheduler::Admit(Sequence& sequence, int64_t most) {
  sequence.cache = cache_.Add();
  if (sequence.shares) {
    const auto shared = static_cast<size_t>(std::min(sequence.size() - 1, sequence.max_shared));
    sequence.cached = cache_.Share(sequence.cache, std::span<const int32_t>(sequence.tokens).first(shared));
  }
  const int64_t count = std::min(sequence.size() - sequence.cached, most);
  if (!cache_.Reserve(sequence.cache, sequence.cached + count)) {
    cache_.Remove(sequence.cache);
    sequence.cache = -1;
    sequence.cached = 0;
    return false;
  }
  shared_tokens_ += sequence.cached;
  waiting_.erase(&sequence);
  Run(sequence);
  return true;
}

std::vector<Piece> Scheduler::Next() {
  too_long_ = nullptr;
  std::vector<Piece> pieces;
  int64_t left = limits_.max_step_tokens;
  const int64_t preempted_before = preemptions_;
  for (auto next = running_.begin(); next != running_.end() && left > 0;) {
    Sequence& sequence = **next;
    const int64_t count = std::min(sequence.size() - sequence.cached, left);
    if (!MakeRoom(sequence, sequence.cached + count)) {
      SendBack(sequence);
      ++preemptions_;
      break;
    }
    pieces.push_back({.sequence = &sequence, .count = count});
    left -= count;
    ++next;  // those that were sent back were behind it
  }
  // Where the cache is full, those that wait would only push out one another.
  if (preemptions_ > preempted_before) return pieces;
  while (!waiting_.empty()) {
    Sequence& sequence = **waiting_.begin();
    if (left > 0 && Places() > 0 && Admit(sequence, left)) {
      pieces.push_back({.sequence = &sequence, .count = std::min(sequence.size() - sequence.cached, left)});
      left -= pieces.back().count;
      continue;
    }
    if (running_.empty()) {
      too_long_ = &sequence;
      break;
    }
    // One with a higher priority takes the place of the last.
    Sequence& last = **running_.rbegin();
    if (limits_.one_batch_at_a_time || last.priority >= sequence.priority) break;
    const auto piece = std::find_if(pieces.begin(), pieces.end(), [&](const Piece& p) { return p.sequence == &last; });
    if (left <= 0 && piece == pieces.end()) break;  // its place has no tokens in this step
    if (piece != pieces.end()) {
      left += piece->count;
      pieces.erase(piece);
    }
    SendBack(last);
    ++preemptions_;
  }
  Guess(pieces);
  return pieces;
}

void Scheduler::Guess(std::vector<Piece>& pieces) {
  int64_t left = limits_.speculative_tokens + 1;
  for (const Piece& piece : pieces) left -= piece.count;
  std::vector<Draft::Asked> asked;
  for (Piece& piece : pieces) {
    const Sequence& sequence = *piece.sequence;
    if (!sequence.may_guess || sequence.completion.tokens.empty() || !sequence.IsReadWith(piece.count)) continue;
    // The last token of an answer does not pass through the model.
    const int64_t most = std::min({left, sequence.guess_length, sequence.longest - sequence.size() - 1});
    if (most <= 0) continue;
    std::vector<int32_t> guesses = GuessNext(sequence.tokens, most);
    const int64_t count = guesses.empty() && draft_ != nullptr ? most : std::ssize(guesses);
    if (count == 0 || !cache_.Reserve(sequence.cache, sequence.size() + count)) continue;
    left -= count;
    piece.guesses = std::move(guesses);
    if (piece.guesses.empty()) asked.push_back({.sequence = &sequence, .most = most, .guesses = &piece.guesses});
  }
  if (!asked.empty()) draft_->Guess(asked);
}

void Scheduler::Done(const Piece& piece) {
  piece.sequence->cached += piece.count;
  if (!piece.sequence->shares) return;
  cache_.Publish(piece.sequence->cache,
                 std::span<const int32_t>(piece.sequence->tokens).first(static_cast<size_t>(piece.sequence->cached)));
}

void Scheduler::Forget(bool go_on) {
  while (!go_on && !running_.empty()) SendBack(**running_.begin());
  cache_.Forget();
}

}  // namespace tdock::engine
